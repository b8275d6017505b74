"""Weights of one-byte codes with a scale for the tensor, for rows or for blocks, as in FP8 and INT8 checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.tensors.layouts.parts import LONGEST, Decoder, LayoutError, WeightParts, whole
from fpsim.analysis.tensors.layouts.unpacking import powers, rounded_like, swizzled_shape, unswizzled, values_of
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.arrays import FORMAT_OF, Array

SIDES = (128, 32, 16, 64, 256, 512, 1024)  # rows or columns of blocks, those of known checkpoints first
SHORTEST = 16  # shortest side of a block of unknown checkpoints
MX_BLOCK = 32
ELEMENTS = {"float8_e4m3fn": "E4M3", "float8_e5m2": "E5M2", "float8_e4m3fnuz": "E4M3FNUZ",
            "float8_e5m2fnuz": "E5M2FNUZ", "int8": "INT8", "uint8": "UINT8"}  # fmt: skip


class ScaleBlocks(NamedTuple):
    """The blocks into which a matrix is divided, with one scale for all elements of a block.

    Attributes:
      rows, columns: numbers of rows and columns of a block.
      scales: shape of the scales, with as many axes as the matrix.
    """

    rows: int
    columns: int
    scales: tuple[int, ...]

    def words(self, shape: Sequence[int]) -> str:
        """Return the blocks as text, such as "in 128x128 blocks" or "with one scale"; shape: shape of the matrix."""
        whole_rows, whole_columns = self.rows >= shape[-2], self.columns >= shape[-1]
        if whole_rows and whole_columns:
            return "with one scale"
        if self.rows == 1:
            return "with row scales" if whole_columns else f"in 1x{self.columns} blocks"
        return "with column scales" if whole_rows and self.columns == 1 else f"in {self.rows}x{self.columns} blocks"


def blocks_of(
    shape: tuple[int, ...], scales: tuple[int, ...], configured: tuple[int, int] | None = None
) -> ScaleBlocks:
    """Return the blocks of a matrix whose elements share a scale, inferred from the shapes of matrix and scales.

    Args:
      shape: shape of the matrix; axes before the last two count separate matrices.
      scales: shape of the matrix's scales.
      configured: (rows, columns) of a block by the checkpoint's configuration, which are returned if they fit; None if
        it names none.

    Raises:
      LayoutError: no blocks fit both shapes.

    Example:
      >>> blocks_of((576, 7168), (5, 56))
      ScaleBlocks(rows=128, columns=128, scales=(5, 56))
      >>> blocks_of((64, 256), (64,))
      ScaleBlocks(rows=1, columns=256, scales=(64, 1))
    """
    rows, columns = shape[-2:]
    lead = shape[:-2]
    if math.prod(scales) == 1:
        return ScaleBlocks(max(rows, 1), max(columns, 1), (*(1 for _ in lead), 1, 1))
    if len(scales) == 4 and len(shape) == 2 and scales[1] == scales[3] == 1:
        scales = scales[::2]
    if scales == lead and lead:
        scales = (*scales, 1, 1)
    if scales == shape[:-1]:
        scales = (*scales, 1)
    if len(scales) == len(shape) and scales[:-2] in (lead, tuple(1 for _ in lead)):
        sides = _side(rows, scales[-2]), _side(columns, scales[-1])
        if configured is not None and all(
            -(-length // side) == count
            for length, side, count in zip((rows, columns), configured, scales[-2:], strict=True)
        ):
            sides = configured
        if sides[0] and sides[1]:
            return ScaleBlocks(sides[0], sides[1], scales)
    raise LayoutError(f"its scales of shape {scales} do not fit blocks of its shape {shape}")


def configured_block(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the block size (rows, columns) that a checkpoint's configuration names; None if it names none.

    settings: the quantisation settings of the configuration, field -> value.

    Example:
      >>> configured_block({"quant_method": "fp8", "weight_block_size": [128, 128]})
      (128, 128)
    """
    block = settings.get("weight_block_size")
    groups = settings.get("config_groups")
    if block is None and isinstance(groups, Mapping):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        structures = [one.get("block_structure") for one in weights if isinstance(one, Mapping)]
        block = structures[0] if structures and all(one == structures[0] for one in structures) else None
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n < LONGEST for n in block):
        return None
    return block[0], block[1]


