"""Integers in tiles, with and without a zero point: those of a plain oracle, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.core.test_philox import random_word
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts
from tests.oracles import scaling as so
from tests.oracles.tiling import tiles
from tests.scaling.checks import INTEGERS, SEED, check, compare, scaling
from tests.scaling.data import DATA, SPECIALS, normal, only_zeros, wide, with_infinities, with_nan


@pytest.mark.parametrize("division", ["divide", "multiply"])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
@sweep("whole", False, True)
def test_integers_with_a_zero_point_are_those_of_the_oracle(fmt: Any, division: str, whole: bool) -> None:
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        how = scaling(block=(1, 16), symmetric=False, division=division, scale_format=scale_format)
        check(normal() + np.float32(5), fmt, how, rounding="toward_zero")
        for i, data in enumerate(DATA, (fp.FP32, fp.E8M0, fp.BF16).index(scale_format)):
            if whole or i % 2:
                check(data(), fmt, how)
            if whole or not i % 2:
                check(np.abs(data()), fmt, how)


@in_turn("rounding", casts.MODES)
@in_turn("fmt", INTEGERS)
def test_integers_round_in_every_mode_and_zero_points_to_nearest(fmt: Any, rounding: str) -> None:
    halves = np.arange(-300, 301, dtype=np.float32).reshape(1, -1) / 2
    span = np.subtract(*tiles.RANGES[fmt.name][::-1])  # so that scales are 1, and zero points ties
    ties = np.array([[-0.5, span - 0.5], [-2.5, span - 2.5]], np.float32)
    for x in (normal(), halves, halves * np.float32(127 / 150), ties):
        check(x, fmt, scaling(block=(1, -1), symmetric=False), rounding=rounding)
        if fmt in (fp.INT8, fp.INT4):
            check(x, fmt, scaling(block=(1, -1)), rounding=rounding)


@pytest.mark.parametrize("bits", [32, 5])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_stochastic_integers_use_the_word_of_their_place(fmt: Any, bits: int) -> None:
    x = normal((3, 50), 16)
    how = scaling(block=(1, 32), symmetric=False)
    q = fp.encode_scaled(x, fmt, how, rounding="stochastic", seed=SEED, random_bits=bits)
    want = so.encode(x, fmt, how)
    assert_bits_equal(q.scales, want.scales)
    ratio = (x / tiles.repeated(want.scales, x.shape, want.sizes)).astype(np.float64)
    words = np.array([random_word(i, SEED) >> (32 - bits) for i in range(x.size)]).reshape(x.shape)
    below = np.floor(np.abs(ratio))
    away = np.floor((np.abs(ratio) - below) * 2.0**bits) + words >= 2**bits
    assert want.zero_points is not None
    integers = np.sign(ratio) * (below + away) + tiles.repeated(want.zero_points, x.shape, want.sizes)
    assert_bits_equal(q.codes, np.clip(integers, *tiles.RANGES[fmt.name]).astype(q.codes.dtype))


@pytest.mark.parametrize("nan", ["tile", "element"])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_zero_points_of_given_scales_are_those_of_the_oracle(fmt: Any, nan: str) -> None:
    for infinity in ("skip", "propagate", "one"):
        how = scaling(block=(1, 16), symmetric=False, nan=nan, infinity=infinity)
        for data in (normal, only_zeros, with_nan, with_infinities):
            check(data(), fmt, how, scales=0.1)
            check(data().astype(np.float64), fmt, how.replace(division="multiply"), scales=3.0)


@pytest.mark.parametrize("infinity", ["skip", "propagate", "one"])
@pytest.mark.parametrize("nan", ["tile", "element"])
@sweep("whole", False, True)
def test_specials_of_integers_with_a_zero_point_are_treated_as_the_fields_say(
    nan: str, infinity: str, whole: bool
) -> None:
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        how = scaling(block=(1, 16), symmetric=False, nan=nan, infinity=infinity, scale_format=scale_format)
        for i, data in enumerate(SPECIALS, (fp.FP32, fp.E8M0, fp.BF16).index(scale_format)):
            for fmt in INTEGERS if whole else INTEGERS[i % 2 :: 2]:
                check(data(), fmt, how)


def test_a_symmetric_integer_is_never_minus_128() -> None:
    x = np.array([[-1.0, 0.3, -0.999, 127 / 128]], np.float32)
    q = check(x, fp.INT8, fp.scalings.ROW)
    assert q.codes.dtype == np.int8
    assert q.codes.min() == -127


def test_a_nan_makes_its_tile_nan_with_given_scales_too() -> None:
    """Integers have no NaN: the scale says it."""
    x = np.array([[np.nan, 1, -2], [3, 4, 5]], np.float32)
    q = fp.encode_scaled(x, "int8", fp.scalings.ROW, scales=0.5)
    assert_bits_equal(q.decode(), np.array([[np.nan] * 3, [3, 4, 5]], np.float32))
    assert_bits_equal(q.scales, np.array([[np.nan], [0.5]], np.float32))
    assert q.report.nan_tiles == 1
    element = fp.quantize_scaled(x, "int8", fp.scalings.ROW.replace(nan="element"), scales=0.5)
    assert_bits_equal(element, np.array([[63.5, 1, -2], [3, 4, 5]], np.float32))


def test_an_earlier_result_with_zero_points_can_be_filled_again() -> None:
    how = scaling(block=(1, 32), symmetric=False)
    first = fp.encode_scaled(wide(), fp.UINT8, how)
    compare(fp.encode_scaled(normal(), fp.UINT8, how, out=first), so.encode(normal(), fp.UINT8, how))


@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_decoding_integers_to_float64_is_exact(fmt: Any) -> None:
    how = scaling(block=(2, 7), symmetric=False)
    want = so.decode(so.encode(wide(), fmt, how), fmt, np.float64)
    assert_bits_equal(fp.encode_scaled(wide(), fmt, how).decode(dtype=np.float64), want)


@pytest.mark.parametrize("infinity", ["skip", "one"])
def test_a_tile_of_zeros_with_a_zero_point_has_the_scale_of_zeros(infinity: str) -> None:
    how = fp.Scaling(block=(1, 2), symmetric=False, zero_scale="smallest", scale_format=fp.BF16, infinity=infinity)
    q = check(np.array([[0, -0.0, 1, 2, np.inf, 0]], np.float32), fp.UINT8, how)
    assert q.scales[0].tolist()[::2] == [2.0**-126, 2.0**-126 if infinity == "skip" else 1]


@in_turn("rounding", ["nearest_even", "toward_zero", "up", "odd"])
@in_turn("bits", range(2, 9))
def test_integers_of_every_width_are_rounded_quotients(bits: int, rounding: str) -> None:
    fmt = fp.IntegerFormat(f"INT{bits}", bits, signed=True)
    x = np.random.default_rng(bits).standard_normal((3, 200)).astype(np.float32)
    quotients = x / (np.abs(x).max(1, keepdims=True) / np.float32(fmt.max))
    want = so.whole(quotients.astype(np.float64), rounding).clip(-fmt.max, fmt.max)
    got = fp.encode_scaled(x, fmt, fp.scalings.ROW, rounding=rounding)
    assert_bits_equal(got.codes, want.astype(np.int8))
    assert np.any(got.codes)
    assert_bits_equal(got.decode(), got.codes.astype(np.float32) * got.scales)
