"""The settings of torchao and Transformer Engine that are closest to a plan, and how they differ from the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fpsim.analysis.studies.planning.product_kinds import Said
from fpsim.analysis.studies.planning.torchao import torchao_setting
from fpsim.analysis.studies.planning.transformer_engine import transformer_engine_setting
from fpsim.display.wording import listed
from fpsim.recipes.linear_recipe import LinearRecipe

NAMED = 3  # layers that a sentence names


class Setting(NamedTuple):
    """The setting of a library that is closest to the plan's recipes for some layers.

    Attributes:
      library: "torchao" or "Transformer Engine".
      layers: names of the layers.
      how: the setting, as Python code; "" if the library has none for these layers.
      differs: sentences on how the setting differs from the plan; without a setting, on how the plan's predicted metric
        changes with recipes that the library supports. "" if no difference is known.
    """

    library: str
    layers: tuple[str, ...]
    how: str
    differs: str

    def __str__(self) -> str:
        layers = listed([layer or "(model)" for layer in self.layers], NAMED)
        return f"{self.library}, {layers}: {self.how or 'no setting'}. {self.differs}".rstrip()


def settings_of(
    choices: Sequence[Any], recipes: Mapping[str, LinearRecipe], lost: Callable[[Sequence[str], str], str]
) -> tuple[Setting, ...]:
    """Return the closest settings of torchao and Transformer Engine, each for a set of layers with equal recipes.

    Args:
      choices: objects with the attributes layer, product and recipe, such as the choices of a plan.
      recipes: name -> recipe.
      lost: called with layers and the name of a recipe; returns a sentence on how the plan's predicted metric changes
        if all products of the layers follow the recipe, "" if unknown.

    Example:
      >>> from fpsim.analysis.studies.planning.libraries import settings_of
      >>> class Row:
      ...     layer, product, recipe = "0", "fprop", "MX"
      >>> for setting in settings_of([Row()], {"MX": fp.torch.MXFP8}, lambda layers, recipe: ""):
      ...     print(setting.how)
      quantize_(model, MXFP8TrainingOpConfig(), filter_fn), of torchao.prototype.moe_training.config
      te.autocast(recipe=MXFP8BlockScaling()) around the layers
    """
    assignments: dict[str, dict[str, str]] = {}
    for choice in choices:
        assignments.setdefault(choice.layer, {})[choice.product] = choice.recipe
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for layer, names in assignments.items():
        alike.setdefault(tuple(names.items()), []).append(layer)
    settings = []
    for library, say in (("torchao", torchao_setting), ("Transformer Engine", transformer_engine_setting)):
        for assigned, layers in alike.items():
            products = {product: recipes[name] for product, name in assigned}
            said = say(products)
            if said is None:
                products_in = ", ".join(f"{product} in {name}" for product, name in assigned)
                possible = [name for name, recipe in recipes.items() if say(dict.fromkeys(products, recipe))]
                candidates = [name for name in possible if name in dict(assigned).values()] or possible
                losses = [text for text in (lost(layers, name) for name in candidates) if text]
                losses = losses or ["The library supports no recipe of the plan for all products of a layer."]
                said = Said("", f"The library cannot combine {products_in} in a layer. {' '.join(losses)}")
            settings.append(Setting(library, tuple(layers), said.how, said.differs))
    return tuple(settings)
