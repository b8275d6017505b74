"""An arithmetic in a word, or as an object: which recipe each layer of a model follows under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fpsim.errors import nearest, shown, unknown
from fpsim.formats.named import FP32 as FLOAT32
from fpsim.lazy import public
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.matrix_units.chips import CHIPS, names_of
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling import recipes as scalings
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.written import MAKERS, parsed
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd
from fpsim.torch.chips import moved
from fpsim.torch.libraries import on_cublas
from fpsim.torch.recipe import PRODUCTS, LinearRecipe, Product
from fpsim.torch.rows import FP32, RECIPES
from fpsim.train.recipe import Recipe
from fpsim.train.recipes import ROWS
from fpsim.train.side_by_side import PLACES

DEFAULT = RECIPES["FP8_TENSOR"]
LIBRARY = "cuBLAS"  # what may follow a chip
WORDS = ("torch", "float32", "emulated", "gpu", "hardware")
OTHERS = (
    "a recipe such as DEEPSEEK_V3, a chip such as H100 or 'H100 cuBLAS', a unit of fp.units(), a schedule such as "
    "cutlass_2xacc(128), or an accumulator"
)
SMALL_BLOCKS = {(32, "E8M0"): scalings.TE_MX, (16, "E4M3"): scalings.NVFP4}  # of units that take scales


class Site(NamedTuple):
    """A layer at one call.

    Attributes:
      layer: its name.
      shapes: M, N and K of its products, by name.
      own: the recipe of a layer that is quantised already.
    """

    layer: str
    shapes: dict[str, tuple[int, int, int]]
    own: LinearRecipe | None = None


Recipes = tuple[LinearRecipe, LinearRecipe, LinearRecipe]  # of fprop, dgrad and wgrad
Follow = Callable[[Site], Recipes | None]  # None where a layer stays as it is
Change = Callable[[LinearRecipe, Site], LinearRecipe]


@dataclass(frozen=True)
class Way:
    """What the products of some layers follow.

    Attributes:
      follow: the recipes of a layer.
      backend: what multiplies, as of `fp.torch.QuantLinear`.
      remarks: what was left out, in sentences; filled as layers ask.
    """

    follow: Follow
    backend: str = "emulated"
    remarks: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Arithmetic:
    """An arithmetic of a model.

    Attributes:
      name: as it was asked for; "" for several.
      ways: what the layers of a shell pattern follow; of several that match a layer the last one counts, and a layer
        that none matches stays as it is.
    """

    name: str
    ways: tuple[tuple[str, Way], ...]

    def of(self, layer: str) -> Way | None:
        """What a layer follows."""
        return next((way for pattern, way in reversed(self.ways) if fnmatchcase(layer, pattern)), None)

    @property
    def remarks(self) -> list[str]:
        """What was left out."""
        return [remark for _, way in self.ways for remark in way.remarks]

    @property
    def place(self) -> str:
        """What multiplies, in words, where that is not this processor."""
        return next((PLACES[way.backend] for _, way in self.ways if way.backend in PLACES), "")


def arithmetic(what: str, spec: Any, recipe: Any = None) -> Arithmetic:
    """The arithmetic that a word or an object stands for.

    Args:
      what: the name of the argument, for messages.
      spec: as of `fp.analysis.diff`.
      recipe: as of `fp.analysis.diff`.

    Raises:
      ValueError, TypeError: there is no such arithmetic, or it does not take the recipe's operands.

    Example:
      >>> from fpsim.analysis.studies.differences.arithmetics import Site, arithmetic
      >>> site = Site("up", {"fprop": (16, 64, 256)})
      >>> arithmetic("first", "B200").of("up").follow(site)[0].fprop
      Product('blackwell_e4m3_f32', promote=128, out_fmt=BF16)
      >>> arithmetic("first", "H100 cuBLAS", "BF16").of("up").follow(site)[0].fprop
      Product('hopper_bf16_f32', schedule=cublas('sm_90', family='nvjet'), out_fmt=BF16)
    """
    if isinstance(spec, Mapping):
        if not spec or not all(isinstance(pattern, str) for pattern in spec):
            raise TypeError(f"{what} must map shell patterns of layers to arithmetics; got {shown(spec)}.")
        ways = tuple((pattern, _way(what, each, recipe)) for pattern, each in spec.items())
        return Arithmetic("", ways)
    return Arithmetic(_named(spec), (("*", _way(what, spec, recipe)),))


def _named(spec: Any) -> str:
    if isinstance(spec, str):
        return spec
    return getattr(spec, "name", "") or repr(spec)


def _way(what: str, spec: Any, recipe: Any) -> Way:
    """What follows from an object, or from a word."""
    if isinstance(spec, str):
        spec = _object(what, spec)
    if isinstance(spec, str):
        return _word(spec, recipe)
    if isinstance(spec, _Chip):
        return _chip(spec, recipe)
    if isinstance(spec, (LinearRecipe, Recipe)):
        return Way(_of_recipe(spec))
    if isinstance(spec, MatrixUnit):
        return _unit(spec, recipe)
    if isinstance(spec, Schedule):
        return _schedule(spec, recipe)
    if isinstance(spec, Accumulator):
        return Way(_changed(_base(recipe, FP32), lambda of, _: _with_accumulator(of, spec)))
    raise TypeError(f"{what} must be one of {', '.join(WORDS)}, {OTHERS}; got {shown(spec)}.")


class _Chip(NamedTuple):
    """A chip as it was asked for, and its library, "" for none."""

    word: str
    library: str = ""


def _object(what: str, word: str) -> Any:
    """What a word stands for; a word of WORDS stands for itself."""
    lower = word.strip().lower()
    if lower in WORDS:
        return lower
    for rows in (RECIPES, ROWS):
        if word.strip().upper() in rows:
            return rows[word.strip().upper()]
    chip, _, library = lower.rpartition(" ")
    if library == LIBRARY.lower() and _is_chip(chip):
        return _Chip(word.strip().rpartition(" ")[0], LIBRARY)
    if _is_chip(lower):
        return _Chip(word.strip())
    if lower in UNITS:
        return UNITS[lower]
    if word.partition("(")[0].strip() in MAKERS or word == "FLAT":
        return parsed(word)
    sold = sorted((name for chip in CHIPS.values() for name in names_of(chip)), key=len)  # "H100" before "H100 SXM"
    known = [*RECIPES, *ROWS, *(name.upper() for name in sold), *UNITS, *MAKERS]
    known += [f"{name.upper()} {LIBRARY}" for name in sold]
    meant = {name.lower(): name for name in (*WORDS, *known)}
    near = nearest(lower, meant)
    raise unknown(what, word, WORDS, others=OTHERS, meant=[meant[near]] if near else [])


def _is_chip(word: str) -> bool:
    return any(word.replace("-", "_") in names_of(chip) for chip in CHIPS.values())


# ---- what a recipe is changed to


def _base(recipe: Any, default: LinearRecipe = DEFAULT) -> Follow:
    """The recipe that is asked for; else a layer's own, or the default."""
    if recipe is None:
        return lambda site: (site.own or default,) * 3
    if isinstance(recipe, str):
        name = recipe.strip().upper()
        if name not in RECIPES and name not in ROWS:
            words = list(dict.fromkeys([*RECIPES, *ROWS]))
            raise unknown("recipe", recipe, words)
        recipe = RECIPES[name] if name in RECIPES else ROWS[name]
    if not isinstance(recipe, (LinearRecipe, Recipe)):
        raise TypeError(f"recipe must be an fp.torch.LinearRecipe, an fp.train.Recipe or a name; got {shown(recipe)}.")
    return _of_recipe(recipe)


