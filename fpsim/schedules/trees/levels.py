"""Sums of values level by level, in pairs of neighbours or as a butterfly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def in_levels(values: Sequence[Value], order: str, add: Callable[[Value, Value], Value]) -> Value:
    """Return the sum of `values`, which are added level by level until one is left.

    order: how the values of a level become those of the next one. "pairwise": neighbours are added. "butterfly": value
    i + h is added to value i, where h is half of the smallest power of two that is not below the number of values. A
    value without a partner moves to the next level unchanged. add: function (x, y) -> x + y.
    """
    level = list(values)
    while len(level) > 1:
        half = 1 << (len(level) - 1).bit_length() - 1
        first, second = (level[::2], level[1::2]) if order == "pairwise" else (level[:half], level[half:])
        level = [add(x, y) for x, y in zip(first, second, strict=False)] + first[len(second) :]
    return level[0]
