"""Log-probabilities of logits, and the divergence of two of them."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array


def log_softmax(logits: Array) -> Array:
    """Return the float64 log-probabilities (logarithm of the softmax along the last axis) of logits."""
    wide = np.asarray(logits).astype(np.float64)
    with np.errstate(invalid="ignore"):  # of infinite logits, whose log-probabilities are NaN
        shifted = wide - wide.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def divergence(p: Array, q: Array) -> Array:
    """Return KL(p || q) >= 0, in nats, of two arrays of log-probabilities; the sum is over the last axis."""
    with np.errstate(all="ignore"):
        difference, near = q - p, np.abs(q - p) < 1
        # plus exp(q) - exp(p), whose sum is 0, no term is negative, so that small terms do not cancel each other
        excess = np.exp(p) * np.expm1(np.where(near, difference, 0.0))
        terms = np.where(near, excess, np.exp(q) - np.exp(p)) - np.exp(p) * difference
        # where p is 0, the term is q; the product above is 0 * Inf
        return np.asarray(np.where(np.isneginf(p), np.exp(q), np.maximum(terms, 0.0)).sum(axis=-1))


def divergence_of_probabilities(p: Array, q: Array) -> Array:
    """Return KL(p || q), in nats, of two arrays of probabilities with the sum 1 over the last axis, which is summed.

    Entries where q is 0 are left out. The result is NaN for rows with NaN.
    """
    with np.errstate(all="ignore"):
        both = (p > 0) & (q > 0)
        difference = np.log(np.where(both, q, 1.0) / np.where(both, p, 1.0))
        near = np.abs(difference) < 1
        excess = np.where(near, p * np.expm1(np.where(near, difference, 0.0)), q - p)  # q - p, as in `divergence`
        return np.asarray(np.where(both, excess - p * difference, q - p).sum(axis=-1))
