"""An arithmetic in a word, or as an object: which recipe each layer of a model follows under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from fpsim.errors import nearest, shown, unknown
from fpsim.formats.named import FP32 as FLOAT32
from fpsim.lazy import public
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.matrix_units.chips import find as find_chip
from fpsim.matrix_units.chips import spellings as chip_names
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.model import Model as ProbedModel
from fpsim.recipes.hardware import placed
from fpsim.recipes.linear import FP32, LINEAR
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, Product
from fpsim.recipes.look_up import find_either, names, of_plan, row_named
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling import recipes as scalings
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.written import MAKERS, parsed
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd
from fpsim.train.side_by_side import PLACES

DEFAULT = LINEAR["FP8_TENSOR"]
OF_DTYPE = {"bfloat16": LINEAR["BF16"], "float16": LINEAR["FP16"]}  # what layers of 16 bits follow without recipe=
WORDS = ("torch", "float32", "emulated", "gpu", "hardware")
OTHERS = (
    "a recipe such as DEEPSEEK_V3, a chip such as H100 or 'H100 cuBLAS', a unit of fp.units(), a schedule such as "
    "cutlass_2xacc(128), an accumulator, or a model of fp.probe"
)
SMALL_BLOCKS = {(32, "E8M0"): scalings.TE_MX, (16, "E4M3"): scalings.NVFP4}  # of units that take scales


class Site(NamedTuple):
    """A layer at one call: its name, the recipe of one that is quantised already, and the dtype that it multiplies."""

    layer: str
    recipe: LinearRecipe | None = None
    dtype: str = "float32"


Recipes = tuple[LinearRecipe, LinearRecipe, LinearRecipe]  # of fprop, dgrad and wgrad
Follow = Callable[[Site], Recipes | None]  # None where a layer stays as it is
Change = Callable[[LinearRecipe], LinearRecipe]


@dataclass(frozen=True)
class LayerArithmetic:
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
class ModelArithmetic:
    """An arithmetic of a model.

    Attributes:
      name: as it was asked for; "" for several.
      ways: what the layers of a shell pattern follow; of several that match a layer the last one counts, and a layer
        that none matches stays as it is.
    """

    name: str
    ways: tuple[tuple[str, LayerArithmetic], ...]

    def of(self, layer: str) -> LayerArithmetic | None:
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


def arithmetic(argument: str, spec: Any, recipe: Any = None) -> ModelArithmetic:
    """The arithmetic that a word or an object stands for.

    Args:
      argument: its name, for messages.
      spec: as of `fp.analysis.diff`.
      recipe: as of `fp.analysis.diff`.

    Raises:
      ValueError, TypeError: there is no such arithmetic, or it does not take the recipe's operands.

    Example:
      >>> from fpsim.analysis.studies.differences.arithmetics import Site, arithmetic
      >>> site = Site("up")
      >>> arithmetic("first", "B200").of("up").follow(site)[0].fprop
      Product('blackwell_e4m3_f32', promote=128, out_fmt=BF16)
      >>> arithmetic("first", "H100 cuBLAS", "BF16").of("up").follow(site)[0].fprop
      Product('hopper', schedule=cublas('sm_90'), out_fmt=BF16)
    """
    if isinstance(spec, Mapping):
        if not spec or not all(isinstance(pattern, str) for pattern in spec):
            raise TypeError(f"{argument} must map shell patterns of layers to arithmetics; got {shown(spec)}.")
        ways = tuple((pattern, _way(argument, each, recipe)) for pattern, each in spec.items())
        return ModelArithmetic("", ways)
    spec = of_plan(spec)
    return ModelArithmetic(_named(spec), (("*", _way(argument, spec, recipe)),))


def _named(spec: Any) -> str:
    if isinstance(spec, str):
        return spec
    return getattr(spec, "name", "") or repr(spec)


def _way(argument: str, spec: Any, recipe: Any) -> LayerArithmetic:
    """What follows from an object, or from a word."""
    if isinstance(spec, str):
        spec = _object(argument, spec)
    if isinstance(spec, str):
        return _word(spec, recipe)
    if isinstance(spec, _Chip):
        return _chip(spec.word, recipe)
    spec = of_plan(spec)
    if isinstance(spec, (LinearRecipe, Recipe)):
        return LayerArithmetic(_of_recipe(spec))
    if isinstance(spec, MatrixUnit):
        return _unit(spec, recipe)
    if isinstance(spec, Schedule):
        return _schedule(spec, recipe)
    if isinstance(spec, ProbedModel):
        return _probed(argument, spec, recipe)
    if isinstance(spec, Accumulator):
        return LayerArithmetic(_changed(_base(recipe, FP32), lambda of: placed(of, spec).recipe))
    raise TypeError(f"{argument} must be one of {', '.join(WORDS)}, {OTHERS}; got {shown(spec)}.")


class _Chip(NamedTuple):
    """A chip, with or without a library, as it was asked for."""

    word: str


def _object(argument: str, word: str) -> Any:
    """What a word stands for; a word of WORDS stands for itself."""
    lower = word.strip().lower()
    if lower in WORDS:
        return lower
    if (row := row_named(word)) is not None:
        return row
    if find_chip(word) is not None:
        return _Chip(word.strip())
    if lower in UNITS:
        return UNITS[lower]
    if word.partition("(")[0].strip() in MAKERS or word == "FLAT":
        return parsed(word)
    known = [*names(), *UNITS, *MAKERS, *chip_names()]
    meant = {name.lower(): name for name in (*WORDS, *known)}
    near = nearest(lower, meant)
    raise unknown(argument, word, WORDS, others=OTHERS, meant=[meant[near]] if near else [])


# ---- what a recipe is changed to


def _base(recipe: Any, default: LinearRecipe = DEFAULT) -> Follow:
    """The recipe that is asked for; else a layer's own, that of its dtype if that has 16 bits, or the default."""
    if recipe is None:
        return lambda site: (site.recipe or OF_DTYPE.get(site.dtype, default),) * 3
    return _of_recipe(find_either(recipe))


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
            return (change(found[0]),) * 3
        fprop, dgrad, wgrad = (change(each) for each in found)
        return fprop, dgrad, wgrad

    return follow


