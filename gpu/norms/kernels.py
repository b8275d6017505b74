"""GPU kernels of softmax and norms: sums in lanes, and largest elements along an axis.

Arrays have three axes: what is before the axis, along it, and behind it. Neighbouring threads take neighbouring
elements.
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
    """Return the kernel that adds up each lane of `fp.LaneSum`.

    `(bits of float32 terms, totals, terms along the axis, lanes, elements behind the axis)`

    totals: (before, lanes, behind) as a flat array: float32; float64 for squares, whose products are exact there, so
    that a product fused with the sum gives the same bits.
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
    """Return the kernel `(totals of lanes, bits of float32 sums, lanes, elements behind the axis)`.

    The upper half of the lanes is added to the lower one until one is left, which is rounded to float32. The totals are
    overwritten.
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
    """Return the kernel `(floats, largest, elements along the axis, parts, elements behind the axis)`.

    floats: bit patterns of float32 or float64; largest: (before, parts, behind) of them as a flat array. Part p has the
    elements p, p + parts, p + 2 * parts, ... along the axis, at least one.
    """
    word: Any = u32 if bits == 32 else u64
    fmt = FP32 if bits == 32 else FP64
    sign, infinity, nan = word(fmt.sign_bit), word(fmt.infinity_code or 0), word(fmt.nan_code or 0)

    @scalar
    def in_order(x: Any) -> Any:
        """Return a number that grows with a float, NaN's the greatest; +0 is above -0."""
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
