"""The float32 mean as torch computes it on a processor; bitsandbytes subtracts this mean from scales."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array

LANES, CHAINS = 8, 4  # elements of an AVX2 vector, which torch uses for sums with AVX-512 too; vectors added in turn
LEVELS, LEAST = 4, 4  # totals of a chain, and the smallest power of two of the terms that one of them takes


def torch_mean(x: Array) -> np.float32:
    """Return the mean of x, a flat float32 array, with the bits that torch.mean computes on one thread with AVX2.

    For more than 32,768 numbers torch uses several threads, and the last bits depend on the number of threads.

    Source: pytorch/aten/src/ATen/native/cpu/SumKernel.cpp; `fp.schedules.torch_sum` is the same order.

    Example:
      >>> from fpsim.analysis.tensors.writing.means import torch_mean
      >>> float(torch_mean(np.float32([1, 2, 6])))
      3.0
    """
    width = LANES if x.size >= LANES else 1
    vectors = x.size // width
    turns = vectors // CHAINS
    chains = _cascade(x[: turns * CHAINS * width].reshape(turns, CHAINS * width)).reshape(CHAINS, width)
    rest = x[turns * CHAINS * width : vectors * width].reshape(-1, width)
    lanes = _in_turn(np.concatenate([chains[:1], rest, chains[1:]]))
    total = _in_turn(np.concatenate([x[vectors * width :], lanes])[:, None])
    return np.float32(total[0] / np.float32(x.size))


def _cascade(terms: Array) -> Array:
    """Return the float32 sums of the columns of `terms`, (terms, columns), added as torch does, in four levels.

    The first level divides the rows of `terms` into groups of S, and adds the rows of a group one after another. The
    sums of the groups are the rows of the next level. Rows beyond the last whole group are added to the level's total;
    at the fourth level these are all rows. The four totals are added at the end. S = 2^max(4, b // 4), where
    b is the number of bits of (number of terms - 1).
    """
    step = 1 << max(LEAST, max(len(terms) - 1, 0).bit_length() // LEVELS)
    rests, columns = [], terms.shape[1]
    for level in range(LEVELS):
        whole = len(terms) // step if level < LEVELS - 1 else 0
        rests.append(_in_turn(terms[whole * step :]))
        groups = terms[: whole * step].reshape(whole, step, columns)
        terms = np.add.accumulate(groups, axis=1)[:, -1] if whole else np.zeros((0, columns), np.float32)
    return _in_turn(np.stack(rests))


def _in_turn(terms: Array) -> Array:
    """Return the float32 sums of the columns of `terms`, added one row after another."""
    if not len(terms):
        return np.zeros(terms.shape[1], np.float32)
    return np.asarray(np.add.accumulate(terms, axis=0, dtype=np.float32)[-1])
