"""Arithmetics of a model, each given by name or as an object: the recipes that each layer follows."""

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
from fpsim.recipes.look_up import LinearLike, find_either, names, of_plan, row_named
from fpsim.recipes.this_cpu import THIS_CPU
from fpsim.recipes.training_recipe import Recipe
from fpsim.scaling import recipes as scalings
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.shaped import ShapedSchedule
from fpsim.schedules.written import MAKERS, parsed
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd
from fpsim.train.side_by_side import PLACES

DEFAULT = LINEAR["FP8_TENSOR"]
OF_DTYPE = {"bfloat16": LINEAR["BF16"], "float16": LINEAR["FP16"]}  # recipes of layers of 16 bits without recipe=
WORDS = ("torch", "float32", "emulated", "gpu", "hardware")
OTHERS = (
    "a recipe such as DEEPSEEK_V3, a chip such as H100 or 'H100 cuBLAS', a unit of fp.units(), a schedule such as "
    "cutlass_2xacc(128), an accumulator, or a model of fp.probe"
)
SMALL_BLOCKS = {(32, "E8M0"): scalings.TE_MX, (16, "E4M3"): scalings.NVFP4}  # scalings of units that take scales


class Site(NamedTuple):
    """One call of a layer in a run.

    Attributes:
      layer: name of the layer.
      recipe: the layer's own recipe if it is already quantised, else None.
      dtype: name of the torch dtype of the product's operands, such as "bfloat16".
    """

    layer: str
    recipe: LinearRecipe | None = None
    dtype: str = "float32"


Recipes = tuple[LinearRecipe, LinearRecipe, LinearRecipe]  # of fprop, dgrad and wgrad
Follow = Callable[[Site], Recipes | None]  # None if the arithmetic does not change a layer
Change = Callable[[LinearRecipe], LinearRecipe]
OneArithmetic = LinearLike | MatrixUnit | Schedule | ShapedSchedule | Accumulator | ProbedModel
ArithmeticLike = OneArithmetic | Mapping[str, OneArithmetic]  # accepted by `arithmetic`


@dataclass(frozen=True)
class LayerArithmetic:
    """The arithmetic that some layers of a model follow.

    Attributes:
      follow: called with a Site (one call of a layer); returns the recipes of fprop, dgrad and wgrad, or None, which
        leaves the layer's product to torch.
      backend: the backend that multiplies, as in `fp.torch.QuantLinear`.
      remarks: a dictionary whose keys are sentences on products that the hardware does not compute as requested,
        collected while layers run; its values are None.
    """

    follow: Follow
    backend: str = "emulated"
    remarks: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelArithmetic:
    """The arithmetic of a model: which layers follow which arithmetic.

    Attributes:
      name: the text that was passed, or the name of the object, or its repr if it has none; "" for a mapping.
      ways: pairs of a shell pattern and the arithmetic of the layers that match the pattern. The last matching pattern
        counts; a layer that matches none is computed by torch.
    """

    name: str
    ways: tuple[tuple[str, LayerArithmetic], ...]

    def of(self, layer: str) -> LayerArithmetic | None:
        """Return the arithmetic of the layer with this name; None if no pattern matches, so that torch computes it."""
        return next((way for pattern, way in reversed(self.ways) if fnmatchcase(layer, pattern)), None)

    @property
    def remarks(self) -> list[str]:
        """Sentences on products that the hardware does not compute as requested, from all layers that ran."""
        return [remark for _, way in self.ways for remark in way.remarks]

    @property
    def place(self) -> str:
        """Device that computes the products: "on the GPU", "by the tensor cores of this machine", or "" for the CPU."""
        return next((PLACES[way.backend] for _, way in self.ways if way.backend in PLACES), "")


