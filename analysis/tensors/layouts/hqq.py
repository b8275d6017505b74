"""Weights of HQQ: codes of 1 to 8 bits, with a float scale and a float zero point for each group."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.layouts.parts import LayoutError, WeightParts, whole
from fpsim.analysis.tensors.layouts.unpacking import rounded_like
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.arrays import Array

# HQQ's names for ways to pack codes into bytes -> bits of a code. The first field of a byte, at its highest bits,
# belongs to the first part of the rows of the grouped matrix, the next field to the next part.
PACKINGS = {"8bit_u8": 8, "4bit_u8": 4, "2bit_u8": 2, "1bit_u8": 1}


def hqq_groups(parts: WeightParts) -> Tensor:
    """Return a weight stored by HQQ: (code - zero point) * scale, rounded to the scales' dtype if that has 16 bits.

    Raises:
      LayoutError: the packing is unknown, or the shapes do not fit.

    Source: hqq 0.2.8, whose own reader returns the same bits.
    """
    if parts.beside["shape"].dtype not in ("int32", "int64"):
        raise LayoutError(f"its shape holds {parts.beside['shape'].dtype}; wanted int64")
    shape = tuple(int(n) for n in parts.array("shape").reshape(-1))
    size = math.prod(shape)
    packing = parts.text("packing") if "packing" in parts.beside else ""
    bits = PACKINGS.get(packing, 0)
    codes, stored, zero = parts.codes, parts.beside["scale"], parts.beside["zero_point"]
    if not bits:
        raise LayoutError(f"its packing is {packing!r}; wanted {', '.join(PACKINGS)}")
    per_byte = 8 // bits
    if len(codes.shape) != 2 or codes.size * per_byte != size or size < 1 or min(shape, default=1) < 1:
        raise LayoutError(f"its codes of shape {codes.shape} in {bits} bits do not fit the shape {shape}")
    height, width = codes.shape[0] * per_byte, codes.shape[1]
    if stored.shape != zero.shape or stored.shape not in ((height, 1), (1, width)):
        raise LayoutError(f"its scales of shape {stored.shape} and zero points of shape {zero.shape} do not fit groups "
                          f"of its {height} x {width} codes")  # fmt: skip
    by_row, dtype = stored.shape == (height, 1), dtype_of(stored.dtype)
    if by_row and "axis" in parts.beside and parts.number("axis") == 0 and height != 1 and width != 1:
        raise LayoutError(f"its axis is 0, and its scales of shape {stored.shape} are those of axis 1")

    def bands() -> Iterator[Array]:
        scales, zeros = parts.floats("scale"), parts.floats("zero_point")
        row = 0
        for part in range(per_byte):
            shift = np.uint8(8 - bits * (part + 1))
            for piece in codes.chunks(max(CHUNK // width, 1) * width):
                fields = (piece.reshape(-1, width) >> shift & np.uint8((1 << bits) - 1)).astype(np.float32)
                rows = slice(row, row + len(fields)) if by_row else slice(None)
                with np.errstate(all="ignore"):  # scales may be anything
                    differences = rounded_like(fields - zeros[rows], dtype)
                    yield rounded_like(differences * scales[rows], dtype).reshape(-1)
                row += len(fields)

    group = width if by_row else height
    return parts.weight_of(shape, f"INT{bits} in groups of {group} (HQQ)", bands)


def grouped_codes(parts: WeightParts) -> Array:
    """Return the unpacked codes of an HQQ weight, (groups, group size) uint8.

    parts: the stored tensors of the weight, which `hqq_groups` must accept.
    """
    bits = PACKINGS[parts.text("packing")]
    packed = whole(parts.codes)
    fields = [packed >> np.uint8(8 - bits * (part + 1)) & np.uint8((1 << bits) - 1) for part in range(8 // bits)]
    codes = np.concatenate(fields)
    return codes if parts.beside["scale"].shape[-1] == 1 else np.ascontiguousarray(codes.T)
