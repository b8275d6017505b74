"""Operands of a product by a matrix unit: their codes, with scales from a Scaled array or from scale_a and scale_b."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, FP16, FP64, Format
from fpsim.formats.named import format as find_format
from fpsim.instructions.operands import refuse_axes, refuse_shapes
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products.backend import Backend
from fpsim.products.unit_product import Factors
from fpsim.scaling.tiling import matrix_block, tile_sizes

BLOCK = 128  # terms, rows or columns that share a scale where scales are passed as an array (docs/schedules.md)


class OperandShape(NamedTuple):
    """The shape of an operand and its tile (a block of elements that share a scale): all that plans of products read.

    Attributes:
      name: "a" or "b".
      shape: (M, K) of a, (K, N) of b.
      tile: (rows, columns) of elements that share a float32 decode scale (their factor); (0, 0) without such scales.
      along_k: number of terms of K that share a decode scale; None if scales do not change along K, or there are none.
      factors: number of float32 decode scales of the operand; None without them.
      has_tensor_scale: True for NVFP4: besides the unit's block scales there is one scale for the whole operand.
    """

    name: str
    shape: tuple[int, int]
    tile: tuple[int, int] = (0, 0)
    along_k: int | None = None
    factors: int | None = None
    has_tensor_scale: bool = False

    @property
    def kind(self) -> str:
        """Text for the tile that shares a decode scale: "none", "tensor", "row", or sizes such as "1x128".

        "none": there are no decode scales. "row": one scale per row of a, or per column of b. Sizes are (rows of a, or
        columns of b) x (terms of K).
        """
        if self.factors is None:
            return "none"
        if self.along_k is not None:
            return f"1x{self.along_k}" if self.one_dimensional else f"{self.across}x{self.along_k}"
        return "tensor" if self.factors == 1 else "row"

    @property
    def across(self) -> int:
        """Number of rows of a, or of columns of b, that share a decode scale."""
        return self.tile[0 if self.name == "a" else 1]

    @property
    def one_dimensional(self) -> bool:
        """True if no two rows of a, or no two columns of b, share a decode scale."""
        return self.across == 1


class UnitOperand(NamedTuple):
    """An operand of a product by a matrix unit: codes or integers, and the scales and zero points that belong to them.

    Attributes:
      facts: the operand's shape and its tiles (blocks of elements that share a scale).
      codes: array of codes in the unit's input format, or of integers in its input dtype, (M, K) or (K, N), in the
        memory of the CPU or GPU in use.
      block_scales: codes of the scales that the unit itself applies (MX formats, NVFP4); None for other units.
      factors: float32 decode scales, one per tile, for units without block scales; None for an unscaled operand.
      tensor_scale: a scale of the whole operand in addition to block scales (NVFP4); None without.
      zero_points: int32, for integers; None for none. Their shape is (M, 1) for a, (1, N) for b, or (1, 1); with scales
        along K it is one per tile.
    """

    facts: OperandShape
    codes: Any
    block_scales: npt.ArrayLike | None = None
    factors: Array | None = None
    tensor_scale: np.float32 | None = None
    zero_points: Array | None = None


def read_operand(x: Any, name: str, unit: MatrixUnit, scales: Any, blocks: bool, backend: Backend) -> UnitOperand:
    """Return an operand of `fp.matmul` as codes of the unit's input format, with its scales.

    Args:
      x: an array of codes or floats, or a Scaled array.
      name: "a" or "b".
      unit: the matrix unit that multiplies it.
      scales: the caller's argument scale_a or scale_b: codes for units with block scales, float32 decode scales for
        others; None for no scales.
      blocks: how to read one scale per row of a (column of b) if K is at most 128, where that has two meanings. True:
        the scale of a block of K, which multiplies partial sums. False: the scale of the whole row or column.
      backend: the object that reads and computes on the CPU or GPU whose memory holds x.
    """
    element = unit.a if name == "a" else unit.b
    scaled = backend.scaled(x, name)
    if scaled is not None:
        return _scaled_operand(scaled, name, element, unit, scales, backend)
    codes = backend.operand(x, element, unit, name)
    refuse_axes(codes.shape, name)
    if scales is None:
        return UnitOperand(OperandShape(name, codes.shape), codes)
    if unit.scale is not None:
        return UnitOperand(OperandShape(name, codes.shape), codes, scales)
    return with_factors(codes, name, unit, backend.floats(scales, f"scale_{name}"), blocks)


def accumulator_codes(a: Any, b: Any, fmt: Formats, backend: Backend) -> tuple[tuple[Any, Any], tuple[Format, Format]]:
    """Return both operands of a product by an accumulator: ((codes of a, codes of b), (format of a, format of b)).

    a, b: arrays of a float dtype, or of unsigned codes. fmt: the format of codes, or a tuple of one for a and one for
    b; None for arrays of float dtypes. backend: the object that reads arrays in the memory of the CPU or GPU in use.

    Raises:
      ValueError, TypeError: Scaled operands, codes without a format, or formats that are not those of the operands.
    """
    if backend.scaled(a, "a") is not None or backend.scaled(b, "b") is not None:
        raise TypeError(
            "an accumulator takes no Scaled operands, whose scales belong to sums of a matrix unit; got one. Pass "
            "accumulate='hopper_e4m3_f32', say; a.decode() has float32 values instead, whose products round otherwise."
        )
    pair = fmt if isinstance(fmt, (tuple, list)) else (fmt, fmt)
    if len(pair) != 2:
        raise ValueError(f"fmt must name one format, or those of a and b; got {shown(fmt)}.")
    of_a, of_b = (None if name is None else find_format(name) for name in pair)
    (left, of_a), (right, of_b) = backend.codes(a, of_a, "a"), backend.codes(b, of_b, "b")
    return (left, right), (of_a, of_b)


def accumulator_matrices(
    a: Any, b: Any, fmt: Formats, backend: Backend
) -> tuple[tuple[Any, Any], tuple[Format, Format]]:
    """Return both operands of a product by an accumulator, as `accumulator_codes` does, after a check of their shapes.

    a, b, fmt, backend: as for `accumulator_codes`.

    Raises:
      ValueError: a and b are not (M, K) and (K, N), or as for `accumulator_codes`.
      TypeError: as for `accumulator_codes`.
    """
    (left, right), formats = accumulator_codes(a, b, fmt, backend)
    refuse_axes(left.shape, "a")
    refuse_axes(right.shape, "b")
    refuse_shapes(left.shape, right.shape)
    return (left, right), formats


def with_factors(codes: Any, name: str, unit: MatrixUnit | IntegerUnit, scales: Array, blocks: bool) -> UnitOperand:
    """Return an operand with float32 decode scales, whose array's shape decides which elements share a scale.

    Args:
      codes: (M, K) of a or (K, N) of b, in the memory of the CPU or GPU in use: unsigned codes of the unit's input
        format, or integers for an integer unit.
      name: "a" or "b".
      unit: the matrix unit, which errors name.
      scales: float32, or float64 with float32 values. For a: one number, of shape (), (1,) or (1, 1), for the operand;
        (M, 1), one per row; (M, ceil(K / 128)), one per row and 128 terms of K; or (ceil(M / 128), ceil(K / 128)), one
        per 128x128 elements. For b: the same shapes with the axes exchanged, and N in place of M.
      blocks: how to read a shape with two meanings, such as (M, 1) if K is at most 128. True: scales of blocks of K,
        which multiply partial sums. False: scales of whole rows or columns.

    Raises:
      ValueError: scales of another shape or dtype, or a unit whose sums are float64.
    """
    _refuse_doubles(unit, name)
    factors = _float_scales(scales, name, unit)
    k_axis = 1 if name == "a" else 0
    (along, across), parts = (codes.shape[k_axis], codes.shape[1 - k_axis]), -(-codes.shape[k_axis] // BLOCK)
    # (scales along K, across) -> a tile's terms of K and rows, or columns; K may be a single block
    whole = {(1, 1): (along, across), (1, across): (along, 1)}
    in_blocks = {(parts, -(-across // BLOCK)): (BLOCK, BLOCK), (parts, across): (BLOCK, 1)}
    tiles = whole | in_blocks | ({} if blocks else whole)
    shape = factors.shape if factors.ndim and factors.shape != (1,) else (1, 1)
    terms_and_rows = tiles.get((shape[k_axis], shape[1 - k_axis])) if len(shape) == 2 else None
    if terms_and_rows is None:
        ordered = [key[::-1] if k_axis else key for key in tiles]
        raise ValueError(
            f"scale_{name} must be one number, or have one of the shapes {', '.join(map(str, ordered))} (for the "
            f"tensor, for rows or columns, for blocks of {BLOCK}); got {factors.shape}."
        )
    terms, rows = terms_and_rows
    tile = (max(rows, 1), max(terms, 1)) if name == "a" else (max(terms, 1), max(rows, 1))
    grid = np.ascontiguousarray(factors.reshape(shape))
    along_k = BLOCK if terms == BLOCK and (parts > 1 or blocks) else None
    return UnitOperand(OperandShape(name, codes.shape, tile, along_k, grid.size), codes, None, grid)


def _float_scales(array: Array, name: str, unit: MatrixUnit | IntegerUnit) -> Array:
    """Return a copy of decode scales as float32; a single float64 number is rounded.

    name: "a" or "b". unit: the matrix unit, which errors name.

    Raises:
      ValueError: the array is neither float32 nor float64, or a value of a float64 array is not a float32 value.
    """
    if array.dtype.kind not in "f" or array.dtype.itemsize < 4:
        raise ValueError(
            f"{unit.name} takes no block scales; got scale_{name} as {array.dtype}. Pass float32 decode scales "
            "(value = code * scale), or take a unit with scales such as blackwell_mxfp8_e4m3_f32."
        )
    if array.dtype == np.float32:
        return array.copy()
    with np.errstate(all="ignore"):
        narrow = array.astype(np.float32)
    if array.ndim and not np.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
        raise ValueError(f"scale_{name} must hold float32 numbers; got {array.dtype} values between them. Round them.")
    return narrow


def _refuse_doubles(unit: MatrixUnit | IntegerUnit, name: str) -> None:
    """Raise a ValueError if a unit's sums are float64, for which scales are not defined; name: the scaled operand."""
    if unit.d.fmt == FP64:
        raise ValueError(f"scales are applied to float32 sums; {unit.name} has float64 sums. Decode {name} first.")


