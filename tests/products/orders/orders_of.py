"""Orders of additions that several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st


def chain(k: int) -> Any:
    """Return the order of one chain."""
    order: Any = 0
    for term in range(1, k):
        order = (order, term)
    return order


def backwards(k: int) -> Any:
    """Return the order of one chain from the last term to the first."""
    order: Any = k - 1
    for term in range(k - 2, -1, -1):
        order = (term, order)
    return order


def chain_of_pairs(k: int) -> Any:
    """Return the order of a chain of sums of two neighbours."""
    order: Any = (0, 1)
    for term in range(2, k, 2):
        order = (order, (term, term + 1) if term + 1 < k else term)
    return order


def shuffled(k: int, seed: int) -> Any:
    """Return an order in which two random parts are added again and again."""
    rng, parts = np.random.default_rng(seed), list[Any](range(k))
    while len(parts) > 1:
        i, j = sorted(int(x) for x in rng.choice(len(parts), 2, replace=False))
        last = parts.pop(j)
        parts[i] = (parts[i], last)
    return parts[0]


def moved(order: Any, by: int) -> Any:
    """Return an order of terms that are moved by a distance; it recurses, so orders must not be deep."""
    return order + by if isinstance(order, int) else tuple(moved(part, by) for part in order)


@st.composite
def any_order(draw: st.DrawFn, most: int = 12) -> tuple[Any, ...]:
    """Draw an order of two terms or more."""
    parts: list[Any] = list(draw(st.permutations(range(draw(st.integers(2, most))))))
    while len(parts) > 1:
        i = draw(st.integers(0, len(parts) - 2))
        parts[i : i + 2] = [(parts[i], parts[i + 1])]
    order: tuple[Any, ...] = parts[0]
    return order
