"""Philox4x32-10: the known answers of Random123, and the order in which words are dealt out."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.casts.loops import random_kernel
from fpsim.core.philox import philox4x32
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

# Source: Random123 1.14, tests/kat_vectors, philox4x32 10: counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def hexadecimal(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as the paper writes it (Salmon, Moraes, Dror, Shaw, SC 2011), in Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % (1 << 32), (k1 + 0xBB67AE85) % (1 << 32)
    return [c0, c1, c2, c3]


def random_word(index: int, seed: int) -> int:
    """Return the random word of a flat index: word index % 4 of counter index // 4, keyed by the halves of the seed."""
    counter = index // 4
    return philox([counter % (1 << 32), counter >> 32, 0, 0], [seed % (1 << 32), seed >> 32])[index % 4]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_random123_known_answers(counter: str, key: str, answer: str) -> None:
    words = philox4x32(*(np.uint64(word) for word in hexadecimal(counter) + hexadecimal(key)))
    assert [int(word) for word in words] == hexadecimal(answer)
    assert philox(hexadecimal(counter), hexadecimal(key)) == hexadecimal(answer)


@in_turn("first", [0, 5, (1 << 32) - 2, (1 << 40) + 3])
@in_turn("seed", [0, 1, 0x123456789ABCDEF0, (1 << 64) - 1])
def test_the_kernel_deals_four_words_per_counter(first: int, seed: int) -> None:
    words = np.empty(16, np.uint32)
    random_kernel()(words, np.uint64(first), np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32))
    assert_bits_equal(words, np.array([random_word(4 * first + i, seed) for i in range(16)], np.uint32))


def words_seen_by_encode(count: int, seed: int) -> list[int]:
    """Return the top 7 bits of the random word of each position, as read off from stochastic rounding.

    In a format of one binade-wide mantissa the value 1 + f * 2**-mantissa_bits goes up when f + word / 2**32 >= 1.
    """
    seen = np.zeros(count, np.int64)
    for threshold in range(1, 128):
        x = np.full(count, 1 + threshold / 128 / 8)
        up = fp.decode(fp.encode(x, fp.E4M3, rounding="stochastic", seed=seed, random_bits=7), fp.E4M3) > 1
        seen += up
    return [int(word) for word in seen]


@pytest.mark.parametrize("seed", [0, 42, 1 << 63])
def test_encode_compares_with_the_word_of_the_flat_index(seed: int) -> None:
    count = 2500  # more than the words that are made at a time
    assert words_seen_by_encode(count, seed) == [random_word(i, seed) >> 25 for i in range(count)]
