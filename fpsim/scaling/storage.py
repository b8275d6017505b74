"""Number of bits of an array in memory: packed codes, scales, zero points, and the padding of rows and tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from fpsim.errors import is_integer, shown
from fpsim.formats.element import Element, element_format
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import HIF4, HIF4_LEVELS
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import block_sizes

WORD = 32  # bits of a float32 scale
SWIZZLE = (128, 4)  # rows and scales of a tile of scales as cuBLAS reads them; torchao, fouroversix


class StoredBits(NamedTuple):
    """Number of bits of an array in memory, by purpose.

    Attributes:
      values: number of elements.
      codes: bits of the elements' codes.
      scales: bits of the scales, zero points and the scale of the whole array.
      padding: bits that fill up tiles, rows of packed codes, or tiles of scales.
    """

    values: int
    codes: int
    scales: int
    padding: int

    @property
    def total(self) -> int:
        """Bits of codes, scales, zero points and padding together."""
        return self.codes + self.scales + self.padding

    @property
    def bytes(self) -> int:
        """Number of bytes that hold the codes, scales, zero points and padding."""
        return -(-self.total // 8)

    @property
    def per_value(self) -> float:
        """Bits per element, its share of scales, zero points and padding included."""
        return self.total / self.values


def stored_bits(
    fmt: Any, scaling: Scaling | str | None, shape: Sequence[int], *, padded: bool = False, swizzled: bool = False
) -> StoredBits:
    """Return the number of bits that an array of a given shape, format and scaling occupies in memory.

    Codes of up to 16 bits are packed without gaps within a row (the last axis), wider ones occupy 32 or 64 bits each
    (TF32 has 13 bits of padding); a row begins at a whole byte. A scale is stored in its own format; an integer's zero
    point has as many bits as an element; LogFMT has two float32 numbers per tile.

    Args:
      fmt: element format, by name, dtype or object; None is float32.
      scaling: the scaling, by name or object; None for codes without scales.
      shape: lengths of the axes, each at least 1.
      padded: True extends the last tile of every axis to the full block, as kernels that process whole blocks require.
      swizzled: True pads the matrix of scales to multiples of 128 rows and 4 columns, as cuBLAS reads the scales of
        1x16 and 1x32 blocks.

    Raises:
      TypeError: scaling is neither a Scaling nor a name.
      ValueError: fmt, scaling or shape is invalid, or `swizzled` is used with other blocks.

    Source: cuBLAS, "1D block scaling factors layout", for the padding of swizzled scales.

    Example:
      >>> from fpsim.scaling.storage import stored_bits
      >>> stored_bits("e4m3", "TILE_1X128", (4096, 4096)).per_value  # 8 + 32 / 128
      8.25
      >>> stored_bits("e2m1", "NVFP4", (3, 20), padded=True)  # 12 codes a row and 2 scales; 32 bits of the array
      StoredBits(values=60, codes=240, scales=80, padding=144)
    """
    element = None if fmt is None else element_format(fmt)
    lengths = _checked_shape(shape)
    values = math.prod(lengths)
    bits = WORD if element is None else element.bits
    word = bits if bits <= 16 else 32 if bits <= 32 else 64
    scaling = None if scaling is None else scaling_of(scaling, others="or None")
    if swizzled and (scaling is None or not is_swizzled(scaling)):
        raise ValueError(
            f"swizzled is for scales of 1x16 and 1x32 blocks; got scaling={scaling}. Leave it out, or pass "
            "fp.scalings.MX, say."
        )
    if scaling is None:
        return StoredBits(values, values * bits, 0, _rows_in_bytes(lengths, word) - values * bits)
    if element is None:
        raise ValueError(f"scaling needs a format of the elements; got {scaling} and no format. Pass fp.E4M3, say.")
    blocks = block_sizes(lengths, scaling.block)
    grid = [-(-length // block) for length, block in zip(lengths, blocks, strict=True)]
    whole = [tiles * block for tiles, block in zip(grid, blocks, strict=True)] if padded else list(lengths)
    scale_bits = tile_bits(element, scaling)
    tiles = math.prod(grid)
    held = _swizzled(grid) if swizzled else tiles
    padding = _rows_in_bytes(whole, word) - values * bits + (held - tiles) * scale_bits
    of_array = WORD if scaling.tensor_scale and not isinstance(element, LogFMT) else 0
    return StoredBits(values, values * bits, tiles * scale_bits + of_array, padding)


def is_swizzled(scaling: Scaling) -> bool:
    """Return whether cuBLAS reads the scales of this scaling in tiles of 128 x 4 scales (blocks 1x16 and 1x32)."""
    return scaling.block in ((1, 16), (1, 32))


def tile_bits(element: Element, scaling: Scaling) -> int:
    """Return the number of bits that one tile needs besides its codes: its scale and zero point.

    LogFMT has two float32 numbers instead, and HiF4 has 24 bits of exponents besides the scale. element, scaling: the
    element format and the recipe of the tile's scale.
    """
    if isinstance(element, LogFMT):
        return 2 * WORD
    if element == HIF4:
        return scaling.scale_format.bits + HIF4_LEVELS
    return scaling.scale_format.bits + (0 if scaling.symmetric else element.bits)


def bits_in_whole_tiles(fmt: Any, scaling: Scaling | None) -> Fraction:
    """Return the bits per element, scales included, of an array so large that padding and tensor scale are negligible.

    fmt: element format, by name, dtype or object; None is float32. scaling: None for codes without scales.

    Example:
      >>> from fpsim.scaling.storage import bits_in_whole_tiles
      >>> float(bits_in_whole_tiles(fp.E2M1, fp.scalings.NVFP4)), float(bits_in_whole_tiles(None, None))
      (4.5, 32.0)
    """
    if fmt is None:
        return Fraction(WORD)
    element = element_format(fmt)
    if scaling is None or -1 in scaling.block:
        return Fraction(element.bits)
    return element.bits + Fraction(tile_bits(element, scaling), math.prod(scaling.block))


def _checked_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape, an integer or a tuple or list of them, as a tuple of positive integers, or raise a ValueError."""
    lengths = (shape,) if is_integer(shape) else shape
    if not isinstance(lengths, (tuple, list)) or not lengths or not all(is_integer(n) and n >= 1 for n in lengths):
        raise ValueError(f"shape must be a tuple of lengths >= 1, such as (4096, 4096); got {shown(shape)}.")
    return tuple(int(length) for length in lengths)


def _rows_in_bytes(lengths: Sequence[int], bits: int) -> int:
    """Return the number of bits of an array in which each row (along the last axis) begins at a whole byte.

    lengths: the array's shape. bits: bits of an element. Shape (2, 3) with 4 bits per element gives 2 rows of 2 bytes,
    32 bits.
    """
    return math.prod(lengths[:-1]) * 8 * -(-lengths[-1] * bits // 8)


def _swizzled(grid: Sequence[int]) -> int:
    """Return the number of scales after the grid of scales is padded to multiples of 128 rows and 4 columns.

    grid: the shape of the scales; all axes but the last count as rows.
    """
    rows, columns = math.prod(grid[:-1]), grid[-1]
    return -(-rows // SWIZZLE[0]) * SWIZZLE[0] * -(-columns // SWIZZLE[1]) * SWIZZLE[1]
