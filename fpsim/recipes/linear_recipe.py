"""Recipes of quantised linear layers: formats, scalings and arithmetic of their three matrix products, as data."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from fpsim.errors import integer_fields, is_integer, require_kind, require_word, shown
from fpsim.formats.cast_options import FormatLike, checked_seed
from fpsim.formats.element import ElementLike, element_argument, element_format
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import format_argument
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.formats.table_format import TableFormat
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.matrix_units.catalogue import named_unit
from fpsim.matrix_units.chips import find as find_chip
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.libraries import library_schedule, scaling_of_first
from fpsim.recipes.units import unit_for
from fpsim.reload import reloadable
from fpsim.scaling.recipes import TENSOR, scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.shaped import CHAIN, ShapedSchedule
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import Accumulator

Same = Literal["same"]
PRODUCTS = ("fprop", "dgrad", "wgrad")
OPERANDS = ("input", "weight", "grad")
SCALINGS = (*(f"{operand}_scaling{back}" for operand in OPERANDS for back in ("", "_backward")), "stash_scaling")
HADAMARD_SIZES = (0, 2, 4, 8, 16, 32, 64, 128)


# Rows that fp.torch has as attributes; the rest are in its RECIPES.
ATTRIBUTES = frozenset({"DEEPSEEK_V3", "DEEPSEEK_V3_POW2", "MXFP8", "NVFP4", "TE_DELAYED", "TE_HYBRID"})


@reloadable
@dataclass(frozen=True)
class Product:
    """The arithmetic of one matrix product of a layer: what adds, in which order, and the format of the result.

    Args:
      accumulate: a matrix unit or its name (`fp.units()`); a chip by any of its names, such as "H100", "hopper" or
        "9.0", for its unit that takes the operands' formats; a chip with a library, "H100 cuBLAS", for the library's
        schedule as well, which `LinearRecipe` looks up; an accumulator such as `fp.Sequential(fp.FP32)`; or None for
        torch's own float32 product of the quantised operands.
      schedule, promote: as for `fp.matmul`. With the schedule of a library on a processor, such as
        `fp.schedules.torch_mm("avx2")`, which depends on the shape, accumulate must be `fp.FusedMultiplyAdd(fp.FP32)`.
      out_fmt: the format that the result is rounded to, to nearest even; None for the format of the sums.

    Raises:
      ValueError: an unknown unit or format, or a schedule or promotion without a unit.
      TypeError: a field has another type than those above.

    Example:
      >>> fp.torch.Product("hopper_e4m3_f32", promote=128, out_fmt="bf16")
      Product('hopper_e4m3_f32', promote=128, out_fmt=BF16)
    """

    accumulate: MatrixUnit | Accumulator | str | None = None
    schedule: Schedule | ShapedSchedule | None = None
    promote: int | None = None
    out_fmt: FormatLike | None = None

    def __post_init__(self) -> None:
        if isinstance(self.accumulate, str):
            named = find_chip(self.accumulate)
            if named is None:
                object.__setattr__(self, "accumulate", named_unit("accumulate", self.accumulate))
            else:
                object.__setattr__(self, "accumulate", f"{named.chip.arch} {named.library}".strip())
                if named.library and (self.schedule, self.promote) != (None, None):
                    raise ValueError(
                        f"{named.library} has its own schedule; got accumulate={named.name} {named.library} with a "
                        "schedule or promote. Leave one out."
                    )
        kinds = (str, MatrixUnit, Accumulator, type(None))
        require_kind("accumulate", self.accumulate, kinds, "a matrix unit, its name, an accumulator or None")
        require_kind("schedule", self.schedule, (Schedule, ShapedSchedule, type(None)), "one of fp.schedules or None")
        if self.promote is not None:
            integer_fields(self, "promote", lowest=1)
        if self.schedule is not None and self.promote is not None:
            raise ValueError(f"promote is part of the schedule, {self.schedule}; got both. Leave promote out.")
        how = self.accumulate
        if isinstance(how, MatrixUnit) and UNITS.get(how.name) != how:
            raise ValueError(f"accumulate must be a unit of fp.units(); got {how.name!r} with other fields.")
        for written in (self.schedule, how if isinstance(how, Accumulator) else None):
            if written is not None and not _readable(written):
                raise ValueError(
                    "recipes are stored as text, so a schedule must be the result of a function of fp.schedules, and "
                    f"an accumulator must have a named format; got {written!r}."
                )
        if isinstance(self.schedule, ShapedSchedule) and self.accumulate != CHAIN:
            raise ValueError(
                f"{self.schedule} chooses the accumulator itself, and requires accumulate={CHAIN}; got "
                f"{self.accumulate!r}."
            )
        for name in ("schedule", "promote"):
            adds = isinstance(self.accumulate, (str, MatrixUnit)) or isinstance(self.schedule, ShapedSchedule)
            if getattr(self, name) is not None and not adds:
                raise ValueError(f"{name} is for matrix units; got accumulate={self.accumulate!r}. Leave it out.")
        if self.out_fmt is not None:
            object.__setattr__(self, "out_fmt", format_argument("out_fmt", self.out_fmt))

    def replace(self, **changes: Any) -> Product:
        """Return a copy of the product with other values of some fields; changes: the fields by name."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        words = [] if self.accumulate is None else [_short(self.accumulate)]
        rest = ("schedule", "promote", "out_fmt")
        words += [f"{name}={_short(getattr(self, name))}" for name in rest if getattr(self, name) is not None]
        return f"Product({', '.join(words)})"


