"""Conversions: values between formats, integers to codes, values to integers; each rounded once, with its flags."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.arithmetic.checks import (
    EIGHT_BITS,
    ODD_WIDTHS,
    SMALL,
    SOME_P3109,
    UNUSUAL,
    WIDE,
    assert_same,
    columns_of,
    random_words,
    subnormals_of,
)
from tests.kit import operands
from tests.kit.samples import float64_patterns
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import casts
from tests.oracles import code_operations as co

Array = npt.NDArray[Any]
ALL = [*SMALL, *EIGHT_BITS, *SOME_P3109, *ODD_WIDTHS, *UNUSUAL, *WIDE, fp.FP64]
INTEGERS = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
SEED = 0x0F1E2D3C4B5A6978


def thinned(codes: Array, count: int) -> Array:
    return codes[:: 1 + codes.size // count]


# ---- between formats


def check_convert(codes: Array, fmt: fp.Format, to: fp.Format, **words: Any) -> None:
    """Compare convert with the oracle, with flags and without."""
    fields = {key: value for key, value in words.items() if key in ao.Options._fields}
    options = ao.Options(**fields)
    dice = random_words(words["seed"], codes.size) if "seed" in words else [0] * codes.size
    each = zip(codes.tolist(), dice, strict=True)
    rows = [ao.compute("convert", [code], [fmt], to, options._replace(word=word)) for code, word in each]
    want, want_flags = columns_of(rows, to.storage)
    named = {"to": to, "fmt": fmt, **words}
    assert_same(fp.convert(codes, to, fmt=fmt, **words), want, "convert", [codes], named, "codes")
    got, flags = fp.convert(codes, to, fmt=fmt, flags=True, **words)
    assert_same(got, want, "convert", [codes], named | {"flags": True}, "codes")
    assert_same(flags, want_flags, "convert", [codes], named | {"flags": True}, "flags")


TARGETS = [fp.E2M1, fp.E4M3, fp.E5M2, fp.E8M0, fp.E5M2FNUZ, fp.format("p3109_k8p3ue"), fp.FP16, fp.BF16, fp.TF32,
           fp.FP32, fp.FP64]  # fmt: skip


@pytest.mark.parametrize("fmt", ALL, ids=str)
def test_edges_convert_as_fractions_say(fmt: fp.Format) -> None:
    codes = thinned(operands.level_one(fmt), 30)
    for number, to in enumerate(TARGETS):
        for rounding in casts.MODES[number % 3 :: 3]:
            check_convert(codes, fmt, to, rounding=rounding, tininess=ao.TININESS[number % 2])


@in_turn("to", ALL)
def test_every_format_takes_float32_and_float64_edges(to: fp.Format) -> None:
    near = [operands.exact_value(to, int(code)) for code in thinned(operands.level_one(to), 8)
            if ao.read(to, int(code)).kind == "finite"]  # fmt: skip
    steps = [Fraction(0), Fraction(1, 2), Fraction(1, 4), Fraction(3, 8)]
    targets = [x + casts.spacing(to, abs(x)) * steps[i % 4] for i, x in enumerate(near)]
    for number, fmt in enumerate((fp.FP32, fp.FP64)):
        codes = [operands.near(fmt, x, ulps) for x in targets for ulps in (-1, 0, 1)]
        for rounding in casts.MODES:
            check_convert(np.array(codes, fmt.storage), fmt, to, rounding=rounding, tininess=ao.TININESS[number])


@pytest.mark.parametrize("overflow", casts.OVERFLOWS)
def test_every_overflow_word_means_what_it_means_in_casts(overflow: str) -> None:
    for to in [*SMALL, *EIGHT_BITS, *SOME_P3109, fp.FP16]:
        check_convert(thinned(operands.level_one(fp.BF16), 50), fp.BF16, to, overflow=overflow, rounding="nearest_even")
        check_convert(thinned(operands.level_one(fp.E5M2), 50), fp.E5M2, to, overflow=overflow, rounding="down")


@pytest.mark.parametrize("to", [fp.E4M3, fp.E5M2, fp.FP16, fp.BF16, fp.E8M0, fp.format("p3109_k8p1se")], ids=str)
def test_subnormals_are_flushed_on_the_way_in_and_on_the_way_out(to: fp.Format) -> None:
    for fmt in (fp.FP16, fp.FP32, fp.E5M2):
        for inward, outward in (("flush", "keep"), ("keep", "flush"), ("flush", "flush")):
            if outward in subnormals_of(to):
                words = {"subnormals": outward, "input_subnormals": inward, "rounding": "up"}
                check_convert(thinned(operands.level_one(fmt), 80), fmt, to, **words)


@pytest.mark.parametrize("random_bits", [1, 8, 23, 32])
def test_conversions_round_stochastically_by_the_word_of_their_place(random_bits: int) -> None:
    for fmt in (fp.FP64, fp.FP32, fp.FP16, fp.BF16, fp.E5M2):
        for to in (fp.E4M3, fp.E5M2, fp.E2M1, fp.E8M0, fp.FP16, fp.BF16, fp.FP32):
            words = {"rounding": "stochastic", "seed": SEED, "random_bits": random_bits}
            check_convert(thinned(operands.level_one(fmt), 40), fmt, to, **words)


@pytest.mark.parametrize("rounding", casts.MODES)
@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_every_16_bit_code_converts_as_its_value_encodes(fmt: fp.Format, rounding: str) -> None:
    codes = operands.every_code(fmt)
    values = np.copysign(casts.values(fmt), np.where(codes >= casts.sign_of(fmt), -1.0, 1.0))
    for to in (fp.E4M3, fp.E5M2, fp.E2M1, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k8p4sf"), fp.FP16, fp.BF16):
        for overflow in ("nonfinite", "saturate"):
            got = fp.convert(codes, to, fmt=fmt, rounding=rounding, overflow=overflow)
            assert_bits_equal(got, casts.encode_all(values, to, rounding, overflow))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e3m4])
def test_numpy_and_ml_dtypes_convert_float32_alike(dtype: type) -> None:
    x = operands.level_one(fp.FP32).view(np.float32)
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.convert(x, dtype), x.astype(dtype))
        assert_bits_equal(fp.convert(x.astype(dtype), np.float32), x.astype(dtype).astype(np.float32))


def test_float64_arrays_convert() -> None:
    x = float64_patterns(1, 20_000)
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.convert(x, fp.FP32), x.astype(np.float32))
        assert_bits_equal(fp.convert(x.astype(np.float32), fp.FP64), x.astype(np.float32).astype(np.float64))
    assert_bits_equal(fp.convert(np.array([0.1]), fp.E4M3), np.array([0.1], ml_dtypes.float8_e4m3fn))


def test_a_nan_keeps_its_sign_and_becomes_quiet() -> None:
    nans = np.array([0x7C01, 0xFC01, 0x7E55, 0xFFFF], np.uint16)
    codes, flags = fp.convert(nans, fp.BF16, fmt=fp.FP16, flags=True)
    assert codes.tolist() == [0x7FC0, 0xFFC0, 0x7FC0, 0xFFC0]
    assert flags.tolist() == [16, 16, 0, 0]


# ---- integers to codes


def integers_around(dtype: np.dtype[Any], fmt: fp.Format) -> Array:
    """Integers that a format has to think about: bounds, powers of two, ties and their neighbours, any."""
    info = np.iinfo(dtype)
    p = fmt.mantissa_bits + 1
    centres = {0, info.min, info.max} | {1 << n for n in range(64)} | {(1 << n) - 1 for n in range(64)}
    for extra in (1, 2, 9, 63 - p):
        for head in ((1 << p) - 1, 1 << (p - 1), (1 << (p - 1)) + 1, (1 << p) - 2):
            if extra > 0:
                centres |= {(head << extra) + (1 << (extra - 1)), (2 * head + 1) << (extra - 1)}
    most = int(min(fmt.max, 2.0**70))
    unit = int(fmt.ulp(min(fmt.max, 2.0**60))) if fmt.max >= 1 else 1
    centres |= {most, most + unit // 2, most + unit, 2 * most}
    near = {sign * (centre + step) for centre in centres for step in (-1, 0, 1) for sign in (1, -1)}
    drawn = np.random.default_rng(2).integers(info.min, info.max, 40, dtype, endpoint=True).tolist()
    return np.array(sorted({n for n in near | set(drawn) if info.min <= n <= info.max}), dtype)


def check_from_int(n: Array, fmt: fp.Format, **words: Any) -> None:
    fields = {key: value for key, value in words.items() if key in ao.Options._fields}
    options = ao.Options(**fields)
    dice = random_words(words["seed"], n.size) if "seed" in words else [0] * n.size
    rows = [co.from_int(i, fmt, options._replace(word=word)) for i, word in zip(n.tolist(), dice, strict=True)]
    want, want_flags = columns_of(rows, fmt.storage)
    named = {"to": fmt, **words}
    assert_same(fp.from_int(n, fmt, **words), want, "from_int", [n], named, "codes")
    got, flags = fp.from_int(n, fmt, flags=True, **words)
    assert_same(got, want, "from_int", [n], named, "codes")
    assert_same(flags, want_flags, "from_int", [n], named | {"flags": True}, "flags")


@in_turn("fmt", ALL)
@sweep("count", 20, 400)
def test_integers_of_every_dtype_round_as_fractions_say(fmt: fp.Format, count: int) -> None:
    for number, dtype in enumerate(INTEGERS):
        n = thinned(integers_around(dtype, fmt), count)
        n = np.unique(np.append(n, np.array([np.iinfo(dtype).min, np.iinfo(dtype).max, 0], dtype)))
        for rounding in casts.MODES[number % 2 :: 2]:
            overflow = ("nonfinite", "saturate", "ml_dtypes")[number % 3]
            check_from_int(n, fmt, rounding=rounding, overflow=overflow, tininess=ao.TININESS[number % 2])


@pytest.mark.parametrize("fmt", [fp.FP64, fp.FP32, fp.FP16, fp.E4M3], ids=str)
def test_integers_of_64_bits_round_in_every_mode(fmt: fp.Format) -> None:
    for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):
        for rounding in casts.MODES:
            n = thinned(integers_around(dtype, fmt), 200)
            check_from_int(np.append(n, np.iinfo(dtype).max).astype(dtype), fmt, rounding=rounding)


@pytest.mark.parametrize("fmt", [fp.FP32, fp.FP16, fp.BF16, fp.E4M3, fp.E8M0, fp.E2M1], ids=str)
def test_integers_round_stochastically_by_the_word_of_their_place(fmt: fp.Format) -> None:
    for bits in (1, 8, 32):
        n = thinned(integers_around(np.dtype(np.int64), fmt), 200)
        check_from_int(n, fmt, rounding="stochastic", seed=SEED, random_bits=bits)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numpy_converts_integers_alike(dtype: np.dtype[Any]) -> None:
    info = np.iinfo(dtype)
    n = np.random.default_rng(3).integers(info.min, info.max, 20_000, dtype, endpoint=True)
    n = np.concatenate([n, n >> dtype.type(dtype.itemsize * 3), integers_around(dtype, fp.FP32)])
    assert_bits_equal(fp.from_int(n, fp.FP32).view(np.float32), n.astype(np.float32))
    assert_bits_equal(fp.from_int(n, fp.FP64).view(np.float64), n.astype(np.float64))


# ---- values to integers


def check_to_int(codes: Array, dtype: np.dtype[Any], fmt: fp.Format, **words: Any) -> None:
    info = np.iinfo(dtype)
    fields = {key: value for key, value in words.items() if key in ao.Options._fields}
    options = ao.Options(**fields)
    dice = random_words(words["seed"], codes.size) if "seed" in words else [0] * codes.size
    each = zip(codes.tolist(), dice, strict=True)
    rows = [co.to_int(code, fmt, info.min, info.max, options._replace(word=word)) for code, word in each]
    want, want_flags = columns_of(rows, dtype)
    named = {"dtype": dtype, "fmt": fmt, **words}
    assert_same(fp.to_int(codes, dtype, fmt=fmt, **words), want, "to_int", [codes], named, "integers")
    got, flags = fp.to_int(codes, dtype, fmt=fmt, flags=True, **words)
    assert_same(got, want, "to_int", [codes], named, "integers")
    assert_same(flags, want_flags, "to_int", [codes], named | {"flags": True}, "flags")


@cache
def codes_around_bounds(fmt: fp.Format) -> Array:
    """Codes near the bounds of every integer dtype, near small integers and halves, and level one."""
    values = [Fraction(b) for d in INTEGERS for b in (np.iinfo(d).min, np.iinfo(d).max, int(np.iinfo(d).max) + 1)]
    values += [Fraction(k, 4) for k in range(-14, 15)]
    values += [v + step for v in values[:24] for step in (Fraction(-1, 2), Fraction(1, 2))]
    codes = {operands.near(fmt, v, ulps) for v in values if fmt.signed or v >= 0 for ulps in (-1, 0, 1)}
    return np.array(sorted({*codes, *thinned(operands.level_one(fmt), 60).tolist()}), fmt.storage)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_values_of_every_format_round_to_integers(dtype: np.dtype[Any]) -> None:
    for number, fmt in enumerate(ALL):
        codes = thinned(codes_around_bounds(fmt), 30) if fmt not in (fp.FP32, fp.FP64) else codes_around_bounds(fmt)
        for rounding in casts.MODES[number % 3 :: 3]:
            check_to_int(codes, dtype, fmt, rounding=rounding)


@pytest.mark.parametrize("fmt", [fp.FP64, fp.FP32, fp.FP16, fp.E4M3, fp.E8M0], ids=str)
def test_values_round_stochastically_to_integers(fmt: fp.Format) -> None:
    for dtype in (np.dtype(np.int8), np.dtype(np.uint16), np.dtype(np.int64)):
        for bits in (1, 8, 32):
            check_to_int(codes_around_bounds(fmt), dtype, fmt, rounding="stochastic", seed=SEED, random_bits=bits)


def test_flushed_operands_are_the_integer_zero_exactly() -> None:
    for fmt in (fp.FP16, fp.E5M2, fp.Format("above_float32", 6, 5, bias=-130)):
        for rounding in ("up", "down", "nearest_even"):
            codes = thinned(operands.level_one(fmt), 300)
            check_to_int(codes, np.dtype(np.int32), fmt, rounding=rounding, input_subnormals="flush")


def test_python_rounds_float64_to_the_same_integers() -> None:
    x = np.concatenate([float64_patterns(4, 2000), np.random.default_rng(5).normal(0, 1e4, 2000).round(1)])
    x = x[np.abs(x) < 2.0**62]
    rows: list[tuple[str, Any]] = [("nearest_even", round), ("toward_zero", math.trunc), ("up", math.ceil),
                                   ("down", math.floor)]  # fmt: skip
    for rounding, python in rows:
        assert_bits_equal(fp.to_int(x, rounding=rounding), np.array([python(v) for v in x.tolist()], np.int64))


@pytest.mark.parametrize("name", ["int2", "int4", "uint2", "uint4"])
def test_small_integers_of_ml_dtypes_are_integers(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    n = np.arange(int(info.min), int(info.max) + 1)
    assert_bits_equal(fp.from_int(n.astype(dtype)[::-1], "e5m2"), fp.from_int(n[::-1], "e5m2"))
