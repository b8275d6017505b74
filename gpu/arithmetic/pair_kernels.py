"""GPU kernels of elementwise arithmetic, which look results up in a table of all results or compute them in float32.

A table for all pairs of codes of up to 8 bits is in shared memory, where the 32 random reads of a warp take about four
cycles together; from the caches they would take one cycle each.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import cuda, types

from fpsim.gpu.device.groups import WORDS, grouping
from fpsim.gpu.device.launch import gpu_kernel
from fpsim.runtime.compile import scalar

u32, u64 = np.uint32, np.uint64

ENTRIES = {8: types.uint8, 16: types.uint16}  # types of a table's entries, as the simulator names them
PAIRS_AT_ONCE = 16  # elements of 8 bits that a thread takes at once


def elements_at_once(bits: int, target_bits: int) -> Any:
    """Return how many elements a thread processes at once, as a Grouping (elements per load, number of loads).

    bits, target_bits: widths in bits of an operand's elements and of the result's.
    """
    return grouping(bits, target_bits, elements=PAIRS_AT_ONCE if max(bits, target_bits) == 8 else 8)


@cache
def looks_up(bits: tuple[int, ...], word_bits: int) -> Any:
    """Return a compiled scalar function (a, b, c, table) -> entry of a 1-D table for one or two codes; c is not used.

    The entry is table[a] for one code, and table[a << bits[1] | b] for two.

    bits: the widths of the codes, one number for each code. word_bits: width of the integers that hold the codes; bits
    above a code's width are ignored.
    """
    single, shift, last = len(bits) == 1, u32(bits[-1]), u32((1 << sum(bits)) - 1)
    fills = all(width == word_bits for width in bits)  # else words may hold further bits above the code

    @scalar
    def look_up(a: Any, b: Any, c: Any, table: Any) -> Any:
        place = u32(a) if single else u32(u32(u32(a) << shift) | u32(b))
        return table[place if fills else u32(place & last)]

    return look_up


@cache
def elementwise_kernel(function: Any, bits: int, target_bits: int, operands: int, shared_words: int) -> Any:
    """Return the GPU kernel that writes function(a, b, c, table) of each element of up to three operands.

    Its arguments are (a, b, c, results, wide_a, wide_b, wide_c, wide_results, sa, sb, sc, words, entries).

    function: a scalar function of codes. bits, target_bits: width of the operands and of the results. operands: the
    number of operands that are read: a, then b, then c. shared_words: 32-bit words of the table that are copied to
    shared memory first; 0 to read it from global memory.

    a, b, c, results: 1-D unsigned integers; results are written. wide_a ... wide_results: the same arrays as groups,
    integers that hold several elements. sa, sb, sc: distance from one element or group of a, b and c to the next; 0 for
    an operand of one element. words, entries: the table as uint32, and in its dtype.
    """
    length, depth = elements_at_once(bits, target_bits)
    mask = u64((1 << bits) - 1)
    group, element, entry = WORDS[length * target_bits], WORDS[target_bits], ENTRIES.get(target_bits)
    has_b, has_c, in_shared = operands > 1, operands > 2, shared_words > 0

    def elementwise(
        a: Any, b: Any, c: Any, results: Any, wide_a: Any, wide_b: Any, wide_c: Any, wide_results: Any,
        sa: Any, sb: Any, sc: Any, words: Any, entries: Any,
    ) -> None:  # fmt: skip
        if in_shared:
            copy = cuda.shared.array(0, types.uint32)  # the same memory as `table`
            for word in range(cuda.threadIdx.x, shared_words, cuda.blockDim.x):
                copy[word] = words[word]
            cuda.syncthreads()
        table = cuda.shared.array(0, entry) if in_shared else entries
        size, whole, threads = u64(results.size), u64(wide_results.size), u64(cuda.gridsize(1))
        groups = u64(u64(size + u64(length - 1)) // u64(length))
        held_a = cuda.local.array(depth, np.uint64)
        held_b, held_c = cuda.local.array(depth, np.uint64), cuda.local.array(depth, np.uint64)
        block = u64(cuda.blockDim.x)
        first = u64(u64(u64(u64(cuda.blockIdx.x) * block) * u64(depth)) + u64(cuda.threadIdx.x))
        while first < groups:
            all_whole = u64(first + u64(u64(depth - 1) * block)) < whole
            for j in range(depth):
                held_a[j], held_b[j], held_c[j] = u64(0), u64(0), u64(0)
            if all_whole:
                for j in range(depth):
                    place = u64(first + u64(u64(j) * block))
                    held_a[j] = u64(wide_a[u64(place * sa)])
                    if has_b:
                        held_b[j] = u64(wide_b[u64(place * sb)])
                    if has_c:
                        held_c[j] = u64(wide_c[u64(place * sc)])
            else:
                for j in range(depth):
                    for k in range(length):
                        i = u64(u64(u64(first + u64(u64(j) * block)) * u64(length)) + u64(k))
                        if i < size:
                            held_a[j] = u64(held_a[j] | u64(u64(a[u64(i * sa)]) << u64(k * bits)))
                            if has_b:
                                held_b[j] = u64(held_b[j] | u64(u64(b[u64(i * sb)]) << u64(k * bits)))
                            if has_c:
                                held_c[j] = u64(held_c[j] | u64(u64(c[u64(i * sc)]) << u64(k * bits)))
            for j in range(depth):
                filled = u64(0)
                for k in range(length):
                    x = u32(u64(held_a[j] >> u64(k * bits)) & mask)
                    y = u32(u64(held_b[j] >> u64(k * bits)) & mask)
                    z = u32(u64(held_c[j] >> u64(k * bits)) & mask)
                    filled = u64(filled | u64(u64(function(x, y, z, table)) << u64(k * target_bits)))
                held_a[j] = filled
            if all_whole:
                for j in range(depth):
                    wide_results[u64(first + u64(u64(j) * block))] = group(held_a[j])
            else:
                for j in range(depth):
                    for k in range(length):
                        i = u64(u64(u64(first + u64(u64(j) * block)) * u64(length)) + u64(k))
                        if i < size:
                            results[i] = element(u64(held_a[j] >> u64(k * target_bits)))
            first = u64(first + u64(u64(depth) * threads))

    return gpu_kernel(elementwise)
