"""CPU loops of integer products: a vectorised one over panels (blocks of columns) of b, and scalar ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.units.integers import integer_step, within
from fpsim.products.integers.vector_tile import COLUMNS, GROUPS, ROWS, tile_of
from fpsim.runtime.compile import kernel

i32, i64, u32 = np.int32, np.int64, np.uint32


@cache
def tiled_product(vectors: str, cut: str) -> Any:
    """Return the compiled loop (a, b, out, steps, terms, pairs, at_once, first, stop) -> None for AVX2 or AVX-512.

    It adds a @ b to columns COLUMNS * first .. COLUMNS * stop - 1 of `out`, in `steps` steps of `terms` terms of K
    each. cut: what becomes of a step's sum that leaves 32 bits. WRAPS: it wraps. SIGNED, UNSIGNED: it saturates as
    int32 or uint32. NARROW: it wraps, but the sums of pairs of products saturate as int16. vectors: "avx512" or "avx2".

    Arguments of the loop:
      a: (M, steps * pairs) uint32, two int16 each; M is a multiple of ROWS[vectors]. b: (K, N) int8 or uint8.
      out: (M, N rounded up to a multiple of COLUMNS) int32.
      pairs: pairs of terms in a step; a has zeros after the last term. at_once: number of steps whose terms of b are
        packed into pairs together.
    """
    rows = ROWS[vectors]
    tile = tile_of(rows, GROUPS if vectors == "avx512" else GROUPS // 2, cut)
    halves = 1 if vectors == "avx512" else 2

    def product(
        a: Any, b: Any, out: Any, steps: Any, terms: Any, pairs: Any, at_once: Any, first: Any, stop: Any
    ) -> None:  # fmt: skip
        panel = np.zeros((at_once * pairs, COLUMNS), u32)
        for block in range(first, stop):
            start = block * COLUMNS
            width = min(COLUMNS, b.shape[1] - start)
            result = out[:, start : start + COLUMNS]
            for s in range(0, steps, at_once):
                count = min(at_once, steps - s)
                for t in range(count):
                    for p in range(pairs):
                        k = (s + t) * terms + 2 * p
                        line = panel[t * pairs + p, :width]
                        if 2 * p + 1 < terms and k + 1 < b.shape[0]:
                            first_term, second_term = b[k, start : start + width], b[k + 1, start : start + width]
                            for j in range(width):
                                line[j] = (u32(i32(first_term[j])) & u32(0xFFFF)) | (
                                    u32(i32(second_term[j])) << u32(16)
                                )
                        elif k < b.shape[0]:
                            for j in range(width):
                                line[j] = u32(i32(b[k, start + j])) & u32(0xFFFF)
                        else:
                            line[:] = 0
                part = a[:, s * pairs : (s + count) * pairs]
                for row in range(0, a.shape[0], rows):
                    for half in range(halves):
                        tile(part, panel, result, i64(row), i64(half * (COLUMNS // halves)), i64(count), i64(pairs))

    return kernel(product)


@cache
def plain_product() -> Any:
    """Return the compiled loop (a, b, out, facts) -> None for any processor, which adds a @ b.T to `out`.

    a: (M, K) and b: (N, K), arrays of the unit's integers. out: (M, N) int32 or uint32. facts: an IntegerFacts: terms
    of a step, range of a result, whether sums saturate, range of a pair of products.
    """

    def product(a: Any, b: Any, out: Any, u: Any) -> None:
        for i in range(a.shape[0]):
            for j in range(b.shape[0]):
                total = i64(out[i, j])
                if u.saturates or u.pair_highest > 0:
                    for start in range(0, a.shape[1], u.terms):
                        total = integer_step(a[i], b[j], i64(start), total, u)
                else:
                    for k in range(a.shape[1]):
                        total += i64(a[i, k]) * i64(b[j, k])
                    total = within(total, u)
                out[i, j] = total

    return kernel(product)


@cache
def few_rows() -> Any:
    """Return the compiled loop (a, b, out) -> None for few rows, which adds a @ b to int32 `out` modulo 2^32.

    a: (M, K) and b: (K, N), int8 or uint8. out: (M, N).
    """

    def product(a: Any, b: Any, out: Any) -> None:
        fours = a.shape[1] // 4 * 4
        for i in range(a.shape[0]):
            line = out[i]
            for k in range(0, fours, 4):
                x0, x1, x2, x3 = i32(a[i, k]), i32(a[i, k + 1]), i32(a[i, k + 2]), i32(a[i, k + 3])
                y0, y1, y2, y3 = b[k], b[k + 1], b[k + 2], b[k + 3]
                for j in range(line.size):
                    two = i32(x0 * i32(y0[j])) + i32(x1 * i32(y1[j]))
                    line[j] = i32(line[j] + i32(two + i32(x2 * i32(y2[j])) + i32(x3 * i32(y3[j]))))
            for k in range(fours, a.shape[1]):
                x0, y0 = i32(a[i, k]), b[k]
                for j in range(line.size):
                    line[j] = i32(line[j] + i32(x0 * i32(y0[j])))

    return kernel(product)


@cache
def few_columns() -> Any:
    """Return the compiled loop (a, b, out) -> None for few columns, which adds a @ b.T to int32 `out` modulo 2^32.

    a: (M, K) and b: (N, K), int8 or uint8. out: (M, N).
    """

    def product(a: Any, b: Any, out: Any) -> None:
        for i in range(a.shape[0]):
            x = a[i]
            for j in range(b.shape[0]):
                y, total = b[j], i32(0)
                for k in range(x.size):
                    total = i32(total + i32(i32(x[k]) * i32(y[k])))
                out[i, j] = i32(out[i, j] + total)

    return kernel(product)
