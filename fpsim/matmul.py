"""matmul: matrix products by the arithmetic of a matrix unit or of a generic accumulator, bit for bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, output, overlaps, words
from fpsim.cast import encode
from fpsim.errors import unknown
from fpsim.formats import DTYPES, FP16
from fpsim.kernels.native import under_ieee
from fpsim.matrix_unit import MatrixUnit
from fpsim.scaled import Scaled
from fpsim.tiling import tile_sizes
from fpsim.unit_operands import accumulator, operand, scales
from fpsim.unit_plan import canonical_nan, scale_format
from fpsim.unit_product import COLUMNS_FIRST, PRODUCT, ROWS_FIRST, Factors, Product, add_part, add_product
from fpsim.units import unit as find_unit

SCALE_ORDERS = {"product": PRODUCT, "a_first": ROWS_FIRST, "b_first": COLUMNS_FIRST}


class Side(NamedTuple):
    """An operand of a product by a unit."""

    codes: Array
    block_scales: Array | None  # codes, for units that take them
    factors: Array | None  # float32 decode scales per tile, for those that do not
    tile: tuple[int, int]  # of the factors
    tensor_scale: np.float32 | None


@under_ieee
def matmul(
    a: npt.ArrayLike | Scaled,
    b: npt.ArrayLike | Scaled,
    c: npt.ArrayLike | None = None,
    *,
    accumulate: Any,
    promote: int | None = None,
    scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None,
    scale_order: str = "product",
    fmt: Any = None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """c + a @ b, with every product, addition and rounding of a matrix unit or of an accumulator.

    With a unit, element (m, n) has the bits of `fp.dot_add(a[m], b[:, n], c[m, n], unit)`, for all inputs.

    Args:
      a, b: (M, K) and (K, N): codes of the unit's elements or arrays of their dtypes, as in `fp.dot_add`, or
        `fp.Scaled` arrays. For an accumulator: arrays of float dtypes, or codes with `fmt`.
      c: (M, N), what the accumulator starts at: codes of its format or floats of its dtype; None for +0.
      accumulate: a unit or its name (`fp.units()`), or an accumulator such as `fp.Sequential(fp.BF16)`.
      promote: terms of K after which the unit's partial sum is added to a float32 total (one nearest-even addition) and
        starts again at +0, as in CUTLASS's 2xAcc; a multiple of the unit's step. None adds up all of K in the unit.
      scale_a, scale_b: (M, K / block) and (K / block, N) scale codes for block-scaled units, unless the operands are
        Scaled.
      scale_order: how a partial sum meets the scales of Scaled operands in front of the total, for units that take no
        scales: "product": fma(scale_a * scale_b, partial, total), as DeepGEMM; "a_first":
        fma(partial * scale_a, scale_b, total), as CUTLASS and cuBLAS; "b_first" likewise.
      fmt: the format of codes, or (format of a, format of b), for accumulators.
      out: takes the result.

    Returns:
      (M, N) array of the accumulator's dtype: float32, float16 or float64 for units; float32 where sums are promoted or
      scaled.

    Scaled operands: a block-scaled unit takes their scale codes, and a tensor scale (NVFP4) multiplies the result. A
    unit without scales takes scales per tile of K by promotion: `promote` is then their block along K unless it is
    given, and must divide it. Scales that are the same along K multiply the result.

    Raises:
      ValueError: shapes that do not match, formats that the unit does not take, `promote` that is no multiple of the
        unit's step, K that is no multiple of the scale block, codes out of range.
      TypeError: operands that are neither codes nor floats.

    Source: docs/matrix-units.md, docs/accumulators.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> x = fp.cast(np.full((1, 4096), 0.3, np.float32), fp.E4M3)
      >>> exact = 4096 * 0.3125**2
      >>> chained = fp.matmul(x, x.T, accumulate="hopper_e4m3_f32")
      >>> promoted = fp.matmul(x, x.T, accumulate="hopper_e4m3_f32", promote=128)
      >>> exact, float(chained[0, 0]), float(promoted[0, 0])
      (400.0, 400.0, 400.0)
    """
    if not isinstance(accumulate, (str, MatrixUnit)):
        return _by_accumulator(a, b, c, accumulate, fmt=fmt, out=out)
    unit = find_unit(accumulate)
    if fmt is not None:
        raise ValueError(f"fmt is for accumulators; {unit.name} says itself what it takes. Leave it out.")
    left, right = _side(a, "a", unit, scale_a), _side(b, "b", unit, scale_b)
    _refuse_shapes(left.codes, right.codes)
    shape, k = (left.codes.shape[0], right.codes.shape[1]), left.codes.shape[1]
    promote, mode = _promotion(promote, unit, k, left, right), _scale_order(scale_order)
    block_scales = _block_scales(left, right, unit)
    widened = promote > 0 or left.factors is not None or right.factors is not None
    dtype = np.dtype(np.float32) if widened else DTYPES[unit.d.fmt]
    result = output(out, shape, dtype, left.codes)
    _refuse_overlap(out, left.codes, right.codes)
    total = result if dtype != np.float16 else np.empty(shape, np.float32)
    _start(total, c, unit, left, right)
    _accumulate(total, Product(unit, left.codes, right.codes, *block_scales, promote, Factors()), left, right, mode)
    finished = _finished(total, unit, dtype)
    if finished is not result:
        result[...] = finished
    return result


def _refuse_overlap(out: Array | None, *operands: Array) -> None:
    if out is not None and any(overlaps(out, x) for x in operands):
        raise ValueError("out must not share memory with a or b; got overlapping arrays. Pass a separate array.")


def _start(total: Array, c: Any, unit: MatrixUnit, left: Side, right: Side) -> None:
    """Fill in what the sums start at."""
    if c is None:
        total[...] = 0
        return
    if left.tensor_scale is not None or right.tensor_scale is not None:
        raise ValueError("c cannot join a sum that a tensor scale multiplies afterwards; add it to the result.")
    codes = accumulator(c, unit)
    if codes.shape != total.shape:
        raise ValueError(f"c must have the result's shape {total.shape}; got {codes.shape}.")
    total[...] = codes.view(DTYPES[unit.d.fmt])


def _by_accumulator(a: Any, b: Any, c: Any, accumulate: Any, *, fmt: Any, out: Any) -> npt.NDArray[Any]:
    raise NotImplementedError


def _side(x: Any, name: str, unit: MatrixUnit, codes_of_scales: Any) -> Side:
    """An operand at the door."""
    element = unit.a if name == "a" else unit.b
    if not isinstance(x, Scaled):
        codes = operand(x, element, unit, name)
        _refuse_axes(codes, name)
        return Side(codes, None if codes_of_scales is None else np.asarray(codes_of_scales), None, (0, 0), None)
    if codes_of_scales is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    if x.fmt != element.carrier:
        raise ValueError(f"{unit.name} takes {element.name} as {name}; got a Scaled array of {x.fmt}.")
    _refuse_axes(x.codes, name)
    rows, columns = tile_sizes(x.codes.shape, x.scaling.block)
    codes = x.codes.astype(element.dtype, copy=False)
    if unit.scale is None:
        return Side(codes, None, x.scales, (rows, columns), None)
    along, across = (columns, rows) if name == "a" else (rows, columns)
    k = codes.shape[1] if name == "a" else codes.shape[0]
    fits = across == 1 and (along == unit.block or (along == k and k <= unit.block))
    if not fits or x.scaling.scale_format != scale_format(unit) or x.scale_codes is None:
        wanted = f"(1, {unit.block})" if name == "a" else f"({unit.block}, 1)"
        raise ValueError(
            f"{unit.name} takes a {unit.scale} scale per {unit.block} terms of K, so {name} in tiles of {wanted}; got "
            f"tiles of {(rows, columns)} with scales in {x.scaling.scale_format}. Encode it with such a Scaling"
            + (", or encode the (N, K) matrix and pass its transpose." if name == "b" else ".")
        )
    return Side(codes, x.scale_codes, None, (0, 0), x.tensor_scale)


def _refuse_axes(codes: Array, name: str) -> None:
    if codes.ndim != 2:
        shape = "(M, K)" if name == "a" else "(K, N)"
        raise ValueError(f"{name} must have two axes, {shape}; got shape {codes.shape}.")


def _refuse_shapes(a: Array, b: Array) -> None:
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"a (M, K) and b (K, N) must agree in K; got {a.shape} and {b.shape}. Transpose b if its rows are columns."
        )


def _promotion(promote: int | None, unit: MatrixUnit, k: int, left: Side, right: Side) -> int:
    """Terms from one promotion to the next, 0 for none."""
    if promote is not None:
        if isinstance(promote, bool) or not isinstance(promote, (int, np.integer)) or promote < 1:
            raise ValueError(f"promote must be a number of terms, or None for no promotion; got {promote!r}.")
        if promote % unit.terms:
            raise ValueError(
                f"promote must be a multiple of the {unit.terms} terms that {unit.name} adds in a step; got {promote}."
            )
        if unit.d.name == "f64":
            raise ValueError(
                f"promote adds partial sums to a float32 total; {unit.name} has float64 sums. Leave it out."
            )
    blocks = _blocks_along_k(k, left, right)
    chosen = int(promote) if promote is not None else (min(blocks) if blocks else 0)
    for block in blocks:
        if block % chosen or block % unit.terms:
            raise ValueError(
                f"promote must divide the {block} terms of K that share a scale, and be a multiple of the {unit.terms} "
                f"that {unit.name} adds in a step; got {chosen}."
            )
    return chosen


def _blocks_along_k(k: int, left: Side, right: Side) -> list[int]:
    """Terms of K that share a scale, for scales that change along K."""
    sides = ((left, left.tile[1]), (right, right.tile[0]))
    return [block for side, block in sides if side.factors is not None and block < k]


def _scale_order(word: str) -> int:
    if word not in SCALE_ORDERS:
        raise unknown("scale_order", word, list(SCALE_ORDERS))
    return SCALE_ORDERS[word]


def _factors(left: Side, right: Side, k: int, promote: int, mode: int) -> Factors:
    """The float32 factors of every partial sum of `promote` terms."""
    starts = np.arange(0, max(k, 1), promote)
    rows, columns = np.arange(left.codes.shape[0]), np.arange(right.codes.shape[1])
    one = np.float32(1)
    of_rows = np.full((rows.size, starts.size), one) if left.factors is None else (
        left.factors[rows[:, None] // left.tile[0], starts // left.tile[1]]
    )  # fmt: skip
    of_columns = np.full((starts.size, columns.size), one) if right.factors is None else (
        right.factors[starts[:, None] // right.tile[0], columns // right.tile[1]]
    )  # fmt: skip
    return Factors(np.ascontiguousarray(of_rows), np.ascontiguousarray(of_columns), mode)


def _accumulate(total: Array, product: Product, left: Side, right: Side, mode: int) -> None:
    """Add the product to what `total` starts at, with the scales of Scaled operands."""
    k = product.a.shape[1]
    if _blocks_along_k(k, left, right):
        add_product(total, product._replace(factors=_factors(left, right, k, product.promote, mode)))
    elif left.factors is None and right.factors is None:
        add_product(total, product)
    else:  # scales that are the same along K multiply the finished sum
        finished = np.zeros_like(total)
        add_product(finished, product)
        add_part(total, finished, _factors(left, right, k, max(k, 1), mode), 0)
    tensor_scales = [side.tensor_scale for side in (left, right) if side.tensor_scale is not None]
    if tensor_scales:
        total *= np.prod(tensor_scales, dtype=np.float32)


def _block_scales(left: Side, right: Side, unit: MatrixUnit) -> tuple[Array, Array]:
    """The scale codes of both operands, (M, blocks) and (blocks, N)."""
    (m, k), n = left.codes.shape, right.codes.shape[1]
    of_b = None if right.block_scales is None else right.block_scales.T
    return scales(left.block_scales, (m,), k, unit, "scale_a"), scales(of_b, (n,), k, unit, "scale_b").T


def _finished(total: Array, unit: MatrixUnit, dtype: np.dtype[Any]) -> Array:
    """Sums in the dtype of the result, NaN as the unit gives it."""
    nan = np.isnan(total)
    if dtype == np.float16:
        codes = encode(total, FP16)
        codes[nan] = canonical_nan(unit)
        return codes.view(np.float16)
    if nan.any():
        words(total)[nan] = canonical_nan(unit)
    return total
