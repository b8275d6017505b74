"""GPU kernels of arithmetic that is short: results that are looked up, and those that float32 gives.

Threads take groups of neighbouring elements (`groups`), as those of the casts do. A table of all pairs of codes of up
to 8 bits lies in shared memory, where random places cost about four turns of 32 threads; from the caches each place
would cost a turn of its own.
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

ENTRIES = {8: types.uint8, 16: types.uint16}  # of a table, as the simulator wants them named
PAIRS_AT_ONCE = 16  # elements of 8 bits that a thread takes


def elements_at_once(bits: int, target_bits: int) -> Any:
    """The grouping of operands of some width."""
    return grouping(bits, target_bits, elements=PAIRS_AT_ONCE if max(bits, target_bits) == 8 else 8)


@cache
def looks_up(bits: tuple[int, ...], word_bits: int) -> Any:
    """The scalar function `(a, b, c, table) -> entry` for one or two codes of some bits, in words of word_bits."""
    single, shift, last = len(bits) == 1, u32(bits[-1]), u32((1 << sum(bits)) - 1)
    fills = all(each == word_bits for each in bits)  # else an array of a dtype of few bits may hold others above them

    @scalar
    def look_up(a: Any, b: Any, c: Any, table: Any) -> Any:
        place = u32(a) if single else u32(u32(u32(a) << shift) | u32(b))
        return table[place if fills else u32(place & last)]

    return look_up


@cache
def elementwise_kernel(function: Any, bits: int, target_bits: int, operands: int, shared_words: int) -> Any:
    """The kernel `(a, b, c, results, all four as groups, steps of a, b, c, table as 32-bit words, as entries)`.

    function: `(a, b, c, table) -> result`; operands: how many of a, b and c are read; shared_words: how many 32-bit
    words of the table are copied to shared memory first, 0 to read it where it is.
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
                found = u64(0)
                for k in range(length):
                    x = u32(u64(held_a[j] >> u64(k * bits)) & mask)
                    y = u32(u64(held_b[j] >> u64(k * bits)) & mask)
                    z = u32(u64(held_c[j] >> u64(k * bits)) & mask)
                    found = u64(found | u64(u64(function(x, y, z, table)) << u64(k * target_bits)))
                held_a[j] = found
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
