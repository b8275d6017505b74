"""The settings of torchao and Transformer Engine that are closest to a plan, and how they differ from the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

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


class ChoiceLike(Protocol):
    """The properties of a plan's `Choice` (the recipe of one product) that settings of libraries use, as a protocol."""

    @property
    def layer(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def recipe(self) -> str: ...


def settings_of(
    choices: Sequence[ChoiceLike], recipes: Mapping[str, LinearRecipe], lost: Callable[[Sequence[str], str], str]
) -> tuple[Setting, ...]:
    """Return the closest settings of torchao and Transformer Engine, each for a set of layers with equal recipes.

    Args:
      choices: the choices of a plan.
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
                instead = _instead(say, layers, assigned, recipes, lost)
                said = Said("", f"The library cannot combine {products_in} in a layer. {instead}")
            settings.append(Setting(library, tuple(layers), said.how, said.differs))
    return tuple(settings)


def _instead(
    say: Callable[[Mapping[str, LinearRecipe]], Said | None], layers: Sequence[str],
    assigned: Sequence[tuple[str, str]], recipes: Mapping[str, LinearRecipe],
    lost: Callable[[Sequence[str], str], str],
) -> str:  # fmt: skip
    """Return sentences on how the plan's predicted metric changes if some layers follow one recipe that a library has.

    `say`: called with product -> recipe; returns the library's setting, or None. `assigned`: (product, name of its
    recipe) pairs of the plan. `lost`: as in `settings_of`.
    """
    possible = [name for name, recipe in recipes.items() if say({product: recipe for product, _ in assigned})]
    candidates = [name for name in possible if name in dict(assigned).values()] or possible
    losses = [text for text in (lost(layers, name) for name in candidates) if text]
    return " ".join(losses) if losses else "The library supports no recipe of the plan for all products of a layer."
