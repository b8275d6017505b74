"""Compiled loops of exact sums over ranks: two float64 numbers for each sum, and a bound on their error."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import inner_loop, kernel, scalar

f64, u64 = np.float64, np.uint64


@scalar
def exact_pair(a: Any, b: Any) -> Any:
    """Return (the float64 a + b, its rounding error), which add up to the exact sum unless it overflows (TwoSum)."""
    total = f64(a + b)
    back = f64(total - a)
    return total, f64(f64(a - f64(total - back)) + f64(b - back))


BLOCK = 512  # elements whose sums stay in the fastest cache while rows are added


@inner_loop
def add_row(row: Any, high: Any, errors: Any) -> Any:
    """Add `row` to `high` in place, and write the rounding errors of the additions to `errors`.

    Return a uint64, 0 if all rounding errors are 0. Arrays are (n,); `row` holds float32 or float64, the others
    float64.
    """
    rest = u64(0)
    for i in range(row.size):
        total, error = exact_pair(high[i], f64(row[i]))
        high[i], errors[i] = total, error
        rest = u64(rest | u64(u64(f64(error).view(np.uint64)) << u64(1)))  # without the sign
    return rest


@inner_loop
def add_errors(errors: Any, low: Any, lost: Any) -> None:
    """Add `errors` to `low` in place, and the magnitudes of the rounding errors of these additions to `lost`.

    All are float64 arrays (n,).
    """
    for i in range(low.size):
        rest, missing = exact_pair(low[i], errors[i])
        low[i] = rest
        lost[i] = f64(lost[i] + abs(missing))


@cache
def add_rows_kernel() -> Any:
    """Return the compiled loop `(rows, high, low, lost)` that adds rows (k, n) of floats to high + low in place.

    rows: float32 or float64. high, low, lost: float64 (n,). `lost` grows by the magnitudes of `low`'s rounding errors,
    so that it stays 0 where high + low is exact.
    """

    def add_rows(rows: Any, high: Any, low: Any, lost: Any) -> None:
        errors = np.empty(BLOCK, np.float64)
        for start in range(0, high.size, BLOCK):
            stop = min(start + BLOCK, high.size)
            for j in range(rows.shape[0]):
                rest = add_row(rows[j, start:stop], high[start:stop], errors[: stop - start])
                if rest != u64(0):  # rare for formats of few bits, whose sums are exact in float64
                    add_errors(errors[: stop - start], low[start:stop], lost[start:stop])

    return kernel(add_rows)


@cache
def round_to_odd_kernel() -> Any:
    """Return the compiled loop `(high, low, bits)` that writes high + low, rounded to odd, into `bits`.

    high, low: float64 (n,). bits: uint64 (n,), patterns of float64. Of the two float64 neighbours of high + low,
    rounding to odd takes the one with an odd significand; a sum that is itself a float64 is not changed.
    """

    def round_to_odd(high: Any, low: Any, bits: Any) -> None:
        for i in range(high.size):
            total, error = exact_pair(high[i], low[i])
            pattern = u64(f64(total).view(np.uint64))
            if error != f64(0) and u64(pattern & u64(1)) == u64(0):
                outward = (error > f64(0)) == (total > f64(0))
                pattern = u64(pattern + u64(1)) if outward else u64(pattern - u64(1))
            bits[i] = pattern

    return kernel(round_to_odd)
