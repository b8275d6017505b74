"""Stochastic rounding: a pure function of value, seed and flat index, with the right probability everywhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.casts.loops import WORDS, random_kernel
from fpsim.runtime.pipeline import PIECE
from fpsim.runtime.threads import SMALLEST
from fpsim.testing import assert_bits_equal
from tests.core.test_philox import random_word
from tests.kit.samples import NARROW, P3109, STRANGE, any_float, edges, float32_patterns, formats
from tests.kit.sweeps import in_turn
from tests.oracles import casts

Array = npt.NDArray[Any]
SEED = 0x0123456789ABCDEF


def encode(x: Array, fmt: fp.Format, seed: int = SEED, **words: Any) -> Array:
    return fp.encode(x, fmt, rounding="stochastic", seed=seed, **words)


@pytest.mark.parametrize("random_bits", [1, 2, 8, 23, 31, 32])
@in_turn("fmt", [*NARROW, *P3109, *STRANGE])
def test_every_position_rounds_as_fractions_say_with_its_random_word(fmt: fp.Format, random_bits: int) -> None:
    generator = np.random.default_rng(random_bits)
    with np.errstate(all="ignore"):
        spread = generator.choice(edges(fmt), 20) * (1 + generator.random(20) / 4)
        tiny = fmt.smallest_subnormal * 2.0 ** -generator.integers(0, 40, 8) * generator.random(8)
    x = np.concatenate([spread, tiny, -tiny])
    want = [
        casts.encode(v, fmt, "stochastic", word=random_word(i, SEED), random_bits=random_bits)
        for i, v in enumerate(x.tolist())
    ]
    assert_bits_equal(encode(x, fmt, random_bits=random_bits), np.array(want, fmt.storage))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_float_rounds_stochastically_as_fractions_say(data: st.DataObject) -> None:
    fmt = data.draw(formats() | st.sampled_from([*NARROW, *P3109, *STRANGE]))
    seed, bits = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(1, 32))
    overflow = data.draw(st.sampled_from(casts.OVERFLOWS))
    x = data.draw(st.lists(any_float(fmt), min_size=1, max_size=6))
    want = [
        casts.encode(v, fmt, "stochastic", overflow, word=random_word(i, seed), random_bits=bits)
        for i, v in enumerate(x)
    ]
    got = encode(np.array(x), fmt, seed, overflow=overflow, random_bits=bits)
    assert_bits_equal(got, np.array(want, fmt.storage))


@in_turn("random_bits", [1, 8, 32])
@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.FP16, fp.BF16, fp.E8M0, fp.E2M1])
def test_float32_and_float64_inputs_round_alike(fmt: fp.Format, random_bits: int) -> None:
    tiny = np.float32(fmt.smallest_normal) * np.array([1e-3, 1e-5, 1e-9], np.float32)
    x = np.concatenate([float32_patterns(1, 20_000), tiny])
    x = x[~np.isnan(x)]
    narrow, wide = (encode(v, fmt, random_bits=random_bits) for v in (x, x.astype(np.float64)))
    assert_bits_equal(narrow, wide)


# ---- the same bits for any way of calling


def test_every_shape_and_layout_rounds_alike() -> None:
    x = np.random.default_rng(2).standard_normal((7, 11, 13)).astype(np.float32)
    flat = encode(x.reshape(-1), fp.E4M3)
    assert_bits_equal(encode(x, fp.E4M3).reshape(-1), flat)
    assert_bits_equal(encode(np.asfortranarray(x), fp.E4M3).reshape(-1), flat)
    assert_bits_equal(encode(np.repeat(x, 2, axis=1)[:, ::2], fp.E4M3).reshape(-1), flat)
    assert_bits_equal(encode(x.astype(">f4"), fp.E4M3).reshape(-1), flat)
    assert_bits_equal(encode(x.astype(np.float64), fp.E4M3).reshape(-1), flat)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_rounds_alike(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal(SMALLEST + 12_345).astype(np.float32)
    parts = [slice(start, min(start + 4096, x.size)) for start in range(0, x.size, 300_001)]
    monkeypatch.setenv("FPSIM_NUM_THREADS", str(threads))
    got = encode(x, fp.E4M3, out=np.full(x.size, 0xAA, np.uint8))
    for part in parts:
        want = [oracle_code(x[i], i) for i in range(part.start, part.start + 5)]
        assert got[part.start : part.start + 5].tolist() == want
    monkeypatch.setenv("FPSIM_NUM_THREADS", "1")
    assert_bits_equal(got, encode(x, fp.E4M3))


def oracle_code(x: Any, index: int) -> int:
    return casts.encode(float(x), fp.E4M3, "stochastic", word=random_word(index, SEED))


@pytest.mark.parametrize("size", [WORDS - 1, WORDS, WORDS + 1, PIECE - 1, PIECE + 1, 3 * PIECE + 5])
def test_the_first_elements_do_not_depend_on_how_many_follow(size: int) -> None:
    x = np.random.default_rng(4).standard_normal(4 * PIECE).astype(np.float16)
    assert_bits_equal(encode(x[:size], fp.E4M3), encode(x, fp.E4M3)[:size])


def test_pieces_of_a_strided_array_count_on() -> None:
    x = np.random.default_rng(5).standard_normal((3, PIECE // 2 + 11)).astype(np.float32)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    assert_bits_equal(encode(strided, fp.E4M3), encode(x, fp.E4M3))


def test_quantize_and_cast_round_as_encode_does() -> None:
    x = np.random.default_rng(6).standard_normal(5000).astype(np.float32)
    words: dict[str, Any] = {"rounding": "stochastic", "seed": SEED, "random_bits": 11}
    codes = fp.encode(x, fp.E4M3, **words)
    assert_bits_equal(fp.quantize(x, fp.E4M3, **words), fp.decode(codes, fp.E4M3))
    assert_bits_equal(fp.cast(x, fp.E4M3, **words).view(np.uint8), codes)


def test_another_seed_gives_other_bits_and_the_same_seed_the_same() -> None:
    x = np.full(1000, 1.06)
    assert_bits_equal(encode(x, fp.E4M3, 7), encode(x, fp.E4M3, 7))
    results = [encode(x, fp.E4M3, seed).tobytes() for seed in (0, 1, 1 << 32, 1 << 63)]
    assert len(set(results)) == len(results)


def test_numpy_integers_are_seeds_too() -> None:
    x = np.full(100, 1.06)
    assert_bits_equal(encode(x, fp.E4M3, np.uint64(9)), encode(x, fp.E4M3, 9))  # type: ignore[arg-type]


# ---- probabilities


@in_turn("random_bits", [4, 8, 32])
@in_turn("x", [1 + 1 / 16, 1 + 1 / 64, 2.0**-14, 3 * 2.0**-13, 2.0**-9 * 0.75, 2.0**-12, -(2.0**-11), 447.0, 464.0])
def test_a_value_goes_away_from_zero_as_often_as_it_should(x: float, random_bits: int) -> None:
    count = 1 << 16
    got = np.abs(fp.decode(encode(np.full(count, x), fp.E4M3, overflow="saturate", random_bits=random_bits), fp.E4M3))
    unit = fp.E4M3.ulp(x)
    below = math.floor(abs(x) / unit) * unit
    if below >= fp.E4M3.max:
        assert (got == fp.E4M3.max).all()
        return
    chance = math.floor((abs(x) - below) / unit * 2**random_bits) / 2**random_bits
    away = int((got > below).sum())
    assert ((got == below) | (got == below + unit)).all()
    # five standard deviations of the binomial distribution; the words are fixed, so this cannot flicker
    assert abs(away - chance * count) <= 5 * math.sqrt(count * chance * (1 - chance))


def test_two_to_the_minus_14_is_a_thirty_second_of_e4m3s_smallest_subnormal() -> None:
    got = encode(np.full(1 << 16, 2.0**-14), fp.E4M3)
    assert set(got.tolist()) == {0, 1}
    want = sum(random_word(i, SEED) >> 27 == 31 for i in range(2048))
    assert int(got[:2048].sum()) == want


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@in_turn("depth", [6, 7, 8, 9, 10, 11, 12, 13, 14])
@pytest.mark.parametrize("fmt", [fp.E4M3, fp.FP16, fp.BF16, fp.E2M1], ids=str)
def test_far_below_the_smallest_value_the_right_words_go_up(fmt: fp.Format, depth: int, dtype: type) -> None:
    x: Array = np.full(1 << 16, fmt.smallest_subnormal * 1.5 * 2.0**-depth).astype(dtype)
    words = np.empty(x.size, np.uint32)
    random_kernel()(words, np.uint64(0), np.uint64(SEED & 0xFFFFFFFF), np.uint64(SEED >> 32))
    want = words >= 2**32 - 3 * 2 ** (31 - depth)
    assert want.any()
    assert_bits_equal(encode(x, fmt), want.astype(fmt.storage))


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16], ids=str)
def test_values_of_the_format_never_move(fmt: fp.Format) -> None:
    codes = np.arange(1 << fmt.bits).astype(fmt.storage)
    values = fp.decode(codes, fmt)
    assert_bits_equal(fp.quantize(values, fmt, rounding="stochastic", seed=1), values)


def test_a_result_that_rounds_beyond_the_largest_value_overflows() -> None:
    got = encode(np.full(4096, 460.0), fp.E4M3)  # between 448 and the 480 that E4M3 lacks
    want = [0x7F if random_word(i, SEED) >= 5 / 8 * 2**32 else 0x7E for i in range(4096)]
    assert got.tolist() == want
