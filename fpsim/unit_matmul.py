"""matmul by a matrix unit: operands with their scales at the door, promotion, and the result in the unit's dtype."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, output, words
from fpsim.cast import encode
from fpsim.errors import unknown
from fpsim.formats import DTYPES, FP16, FP32
from fpsim.kernels.native import under_ieee
from fpsim.kernels.panel import canonical_nan
from fpsim.matrix_unit import MatrixUnit
from fpsim.scaled import Scaled
from fpsim.tiling import tile_sizes
from fpsim.unit_operands import accumulator, operand, refuse_axes, refuse_overlap, refuse_shapes, scales
from fpsim.unit_product import COLUMNS_FIRST, PRODUCT, ROWS_FIRST, Factors, Product, add_part, add_product

SCALE_ORDERS = {"product": PRODUCT, "a_first": ROWS_FIRST, "b_first": COLUMNS_FIRST}


class Side(NamedTuple):
    """An operand of a product by a unit."""

    codes: Array
    block_scales: npt.ArrayLike | None  # codes, for units that take them
    factors: Array | None  # float32 decode scales per tile, for those that do not
    tile: tuple[int, int]  # of the factors
    along_k: int | None  # terms of K that share a factor, where factors change along K
    tensor_scale: np.float32 | None


@under_ieee
def unit_matmul(
    a: Any, b: Any, c: Any, unit: MatrixUnit, *, promote: int | None, scale_a: Any, scale_b: Any, scale_order: str,
    out: Array | None,
) -> Array:  # fmt: skip
    """`fpsim.matmul` by a matrix unit."""
    left, right = _side(a, "a", unit, scale_a), _side(b, "b", unit, scale_b)
    refuse_shapes(left.codes, right.codes)
    shape, k = (left.codes.shape[0], right.codes.shape[1]), left.codes.shape[1]
    promote, mode = _promotion(promote, unit, k, left, right), _scale_order(scale_order)
    block_scales = _block_scales(left, right, unit)
    widened = promote > 0 or left.factors is not None or right.factors is not None
    dtype = np.dtype(np.float32) if widened else DTYPES[unit.d.fmt]
    result = output(out, shape, dtype, left.codes, "the result's")
    refuse_overlap(out, left.codes, right.codes)
    in_place = dtype != np.float16 and result.flags.c_contiguous
    total = result if in_place else np.empty(shape, np.promote_types(dtype, np.float32))
    _start(total, c, unit, left, right)
    _accumulate(total, Product(unit, left.codes, right.codes, *block_scales, promote, Factors()), left, right, mode)
    finished = _finished(total, unit, dtype) if k else total.astype(dtype, copy=False)  # no terms leave c as it is
    if finished is not result:
        result[...] = finished
    return result


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


def _side(x: Any, name: str, unit: MatrixUnit, codes_of_scales: Any) -> Side:
    """An operand at the door."""
    element = unit.a if name == "a" else unit.b
    if not isinstance(x, Scaled):
        codes = operand(x, element, unit, name)
        refuse_axes(codes, name)
        return Side(codes, codes_of_scales, None, (0, 0), None, None)
    if codes_of_scales is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    if unit.d.name == "f64":
        raise ValueError(f"scales are applied to float32 sums; {unit.name} has float64 sums. Decode {name} first.")
    if x.fmt != element.carrier:
        raise ValueError(f"{unit.name} takes {element.name} as {name}; got a Scaled array of {x.fmt}.")
    refuse_axes(x.codes, name)
    rows, columns = tile_sizes(x.codes.shape, x.scaling.block)
    codes = x.codes.astype(element.dtype, copy=False)
    if unit.scale is None:
        block = _block_along_k(x.scaling.block, name)
        return Side(codes, None, x.scales, (rows, columns), None if block == -1 else block, None)
    along, across = (columns, rows) if name == "a" else (rows, columns)
    k = codes.shape[1] if name == "a" else codes.shape[0]
    fits = across == 1 and (along == unit.block or (along == max(k, 1) <= unit.block))
    if not fits or x.scaling.scale_format != unit.scale_format or x.scale_codes is None:
        wanted = f"(1, {unit.block})" if name == "a" else f"({unit.block}, 1)"
        raise ValueError(
            f"{unit.name} takes {name} in tiles of {wanted} with scales in {unit.scale_format}; got tiles of "
            f"{(rows, columns)} with scales in {x.scaling.scale_format}. Encode it with such a Scaling"
            + (", or encode the (N, K) matrix and pass its transpose." if name == "b" else ".")
        )
    return Side(codes, x.scale_codes, None, (0, 0), None, x.tensor_scale)


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
    blocks = [side.along_k for side in (left, right) if side.along_k is not None]
    chosen = int(promote) if promote is not None else (min(blocks) if blocks else 0)
    for block in blocks:
        if block % unit.terms:
            raise ValueError(
                f"{unit.name} adds {unit.terms} terms in a step, and scales of {block} terms of K cannot join between "
                "steps. Use larger tiles, or a unit that takes such scales."
            )
        if block % chosen:
            raise ValueError(f"promote must divide the {block} terms of K that share a scale; got {chosen}.")
    return min(chosen, max(-(-k // unit.terms), 1) * unit.terms)


def _block_along_k(block: tuple[int, ...], name: str) -> int:
    """The entry of a Scaling's block for the axis K of a matrix; -1 for all of it."""
    missing = [-1 if block[0] == -1 else 1] * (2 - len(block))
    rows, columns = [*missing, *block][-2:]
    return columns if name == "a" else rows


def _scale_order(word: str) -> int:
    if not isinstance(word, str) or word not in SCALE_ORDERS:
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
    if k and (left.along_k or right.along_k):
        add_product(total, product._replace(factors=_factors(left, right, k, product.promote, mode)))
    elif k == 0 or (left.factors is None and right.factors is None):
        add_product(total, product)
    else:  # scales that are the same along K multiply the finished sum
        finished = np.zeros_like(total)
        add_product(finished, product)
        with np.errstate(all="ignore"):
            add_part(total, finished, _factors(left, right, k, k, mode), 0)
    tensor_scales = [side.tensor_scale for side in (left, right) if side.tensor_scale is not None]
    if tensor_scales:
        with np.errstate(all="ignore"):
            total *= np.prod(tensor_scales, dtype=np.float32)


def _block_scales(left: Side, right: Side, unit: MatrixUnit) -> tuple[Array, Array]:
    """The scale codes of both operands, (M, blocks) and (blocks, N)."""
    (m, k), n = left.codes.shape, right.codes.shape[1]
    of_a = scales(left.block_scales, (m,), k, unit, "scale_a")
    return of_a, scales(right.block_scales, (n,), k, unit, "scale_b", blocks_first=True)


def _finished(total: Array, unit: MatrixUnit, dtype: np.dtype[Any]) -> Array:
    """Sums in the dtype of the result, NaN as the unit gives it."""
    # sums of FP16 units that were promoted are float32
    fmt = FP16 if dtype == np.float16 else FP32 if unit.d.name == "f16" else unit.d.fmt
    nan = unit.nan_code if fmt == unit.d.fmt else fmt.top_magnitude
    finished = encode(total, FP16).view(np.float16) if dtype == np.float16 else total
    word = words(finished).dtype.type
    infinity, sign = (word(code) for code in (fmt.max_code + 1, fmt.sign_bit))
    canonical_nan()(words(finished).reshape(-1), infinity, sign, word(nan))
    return finished
