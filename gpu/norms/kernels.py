"""GPU kernels of softmax and norms: sums in lanes, and largest elements along an axis.

Arrays are flat, with three axes (before, count, behind): the axes before the reduced one, that one, and those after it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core.elementary.steps import float_of, narrowed
from fpsim.formats.named import FP32, FP64
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.runtime.compile import scalar

f32, f64, u32, u64 = np.float32, np.float64, np.uint32, np.uint64


@cache
def lanes_kernel(squares: bool) -> Any:
    """Return the GPU kernel `(terms, totals, count, lanes, behind)` that adds terms, or their squares, in lanes.

    Lane l adds the terms l, l + lanes, l + 2 * lanes, ... along the axis, one after another from +0, as `fp.LaneSum`
    does. lanes: number of lanes.

    squares: whether squares are added. terms: float32 bits in the shape (before, count, behind): all axes before the
    summed one as one axis, the summed axis, and all axes after it as one. totals: receives the sums, (before, lanes,
    behind), float32, or float64 for squares. Both arrays are flat. Squares are computed and added in float64. The
    square of a float32 is exact there, so a compiler that fuses square and addition changes no bits.
    """
    real: Any = f64 if squares else f32

    def add_lanes(terms: Any, totals: Any, count: Any, lanes: Any, behind: Any) -> None:
        for i in range(cuda.grid(1), totals.size, cuda.gridsize(1)):
            column, row = i % behind, i // behind
            lane, first = row % lanes, (row // lanes) * count
            total = real(0)
            for k in range(lane, count, lanes):
                term = real(float_of(terms[(first + k) * behind + column]))
                total = real(total + (real(term * term) if squares else term))
            totals[i] = total

    return gpu_kernel(add_lanes)


@cache
def join_kernel() -> Any:
    """Return the GPU kernel `(totals, sums, lanes, behind)` that adds the sums of all lanes up.

    totals: sums of lanes from `lanes_kernel`, flat, in the shape (before, lanes, behind), where `before` and `behind`
    count the elements along the axes before and after the summed one; overwritten. The upper half of the lanes is added
    to the lower half until one is left. sums: receives that last sum as float32 bits, in the shape (before, behind).
    lanes: a power of two.
    """

    def join(totals: Any, sums: Any, lanes: Any, behind: Any) -> None:
        for i in range(cuda.grid(1), sums.size, cuda.gridsize(1)):
            start = (i // behind) * lanes * behind + i % behind
            width = lanes // 2
            while width > 0:
                for lane in range(width):
                    totals[start + lane * behind] += totals[start + (lane + width) * behind]
                width //= 2
            sums[i] = narrowed(totals[start])

    return gpu_kernel(join)


@cache
def largest_kernel(bits: int) -> Any:
    """Return the GPU kernel `(floats, largest, count, parts, behind)` that finds largest elements along an axis.

    floats: flat bit patterns of floats of `bits` bits, 32 or 64, in the shape (before, count, behind): all axes before
    the searched one as one axis, the searched axis, and all axes after it as one. parts: number of parts of the axis,
    at most `count`; part p has the elements p, p + parts, p + 2 * parts, .... largest: receives the bits of the largest
    element of each part, (before, parts, behind); NaN if an element is NaN.
    """
    word: Any = u32 if bits == 32 else u64
    fmt = FP32 if bits == 32 else FP64
    sign, infinity, nan = word(fmt.sign_bit), word(fmt.infinity_code or 0), word(fmt.nan_code or 0)

    @scalar
    def in_order(x: Any) -> Any:
        """Return an unsigned integer that grows with the float of bits x; largest for NaN; +0 is above -0.

        x: uint32 or uint64 bits of a float32 or float64. The result has the same dtype.
        """
        if word(x & word(~sign)) > infinity:
            return word(~word(0))
        return word(~x) if word(x & sign) != word(0) else word(x | sign)

    def find_largest(floats: Any, largest: Any, count: Any, parts: Any, behind: Any) -> None:
        for i in range(cuda.grid(1), largest.size, cuda.gridsize(1)):
            column, row = i % behind, i // behind
            part, first = row % parts, (row // parts) * count
            place = word(0)
            for k in range(part, count, parts):
                place = max(place, in_order(word(floats[(first + k) * behind + column])))
            number = word(place ^ sign) if word(place & sign) != word(0) else word(~place)
            largest[i] = nan if place == word(~word(0)) else number

    return gpu_kernel(find_largest)
