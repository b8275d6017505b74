"""CUDA kernels that decode codes and scales to values, and that transpose matrices."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core.decode import decode_bits_64, decode_fields
from fpsim.core.scaled_element import integer_value, value_of
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.gpu.scaling.areas import BATCH, area_fields, batch_of, part_of, walk_of
from fpsim.gpu.scaling.scale_kernels import word_of
from fpsim.runtime.compile import scalar

i64, u32, u64, f32, f64 = np.int64, np.uint32, np.uint64, np.float32, np.float64
NAN_64 = u64(0x7FF8000000000000)  # processors differ in the sign of a NaN


@cache
def values_kernel(width: int, target: int) -> Any:
    """Return the GPU kernel `(codes, values, areas, scales, layout, sign_bit)` that decodes codes of a float format.

    codes: flat unsigned integers. values: receives the bits of the codes' values times their scales, floats of `target`
    bits, 32 or 64. areas: the division of the array among blocks of threads, the fields of an Areas as integers.
    scales: float32 bits of each tile's scale. layout: the constants that decode codes to floats of `width` bits, a
    DecodeLayout. sign_bit: mask of the sign in a code; NaN results keep the sign.
    """
    word: Any = word_of(width)
    real: Any = f32 if width == 32 else f64
    sign = u64(1 << 63)

    @scalar
    def exact_bits(code: Any, scale: Any, sign_bit: Any, back: Any) -> Any:
        """Return the float64 value of a code times `scale`, as uint64 bits.

        sign_bit: mask of the sign in a code, which a NaN result keeps. back: the DecodeLayout of the codes.
        """
        value = f64(u64(decode_bits_64(u64(code), back)).view(f64) * f64(scale))
        signed = u64(NAN_64 | sign) if word(code & sign_bit) != word(0) else NAN_64
        return f64(value).view(u64) if value == value else signed

    bits_of = scalar(value_of(width, True) if target == 32 else exact_bits)

    def decode(codes: Any, values: Any, places: Any, scales: Any, layout: Any, sign_bit: Any) -> None:
        g, back = area_fields(places), decode_fields(layout)
        thread = i64(cuda.threadIdx.x)
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            if part.is_tile:
                scale = real(u32(scales[part.tile]).view(f32))
                w = walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                    c0, c1, c2, c3 = word(codes[i0]), word(codes[i1]), word(codes[i2]), word(codes[i3])
                    values[i0] = bits_of(c0, scale, sign_bit, back)
                    values[i1] = bits_of(c1, scale, sign_bit, back)
                    values[i2] = bits_of(c2, scale, sign_bit, back)
                    values[i3] = bits_of(c3, scale, sign_bit, back)
                    left = i64(left - BATCH)

    return gpu_kernel(decode)


@cache
def integers_kernel(target: int, affine: bool) -> Any:
    """Return the GPU kernel `(codes, values, areas, scales, zero_points, highest, largest)` that decodes integer codes.

    codes: flat uint8. values: receives the bits of (code - zero point) * scale, floats of `target` bits, 32 or 64.
    areas: the division of the array among blocks of threads, the fields of an Areas as integers. scales: float32 bits,
    one per tile. zero_points: the bits of one integer per tile, read only if `affine`. highest: largest integer of the
    format; larger codes are negative numbers in two's complement of 8 bits. largest: largest integer of the zero
    points' dtype; larger bits are negative numbers in two's complement.
    """

    @scalar
    def exact_bits(code: Any, zero_point: Any, scale: Any) -> Any:
        """Return (code - zero_point) * scale in float64, as uint64 bits; a NaN becomes NAN_64."""
        value = f64(f64(i64(code - zero_point)) * f64(scale))
        return f64(value).view(u64) if value == value else NAN_64

    bits_of = scalar(integer_value if target == 32 else exact_bits)

    def decode(
        codes: Any, values: Any, places: Any, scales: Any, zero_points: Any, highest: Any, largest: Any
    ) -> None:  # fmt: skip
        g = area_fields(places)
        thread = i64(cuda.threadIdx.x)
        for area in range(i64(cuda.blockIdx.x), g.count, i64(cuda.gridDim.x)):
            part = part_of(area, thread, g)
            if part.is_tile:
                scale = u32(scales[part.tile]).view(f32)
                zero_point = i64(0)
                if affine:
                    zero_point = i64(zero_points[part.tile])
                    zero_point = zero_point - 2 * largest - 2 if zero_point > largest else zero_point
                w = walk_of(part, g)
                i, c, left = w.first, w.column, w.count
                while left > 0:
                    i0, i1, i2, i3, i, c = batch_of(i, c, left, w)
                    c0, c1, c2, c3 = i64(codes[i0]), i64(codes[i1]), i64(codes[i2]), i64(codes[i3])
                    values[i0] = bits_of(c0 - 256 if c0 > highest else c0, zero_point, scale)
                    values[i1] = bits_of(c1 - 256 if c1 > highest else c1, zero_point, scale)
                    values[i2] = bits_of(c2 - 256 if c2 > highest else c2, zero_point, scale)
                    values[i3] = bits_of(c3 - 256 if c3 > highest else c3, zero_point, scale)
                    left = i64(left - BATCH)

    return gpu_kernel(decode)


@cache
def transpose_kernel() -> Any:
    """Return the GPU kernel `(source, target, rows, columns)` that writes the transpose of a matrix to `target`.

    source: the (rows, columns) matrix as a flat array. target: flat array of the same size.
    """

    def transpose(source: Any, target: Any, rows: Any, columns: Any) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            target[i] = source[i % rows * columns + i // rows]

    return gpu_kernel(transpose)