def _of_recipe(recipe: LinearRecipe | Recipe) -> Follow:
    if isinstance(recipe, LinearRecipe):
        return lambda _: (recipe,) * 3

    def follow(site: Site) -> Recipes:
        fprop, dgrad, wgrad = (recipe.linear_of(site.layer, product, 0, 1) for product in PRODUCTS)
        return fprop, dgrad, wgrad

    return follow


def _changed(base: Follow, change: Change) -> Follow:
    """The recipes of a base, changed."""

    def follow(site: Site) -> Recipes | None:
        found = base(site)
        if found is None:
            return None
        if found[0] == found[1] == found[2]:
            return (change(found[0], site),) * 3
        fprop, dgrad, wgrad = (change(each, site) for each in found)
        return fprop, dgrad, wgrad

    return follow


def _word(word: str, recipe: Any) -> Way:
    if word == "torch":
        return Way(lambda _: None)
    if word == "float32":
        return Way(lambda _: (_with_accumulator(FP32, FusedMultiplyAdd(FLOAT32)),) * 3)
    if word in PLACES:
        public("fpsim.gpu.device.device").require_device()
    return Way(_base(recipe), word)


def _chip(chip: _Chip, recipe: Any) -> Way:
    """The units of a chip, and the schedules of its library."""
    base, remarks = _base(recipe), dict[str, None]()

    def change(of: LinearRecipe, site: Site) -> LinearRecipe:
        try:
            there = moved(of, chip.word)
            found = on_cublas(of, chip.word, site.shapes) if chip.library else there.recipe
        except ValueError as reason:
            if recipe is None and site.own is None:
                raise ValueError(f"{reason} Without recipe= it is FP8_TENSOR; recipe='BF16' is another.") from None
            raise
        for schedule in there.left_out.values():
            remarks[f"{chip.word} adds without {schedule}, a schedule for {schedule.arch}."] = None
        return found

    if recipe is not None:
        asked = base(Site("", {}))
        if asked is not None and not any(moved(each, chip.word).units for each in asked):
            raise ValueError(
                f"a chip needs a recipe with products on matrix units; got recipe={shown(recipe)}, which has none, so "
                f"that {chip.word} would give what every other one does. Take another recipe."
            )
    return Way(_changed(base, change), remarks=remarks)


