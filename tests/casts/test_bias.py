"""fp.encode_with_bias: AVX10.2's conversions with a bias, and its policies, by a rule in fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FORMATS = (fp.E4M3, fp.E5M2)


def biased(x: float, fmt: fp.Format, bias: int, saturate: bool) -> int:
    """Return the code of a float: its magnitude plus bias / 256 of a last place, cut to the format."""
    negative = np.signbit(x)
    magnitude = Fraction(abs(x))
    exponent = -126
    while exponent < fmt.min_exponent or Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    place = Fraction(2) ** (exponent - fmt.mantissa_bits)
    least = Fraction(2) ** (max(exponent, -14) - 10) if magnitude >= Fraction(2) ** -14 else Fraction(2) ** -24
    added = place * bias / 256
    added -= added % min(least, place / 256 if place / 256 >= least else least)  # bits below FP16's last place are lost
    steps = (magnitude + added) // place
    code = (exponent - fmt.min_exponent) * 2**fmt.mantissa_bits + int(steps)
    if code > fmt.max_code:
        code = fmt.max_code if saturate else fmt.max_code + 1
    return int(code | (fmt.sign_bit if negative else 0))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("saturate", [False, True])
def test_a_bias_is_added_below_the_last_place(fmt: fp.Format, saturate: bool) -> None:
    rng = np.random.default_rng(1)
    finite = HALVES[np.isfinite(HALVES)]
    x = finite[rng.integers(0, finite.size, 6000)]
    bias = rng.choice([0, 1, 2, 127, 128, 254, 255], x.size)
    got = fp.encode_with_bias(x, fmt, bias, saturate=saturate)
    want = [biased(float(v), fmt, int(n), saturate) for v, n in zip(x, bias, strict=True)]
    assert_bits_equal(got, np.array(want, np.uint8))


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_no_bias_cuts_toward_zero_and_the_bias_of_nearest_even_is_encode(fmt: fp.Format) -> None:
    finite = HALVES[np.isfinite(HALVES)]
    cut = fp.encode(finite, fmt, rounding="toward_zero", overflow="saturate")
    assert_bits_equal(fp.encode_with_bias(finite, fmt, 0, saturate=True), cut)
    if fmt == fp.E5M2:  # which drops eight bits of every value
        nearest = 127 + (finite.view(np.uint16) >> 8 & 1)
        assert_bits_equal(fp.encode_with_bias(finite, fmt, nearest), fp.encode(finite, fmt))


def test_specials_are_those_of_the_instruction() -> None:
    x = np.array([0x7C00, 0xFC00, 0x7C01, 0xFFFF, 0x7D00, 0x8000], np.uint16).view(np.float16)
    assert fp.encode_with_bias(x, fp.E4M3, 255).tolist() == [0x7F, 0xFF, 0x7F, 0xFF, 0x7F, 0x80]
    assert fp.encode_with_bias(x, fp.E4M3, 255, saturate=True).tolist() == [0x7E, 0xFE, 0x7F, 0xFF, 0x7F, 0x80]
    assert fp.encode_with_bias(x, fp.E5M2, 0).tolist() == [0x7C, 0xFC, 0x7E, 0xFF, 0x7F, 0x80]
    assert fp.encode_with_bias(x, fp.E5M2, 0, saturate=True).tolist() == [0x7B, 0xFB, 0x7E, 0xFF, 0x7F, 0x80]


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_policies_of_avx10_round_to_nearest_even_once(fmt: fp.Format) -> None:
    number = ~np.isnan(HALVES)
    plain, short = (fp.encode(HALVES[number], fmt, **fp.policy(name)) for name in ("x86_avx10_2", "x86_avx10_2_sat"))
    assert_bits_equal(plain, fp.encode(HALVES[number].astype(np.float64), fmt))
    over = np.abs(HALVES[number].astype(np.float64)) >= (464.001 if fmt == fp.E4M3 else 61440)
    assert (plain[over] & 0x7F == (0x7F if fmt == fp.E4M3 else 0x7C)).all()
    assert (short[over] & 0x7F == fmt.max_code).all()
    assert_bits_equal(short[~over], plain[~over])


def test_biases_broadcast() -> None:
    x = np.array([[1.03], [3.0]], np.float16)
    got = fp.encode_with_bias(x, "e4m3", np.array([0, 200, 255]))
    assert fp.decode(got, fp.E4M3).tolist() == [[1.0, 1.125, 1.125], [3.0, 3.0, 3.0]]


def test_foreign_byte_order_changes_no_code() -> None:
    x = np.array([1.0, -2.5, np.nan], np.float16)
    assert_bits_equal(fp.encode_with_bias(x.astype(">f2"), "e4m3", 128), fp.encode_with_bias(x, "e4m3", 128))


ONE: Any = np.ones(1, np.float16)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.encode_with_bias(ONE, "e3m2", 0), "fmt must be E4M3 or E5M2"),
        (lambda: fp.encode_with_bias(np.ones(1, np.float32), "e4m3", 0), "x must be float16, .*got float32"),
        (lambda: fp.encode_with_bias(ONE, "e4m3", 256), r"bias must hold integers 0 .. 255; got .*256"),
        (lambda: fp.encode_with_bias(np.ones(2, np.float16), "e4m3", [1, 2, 3]), r"of shape \(2,\); got shape \(3,\)"),
        (lambda: fp.encode_with_bias(ONE, "e4m3", 0.5), "bias must hold integers 0 .. 255; got float64"),
        (lambda: fp.encode_with_bias(ONE, "e4m3", 0, saturate=ONE), "saturate must be True or False"),
    ],
)
def test_bad_input_says_what_was_wanted(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()
