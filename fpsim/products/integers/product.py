"""Addition of the product of two integer matrices as a unit adds them, and correction of the sums for zero points."""

from __future__ import annotations

import numba
import numpy as np

from fpsim.arrays import Array
from fpsim.instructions.integers import facts_of
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.products.integers.loops import few_columns, few_rows, plain_product, tiled_product
from fpsim.products.integers.vector_tile import COLUMNS, NARROW, ROWS, SIGNED, UNSIGNED, WRAPS
from fpsim.runtime.general_loops import replaces
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.threads import over_units
from fpsim.runtime.vectors import widest_vectors

PANEL_TERMS = 256  # terms of B in a panel, about: 32 KiB
LONGEST_STEP = 33024  # products of 8-bit integers whose sum fits 32 bits
FEW = 4  # rows or columns that need no panel
CACHED = 4096  # sums of a row that are added to at a time, 16 KiB


def add_integer_product(total: Array, a: Array, b: Array, unit: IntegerUnit) -> None:
    """Add a @ b to `total` in place, wrapping or saturating as the integer matrix unit does.

    total: (M, N) of the unit's result dtype. a: (M, K) and b: (K, N), of the unit's input dtypes.
    """
    (m, k), n = a.shape, b.shape[1]
    if not total.size or k == 0:
        return
    is_exact = unit.pair is None and not (unit.saturates and _may_saturate(total, k, unit))
    if min(m, n) <= FEW and is_exact and not numba.config.DISABLE_JIT:
        _add_thin(total, a, b)
    elif n < COLUMNS and m > n:  # vectors hold neighbours in a row of the result
        flipped = np.ascontiguousarray(total.T)
        _add(flipped, b.T, a.T, unit)
        total[...] = flipped.T
    else:
        _add(total, a, b, unit)


def _add_thin(total: Array, a: Array, b: Array) -> None:
    """Add a @ b to `total` in place, modulo 2^32, for few rows or few columns of the result.

    total: (M, N) int32 or uint32. a: (M, K) and b: (K, N), int8 or uint8. Each element of the larger operand is read
    once.
    """
    (m, k), n = a.shape, b.shape[1]
    sums = np.ascontiguousarray(total).view(np.int32)
    rows_of_b, columns_of_a = b.flags.c_contiguous or not b.T.flags.c_contiguous, a.T.flags.c_contiguous
    if m <= n and rows_of_b:
        left, right = np.ascontiguousarray(a), np.ascontiguousarray(b)
        over_units(n, m * k, lambda i, j: _few_rows(left, right, sums, i, j))
    elif n < m and columns_of_a and not a.flags.c_contiguous:
        flipped, left, right = np.ascontiguousarray(sums.T), np.ascontiguousarray(b.T), a.T
        over_units(m, n * k, lambda i, j: _few_rows(left, right, flipped, i, j))
        sums[...] = flipped.T
    else:
        left, right = np.ascontiguousarray(a), np.ascontiguousarray(b.T)
        over_units(m, n * k, lambda i, j: few_columns()(left[i:j], right, sums[i:j]))
    total[...] = sums.view(total.dtype)


def _few_rows(a: Array, b: Array, sums: Array, first: int, stop: int) -> None:
    """Add columns first .. stop - 1 of a @ b to `sums` in place, modulo 2^32, for few rows of a.

    It works in blocks whose sums stay in the cache. a: (M, K) and b: (K, N), int8 or uint8. sums: (M, N) int32.
    """
    for start in range(first, stop, CACHED):
        columns = slice(start, min(start + CACHED, stop))
        few_rows()(a, b[:, columns], sums[:, columns])