def _word(word: str, recipe: Any) -> LayerArithmetic:
    if word == "torch":
        return LayerArithmetic(lambda _: None)
    if word == "float32":
        chained = placed(FP32, FusedMultiplyAdd(FLOAT32)).recipe
        return LayerArithmetic(lambda _: (chained,) * 3)
    if word in PLACES:
        public("fpsim.gpu.device.device").require_device()
    return LayerArithmetic(_base(recipe), word)


def _chip(word: str, recipe: Any) -> LayerArithmetic:
    """The units of a chip, and the schedules of its library."""
    base, remarks = _base(recipe), dict[str, None]()

    def change(of: LinearRecipe) -> LinearRecipe:
        try:
            found = placed(of, word)
        except ValueError as reason:
            if recipe is None and of is DEFAULT:
                raise ValueError(
                    f"{reason} Without recipe= operands are those of FP8_TENSOR; recipe='BF16' has others."
                ) from None
            raise
        remarks.update({f"{word}: {note[0].lower()}{note[1:]}.": None for note, _ in found.notes})
        return found.recipe

    if recipe is not None:
        followed = base(Site(""))
        if followed is not None and not any(_has_units(placed(each, word).recipe) for each in followed):
            raise ValueError(
                f"a chip needs a recipe with products on matrix units; got recipe={shown(recipe)}, which has none, so "
                f"that {word} would give what every other one does. Take another recipe."
            )
    return LayerArithmetic(_changed(base, change), remarks=remarks)


def _has_units(recipe: LinearRecipe) -> bool:
    return any(isinstance(recipe.accumulator(name), MatrixUnit) for name in PRODUCTS)


def _unit(unit: MatrixUnit, recipe: Any) -> LayerArithmetic:
    """A unit in place of the recipe's, or one chain of it over operands that it takes."""
    if recipe is None:
        made = _recipe_of(unit)
        return LayerArithmetic(lambda _: (made,) * 3)
    return LayerArithmetic(_changed(_base(recipe), lambda of: placed(of, unit).recipe))


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
    back: Scaling | Literal["same"] = scaling.transposed() if scaling is not None and unit.scale is not None else "same"
    one = Product(unit)
    return LinearRecipe(
        a, b, a, scaling if a is not None else None, scaling if b is not None else None,
        scaling if a is not None else None, input_scaling_backward=back, weight_scaling_backward=back,
        grad_scaling_backward=back, fprop=one, dgrad=one, wgrad=one if a == b else Product(unit.arch),
    )  # fmt: skip


def _probed(argument: str, model: ProbedModel, recipe: Any) -> LayerArithmetic:
    """The first unit and schedule, or accumulator, that a probed product equals; its operands where none are asked for.

    Raises:
      ValueError: the model is of a sum, or equals nothing that runs at any length.
    """
    if model.kind == "sum" or not model.alike:
        why = "a sum, which has one operand" if model.kind == "sum" else f"an order for {model.n} terms alone"
        raise ValueError(
            f"{argument} must be a model of a product that equals a unit or an accumulator of fpsim; got one of {why}. "
            "Probe fp.probe.matmul at another length."
        )
    first = model.alike[0]
    how, schedule = first.how, first.schedule
    if recipe is None and isinstance(how, MatrixUnit):
        base: Follow = _unit(how, None).follow
    elif recipe is None:
        a, b = (None if operand.fmt.bits == 32 else operand.fmt for operand in model.operands)
        base = _of_recipe(LinearRecipe(a, b, a))
    else:
        base = _base(recipe)

    def change(of: LinearRecipe) -> LinearRecipe:
        there = placed(of, how).recipe
        return there if schedule is None or schedule == FLAT else placed(there, schedule).recipe

    return LayerArithmetic(_changed(base, change))


def _schedule(schedule: Schedule, recipe: Any) -> LayerArithmetic:
    """A schedule in place of the recipe's, on the units of its chip."""

    def change(of: LinearRecipe) -> LinearRecipe:
        there = placed(of, schedule.arch).recipe if schedule.arch else of
        return placed(there, schedule).recipe

    return LayerArithmetic(_changed(_base(recipe), change))
