"""Correction of the sums of integer products for zero points, modulo 2^32."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array


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
