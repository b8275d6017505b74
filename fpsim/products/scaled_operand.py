"""An operand of a product by a matrix unit: its codes, and the scales that came with it or beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, from_torch, is_torch
from fpsim.instructions.operands import operand, refuse_axes
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tile_sizes

BLOCK = 128  # terms, rows or columns that share a scale where scales come as an array (docs/schedules.md)


class Side(NamedTuple):
    """An operand of a product by a unit."""

    name: str  # "a" or "b"
    codes: Array
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
    def across(self) -> int:
        """Rows of a, or columns of b, that share a factor."""
        return self.tile[0 if self.name == "a" else 1]

    @property
    def one_dimensional(self) -> bool:
        """Whether every row of a, or column of b, has factors of its own."""
        return self.across == 1


def side(x: Any, name: str, unit: MatrixUnit, given: Any, blocks: bool) -> Side:
    """An operand at the door.

    given: scale_a or scale_b: codes for units that take scales, float32 decode scales for others.
    blocks: scales of one column (or row, for b) are those of one block of K.
    """
    if isinstance(x, Scaled):
        return scaled_side(x, name, unit, given)
    return plain_side(operand(x, unit.a if name == "a" else unit.b, unit, name), name, unit, given, blocks)


def plain_side(codes: Any, name: str, unit: MatrixUnit, given: Any, blocks: bool) -> Side:
    """An operand of codes, of which the shape alone is read here."""
    refuse_axes(codes, name)
    if given is None or unit.scale is not None:
        return Side(name, codes, given)
    return _with_factors(codes, name, unit, given, blocks)


def _with_factors(codes: Array, name: str, unit: MatrixUnit, given: Any, blocks: bool) -> Side:
    """An operand with an array of float32 scales."""
    _refuse_doubles(unit, name)
    factors = _float_scales(given, name, unit)
    k_axis = 1 if name == "a" else 0
    (along, across), parts = (codes.shape[k_axis], codes.shape[1 - k_axis]), -(-codes.shape[k_axis] // BLOCK)
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
    return Side(name, codes, None, grid, tile, BLOCK if found[0] == BLOCK and (parts > 1 or blocks) else None)


def _float_scales(given: Any, name: str, unit: MatrixUnit) -> Array:
    """Decode scales at the door, as float32."""
    array = from_torch(given) if is_torch(given) else np.asarray(given)
    if array.dtype.kind not in "f" or array.dtype.itemsize < 4:
        raise ValueError(
            f"{unit.name} takes no block scales; got scale_{name} as {array.dtype}. Pass float32 decode scales "
            "(value = code * scale), or take a unit with scales such as blackwell_mxfp8_e4m3_f32."
        )
    with np.errstate(all="ignore"):
        narrow = array.astype(np.float32)
    if array.ndim and not np.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
        raise ValueError(f"scale_{name} must hold float32 numbers; got {array.dtype} values between them. Round them.")
    return narrow


def _refuse_doubles(unit: MatrixUnit, name: str) -> None:
    if unit.d.name == "f64":
        raise ValueError(f"scales are applied to float32 sums; {unit.name} has float64 sums. Decode {name} first.")


def scaled_side(x: Any, name: str, unit: MatrixUnit, given: Any) -> Side:
    """A Scaled operand: fpsim's own, or one with the same attributes whose codes lie elsewhere."""
    element = unit.a if name == "a" else unit.b
    if given is not None:
        raise ValueError(f"{name} is Scaled and brings its scales; leave scale_{name} out.")
    _refuse_doubles(unit, name)
    if x.fmt != element.carrier:
        raise ValueError(f"{unit.name} takes {element.name} as {name}; got a Scaled array of {x.fmt}.")
    refuse_axes(x.codes, name)
    rows, columns = tile_sizes(x.codes.shape, x.scaling.block)
    codes = x.codes if x.codes.dtype == element.dtype else x.codes.astype(element.dtype)
    if unit.scale is None:
        block = _block_along_k(x.scaling.block, name)
        factors = x.scales if x.scales.size else None  # nothing to scale
        return Side(name, codes, None, factors, (rows, columns), None if block == -1 else block)
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
    return Side(name, codes, x.scale_codes, tensor_scale=x.tensor_scale)


def _block_along_k(block: tuple[int, ...], name: str) -> int:
    """The entry of a Scaling's block for the axis K of a matrix; -1 for all of it."""
    missing = [-1 if block[0] == -1 else 1] * (2 - len(block))
    rows, columns = [*missing, *block][-2:]
    return columns if name == "a" else rows