def _scaled_operand(
    x: Any, name: str, element: Element, unit: MatrixUnit, scales: Any, backend: Backend
) -> UnitOperand:  # fmt: skip
    """Return the operand for x, an `fpsim.Scaled` array or a GPU's array with the same attributes.

    name: "a" or "b". element: the input format of this operand in the unit. unit: the matrix unit. scales: the caller's
    argument scale_a or scale_b, which must be None, as x has scales already. backend: the object that computes on the
    CPU or GPU whose memory holds x.

    Raises:
      ValueError: the unit does not accept x's format, or the shape of its tiles (blocks of elements that share a
        scale); or `scales` is not None.
    """
    if scales is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    _refuse_doubles(unit, name)
    if isinstance(x.fmt, IntegerFormat) and element.fmt in (FP16, BF16):  # products with 4-bit weights
        refuse_axes(x.codes.shape, name)
        codes = backend.decoded(x, element.carrier)
        return UnitOperand(OperandShape(name, codes.shape), codes)
    if x.fmt != element.carrier:
        raise ValueError(f"{unit.name} takes {element.name} as {name}; got a Scaled array of {x.fmt}.")
    shape = x.codes.shape
    refuse_axes(shape, name)
    rows, columns = tile_sizes(shape, x.scaling.block)
    codes = x.codes if x.codes.dtype == element.dtype else x.codes.astype(element.dtype)
    if unit.scale is None:
        facts, factors = tiled_shape(x, name)
        return UnitOperand(facts, codes, None, factors)
    along, across = (columns, rows) if name == "a" else (rows, columns)
    k = shape[1] if name == "a" else shape[0]
    fits = across == 1 and (along == unit.block or (along == max(k, 1) <= unit.block))
    if not fits or x.scaling.scale_format != unit.scale_format or x.scale_codes is None:
        wanted = f"(1, {unit.block})" if name == "a" else f"({unit.block}, 1)"
        raise ValueError(
            f"{unit.name} takes {name} in tiles of {wanted} with scales in {unit.scale_format}; got tiles of "
            f"{(rows, columns)} with scales in {x.scaling.scale_format}. Encode it with such a Scaling"
            + (", or encode the (N, K) matrix and pass its transpose." if name == "b" else ".")
        )
    facts = OperandShape(name, shape, has_tensor_scale=x.tensor_scale is not None)
    return UnitOperand(facts, codes, x.scale_codes, tensor_scale=x.tensor_scale)