def _unit(unit: MatrixUnit, recipe: Any) -> Way:
    """A unit in place of the recipe's, or one chain of it over operands that it takes."""
    if recipe is None:
        made = _recipe_of(unit)
        return Way(lambda _: (made,) * 3)

    def change(of: LinearRecipe, _: Site) -> LinearRecipe:
        products = {}
        for name in PRODUCTS:
            product = getattr(of, name)
            if of.accumulator(name) is not None:
                products[name] = product.replace(accumulate=unit)
        return of.replace(**products)

    return Way(_changed(_base(recipe), change))


def _recipe_of(unit: MatrixUnit) -> LinearRecipe:
    """Operands cast to what a unit takes, with a scale for each tensor where they have 8 bits or fewer."""
    a, b = (None if each.carrier.bits == 32 else each.fmt for each in (unit.a, unit.b))
    scaling: Scaling | None = None
    if unit.scale is not None:
        scaling = SMALL_BLOCKS.get((unit.block, str(unit.scale_format)))
        if scaling is None:
            raise ValueError(f"{unit.name} takes block scales that no row of fp.scalings has. Pass recipe=.")
    elif unit.a.fmt.bits <= 8:
        scaling = scalings.TENSOR
    back = scaling.transposed() if scaling is not None and unit.scale is not None else "same"
    one = Product(unit)
    return LinearRecipe(
        a, b, a, scaling if a is not None else None, scaling if b is not None else None,
        scaling if a is not None else None, input_scaling_backward=back, weight_scaling_backward=back,
        grad_scaling_backward=back, fprop=one, dgrad=one, wgrad=one if a == b else Product(unit.arch),
    )  # fmt: skip


def _schedule(schedule: Schedule, recipe: Any) -> Way:
    """A schedule in place of the recipe's, on the units of its chip."""

    def change(of: LinearRecipe, _: Site) -> LinearRecipe:
        there = moved(of, schedule.arch) if schedule.arch else None
        of = of if there is None else there.recipe
        products = {
            name: getattr(of, name).replace(schedule=schedule, promote=None)
            for name in PRODUCTS if isinstance(of.accumulator(name), MatrixUnit)
        }  # fmt: skip
        return of.replace(**products)

    return Way(_changed(_base(recipe), change))


def _with_accumulator(recipe: LinearRecipe, accumulator: Accumulator) -> LinearRecipe:
    """A recipe whose every product an accumulator adds."""
    changes = {"accumulate": accumulator, "schedule": None, "promote": None}
    return recipe.replace(**{name: getattr(recipe, name).replace(**changes) for name in PRODUCTS})


def product_shapes(rows: int, features: int, outputs: int) -> dict[str, tuple[int, int, int]]:
    """M, N and K of the products of a linear layer.

    Example:
      >>> from fpsim.analysis.studies.differences.arithmetics import product_shapes
      >>> product_shapes(512, 128, 64)["wgrad"]
      (64, 128, 512)
    """
    return {
        "fprop": (rows, outputs, features), "dgrad": (rows, features, outputs), "wgrad": (outputs, features, rows)
    }  # fmt: skip


def rows_of(shape: tuple[int, ...]) -> int:
    """How many rows an array has of its last axis."""
    return math.prod(shape[:-1])
