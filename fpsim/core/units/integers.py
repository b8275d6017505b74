"""Scalar core: one instruction of an integer matrix unit: exact products, whose sum wraps or saturates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.reload import reloadable
from fpsim.runtime.compile import scalar

i64 = np.int64


@reloadable
class IntegerFacts(NamedTuple):
    """Constants of an integer matrix instruction, integers.

    Attributes:
      terms: products per instruction.
      lowest, highest: range of the accumulator and of results.
      saturates: True if sums are clamped to that range, False if they wrap modulo 2**32.
      pair_lowest, pair_highest: range to which the sum of two neighbouring products is clamped before it is added to
        the accumulator; pair_highest is 0 if such sums are not clamped.
    """

    terms: Any
    lowest: Any
    highest: Any
    saturates: Any
    pair_lowest: Any
    pair_highest: Any


@scalar
def within(total: Any, u: IntegerFacts) -> Any:
    """Return the int64 `total` as the accumulator holds it: clamped to u.lowest .. u.highest, or wrapped modulo 2**32.

    It is clamped if u.saturates; the wrapped sum is the one in u.lowest .. u.lowest + 2**32 - 1. u: IntegerFacts.
    """
    if u.saturates:
        return min(max(i64(total), i64(u.lowest)), i64(u.highest))
    return i64(i64(i64(total - u.lowest) & i64(0xFFFFFFFF)) + u.lowest)


@scalar
def integer_step(a: Any, b: Any, start: Any, c: Any, u: IntegerFacts) -> Any:
    """Return c plus the next u.terms products of a and b from index `start` on, clamped or wrapped, as an int64.

    a, b: 1-D arrays of integers, a row of A and a column of B; fewer products are added where the row ends. c: the
    accumulator, an integer in u.lowest .. u.highest. u: IntegerFacts, the constants of the instruction.
    """
    total, stop = i64(c), min(i64(start + u.terms), i64(a.size))
    if u.pair_highest > i64(0):
        for k in range(start, stop, 2):
            pair = i64(i64(a[k]) * i64(b[k]))
            if k + 1 < stop:
                pair = i64(pair + i64(i64(a[k + 1]) * i64(b[k + 1])))
            total = i64(total + min(max(pair, i64(u.pair_lowest)), i64(u.pair_highest)))
    else:
        for k in range(start, stop):
            total = i64(total + i64(i64(a[k]) * i64(b[k])))
    return within(total, u)
