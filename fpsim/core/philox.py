"""Scalar core: Philox4x32-10, a random word as a pure function of (seed, index).

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the known answers of
Random123 are in tests/core/test_philox.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.runtime.compile import scalar

u32, u64 = np.uint32, np.uint64

MULTIPLIER_0, MULTIPLIER_1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL_0, WEYL_1 = u64(0x9E3779B9), u64(0xBB67AE85)
LOW = u64(0xFFFFFFFF)
SHIFT = u64(32)
ROUNDS = 10


@scalar
def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four random 32-bit words from a counter of four and a key of two 32-bit words, all held in 64 bits."""
    for _ in range(ROUNDS):
        # upper halves may hold anything: a 32-bit multiplier reads the lower ones, so masks cost nothing
        p0 = u64(u64(c0 & LOW) * MULTIPLIER_0)
        p1 = u64(u64(c2 & LOW) * MULTIPLIER_1)
        c0, c2 = u64(u64(p1 >> SHIFT) ^ u64(c1 ^ k0)), u64(u64(p0 >> SHIFT) ^ u64(c3 ^ k1))
        c1, c3 = p1, p0
        k0 = u64(u64(k0 + WEYL_0) & LOW)
        k1 = u64(u64(k1 + WEYL_1) & LOW)
    return u32(c0 & LOW), u32(c1 & LOW), u32(c2 & LOW), u32(c3 & LOW)


@scalar
def random_word(index: Any, k0: Any, k1: Any) -> Any:
    """Word `index` of the stream of a key: each counter gives four."""
    counter = u64(index >> u64(2))
    words = philox4x32(counter, u64(counter >> SHIFT), u64(0), u64(0), k0, k1)
    return words[int(index & u64(3))]