def _readable(how: Schedule | ShapedSchedule | Accumulator) -> bool:
    """Return whether parsing the repr of a schedule or accumulator returns an equal object."""
    try:
        return parsed(repr(how)) == how
    except ValueError:
        return False


@reloadable
@dataclass(frozen=True)
class Delayed:
    """Options of delayed scaling, in which each tensor's one scale follows from amax of earlier steps.

    Args:
      history: number of earlier steps whose amax is stored, 1 to 2**20.
      amax: "max" uses the largest amax of the history, "most_recent" the last one.
      margin: scales map amax to 2**-margin times the format's largest value; -126 to 126.

    Raises:
      TypeError, ValueError: an argument has another value than those above.

    Source: Transformer Engine, transformer_engine/common/recipe/__init__.py (DelayedScaling).
    """

    history: int = 1024
    amax: str = "max"
    margin: int = 0

    def __post_init__(self) -> None:
        for name, lowest, highest in (("history", 1, 2**20), ("margin", -126, 126)):
            integer_fields(self, name)
            if not lowest <= getattr(self, name) <= highest:
                raise ValueError(f"{name} must be an integer in {lowest} .. {highest}; got {getattr(self, name)}.")
        require_word("amax", self.amax, ("max", "most_recent"))


@reloadable
@dataclass(frozen=True)
class LinearRecipe:
    """The formats, scalings and arithmetic of the three matrix products of a linear layer, y = x w^T.

    Each product has two operands. A format of None leaves an operand uncast; a scaling of None casts it without scales.
    x and dy are matrices (tokens, features): batch axes are merged into tokens.

    | product | operands and their scalings | arithmetic |
    |---|---|---|
    | y = x w^T | x by input_scaling, w by weight_scaling | fprop |
    | dx = dy w | dy by grad_scaling, w by weight_scaling_backward | dgrad |
    | dw = dy^T x | dy by grad_scaling_backward, x by input_scaling_backward | wgrad |

    Gradients are those of the products with quantised operands, and pass through the casts unchanged. As in these
    recipes' libraries, no gradient becomes zero where an operand was clipped (unlike in `fake_quantize`).

    Args:
      input_fmt, weight_fmt, grad_fmt: element formats of x, w and dy, or None.
      input_scaling, weight_scaling, grad_scaling: scalings, or their names, of x, w and dy in the product that adds
        along their last axis.
      input_scaling_backward, weight_scaling_backward, grad_scaling_backward: scalings in the product that adds along
        the operands' first axis; "same" reuses the values that were quantised for the other product.
      fprop, dgrad, wgrad: the arithmetic of each product, a `Product`; one without a unit is torch's, in float32.
      rounding: the rounding mode of x and w, forwards and backwards.
      grad_rounding: the rounding mode of dy.
      overflow: overflow mode of the casts, as for `fp.encode`; None for each scaling's own, "nonfinite" if unscaled.
      requantize_input: True if dw quantises what the forward product read (as in DeepSeek-V3), False if the original x.
      stash_fmt, stash_scaling: the format in which x is stored for dw, and its scaling; None stores x unrounded.
      hadamard: size, a power of two up to 128, of the random Hadamard transform that is applied to both operands of dw
        along the tokens; the number of tokens must be a multiple of it. 0 for none. Its signs follow from the seed.
      delayed: options of delayed scales for x, w and dy, one scale per tensor; None for scales of the current tensor.
      seed: the seed of stochastic modes. A layer draws with the key hash(seed, its name, operand) + steps, where steps
        counts its forward passes in training, so layers, operands and steps draw differently and a run can be repeated.
      name: the name that `repr` shows.

    Raises:
      ValueError: an unknown format, unit or option, a seed out of range, a scaling without its format, a unit that does
        not take the operands' formats.
      TypeError: a scaling is not an fp.Scaling, or a product not a `Product`.

    Example:
      >>> recipe = fp.torch.DEEPSEEK_V3.replace(grad_fmt="e5m2", grad_rounding="stochastic")
      >>> recipe.input_scaling_backward, recipe.accumulator("dgrad").name
      (fp.scalings.TILE_128X1, 'hopper_e5m2xe4m3_f32')
    """

    input_fmt: ElementLike | None = None
    weight_fmt: ElementLike | None = None
    grad_fmt: ElementLike | None = None
    input_scaling: Scaling | None = None
    weight_scaling: Scaling | None = None
    grad_scaling: Scaling | None = None
    input_scaling_backward: Scaling | Same | None = "same"
    weight_scaling_backward: Scaling | Same | None = "same"
    grad_scaling_backward: Scaling | Same | None = "same"
    rounding: str | Rounding = "nearest_even"
    grad_rounding: str | Rounding = "nearest_even"
    requantize_input: bool = False
    seed: int = 0
    name: str = dataclasses.field(default="", compare=False)
    fprop: Product = Product()
    dgrad: Product = Product()
    wgrad: Product = Product()
    overflow: str | None = None
    stash_fmt: ElementLike | None = None
    stash_scaling: Scaling | None = None
    hadamard: int = 0
    delayed: Delayed | None = None

    def __post_init__(self) -> None:
        require_kind("name", self.name, str, "a text")
        require_kind("requantize_input", self.requantize_input, bool, "True or False")
        object.__setattr__(self, "seed", checked_seed(self.seed))
        for words in ("rounding", "grad_rounding"):
            object.__setattr__(self, words, rounding_mode(getattr(self, words)).name.lower())
        for operand in (*OPERANDS, "stash"):
            fmt = getattr(self, f"{operand}_fmt")
            if fmt is not None:
                object.__setattr__(self, f"{operand}_fmt", element_argument(f"{operand}_fmt", fmt))
                continue
            for field in (f"{operand}_scaling", f"{operand}_scaling_backward"):
                scaling = getattr(self, field, None)
                if scaling is not None and not (isinstance(scaling, str) and scaling == "same"):
                    raise ValueError(f"{field} needs {operand}_fmt; got None. Pass fp.E4M3, say.")
        for field in SCALINGS:
            scaling = getattr(self, field)
            if isinstance(scaling, str) and scaling != "same":
                others = "'same' or None" if field.endswith("backward") else "or None"
                object.__setattr__(self, field, scaling_of(scaling, field, others))
        for product in PRODUCTS:
            require_kind(product, getattr(self, product), Product, "an fp.torch.Product")
        if self.stash_fmt is not None and self.requantize_input:
            raise ValueError("stash_fmt says what is kept of x, and requantize_input what is read of it. Pass one.")
        if not is_integer(self.hadamard) or self.hadamard not in HADAMARD_SIZES:
            sizes = ", ".join(map(str, HADAMARD_SIZES))
            raise ValueError(f"hadamard must be one of {sizes}; got {shown(self.hadamard)}.")
        object.__setattr__(self, "hadamard", int(self.hadamard))  # plans of layers are JSON
        require_kind("delayed", self.delayed, (Delayed, type(None)), "an fp.torch.Delayed or None")
        self._refuse_scales_beside_delayed()
        for operand in OPERANDS:
            for backward in (False, True):
                self.cast_of(operand, backward=backward)
        if self.stash_fmt is not None:
            spec_text(self.stash_fmt, self.stash_scaling, "nearest_even", None, "keep", 32)
        for product in PRODUCTS:
            self._follow_library(product)
            self.accumulator(product)

    def cast_of(self, operand: str, *, backward: bool) -> tuple[str, bool]:
        """Return (the cast of an operand as JSON text, whether both products of the operand use the same codes).

        Each operand occurs in two products: one adds along the operand's last axis, the other along its first. operand:
        "input", "weight" or "grad". backward: True for the cast for the product along the first axis. The text is that
        of fpsim.recipes.cast_text.spec_text; "" if the operand is not cast.
        """
        require_word("operand", operand, OPERANDS)
        fmt, scaling = getattr(self, f"{operand}_fmt"), getattr(self, f"{operand}_scaling")
        other = getattr(self, f"{operand}_scaling_backward")
        same = isinstance(other, str) and other == "same"
        rounding = rounding_mode(self.grad_rounding if operand == "grad" else self.rounding)
        if fmt is None:
            return "", same
        used = other if backward and not same else scaling
        return spec_text(fmt, TENSOR if self.delayed else used, rounding, self.overflow, "keep", 32), same

    def operands(self, product: str) -> tuple[Any, Any]:
        """Return the formats of the left and right operand of "fprop", "dgrad" or "wgrad"; None for an uncast one."""
        require_word("product", product, PRODUCTS)
        return {
            "fprop": (self.input_fmt, self.weight_fmt),
            "dgrad": (self.grad_fmt, self.weight_fmt),
            "wgrad": (self.grad_fmt, self.input_fmt),
        }[product]

    def accumulator(self, product: str) -> MatrixUnit | Accumulator | None:
        """Return the matrix unit or accumulator of a product, "fprop", "dgrad" or "wgrad"; None if torch multiplies.

        Raises:
          ValueError: the unit does not take the operands' formats, or the chip has no unit that does.

        Example:
          >>> fp.torch.MXFP8.accumulator("wgrad").name
          'blackwell_mxfp8_e4m3_f32'
        """
        require_word("product", product, PRODUCTS)
        how: MatrixUnit | Accumulator | str | None = getattr(self, product).accumulate
        if how is None or isinstance(how, Accumulator):
            return how
        fmts = [None if fmt is None else element_format(fmt) for fmt in self.operands(product)]
        if isinstance(how, str):
            return unit_for(how, fmts, *scaling_of_first(self, product), product)
        for side, fmt in zip("ab", fmts, strict=True):
            element = getattr(how, side)
            if fmt not in (element.fmt, element.carrier) and not (fmt is None and element.carrier.bits == 32):
                raise ValueError(
                    f"the unit of {product} must take the recipe's operands; got {how.name}, which takes "
                    f"{element.name} as {side}, where the recipe has {fmt}. Take another of fp.units()."
                )
        return how

    def _follow_library(self, product: str) -> None:
        """Replace "H100 cuBLAS", a chip and a library, in a product by the architecture and the library's schedule.

        product: name of the field, "fprop", "dgrad" or "wgrad", which gets a new Product. If its `accumulate` does not
        name a library, nothing is done.
        """
        arithmetic = getattr(self, product)
        named = find_chip(arithmetic.accumulate) if isinstance(arithmetic.accumulate, str) else None
        if named is None or not named.library:
            return
        arithmetic = arithmetic.replace(accumulate=named.chip.arch)
        object.__setattr__(self, product, arithmetic)
        unit = self.accumulator(product)
        if isinstance(unit, MatrixUnit):
            schedule = library_schedule(named, self, product, unit)
            object.__setattr__(self, product, arithmetic.replace(schedule=schedule))

    def _refuse_scales_beside_delayed(self) -> None:
        """Raise a ValueError if a recipe with delayed scales also has a scaling, or a format that excludes such scales.

        The excluded formats are fp.LogFMT and formats given by a table of values, such as fp.NF4.
        """
        if self.delayed is None:
            return
        for operand in OPERANDS:
            for field in (f"{operand}_scaling", f"{operand}_scaling_backward"):
                if getattr(self, field) not in (None, "same"):
                    raise ValueError(f"delayed scales are one per tensor; got {field} besides. Leave it out.")
            fmt = getattr(self, f"{operand}_fmt")
            if isinstance(fmt, (LogFMT, TableFormat)):
                raise ValueError(
                    f"delayed scales are for formats whose values a scale alone places; got {operand}_fmt {fmt}. Use a "
                    "float format, fp.INT8 or fp.INT4, or leave delayed out."
                )

    def operands_only(self) -> LinearRecipe:
        """Return a recipe that casts operands of products and rounds nothing else.

        Results are not rounded to `out_fmt`, and the weight gradient casts the original x rather than the forward
        product's quantised one. Emulators that cast only before products compute this.

        Example:
          >>> recipe = fp.torch.DEEPSEEK_V3.operands_only()
          >>> recipe.fprop.out_fmt, recipe.requantize_input
          (None, False)
        """
        results = {product: getattr(self, product).replace(out_fmt=None) for product in PRODUCTS}
        recipe = self.replace(requantize_input=False, stash_fmt=None, stash_scaling=None, **results)
        return self if recipe == self else recipe

    def replace(self, **changes: Any) -> LinearRecipe:
        """Return a copy of the recipe with other values of some fields, and without its name unless one is passed.

        changes: the fields by name.
        """
        return dataclasses.replace(self, **{"name": "", **changes})

    def __repr__(self) -> str:
        if self.name:
            return f"fp.torch.{self.name}" if self.name in ATTRIBUTES else f'fp.torch.RECIPES["{self.name}"]'
        changed = [f for f in dataclasses.fields(self) if f.compare and getattr(self, f.name) != f.default]
        words = (f"{field.name}={_short(getattr(self, field.name))}" for field in changed)
        return f"LinearRecipe({', '.join(words)})"


def _short(value: Any) -> str:
    """Return a field's value as text for the repr of a recipe: the quoted name of a unit, else its repr or str."""
    if isinstance(value, MatrixUnit):
        return repr(value.name)
    return repr(value) if isinstance(value, (str, Scaling, int, Product, Delayed, Accumulator)) else str(value)


def key_of(seed: int, name: str, role: str) -> int:
    """Return the random key of an operand of a layer: 62 bits, so that key + number of steps fits an int64.

    seed: the recipe's seed. name: the layer's name. role: "input", "weight" or "grad", or this with " back" for a
    separate cast in the operand's second product; also "hadamard", for the signs of the transform.
    """
    digest = hashlib.blake2b(f"{seed} {role} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2
