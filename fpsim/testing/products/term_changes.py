"""Faults of broken kernels in the terms of K: which are added, in which order, and how a's are paired with b's.

A change is a function from K to two arrays: the indices of the terms of a and of b, in the order of their addition; -1
stands for a term that counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from fpsim.arrays import Array
from fpsim.testing.products.changes import GRAINS, KernelChange

Terms = tuple[Array, Array]
Order = Callable[[Array, int], Array]  # (indices of terms, parameter) -> indices to add


def of_terms() -> Iterator[KernelChange]:
    """Yield the faults that broken kernels have in the selection, order and pairing of terms.

    The function of each maps K to (indices of a's terms, indices of b's terms) in the order of their addition.
    """
    for words, order, number in _orders():
        yield KernelChange(words, _same(order, number))
    for step in (1, 2, 4, 8, 16):
        yield KernelChange(f"exchanges neighbouring runs of {step} of K", _same(exchanged, step))
        yield KernelChange(f"pairs a's terms with b's after exchanging runs of {step}", _unlike(exchanged, step))
    for grain in (8, 16, 32):
        pairs = f"takes, of every {grain} terms, those with k mod 4 in {{0, 1}} first"
        yield KernelChange(pairs, _same(lambda t, g: _sorted(t, t % 4 > 1, t // g), grain))
        even = f"takes, of every {grain} terms, the even ones first"
        yield KernelChange(even, _same(lambda t, g: _sorted(t, t % 2, t // g), grain))
    for by in (1, -1):
        yield KernelChange(f"pairs a[k] with b[k {'+' if by > 0 else '-'} 1]", _unlike(_shifted, by))


def _orders() -> Iterator[tuple[str, Order, int]]:
    """Yield faults that affect a and b alike, as (clause, order, number).

    clause: what the kernel does, such as "drops the last 32 terms". order: function (indices 0 to K - 1, number) ->
    indices of the terms that the kernel adds; -1 stands for a term that counts as zero. number: a size, here 32.
    """
    yield "adds K from the last term to the first", lambda t, _: t[::-1], 0
    for g in GRAINS:
        yield f"drops the terms beyond a multiple of {g}", lambda t, g: np.where(t < t.size // g * g, t, -1), g
    for c in (1, 16, 32, 64, 128):
        said = "term" if c == 1 else f"{c} terms"
        yield f"drops the first {said}", lambda t, c: np.where(t < c, -1, t), c
        yield f"drops the last {said}", lambda t, c: np.where(t >= t.size - c, -1, t), c
        yield f"adds the last {said} twice", lambda t, c: np.concatenate([t, t[-c:]]), c
        yield f"adds the first {said} twice", lambda t, c: np.concatenate([t[:c], t]), c
        yield f"adds the first {said} again after the last", lambda t, c: np.concatenate([t, t[:c]]), c
        later = f"drops the first {said}, and counts steps from the next one"
        yield later, lambda t, c: t[c:] if t.size > c else np.full_like(t, -1), c
    for g in GRAINS[2:]:
        yield f"reads the last {g} terms again where K is no multiple of {g}", last_again, g
        yield (
            f"repeats the last term up to a multiple of {g}",
            lambda t, g: np.concatenate([t, np.repeat(t[-1:], -t.size % g)]),
            g,
        )
        yield f"adds blocks of {g} terms from the last to the first", lambda t, g: _sorted(t, -(t // g)), g
        yield f"adds each block of {g} terms from its last to its first", lambda t, g: t[np.lexsort((-t, t // g))], g
        yield f"starts {g} terms late and adds the first {g} last", lambda t, g: np.roll(t, -g), g
        yield f"drops every other block of {g} terms", lambda t, g: np.where(t // g % 2, -1, t), g
    for n in (2, 4, 8, 16, 32, 64):
        yield f"adds every {n}th term first", lambda t, n: _sorted(t, t % n), n
        yield f"adds {n} runs of K side by side", lambda t, n: _sorted(t, t % max(-(-t.size // n), 1)), n


def _same(order: Order, number: int) -> Callable[[int], Terms]:
    """Return a function from K to (indices of a's terms, indices of b's terms), both `order(np.arange(K), number)`.

    order: function (indices, number) -> indices in the order of addition. number: a size, as in `_orders`.
    """

    def terms(k: int) -> Terms:
        ordered = np.asarray(order(np.arange(k), number))
        return ordered, ordered

    return terms


def _unlike(order: Order, number: int) -> Callable[[int], Terms]:
    """Return a function from K to (np.arange(K) for a's terms, `order(np.arange(K), number)` for b's terms).

    A kernel with this fault multiplies a's terms by wrong terms of b. order, number: as for `_same`.
    """
    return lambda k: (np.arange(k), np.asarray(order(np.arange(k), number)))


def _sorted(terms: Array, *keys: Array) -> Array:
    """Return the indices `terms` sorted by the last of `keys`, then by the keys before it, then by the index itself."""
    return terms[np.lexsort((terms, *keys))]


def last_again(terms: Array, grain: int) -> Array:
    """Return the indices `terms` with an incomplete last block of `grain` replaced by the last `grain` indices.

    Blocks of 4 of the indices 0 to 5 give 0, 1, 2, 3, 2, 3, 4, 5.
    """
    whole = terms.size // grain * grain
    return terms if whole in (0, terms.size) else np.concatenate([terms[:whole], terms[-grain:]])


def exchanged(terms: Array, step: int) -> Array:
    """Return the indices `terms`, 0 to K - 1, with neighbouring blocks of `step` exchanged: 2, 3, 0, 1, ... for step 2.

    Indices whose partner is not below K stay where they are.
    """
    partner = terms ^ step
    return np.where(partner < terms.size, partner, terms)


def _shifted(terms: Array, by: int) -> Array:
    """Return the indices `terms`, 0 to K - 1, plus `by`; -1 for those below 0 or above K - 1."""
    return np.where((terms + by >= 0) & (terms + by < terms.size), terms + by, -1)
