"""The settings of torchao and Transformer Engine that come closest to a plan, and how they differ."""

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
    """The setting of a library that comes closest to some layers of a plan.

    Attributes:
      library: "torchao" or "Transformer Engine".
      layers: names of the layers.
      how: the setting, as code; "" if the library has none for them.
      differs: how the setting differs from the plan, or the loss of the layers with a recipe that the library has; ""
        without a known difference.
    """

    library: str
    layers: tuple[str, ...]
    how: str
    differs: str

    def __str__(self) -> str:
        layers = listed([layer or "(model)" for layer in self.layers], NAMED)
        return f"{self.library}, {layers}: {self.how or 'no setting'}. {self.differs}".rstrip()


class ChoiceLike(Protocol):
    """The fields of a choice that settings depend on."""

    @property
    def layer(self) -> str: ...
    @property
    def product(self) -> str: ...
    @property
    def recipe(self) -> str: ...


def settings_of(
    choices: Sequence[ChoiceLike], recipes: Mapping[str, LinearRecipe], lost: Callable[[Sequence[str], str], str]
) -> tuple[Setting, ...]:
    """Return the closest settings of both libraries, one for all layers whose recipes are equal.

    Args:
      choices: the choices of a plan.
      recipes: name -> recipe.
      lost: returns a sentence on the loss of some layers with one recipe for all of their products, "" if it was not
        measured.

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
                said = Said("", f"A layer cannot have {products_in} there. {instead}")
            settings.append(Setting(library, tuple(layers), said.how, said.differs))
    return tuple(settings)


def _instead(
    say: Callable[[Mapping[str, LinearRecipe]], Said | None], layers: Sequence[str],
    assigned: Sequence[tuple[str, str]], recipes: Mapping[str, LinearRecipe],
    lost: Callable[[Sequence[str], str], str],
) -> str:  # fmt: skip
    """Return sentences on the loss if all products of some layers followed one recipe that the library supports."""
    possible = [name for name, recipe in recipes.items() if say({product: recipe for product, _ in assigned})]
    candidates = [name for name in possible if name in dict(assigned).values()] or possible
    losses = [text for text in (lost(layers, name) for name in candidates) if text]
    return " ".join(losses) if losses else "The library has none of the recipes for all of its products."
