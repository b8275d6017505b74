"""Collectives written out as messages between ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

import fpsim as fp

Array = Any


def draws(ranks: int, n: int, fmt: str = "bf16", seed: int = 0) -> Array:
    """Return contributions that the format holds, in its dtype."""
    scale = 1.0 if fmt not in ("e4m3", "e5m2") else 0.5
    return fp.cast(np.random.default_rng(seed).standard_normal((ranks, n)) * scale, fmt)


def hop(a: Array, b: Array, accumulate: str | None = None) -> Array:
    """Add two arrays of a dtype as one rank does: in the accumulation format, then rounded to the dtype."""
    if accumulate is None:
        return fp.add(a, b)
    return fp.convert(fp.add(a, b, out_fmt=accumulate), fp.format(a.dtype))


def simulated_ring(x: Array, first: int = 0, accumulate: str | None = None) -> Array:
    """Return what each rank holds after reduce-scatter and all-gather, by messages between neighbours."""
    ranks, n = x.shape
    edges = [len(part) for part in np.array_split(np.arange(n), ranks)]
    starts = np.cumsum([0, *edges])
    held = [[x[r, starts[c] : starts[c + 1]].copy() for c in range(ranks)] for r in range(ranks)]
    for step in range(ranks - 1):
        # rank r sends chunk r - first - step to its neighbour, which adds its own
        sent = [(r - first - step) % ranks for r in range(ranks)]
        messages = [held[r][sent[r]].copy() for r in range(ranks)]
        for r in range(ranks):
            to, chunk = (r + 1) % ranks, sent[r]
            held[to][chunk] = hop(messages[r], held[to][chunk], accumulate)
    for step in range(ranks - 1):
        sent = [(r - first - (ranks - 1) - step) % ranks for r in range(ranks)]
        messages = [held[r][sent[r]].copy() for r in range(ranks)]
        for r in range(ranks):
            held[(r + 1) % ranks][sent[r]] = messages[r]
    return np.stack([np.concatenate(chunks) for chunks in held])


def followed(order: Any, x: Array, element: int) -> Array:
    """Return one element's sum in an order of ranks."""
    if isinstance(order, int):
        return x[order, element : element + 1]
    terms = [followed(operand, x, element) for operand in order]
    if type(order).__name__ == "ExactSum":
        return fp.sum(np.concatenate(terms), accumulate=fp.Exact("bf16")).reshape(1)
    total = terms[0]
    for term in terms[1:]:
        total = fp.add(total, term)
    return total