def _side(length: int, count: int) -> int:
    """Return the length of a block, if `count` blocks cover an axis of `length` elements; 0 if no length fits.

    One block is the whole axis, and `length` blocks have one element each. Otherwise lengths of known checkpoints are
    tried first: 128, 32, 16, 64, 256, 512 and 1024, where the last block may be shorter. If none of them needs `count`
    blocks, the length is `length` / `count` if this is an integer of 16 or more.
    """
    if count == 1:
        return max(length, 1)
    if count == length:
        return 1
    even = length // count if count and length % count == 0 else 0
    sides = (*SIDES, even if even >= SHORTEST else 0)
    return next((side for side in sides if side and -(-length // side) == count), 0)


def scale_values(one: Tensor) -> Array:
    """Return a tensor of scales as a float32 array; elements of dtype uint8 are decoded as E8M0, powers of two."""
    array = whole(one)
    if one.dtype in ("uint8", "float8_e8m0fnu"):
        return powers(array)
    return values_of(array, FORMAT_OF.get(dtype_of(one.dtype)))


def spread(scales: Array, blocks: ScaleBlocks, shape: Sequence[int], first: int, count: int) -> Array:
    """Return the scale of each element, (count, columns), in the rows first .. first + count - 1 of a weight.

    scales: one scale per block. blocks: the size of a block. shape: shape of the weight, (..., rows, columns). Row
    numbers count through all matrices of the weight: in shape (2, 8, 4), row 8 is the first of the second matrix.
    """
    height, columns = shape[-2:]
    rows = np.arange(first, first + count)
    grid = scales.reshape(-1, *blocks.scales[-2:])
    matrix = rows // max(height, 1) if len(grid) > 1 else np.zeros_like(rows)
    of_rows = grid[matrix, rows % max(height, 1) // blocks.rows]
    return np.asarray(of_rows[:, np.arange(columns) // blocks.columns])


def float_blocks(parts: WeightParts) -> Tensor:
    """Return a weight stored as one-byte codes (E4M3, E5M2, INT8 or UINT8) with scales, and perhaps zero points.

    A value is (code - zero point) * scale, computed in float32, and rounded to the scales' dtype if that has 16 bits.

    Raises:
      LayoutError: the shape of the scales or zero points does not fit the codes.

    Source: transformers, compressed-tensors and ModelOpt, whose own readers return the same bits.
    """
    codes, stored = parts.codes, parts.beside["scale"]
    if len(codes.shape) < 2:
        raise LayoutError(f"it has scales, and the shape {codes.shape}; wanted a matrix")
    shape, tiled = stored.shape, False
    mx_scales = codes.shape[0], codes.shape[1] // MX_BLOCK
    if len(codes.shape) == 2 and shape == swizzled_shape(*mx_scales):
        shape, tiled = mx_scales, True
    blocks = blocks_of(codes.shape, shape, configured_block(parts.settings))
    if "zero_point" in parts.beside and parts.beside["zero_point"].size != math.prod(blocks.scales):
        of_zeros = parts.beside["zero_point"].shape
        raise LayoutError(f"its zero points of shape {of_zeros} do not fit its scales of shape {stored.shape}")
    fmt, dtype = FORMAT_OF.get(dtype_of(codes.dtype)), dtype_of(stored.dtype)

    def load() -> Decoder:
        scales = scale_values(stored)
        scales = unswizzled(scales, *shape) if tiled else scales
        zeros = parts.array("zero_point").astype(np.float32) if "zero_point" in parts.beside else None

        def decode(band: Array, first: int) -> Array:
            values = values_of(band, fmt)
            if zeros is not None:
                values = values - spread(zeros, blocks, codes.shape, first, len(band))
            with np.errstate(all="ignore"):  # scales may be anything
                return rounded_like(values * spread(scales, blocks, codes.shape, first, len(band)), dtype)

        return decode

    element = ELEMENTS[codes.dtype]
    mx = dtype.itemsize == 1 and (blocks.rows, blocks.columns) == (1, MX_BLOCK)
    words = f"MX{element.replace('E4M3', 'FP8')}" if mx else f"{element} {blocks.words(codes.shape)}"
    return parts.weight(codes.shape, words, load, codes.outputs_last)