def arithmetic(argument: str, spec: ArithmeticLike, recipe: LinearLike | None = None) -> ModelArithmetic:
    """Return the arithmetic that a name, an object, or a mapping from layer patterns to these describes.

    Args:
      argument: name of the user's argument, for error messages.
      spec: an arithmetic as in `fp.analysis.diff`.
      recipe: a recipe as in `fp.analysis.diff`, for formats that the arithmetic leaves open; or None.
    Raises:
      ValueError, TypeError: the arithmetic is unknown, or does not accept the recipe's operands.

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
        ways = tuple((pattern, _way(argument, part, recipe)) for pattern, part in spec.items())
        return ModelArithmetic("", ways)
    spec = of_plan(spec)
    name = spec if isinstance(spec, str) else getattr(spec, "name", "") or repr(spec)
    return ModelArithmetic(name, (("*", _way(argument, spec, recipe)),))


def _way(argument: str, spec: Any, recipe: Any) -> LayerArithmetic:
    """Return the layers' arithmetic that `spec`, a name or an object, describes; raise a TypeError for other objects.

    `argument`: name of the user's argument, for messages. `recipe`: a recipe or its name, for formats that the
    arithmetic leaves open. With None, a matrix unit or a probed product has operands in its own formats. Others follow
    each layer's own or default recipe, as `_base` returns it; the default is FP32 for an accumulator, else FP8_TENSOR.
    """
    if isinstance(spec, str):
        word, row = spec.strip(), row_named(spec)
        if word.lower() in WORDS:
            return _word(word.lower(), recipe)
        if row is None and (find_chip(spec) is not None or word.lower() == THIS_CPU.lower()):
            return _chip(word, recipe)
        spec = _object(argument, spec) if row is None else row
    spec = of_plan(spec)
    if isinstance(spec, (LinearRecipe, Recipe)):
        return LayerArithmetic(_of_recipe(spec))
    if isinstance(spec, Schedule):
        return _schedule(spec, recipe)
    if isinstance(spec, ProbedModel):
        return _probed(argument, spec, recipe)
    if isinstance(spec, MatrixUnit) and recipe is None:
        return LayerArithmetic(_of_recipe(_recipe_of(spec)))
    if isinstance(spec, (MatrixUnit, ShapedSchedule, Accumulator)):
        base = _base(recipe, FP32 if isinstance(spec, Accumulator) else DEFAULT)
        return LayerArithmetic(_changed(base, lambda of: placed(of, spec).recipe))
    raise TypeError(f"{argument} must be one of {', '.join(WORDS)}, {OTHERS}; got {shown(spec)}.")


def _object(argument: str, word: str) -> Any:
    """Return the matrix unit, schedule or accumulator that a name describes; raise a ValueError for other names.

    `argument`: name of the user's argument, for messages. `word`: the name, such as "hopper_e4m3_f32".
    """
    lower = word.strip().lower()
    if lower in UNITS:
        return UNITS[lower]
    if word.partition("(")[0].strip() in MAKERS or word == "FLAT":
        return parsed(word)
    known = [*names(), *UNITS, *MAKERS, *chip_names()]
    meant = {name.lower(): name for name in (*WORDS, *known)}
    near = nearest(lower, meant)
    raise unknown(argument, word, WORDS, others=OTHERS, meant=[meant[near]] if near else [])


# ---- changes of recipes


def _base(recipe: Any, default: LinearRecipe = DEFAULT) -> Follow:
    """Return a function from a Site (one call of a layer) to its recipes of fprop, dgrad and wgrad.

    The recipes are those of `recipe`, a recipe or its name. If `recipe` is None, a layer follows its own recipe. A
    layer without its own recipe follows BF16 or FP16 if its operands have that dtype, else `default`.
    """
    if recipe is None:
        return lambda site: (site.recipe or OF_DTYPE.get(site.dtype, default),) * 3
    return _of_recipe(find_either(recipe))


def _of_recipe(recipe: LinearRecipe | Recipe) -> Follow:
    """Return a function from a Site (one call of a layer) to its recipes of fprop, dgrad and wgrad.

    A recipe of linear layers is returned for all three products of every layer. A recipe of training
    (`fp.train.Recipe`) may differ between layers and steps; the function returns the layer's recipes at the first step.
    """
    if isinstance(recipe, LinearRecipe):
        return lambda _: (recipe,) * 3

    def follow(site: Site) -> Recipes:
        fprop, dgrad, wgrad = (recipe.linear_of(site.layer, product, 0, 1) for product in PRODUCTS)
        return fprop, dgrad, wgrad

    return follow


def _changed(base: Follow, change: Change) -> Follow:
    """Return a function from a Site (one call of a layer) to its recipes: those of `base`, each changed by `change`.

    The function returns None where `base` returns None. `change`: called with a recipe; returns the changed one.
    """

    def follow(site: Site) -> Recipes | None:
        recipes = base(site)
        if recipes is None:
            return None
        if recipes[0] == recipes[1] == recipes[2]:
            return (change(recipes[0]),) * 3
        fprop, dgrad, wgrad = map(change, recipes)
        return fprop, dgrad, wgrad

    return follow


def _word(word: str, recipe: Any) -> LayerArithmetic:
    """Return the arithmetic named `word`: "torch", "float32", "emulated", "gpu" or "hardware".

    "torch" leaves all products to torch, and "float32" adds with fused multiply-adds in float32, in the order of K. The
    others compute the products of `recipe` on the CPU, by a GPU's emulation, or on its tensor cores; the last two raise
    a GpuError without a GPU. `recipe`: a recipe or its name; None for each layer's own or default one.
    """
    if word == "torch":
        return LayerArithmetic(lambda _: None)
    if word == "float32":
        chained = placed(FP32, FusedMultiplyAdd(FLOAT32)).recipe
        return LayerArithmetic(lambda _: (chained,) * 3)
    if word in PLACES:
        public("fpsim.gpu.device.device").require_device()
    return LayerArithmetic(_base(recipe), word)


def _chip(word: str, recipe: Any) -> LayerArithmetic:
    """Return the arithmetic of a chip: the recipe's products on the chip's matrix units.

    `word`: name of the chip, perhaps followed by that of a library. `recipe`: a recipe or its name; None for each
    layer's own or default one. Raise a ValueError if no product of the recipe uses a matrix unit.
    """
    base, remarks = _base(recipe), dict[str, None]()

    def change(of: LinearRecipe) -> LinearRecipe:
        try:
            on_chip = placed(of, word)
        except ValueError as reason:
            if recipe is None and of is DEFAULT:
                raise ValueError(
                    f"{reason} Without recipe= the operands are those of FP8_TENSOR; recipe='BF16' has others."
                ) from None
            raise
        remarks.update({f"{word}: {note[0].lower()}{note[1:]}.": None for note, _ in on_chip.notes})
        return on_chip.recipe

    if recipe is not None:
        on_chip = [placed(linear, word).recipe for linear in base(Site("")) or ()]
        units = (linear.accumulator(product) for linear in on_chip for product in PRODUCTS)
        shaped = any(isinstance(getattr(linear, product).schedule, ShapedSchedule)
                     for linear in on_chip for product in PRODUCTS)  # fmt: skip
        if on_chip and not shaped and not any(isinstance(unit, MatrixUnit) for unit in units):
            raise ValueError(
                f"a chip needs a recipe with products on matrix units; got recipe={shown(recipe)}, which has none, so "
                f"that all chips would give the same results as {word}. Use another recipe."
            )
    return LayerArithmetic(_changed(base, change), remarks=remarks)


def _recipe_of(unit: MatrixUnit) -> LinearRecipe:
    """Return the recipe whose operands are in a matrix unit's formats.

    The recipe has the block scales that the unit takes. If the unit takes none, the recipe has one scale per tensor for
    formats of up to 8 bits. Raise a ValueError if no scaling of fp.scalings fits the unit's block scales.
    """
    a, b = (None if operand.carrier.bits == 32 else operand.fmt for operand in (unit.a, unit.b))
    scaling: Scaling | None = None
    if unit.scale is not None:
        scaling = SMALL_BLOCKS.get((unit.block, str(unit.scale_format)))
        if scaling is None:
            raise ValueError(f"{unit.name} takes block scales for which fp.scalings has no row. Pass recipe=.")
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
    """Return the arithmetic of the first unit and schedule, or accumulator, that a probed product behaves like.

    `argument`: name of the user's argument, for messages. `model`: the result of fp.probe. `recipe`: a recipe or its
    name; None for a recipe with operands in the formats of the probed product's operands.

    Raises:
      ValueError: the model is of a sum, not of a product; or its order of additions was probed for one K alone, and no
        unit or accumulator has that order.
    """
    if model.kind == "sum" or not model.alike:
        why = "a sum, which has one operand" if model.kind == "sum" else f"an order for exactly {model.n} terms"
        raise ValueError(
            f"{argument} must be a model of a product that equals a unit or an accumulator of fpsim; got one of {why}. "
            "Use fp.probe.matmul with another K."
        )
    first = model.alike[0]
    how, schedule = first.how, first.schedule
    if recipe is None and isinstance(how, MatrixUnit):
        base = _of_recipe(_recipe_of(how))
    elif recipe is None:
        a, b = (None if operand.fmt.bits == 32 else operand.fmt for operand in model.operands)
        base = _of_recipe(LinearRecipe(a, b, a))
    else:
        base = _base(recipe)

    def change(of: LinearRecipe) -> LinearRecipe:
        with_unit = placed(of, how).recipe
        return with_unit if schedule is None or schedule == FLAT else placed(with_unit, schedule).recipe

    return LayerArithmetic(_changed(base, change))


def _schedule(schedule: Schedule, recipe: Any) -> LayerArithmetic:
    """Return the arithmetic of a recipe with its schedules replaced by `schedule`.

    If the schedule belongs to a chip, the matrix units are that chip's. `recipe`: a recipe or its name; None for each
    layer's own or default one. The arithmetic raises a ValueError for a recipe that names no unit or accumulator.
    """

    def change(of: LinearRecipe) -> LinearRecipe:
        on_chip = placed(of, schedule.arch).recipe if schedule.arch else of
        ordered = placed(on_chip, schedule).recipe
        if all(ordered.accumulator(product) is None for product in PRODUCTS):
            raise ValueError(
                f"a schedule needs a recipe with products on matrix units or accumulators; got {of.name or 'one'}, "
                f"which has none, so that {schedule} would order nothing. Use another recipe."
            )
        return ordered

    return LayerArithmetic(_changed(_base(recipe), change))
