"""matmul: matrix products by the arithmetic of a matrix unit or of a generic accumulator, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fpsim.arithmetic.operands import Formats, read_operand
from fpsim.arrays import Array, output, words
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.instructions.operands import refuse_axes, refuse_overlap, refuse_shapes
from fpsim.matrix_units.catalogue import unit as find_unit
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.schedule import Schedule
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd
from fpsim.sums.product import accumulator_product


def matmul(
    a: npt.ArrayLike | Scaled,
    b: npt.ArrayLike | Scaled,
    c: npt.ArrayLike | None = None,
    *,
    accumulate: str | MatrixUnit | Accumulator,
    schedule: Schedule | None = None,
    promote: int | None = None,
    scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None,
    scale_order: str | None = None,
    bias: npt.ArrayLike | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    out_format: FormatLike | None = None,
    strict: bool = True,
    fmt: Formats = None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """c + a @ b, with every product, addition and rounding of a matrix unit, a library or an accumulator.

    With a unit, element (m, n) has the bits of `fp.dot_add(a[m], b[:, n], c[m, n], unit)`, for all inputs. With a
    schedule it has those of a library's kernel, such as cuBLAS's, which chains the unit in its own way.

    Args:
      a, b: (M, K) and (K, N): codes of the unit's elements or arrays of their dtypes, as in `fp.dot_add`, or
        `fp.Scaled` arrays. For an accumulator: arrays of float dtypes, or codes with `fmt`.
      c: (M, N), what the accumulator starts at: codes of its format or floats of its dtype; None for +0. With beta,
        and for schedules of libraries that have no other C, beta * c is added in the epilogue.
      accumulate: a unit or its name (`fp.units()`), or an accumulator such as `fp.Sequential(fp.BF16)`.
      schedule: how a library chains the unit over K and puts the parts together, of `fp.schedules`; None for one chain.
      promote: terms of K after which the unit's partial sum is added to a float32 total (one nearest-even addition) and
        starts again at +0, as in CUTLASS's 2xAcc; a multiple of the unit's step. None adds up all of K in the unit.
      scale_a, scale_b: (M, K / block) and (K / block, N) scale codes for block-scaled units, unless the operands are
        Scaled. For other units float32 decode scales: a number; (M, 1) and (1, N); per 1x128 (M, ceil(K / 128)) and
        (ceil(K / 128), N); per 128x128 (ceil(M / 128), ceil(K / 128)) and (ceil(K / 128), ceil(N / 128)).
      scale_order: how a partial sum meets the scales of Scaled operands in front of the total, for units that take no
        scales: "product": fma(scale_a * scale_b, partial, total), as DeepGEMM; "a_first":
        fma(partial * scale_a, scale_b, total), as CUTLASS and cuBLAS; "b_first" likewise. None is "product", or the
        schedule's own.
      bias: (N,) float32, float16 or bfloat16, added in float32 before the cast.
      alpha, beta: factors of the product and of c, rounded to float32.
      out_format: the format of the result, to which it is cast once, to nearest even (FP8 saturates); None for the
        accumulator's.
      strict: refuse what the schedule's library refuses; False computes it all the same.
      fmt: the format of codes, or (format of a, format of b), for accumulators.
      out: takes the result.

    Returns:
      (M, N) array of the accumulator's dtype: float32, float16 or float64 for units; float32 where sums are promoted,
      scaled, merged or finished in float32; the dtype of `out_format`, or its codes, where that is given.

    Scaled operands: a block-scaled unit takes their scale codes, and a tensor scale (NVFP4) multiplies the result. A
    unit without scales takes scales per tile of K by promotion: `promote` is then their block along K unless it is
    given, and must divide it. Scales of whole rows, columns or tensors multiply the result.

    Raises:
      ValueError: shapes that do not match, formats that the unit does not take, `promote` that is no multiple of the
        unit's step, K that is no multiple of the scale block, codes out of range, what the library refuses.
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
      >>> float(fp.matmul(x, x.T, accumulate="hopper_e4m3_f32", schedule=split, out_format=fp.BF16)[0, 0])
      394.0
    """
    if schedule is not None and accumulate == FusedMultiplyAdd(FP32):
        accumulate, fmt = _fused_chain(a, b, fmt), None
    if isinstance(accumulate, (str, MatrixUnit)):
        from fpsim.products.by_unit import unit_matmul
        from fpsim.products.request import Request

        unit = find_unit(accumulate)
        if fmt is not None:
            raise ValueError(f"fmt is for accumulators; {unit.name} says itself what it takes. Leave it out.")
        asked = Request(
            schedule, promote, scale_a, scale_b, scale_order, bias, alpha, beta, out_format, bool(strict)
        )  # fmt: skip
        return unit_matmul(a, b, c, unit, asked, out)
    refuse_other_kinds(accumulate)
    refuse_unit_options(
        schedule=schedule, promote=promote, scale_a=scale_a, scale_b=scale_b, scale_order=scale_order, bias=bias,
        alpha=alpha, beta=beta, out_format=out_format,
    )  # fmt: skip
    return _by_accumulator(a, b, c, accumulate, fmt, out)


def _fused_chain(a: Any, b: Any, fmt: Formats) -> MatrixUnit:
    """fp.FusedMultiplyAdd(fp.FP32) as a unit of one term, for operands at the door."""
    if isinstance(a, Scaled) or isinstance(b, Scaled):
        raise TypeError("an accumulator takes no Scaled operands; decode them first: a.decode().")
    return fused_chain(
        *(read_operand(x, one, name)[1] for x, one, name in zip((a, b), format_pair(fmt), ("a", "b"), strict=True))
    )


def fused_chain(of_a: Format, of_b: Format) -> MatrixUnit:
    """fp.FusedMultiplyAdd(fp.FP32) as a unit of one term, for operands of these formats.

    Raises:
      ValueError: formats whose products float32 does not take.
    """
    if max(of_a.precision, of_b.precision) > FP32.precision:
        raise ValueError("a schedule adds float32 products; got FP64 operands. Encode them first.")
    left, right = Element(str(of_a), of_a, of_a), Element(str(of_b), of_b, of_b)
    return MatrixUnit("fused_multiply_add", "", left, right, ELEMENTS["f32"], Rule.EXACT, 1, evidence="hardware")


def format_pair(fmt: Formats) -> list[Format | None]:
    """The formats that are given for a and b."""
    formats = fmt if isinstance(fmt, (tuple, list)) else (fmt, fmt)
    if len(formats) != 2:
        raise ValueError(f"fmt must name one format, or those of a and b; got {fmt!r}.")
    return [None if one is None else find_format(one) for one in formats]


def refuse_other_kinds(accumulate: Any) -> None:
    """A TypeError for what is neither a matrix unit nor an accumulator."""
    if not isinstance(accumulate, (str, MatrixUnit, Accumulator)):
        raise TypeError(
            "accumulate must be a matrix unit, its name, or an accumulator such as fp.Sequential(fp.FP32); "
            f"got {accumulate!r}."
        )


def refuse_unit_options(**options: Any) -> None:
    """A ValueError for an option that accumulators do not have."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]} is for matrix units; an accumulator rounds every sum. Leave it out.")


def _by_accumulator(a: Any, b: Any, c: Any, accumulate: Accumulator, fmt: Formats, out: Array | None) -> Array:
    """The product by a generic accumulator."""
    if isinstance(a, Scaled) or isinstance(b, Scaled):
        raise TypeError("an accumulator takes no Scaled operands; decode them first: a.decode().")
    (left, of_a, _), (right, of_b, _) = (
        read_operand(x, one, name) for x, one, name in zip((a, b), format_pair(fmt), ("a", "b"), strict=True)
    )
    refuse_axes(left, "a")
    refuse_axes(right, "b")
    refuse_shapes(left, right)
    result_format = accumulate.result_format
    shape, dtype = (left.shape[0], right.shape[1]), DTYPES.get(result_format, result_format.storage)
    start = None if c is None else read_operand(c, result_format, "c")[0]
    if start is not None and start.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {start.shape}.")
    result = output(out, shape, dtype, left, "the result's")
    refuse_overlap(out, left, right)
    accumulator_product(left, right, start, accumulate, formats=(of_a, of_b), out=words(result))
    return result