def tiled_shape(x: Any, name: str) -> tuple[OperandShape, Array]:
    """Return the OperandShape of x, a Scaled array with float32 decode scales, and these scales; name: "a" or "b"."""
    block, (rows, columns) = block_along_k(x.scaling.block, name), tile_sizes(x.codes.shape, x.scaling.block)
    along_k = None if block == -1 else block
    return OperandShape(name, x.codes.shape, (rows, columns), along_k, x.scales.size), x.scales


def block_along_k(block: tuple[int, ...], name: str) -> int:
    """Return how many terms of K share a scale; -1 stands for all of K.

    block: the field `block` of a Scaling: lengths of a tile (elements with one scale) along the last one or two axes;
    -1 for a whole axis. name: "a", whose K is the last axis, or "b", whose K is the first of two.
    """
    rows, columns = matrix_block(block)
    return columns if name == "a" else rows


def scale_factors(left: Any, right: Any, shape: tuple[int, int], starts: Array, mode: int) -> Factors:
    """Return the decode scales that multiply each partial sum; they are 1 for an operand without scales.

    With K = 0, scales that vary along K have no elements; then the single sum of no terms is multiplied by 1.
    left, right: the operands a and b. shape: (M, N) of the result. starts: the first term of K of each partial sum,
    (parts,) integers. mode: integer constant for the order in which scales multiply, such as PRODUCT or ROWS_FIRST; it
    is stored in the result. The result has scales of rows, (M, parts), and of columns, (parts, N), float32.
    """
    (m, n), one = shape, np.float32(1)
    rows, columns = np.arange(m), np.arange(n)
    of_rows = np.full((m, starts.size), one) if left.factors is None or not left.factors.shape[1] else (
        left.factors[rows[:, None] // left.facts.tile[0], starts // left.facts.tile[1]]
    )  # fmt: skip
    of_columns = np.full((starts.size, n), one) if right.factors is None or not len(right.factors) else (
        right.factors[starts[:, None] // right.facts.tile[0], columns // right.facts.tile[1]]
    )  # fmt: skip
    return Factors(np.ascontiguousarray(of_rows), np.ascontiguousarray(of_columns), mode)
