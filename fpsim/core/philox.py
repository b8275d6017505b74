"""Scalar core: Philox4x32-10, a random number of 32 bits as a pure function of (seed, index).

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
def _round(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return the counter (c0, c1, c2, c3), four uint64, after one round of Philox4x32 with the key words k0 and k1.

    Only the lower 32 bits of arguments and results count; the upper ones may hold anything. Callers mask the last
    results.
    """
    p0 = u64(u64(c0 & LOW) * MULTIPLIER_0)
    p1 = u64(u64(c2 & LOW) * MULTIPLIER_1)
    return u64(u64(p1 >> SHIFT) ^ u64(c1 ^ k0)), p1, u64(u64(p0 >> SHIFT) ^ u64(c3 ^ k1)), p0


@scalar
def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Return four random uint32: Philox4x32-10's output for the counter (c0, c1, c2, c3) and the key (k0, k1).

    c0 is the lowest word of the counter, k0 that of the key. All six are 32-bit integers passed as uint64.
    """
    for _ in range(ROUNDS):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 = u64(u64(k0 + WEYL_0) & LOW)
        k1 = u64(u64(k1 + WEYL_1) & LOW)
    return u32(c0 & LOW), u32(c1 & LOW), u32(c2 & LOW), u32(c3 & LOW)


@scalar
def _round_of_two(counters: Any, number: int, k0: Any, k1: Any) -> Any:
    """Return two independent counters after one round of Philox4x32, as a pair of tuples of four uint64.

    counters: such a pair; each tuple holds the words c0 (the lowest) to c3. Only the lower 32 bits of words count, here
    and in the result.
    number: index of the round, 0 to 9. k0, k1: the words of the original key, uint64; the round's key is computed from
    them and `number`.
    """
    x, y = counters
    k0, k1 = u64(u64(k0 + u64(number) * WEYL_0) & LOW), u64(u64(k1 + u64(number) * WEYL_1) & LOW)
    return _round(x[0], x[1], x[2], x[3], k0, k1), _round(y[0], y[1], y[2], y[3], k0, k1)


@scalar
def _begun(counter: Any) -> Any:
    """Return a 64-bit counter as the four uint64 words with which Philox begins: low, high, 0 and 0.

    Only the lower 32 bits of each word count; the upper half of the first may hold anything.
    """
    return counter, u64(counter >> SHIFT), u64(0), u64(0)


@scalar
def philox_abreast(x: Any, y: Any, k0: Any, k1: Any) -> Any:
    """Return the outputs of Philox4x32-10 for two counters x and y: two tuples of four uint64.

    The random bits are the lower 32 of each word; the upper ones may hold anything.
    x, y: the low 64 bits of each counter, uint64; its other bits are 0. k0, k1: the low and the high word of the key,
    uint64.
    The two are computed round by round together, as each round of one counter must wait for the one before. Rounds are
    written out, as LLVM does not vectorise a loop within a loop.
    """
    s = _round_of_two((_begun(x), _begun(y)), 0, k0, k1)
    s = _round_of_two(_round_of_two(_round_of_two(s, 1, k0, k1), 2, k0, k1), 3, k0, k1)
    s = _round_of_two(_round_of_two(_round_of_two(s, 4, k0, k1), 5, k0, k1), 6, k0, k1)
    return _round_of_two(_round_of_two(_round_of_two(s, 7, k0, k1), 8, k0, k1), 9, k0, k1)


@scalar
def random_word(index: Any, k0: Any, k1: Any) -> Any:
    """Return random word number `index`, a uint32, of the sequence that belongs to the key k0, k1.

    index: uint64; counter index // 4 yields four words, of which this is number index % 4. k0, k1: the low and the high
    32-bit word of the seed, as uint64.
    """
    counter = u64(index >> u64(2))
    words = philox4x32(counter, u64(counter >> SHIFT), u64(0), u64(0), k0, k1)
    return words[int(index & u64(3))]
