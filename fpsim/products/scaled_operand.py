"""An operand of a product by a matrix unit: its codes, and the scales that came with it or beside it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.formats.named import FP64
from fpsim.instructions.operands import refuse_axes
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products.backend import Backend
from fpsim.scaling.tiling import tile_sizes

BLOCK = 128  # terms, rows or columns that share a scale where scales come as an array (docs/schedules.md)


class OperandScales(NamedTuple):
    """The shape of an operand of a product by a unit, and what scales it."""

    name: str  # "a" or "b"
    shape: tuple[int, int]
    block_scales: npt.ArrayLike | None = None  # codes, for units that take them
    factors: Array | None = None  # float32 decode scales per tile, for those that do not
    tile: tuple[int, int] = (0, 0)  # of the factors
    along_k: int | None = None  # terms of K that share a factor, where factors change along K
    tensor_scale: np.float32 | None = None

    @property
    def kind(self) -> str:
        """What shares a factor: "none", "tensor", "row" (a column of b), "1x128" or "128x128"."""
        if self.factors is None:
            return "none"
        if self.along_k is not None:
            return f"1x{self.along_k}" if self.one_dimensional else f"{self.across}x{self.along_k}"
        return "tensor" if self.factors.size == 1 else "row"

    @property
    def is_plain(self) -> bool:
        """Whether nothing scales it."""
        return self.block_scales is None and self.factors is None and self.tensor_scale is None

    @property
    def across(self) -> int:
        """Rows of a, or columns of b, that share a factor."""
        return self.tile[0 if self.name == "a" else 1]

    @property
    def one_dimensional(self) -> bool:
        """Whether every row of a, or column of b, has factors of its own."""
        return self.across == 1


def read_operand(
    x: Any, name: str, unit: MatrixUnit, scales: Any, blocks: bool, backend: Backend
) -> tuple[Any, OperandScales]:  # fmt: skip
    """An operand as codes of the unit's element, and what scales it.

    scales: scale_a or scale_b: codes for units that take them, float32 decode scales for others.
    blocks: scales of one column (or row, for b) are those of one block of K.

    Raises:
      ValueError, TypeError: codes or scales that the unit does not take.
    """
    element = unit.a if name == "a" else unit.b
    scaled = backend.scaled(x, name)
    if scaled is not None:
        return _scaled_operand(scaled, name, element, unit, scales)
    codes = backend.operand(x, element, unit, name)
    refuse_axes(codes.shape, name)
    if scales is None:
        return codes, _unscaled(name, codes.shape)
    if unit.scale is not None:
        return codes, OperandScales(name, codes.shape, scales)
    return codes, _with_factors(codes.shape, name, unit, backend.floats(scales, f"scale_{name}"), blocks)


@lru_cache(maxsize=4096)
def _unscaled(name: str, shape: tuple[int, int]) -> OperandScales:
    """An operand of a shape that nothing scales."""
    return OperandScales(name, shape)


def _with_factors(operand: tuple[int, int], name: str, unit: MatrixUnit, scales: Array, blocks: bool) -> OperandScales:
    """An operand of a shape with an array of float32 scales."""
    _refuse_doubles(unit, name)
    factors = _float_scales(scales, name, unit)
    k_axis = 1 if name == "a" else 0
    (along, across), parts = (operand[k_axis], operand[1 - k_axis]), -(-operand[k_axis] // BLOCK)
    tiles = {  # (scales along K, across) -> a tile's terms of K and rows, or columns
        (1, 1): (along, across), (1, across): (along, 1), (parts, -(-across // BLOCK)): (BLOCK, BLOCK),
        (parts, across): (BLOCK, 1),
    }  # fmt: skip
    if blocks:  # one block of K is a block all the same
        tiles |= {(parts, -(-across // BLOCK)): (BLOCK, BLOCK), (parts, across): (BLOCK, 1)}
    else:
        tiles |= {(1, across): (along, 1), (1, 1): (along, across)}
    shape = factors.shape if factors.ndim and factors.shape != (1,) else (1, 1)
    found = tiles.get((shape[k_axis], shape[1 - k_axis])) if len(shape) == 2 else None
    if found is None:
        ordered = [key[::-1] if k_axis else key for key in tiles]
        raise ValueError(
            f"scale_{name} must be one number, or have one of the shapes {', '.join(map(str, ordered))} (for the "
            f"tensor, for rows or columns, for blocks of {BLOCK}); got {factors.shape}."
        )
    tile = (max(found[1], 1), max(found[0], 1)) if name == "a" else (max(found[0], 1), max(found[1], 1))
    grid = np.ascontiguousarray(factors.reshape(shape))
    along_k = BLOCK if found[0] == BLOCK and (parts > 1 or blocks) else None
    return OperandScales(name, operand, None, grid, tile, along_k)


def _float_scales(array: Array, name: str, unit: MatrixUnit) -> Array:
    """Decode scales as float32."""
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


def _refuse_doubles(unit: MatrixUnit, name: str) -> None:
    if unit.d.fmt == FP64:
        raise ValueError(f"scales are applied to float32 sums; {unit.name} has float64 sums. Decode {name} first.")


def _scaled_operand(
    x: Any, name: str, element: Element, unit: MatrixUnit, scales: Any
) -> tuple[Any, OperandScales]:  # fmt: skip
    """A Scaled operand: an fpsim.Scaled, or what has the same attributes and codes elsewhere."""
    if scales is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    _refuse_doubles(unit, name)
    if x.fmt != element.carrier:
        raise ValueError(f"{unit.name} takes {element.name} as {name}; got a Scaled array of {x.fmt}.")
    shape = x.codes.shape
    refuse_axes(shape, name)
    rows, columns = tile_sizes(shape, x.scaling.block)
    codes = x.codes if x.codes.dtype == element.dtype else x.codes.astype(element.dtype)
    if unit.scale is None:
        block = _block_along_k(x.scaling.block, name)
        factors = x.scales if x.scales.size else None  # nothing to scale
        return codes, OperandScales(name, shape, None, factors, (rows, columns), None if block == -1 else block)
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
    return codes, OperandScales(name, shape, x.scale_codes, tensor_scale=x.tensor_scale)


def _block_along_k(block: tuple[int, ...], name: str) -> int:
    """The entry of a Scaling's block for the axis K of a matrix; -1 for all of it."""
    missing = [-1 if block[0] == -1 else 1] * (2 - len(block))
    rows, columns = [*missing, *block][-2:]
    return columns if name == "a" else rows
