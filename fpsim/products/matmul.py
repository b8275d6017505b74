"""matmul: matrix products by the arithmetic of a matrix unit or of a generic accumulator, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.operands import Formats, wanted_formats
from fpsim.arrays import as_array, format_of
from fpsim.deprecation import warn_renamed
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import INT8, IntegerFormat
from fpsim.formats.keywords import given_keywords, with_keywords
from fpsim.formats.named import BF16, FP32, format_argument
from fpsim.instructions.operands import refuse_axes, refuse_shapes
from fpsim.lazy import deferred
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.stacks.options import in_dtype
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.shaped import CHAIN, ChosenSchedule, ProductShape, ShapedSchedule, declined, is_regions
from fpsim.schedules.shaped import FORMATS as LIBRARY_FORMATS
from fpsim.sums.accumulators import Accumulator

if TYPE_CHECKING:
    from fpsim.schedules.regions import Regions
    from fpsim.schedules.trees.array_sums import SumOrder
    from fpsim.schedules.trees.tree import Tree

# Modules that multiply, which import numba.
short_way, long_way = deferred("fpsim.products.plain"), deferred("fpsim.products.pipeline")
requests, backends = deferred("fpsim.products.request"), deferred("fpsim.products.cpu")
stacks, orders = deferred("fpsim.products.stacks.batched"), deferred("fpsim.products.orders.orders")
casts = deferred("fpsim.casts.cast")
regional, shifts = deferred("fpsim.products.orders.regions"), deferred("fpsim.products.integers.shifted")


class ProductKeywords(TypedDict, total=False):
    """The keywords of `fp.matmul` and `fp.gpu.matmul` on units, libraries and results; `fp.matmul` describes each."""

    schedule: Schedule | ShapedSchedule | Regions | Tree | SumOrder | tuple[Any, ...] | None
    promote: int | None
    scale_a: Any  # arrays of the CPU or of the GPU, or None
    scale_b: Any
    scale_order: str | None
    bias: Any
    alpha: float | None
    beta: float | None
    out_fmt: FormatLike | IntegerFormat | None
    strict: bool
    out_format: FormatLike | None


DEFAULTS: dict[str, Any] = {**dict.fromkeys(ProductKeywords.__annotations__), "strict": True}
with_product_keywords = with_keywords(ProductKeywords, DEFAULTS, last=True)


@with_product_keywords
def matmul(
    a: npt.ArrayLike | Scaled,
    b: npt.ArrayLike | Scaled,
    c: npt.ArrayLike | None = None,
    *,
    accumulate: str | MatrixUnit | IntegerUnit | Accumulator | None = None,
    fmt: Formats = None,
    out: npt.NDArray[Any] | None = None,
    **keywords: Unpack[ProductKeywords],
) -> npt.NDArray[Any]:
    """Return c + a @ b, with every product, addition and rounding of a matrix unit, a library or an accumulator.

    With a unit, element (m, n) is bit for bit `fp.dot_add(a[m], b[:, n], c[m, n], unit)`, for all inputs. With a
    schedule, results are those of a library's kernel, such as cuBLAS's, which chains the unit's instructions in its own
    order.

    Args:
      a, b: (M, K) and (K, N), or stacks of such matrices (..., M, K) and (..., K, N), whose leading axes broadcast as
        in `numpy.matmul`: codes of the unit's elements or arrays of their dtypes, as in `fp.dot_add`, or `fp.Scaled`
        arrays. For an accumulator: arrays of float dtypes, or codes with `fmt`. For both, arrays of `fp.array`.
      c: (..., M, N), the start of the sums: codes of the accumulator's format or floats of its dtype; None for +0. If
        beta is given, or the schedule's library adds C only after the sums, the sums start at +0 instead, and
        beta * c is added to them in the epilogue.
      accumulate: a unit or its name (`fp.units()`), or an accumulator such as `fp.Sequential(fp.BF16)`. None only with
        a `schedule` that determines the arithmetic: a library on a processor, or an order of additions.
      schedule: an object of `fp.schedules`: the order in which a library chains the unit's instructions over K and adds
        the partial sums; None for one chain. An accumulator may take the unit's place: it adds the terms of each
        partial sum, and all else is float32.
        A library on a processor (`fp.schedules.torch_mm`, `onednn`, `mkl`, `openblas`, `eigen`) chooses unit, schedule
        and result format by itself.
        Or any order of additions: a tree of `fp.schedules.tree`, which includes its arithmetic (with instructions of a
        unit it needs `accumulate` too), or nested tuples of terms, such as ((0, 1), (2, 3)), which are added as by
        `fp.schedules.tree(order, accumulate=accumulate)`, in float32 without `accumulate`.
      promote: terms of K after which the unit's partial sum is added to a float32 total (one nearest-even addition) and
        starts again at +0, as in CUTLASS's 2xAcc; a multiple of the unit's terms. None adds up all of K in the unit.
      scale_a, scale_b: (M, K / block) and (K / block, N) scale codes for block-scaled units, unless the operands are
        Scaled. For other units float32 decode scales: a number; (M, 1) and (1, N); per 1x128 (M, ceil(K / 128)) and
        (ceil(K / 128), N); per 128x128 (ceil(M / 128), ceil(K / 128)) and (ceil(K / 128), ceil(N / 128)). Scales of
        more than two axes have one such matrix for each product of a stack; others are shared.
      scale_order: how a partial sum is multiplied by the scales of Scaled operands before it is added to the total, for
        units without block scales: "product": fma(scale_a * scale_b, partial, total), as DeepGEMM; "a_first":
        fma(partial * scale_a, scale_b, total), as CUTLASS and cuBLAS; "b_first": fma(partial * scale_b, scale_a,
        total). None is "product", or the schedule's own.
      bias: (N,) float32, float16 or bfloat16, added in float32 before the cast.
      alpha, beta: factors of the product and of c, rounded to float32; None for 1.
      out_fmt: the format of the result, to which it is cast once, to nearest even (FP8 saturates); None for that of the
        unit's or accumulator's sums.
      strict: whether to raise an error for what the schedule's library does not accept; False computes it anyway.
      fmt: the format of codes, or (format of a, format of b), for accumulators.
      out: the array for the result, as in `numpy.matmul`; None for a new one.
      out_format: the old name of `out_fmt`, for one release.

    Returns:
      (..., M, N) array of the accumulator's dtype: float32, float16 or float64 for units; float32 if float32 additions
      or scalings follow the unit's sums; with `out_fmt` its dtype, or its codes if it has none.

    Scaled operands: a block-scaled unit reads their scale codes, and a tensor scale (NVFP4) multiplies the result.
    Other units apply scales that change along K to partial sums: `promote` is then the number of terms that share a
    scale unless it is given, and must divide that number. Scales of whole rows, columns or tensors multiply the result.

    Raises:
      ValueError: shapes that do not match or broadcast, formats that the unit does not accept, `promote` that is not a
        multiple of the unit's terms, K that is not a multiple of the scale block, codes out of range, what the library
        does not accept.
      TypeError: operands that are neither codes nor floats.

    Source: docs/matrix-units.md, docs/schedules.md, docs/accumulators.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> x = fp.cast(np.full((1, 4096), 0.3, np.float32), fp.E4M3)
      >>> exact = 4096 * 0.3125**2
      >>> chained = fp.matmul(x, x.T, accumulate="hopper_e4m3_f32")
      >>> promoted = fp.matmul(x, x.T, accumulate="hopper_e4m3_f32", promote=128)
      >>> exact, float(chained[0, 0]), float(promoted[0, 0])
      (400.0, 386.625, 400.0)
      >>> split = fp.schedules.cublas("sm_90", split_k=4, fast_accum=True)
      >>> x = np.repeat(x, 16, axis=0)
      >>> float(fp.matmul(x, x.T, accumulate="hopper_e4m3_f32", schedule=split, out_fmt=fp.BF16)[0, 0])
      394.0
    """
    promote = keywords.get("promote")
    alone = len(keywords) == (promote is not None)  # usual keywords of small products, which skip the checks
    passed: dict[str, Any] = {**keywords} if alone else given_keywords(matmul, keywords, DEFAULTS)
    if c is None and (alone or len(passed) == (promote is not None)):
        plain: npt.NDArray[Any] | None = short_way().plain_product(a, b, accumulate, fmt, promote, out)
        if plain is not None:
            return plain
    a, b, c, schedule = in_dtype(a), in_dtype(b), in_dtype(c), passed.get("schedule")
    if "out_format" in passed:
        passed["out_fmt"] = renamed_out_fmt(passed.get("out_fmt"), passed.pop("out_format"))
    if isinstance(schedule, ShapedSchedule):
        words = {"c": c, "accumulate": accumulate, **passed, "fmt": fmt, "out": out}
        kept = {name: x for name, x in words.items() if x is not None and name not in ("schedule", "strict")}
        chosen: npt.NDArray[Any] = _by_library(schedule, a, b, kept)
        return chosen
    request = requests().Request(**passed)
    if _is_stack(a) or _is_stack(b):
        stack: npt.NDArray[Any] = stacks().stacked(a, b, c, accumulate, request, fmt, out)
        return stack
    if is_regions(schedule):
        parts: npt.NDArray[Any] = regional().regional_product(a, b, c, accumulate, request, fmt, out)
        return parts
    if schedule is not None and requests().is_order(schedule):
        ordered: npt.NDArray[Any] = orders().ordered_product(a, b, c, accumulate, request, fmt, out)
        return ordered
    result: npt.NDArray[Any] = long_way().multiplied(a, b, c, accumulate, request, fmt, out, backends().Cpu())
    return result


def _is_stack(x: Any) -> bool:
    """Return whether an operand x, an array or nested lists, has more than two axes."""
    depth = 0
    while isinstance(x, (list, tuple)) and x and depth < 2:
        x, depth = x[0], depth + 1
    shape = getattr(x, "shape", ())  # of a class it is no tuple
    axes = len(shape) if isinstance(shape, tuple) else 0
    return depth + axes > 2 or (depth == 2 and isinstance(x, (list, tuple)))


def renamed_out_fmt(out_fmt: FormatLike | IntegerFormat | None, out_format: FormatLike) -> FormatLike:
    """Return the value of the deprecated keyword `out_format`, and warn that it is now called `out_fmt`.

    Raises:
      TypeError: both keywords were passed.
    """
    if out_fmt is not None:
        raise TypeError("out_fmt and its old name out_format must not both be given. Leave out out_format.")
    warn_renamed("out_format=", "out_fmt=", stacklevel=3)  # shown where matmul is called
    return out_format


def _by_library(schedule: ShapedSchedule, a: Any, b: Any, words: Mapping[str, Any]) -> Any:
    """Return a @ b by the unit, schedule and result format that a library chooses for the shapes and format of a and b.

    Args:
      schedule: the library.
      a, b: arrays of float dtypes, or codes with `fmt` in `words`.
      words: the other keyword arguments of `fp.matmul` that were passed.

    Raises:
      DeclinedShape: the library's order of additions is not known for the shape; or b is the transposed view of a, and
        the library has another routine for such products.
      ValueError: an argument whose effect in the library is not known, operands of two formats, or stacks of matrices.
      TypeError: operands of other formats than BF16, FP16, FP32 and int8.
    """
    for name in words:
        if name not in ("out_fmt", "fmt", "out", "bias"):
            reason = "is chosen by" if name in ("accumulate", "promote") else "is not known for"
            raise ValueError(f"{name} {reason} {schedule}; got {shown(words[name])}. Leave it out.")
    shapes = [tuple(as_array(x, name).shape) for x, name in ((a, "a"), (b, "b"))]
    if _is_stack(a) or _is_stack(b):
        raise ValueError(
            f"{schedule} multiplies two matrices; got shapes {shapes[0]} and {shapes[1]}. Libraries may add stacks of "
            "matrices in another order. Multiply them one at a time if yours does so."
        )
    for shape, name in zip(shapes, "ab", strict=True):
        refuse_axes(shape, name)
    refuse_shapes(*shapes)
    fmt = words.get("fmt")
    of_codes = wanted_formats("matmul", fmt, 2)
    formats = [_format(x, wanted, name) for x, wanted, name in zip((a, b), of_codes, "ab", strict=True)]
    if formats[0] != formats[1]:
        raise ValueError(f"{schedule} multiplies operands of one format; got {formats[0]} and {formats[1]}.")
    sizes = shapes[0][0], shapes[1][1], shapes[0][1]
    if 0 in sizes:
        return _empty_product(a, b, formats[0], words)
    chosen = schedule.at(*sizes, formats[0])
    if schedule.own_transpose and _is_transpose(a, b):
        shape = ProductShape(*sizes, formats[0], schedule.layout)
        raise declined(schedule.name, shape, schedule.own_transpose)
    kept = {name: words[name] for name in ("out", "bias") if name in words}
    if "bias" in kept and not chosen.adds_bias:
        raise ValueError(f"how {schedule} adds a bias by {chosen.kernel} is not known. Leave it out.")
    if formats[0] == INT8:
        return _integer_product(a, b, chosen, kept | {name: words[name] for name in ("out_fmt",) if name in words})
    if math.copysign(1, chosen.starts_at) < 0 and "bias" not in kept:
        words = {**words, "bias": np.full(sizes[1], chosen.starts_at, np.float32)}
    if "bias" in words and chosen.bias != "last":
        return regional().biased_product(a, b, chosen, fmt, {"out_fmt": chosen.out_fmt, **words})
    kept |= {"schedule": chosen.schedule, "accumulate": chosen.accumulate}
    if fmt is not None and not isinstance(chosen.accumulate, str):  # a unit determines the formats of its operands
        kept["fmt"] = formats[0]
    out_fmt = format_argument("out_fmt", words.get("out_fmt", chosen.out_fmt))
    flushes, order = chosen.flushes and out_fmt == BF16, chosen.schedule
    if not (flushes and ("bias" in kept or not isinstance(order, Schedule) or len(order.slicing.lengths) > 1)):
        return matmul(a, b, out_fmt=out_fmt, **kept)
    sums = casts().quantize(matmul(a, b, **{**kept, "out": None, "out_fmt": FP32}), FP32, subnormals="flush")
    none = np.zeros((sizes[0], 0), np.float32), np.zeros((0, sizes[1]), np.float32)  # no term is added to the sums
    return matmul(*none, sums, accumulate=CHAIN, schedule=FLAT, out_fmt=BF16, out=kept.get("out"))


def _is_transpose(a: Any, b: Any) -> bool:
    """Return whether b is the transposed view of a: the same elements in memory, with rows and columns exchanged."""
    left, right = as_array(a, "a"), as_array(b, "b")
    same = left.__array_interface__["data"] == right.__array_interface__["data"]
    return same and left.shape == right.shape[::-1] and left.strides == right.strides[::-1]


def _integer_product(a: Any, b: Any, chosen: ChosenSchedule, words: Mapping[str, Any]) -> Any:
    """Return a @ b of int8 operands by the unit that a library chose, (M, N).

    chosen: the library's choice. If its kernel adds 128 to one operand to make it unsigned, so does this function, and
    it subtracts the effect from the sums. words: the keyword arguments `out` and `out_fmt`, where they were passed.
    """
    if not chosen.shifted:
        return matmul(a, b, accumulate=chosen.accumulate, **words)
    left, right, schedule = as_array(a, "a"), as_array(b, "b"), chosen.schedule
    assert isinstance(schedule, Schedule)  # Regions are for floats
    sums = shifts().shifted_product(left, right, chosen.accumulate, schedule.slicing.lengths, chosen.shifted)
    none = left[:, :0], right[:0]  # the sums are finished: no term is added to them
    return matmul(*none, sums, accumulate="x86_amx_s8_s32", **words) if words else sums


def _empty_product(a: Any, b: Any, form: Format | IntegerFormat, words: Mapping[str, Any]) -> Any:
    """Return a @ b where M, N or K is 0, so that no order of additions is needed: +0, plus the bias if there is one.

    Args:
      a, b: operands of the format `form`.
      form: their format, which the result has unless `words` has an `out_fmt`.
      words: `out_fmt`, `fmt`, `out` and `bias` where they were passed.
    """
    if form == INT8:
        if "bias" in words:
            raise ValueError("how torch._int_mm adds a bias is not known. Leave it out.")
        return matmul(a, b, accumulate="x86_amx_s8_s32", **words)
    assert isinstance(form, Format)  # the only other integers are refused before
    words = {"out_fmt": form, **words}
    if "bias" in words:  # the result is the bias, also where that is -0
        from_bias = ChosenSchedule("", FLAT, CHAIN, form, "", bias="start")
        return regional().biased_product(a, b, from_bias, words.get("fmt"), words)
    return matmul(a, b, accumulate=CHAIN, schedule=FLAT, **words)


def _format(x: Any, fmt: Format | None, name: str) -> Format | IntegerFormat:
    """Return the format of operand x: that of its class or dtype, else `fmt`, the format of codes.

    name: the argument's name in errors.

    Raises:
      TypeError: the format is not BF16, FP16, FP32 or int8, those that libraries multiply; or fmt is None and x holds
        integers other than int8.
    """
    dtype = as_array(x, name).dtype
    stored = format_of(dtype) or (INT8 if dtype.name == "int8" and fmt is None else fmt)
    if stored not in LIBRARY_FORMATS:
        shown_as = stored if stored is fmt and fmt is not None else dtype if hasattr(x, "dtype") else shown(x)
        raise TypeError(
            f"{name} must be an array of bfloat16, float16, float32 or int8, or codes of BF16, FP16 or FP32 with fmt=; "
            f"got {shown_as}. fpsim.cast({name}, fmt) rounds values to a format."
        )
    return stored