def _add(total: Array, a: Array, b: Array, unit: IntegerUnit) -> None:
    """Add a @ b to `total` in place by the fastest loop that this processor has for the unit.

    total: (M, N) of the unit's result dtype. a: (M, K) and b: (K, N), of the unit's input dtypes.
    """
    saturates = unit.saturates and _may_saturate(total, a.shape[1], unit)
    vectors = widest_vectors()
    if unit.pair is not None:  # vectors saturate sums of pairs as int16 only
        fits = not saturates and (unit.pair.bits, unit.pair.signed) == (16, True)
    else:  # and saturate unsigned sums only if no step adds a negative number
        has_sign = unit.a.signed or unit.b.signed
        fits = not saturates or (unit.terms <= LONGEST_STEP and (unit.d.signed or not has_sign))
    if vectors and fits and not numba.config.DISABLE_JIT:
        wraps = WRAPS if unit.pair is None else NARROW
        cut = wraps if not saturates else SIGNED if unit.d.signed else UNSIGNED
        loop = tiled_product(vectors, cut)
        if not replaces(loop, total.size * a.shape[1]):
            _by_tiles(total, a, b, unit.terms if saturates else PANEL_TERMS, loop, ROWS[vectors])
            return
    facts = facts_of(unit)._replace(saturates=np.bool_(saturates))
    right = np.ascontiguousarray(b.T)
    with wrapping():
        over_units(len(a), b.size, lambda i, j: plain_product()(a[i:j], right, total[i:j], facts))


def _may_saturate(total: Array, k: int, unit: IntegerUnit) -> bool:
    """Return whether a sum that starts at a value of `total` and adds k products may leave the result's range.

    total: integers of the unit's result dtype. unit: the integer matrix unit.
    """
    ends = [x * y for x in (unit.a.lowest, unit.a.highest) for y in (unit.b.lowest, unit.b.highest)]
    low, high = (int(end(total)) for end in (np.min, np.max))
    return low + k * min(*ends, 0) < unit.d.lowest or high + k * max(*ends, 0) > unit.d.highest


def _by_tiles(total: Array, a: Array, b: Array, terms: int, loop: object, rows: int) -> None:
    """Add a @ b to `total` in place by a vectorised loop.

    total: (M, N) int32 or uint32. a: (M, K) and b: (K, N), int8 or uint8. terms: terms of K in a step, after which sums
    may saturate. loop: a result of `tiled_product`. rows: rows of its tiles.
    """
    (m, k), n = a.shape, b.shape[1]
    terms = min(terms, k)
    steps, pairs = -(-k // terms), -(-terms // 2)
    padded = np.zeros((-(-m // rows) * rows, steps, 2 * pairs), np.int16)
    whole = k // terms
    padded[:m, :whole, :terms] = a[:, : whole * terms].reshape(m, whole, terms)
    padded[:m, whole:, : k - whole * terms] = a[:, None, whole * terms :]
    words = padded.reshape(len(padded), -1).view(np.uint32)
    blocks = -(-n // COLUMNS)
    work = np.zeros((len(padded), blocks * COLUMNS), total.dtype)
    work[:m, :n] = total
    sums = work.view(np.int32)
    at_once = max(PANEL_TERMS // (2 * pairs), 1)

    def blocks_of(first: int, stop: int) -> None:
        loop(words, b, sums, steps, terms, pairs, at_once, first, stop)  # type: ignore[operator]

    over_units(blocks, m * COLUMNS * max(k // 64, 1), blocks_of)
    total[...] = work[:m, :n]


def take_zero_points(total: Array, a: Array, b: Array, zero_a: Array | None, zero_b: Array | None) -> None:
    """Turn sums of a * b into sums of (a - zero_a) * (b - zero_b), in place and modulo 2^32.

    total: (M, N) int32 or uint32, the sums over K. a: (M, K) and b: (K, N), integers. zero_a: (M, 1) or (1, 1), zero_b:
    (1, N) or (1, 1), integers; None for zeros.
    """
    sums, k = total.view(np.uint32), a.shape[1]
    if zero_a is not None:
        sums -= _wrapped(zero_a) * _wrapped(b.sum(axis=0, keepdims=True, dtype=np.int64))
    if zero_b is not None:
        sums -= _wrapped(zero_b) * _wrapped(a.sum(axis=1, keepdims=True, dtype=np.int64))
    if zero_a is not None and zero_b is not None:
        sums += _wrapped(zero_a) * _wrapped(zero_b) * np.uint32(k & 0xFFFFFFFF)


def _wrapped(x: Array) -> Array:
    """Return an integer array x modulo 2^32, as uint32."""
    return np.asarray(x.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
