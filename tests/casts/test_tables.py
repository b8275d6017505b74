"""Casts of formats given by a table: the codes of an oracle in fractions, in every mode that a table has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.core.test_philox import random_word
from tests.kit.processes import ROOT
from tests.kit.sweeps import each_once
from tests.oracles import tables as oracle

Array = npt.NDArray[Any]
SPECIAL = fp.TableFormat("special", (0.0, 1.0, 2.0, math.inf, -0.0, -1.0, -3.0, math.nan), ties="toward_zero")
POSITIVE = fp.TableFormat("positive", (0.5, 1.0, 3.0, 1e30))
NO_ZERO = fp.TableFormat("no zero", (-1.0, 1.0, 2.0, -2.0), ties="down")
NEAR = fp.TableFormat("near", (1.0, 1 + 2.0**-52, 0.0, 1 + 2.0**-51, -(2.0**-1074), 2.0**-1074, math.nan, -1.5))
EVEN = fp.TableFormat("even", (0.0, 0.5, 1.0, 3.0, -1.5, -0.5, 7.0, -0.75), ties="even")
FORMATS = (fp.NF4, fp.BNB_FP4, fp.HIF8, EVEN, SPECIAL, POSITIVE, NO_ZERO, NEAR)
OVERFLOWS = ("nonfinite", "saturate", "saturate_finite")


def turning_points(fmt: fp.TableFormat, real: Any) -> Array:
    """Return entries, midpoints, what is next to them, and specials, as float32 or float64."""
    values = np.array(sorted({value for value, _ in fmt.finite}))
    last = fmt.beyond or 2 * fmt.largest
    values = np.concatenate([[-2 * last, -last], values, [last, 2 * last]])
    points = np.concatenate([values, (values[:-1] + values[1:]) / 2]).astype(real)
    limits = np.finfo(real)
    extreme = np.array([0, np.inf, np.nan, limits.max, limits.smallest_subnormal, limits.tiny], real)
    near = [np.nextafter(points, real(np.inf)), np.nextafter(points, real(-np.inf))]
    x = np.concatenate([points, *near, extreme, -extreme])
    return np.asarray(x)


def wanted(x: Array, fmt: fp.TableFormat, *args: Any, **words: Any) -> Array:
    return np.array([oracle.encode(float(value), fmt, *args, **words) for value in x], fmt.storage)


@each_once("fmt, real", FORMATS, [np.float32, np.float64])
def test_turning_points_get_the_codes_of_fractions(fmt: fp.TableFormat, real: Any) -> None:
    x = turning_points(fmt, real)
    for mode in oracle.MODES:
        if mode == "toward_zero" and not fmt.has_zero:
            continue
        place = oracle.MODES.index(mode) % 3
        for overflow in OVERFLOWS if fmt.bits < 8 else OVERFLOWS[place : place + 1]:
            got = fp.encode(x, fmt, rounding=mode, overflow=overflow)
            assert_bits_equal(got, wanted(x, fmt, mode, overflow))


def test_every_fp16_becomes_the_code_of_hif8_that_fractions_and_en_dtypes_give() -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    got = fp.encode(x, fp.HIF8)
    assert_bits_equal(got, _all_codes(x.astype(np.float64), fp.HIF8))
    with np.load(ROOT / "tests" / "data" / "tables.npz") as recorded:
        assert_bits_equal(got, recorded["hif8_of_fp16"])
        assert_bits_equal(fp.decode(np.arange(256, dtype=np.uint8), fp.HIF8), recorded["hif8_values"])
        assert_bits_equal(fp.decode(np.arange(16, dtype=np.uint8), fp.NF4), recorded["nf4_values"])


def test_every_bf16_becomes_the_code_of_hif8_that_fractions_give() -> None:
    with np.errstate(all="ignore"):
        x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
        assert_bits_equal(fp.encode(x, "hif8"), _all_codes(x.astype(np.float64), fp.HIF8))


def _all_codes(x: Array, fmt: fp.TableFormat) -> Array:
    """Return the nearest codes of float64 values by sorted exact midpoints, which float64 holds for these formats."""
    entries = sorted((value, code) for code, value in enumerate(fmt.values) if math.isfinite(value) and value >= 0)
    values = np.array([value for value, _ in entries] + [fmt.beyond])
    codes = np.array([code for _, code in entries] + [0x6F])
    index = np.searchsorted((values[:-1] + values[1:]) / 2, np.abs(x), side="right")  # ties away
    signed = np.where(np.signbit(x) & (index > 0), codes[index] | 0x80, codes[index])
    return np.where(np.isnan(x), 0x80, signed).astype(np.uint8)


def test_rows_round_as_their_sources_say() -> None:
    x = np.array([17 / 16, 2.0**-23, np.nextafter(2.0**-23, 0), 40960, np.nextafter(40960, 0), -0.0], np.float64)
    assert fp.quantize(x, "hif8").tolist() == [1.125, 2.0**-22, 0, math.inf, 32768, 0]
    middle = (fp.NF4.value_of(8) + fp.NF4.value_of(9)) / 2
    assert fp.encode(np.array([middle, np.nextafter(middle, 1), -0.0, 9.0], np.float64), "nf4").tolist() == [
        8,
        9,
        7,
        15,
    ]
    assert fp.encode(np.array([-1e-3, 1e-3, -1, 0.7], np.float32), "bnb_fp4").tolist() == [8, 0, 11, 2]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_float_rounds_as_fractions_say(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from(FORMATS))
    mode = data.draw(st.sampled_from(oracle.MODES if fmt.has_zero else ("nearest_even", "up", "down")))
    floats, dtype = data.draw(st.sampled_from([(st.floats(width=32), "float32"), (st.floats(), "float64")]))
    x = np.array(data.draw(st.lists(floats, min_size=1, max_size=6)), dtype)
    assert_bits_equal(fp.encode(x, fmt, rounding=mode), wanted(x, fmt, mode))


@pytest.mark.parametrize("random_bits", [1, 8, 32])
@pytest.mark.parametrize("fmt", [fp.NF4, fp.BNB_FP4, fp.HIF8, SPECIAL, NO_ZERO], ids=str)
def test_stochastic_rounding_follows_its_random_words(fmt: fp.TableFormat, random_bits: int) -> None:
    seed, generator = 0x0123456789ABCDEF, np.random.default_rng(random_bits)
    values = np.array([value for value, _ in fmt.finite])
    x = np.concatenate(
        [generator.uniform(-1.5, 1.5, 60) * generator.choice(values, 60), turning_points(fmt, np.float64)]
    )
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    for part in (x, single):
        words = [random_word(i, seed) for i in range(part.size)]
        want = [
            oracle.encode(float(value), fmt, "stochastic", word=word, random_bits=random_bits)
            for value, word in zip(part, words, strict=True)
        ]
        got = fp.encode(part, fmt, rounding="stochastic", seed=seed, random_bits=random_bits)
        assert_bits_equal(got, np.array(want, fmt.storage))


def test_codes_do_not_depend_on_layout_or_pieces() -> None:
    x = np.random.default_rng(0).standard_normal((300, 700)).astype(np.float32)
    flat = fp.encode(x.reshape(-1), "nf4")
    assert_bits_equal(fp.encode(x.T, "nf4"), flat.reshape(x.shape).T)
    assert_bits_equal(fp.encode(x.astype(">f4"), "nf4"), flat.reshape(x.shape))
    odd = {"rounding": "stochastic", "seed": 5}
    whole = fp.encode(x, "hif8", **odd)  # type: ignore[arg-type]
    assert_bits_equal(fp.encode(x[:, ::-1][:, ::-1], "hif8", **odd), whole)  # type: ignore[arg-type]
    out = np.empty(x.shape, np.uint8)
    assert fp.encode(x, "nf4", out=out) is out
    assert_bits_equal(out, flat.reshape(x.shape))


def test_decode_gives_the_table_in_any_dtype_that_holds_it() -> None:
    codes = np.arange(256, dtype=np.uint8)
    for dtype in (np.float32, np.float64):
        assert_bits_equal(fp.decode(codes, "hif8", dtype=dtype), fp.HIF8.table().astype(dtype))
    assert_bits_equal(fp.decode(codes.astype(np.int64), "hif8", np.float64), fp.HIF8.table())
    x = np.array([0.3, -2, 1e9], np.float32)
    assert_bits_equal(fp.quantize(x, "hif8"), fp.decode(fp.encode(x, "hif8"), "hif8"))
    assert fp.quantize(np.array([0.3], np.float64), NEAR).dtype == np.float64


EXPLAINED = {
    (17 / 16, "hif8"): ("1/2 of the way from 1.0 to 1.125: a tie", "HIF8 takes the larger magnitude"),
    (0.3, "nf4"): ("below    0.24611230194568634 = code 0xa", "the nearer value is taken"),
    (5.0, "nf4"): ("result   1.0 = code 0xf", "beyond the last value, 1.0, and overflow='nonfinite' decides"),
    (1.0, "nf4"): ("result   1.0 = code 0xf", "NF4 holds the value exactly"),
    (-math.inf, "hif8"): ("result   -inf = code 0xef", "the value is infinite"),
    (math.nan, "hif8"): ("result   nan = code 0x80", "NaN stays NaN"),
}


def test_explain_names_the_entries_and_the_reason() -> None:
    for (value, fmt), parts in EXPLAINED.items():
        text = str(fp.explain(value, fmt))
        assert all(part in text for part in parts), text
    for x, zero in ((0.001, "0.0 = code 0x0"), (-0.001, "-0.0 = code 0x8")):
        told = fp.explain(x, fp.BNB_FP4)
        assert str(told).count(zero) == 2, told  # the neighbour and the result
    told = fp.explain(np.float32(0.3), fp.NF4, rounding="stochastic", seed=1)
    assert "stochastic goes away from zero with probability 0.586993" in told.reason
    assert (told.inner, told.outer) == (fp.NF4.value_of(10), fp.NF4.value_of(11))
    negative = fp.TableFormat("negative", (-8.0, -4.0, -2.0, -1.0))
    for value, last in ((3.0, -1.0), (-9.0, -8.0)):
        assert f"beyond the last value, {last}, and" in fp.explain(value, negative).reason


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fp.encode(1.0, "nf4", rounding="odd"), "rounding 'odd' needs significands, which the table of NF4"),
    (lambda: fp.encode(1.0, "nf4", rounding="nearest_away"), "NF4 rounds ties down; got rounding 'nearest_away'"),
    (lambda: fp.encode(1.0, "hif8", subnormals="flush"), "subnormals must be 'keep', as a table of values has none"),
    (lambda: fp.encode(1.0, NO_ZERO, rounding="toward_zero"), "rounding 'toward_zero' needs a zero, which no zero"),
    (lambda: fp.encode(1.0, NEAR, rounding="stochastic", seed=1), "stochastic rounding needs neighbours that are"),
    (lambda: fp.encode(1.0, "nf4", rounding="stochastic"), "stochastic rounding needs a seed"),
    (lambda: fp.cast(1.0, "nf4"), "NF4 has no NumPy or ml_dtypes dtype to cast to"),
    (lambda: fp.decode(np.array([16], np.uint8), "nf4"), "codes must lie in 0 .. 0xf, the codes of NF4; got 0x10"),
    (lambda: fp.decode(np.array([1], np.uint8), NEAR), "float32 cannot hold every value of near; use dtype=np.float64"),
    (lambda: fp.quantize(np.array([1], np.float32), NEAR), "float32 cannot hold every value of near; pass x.astype"),
    (lambda: fp.explain([1.0, 2.0], "nf4"), "explain takes one value; got 2"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_modes_that_a_table_does_not_define_are_refused_in_a_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_nearest_away_is_what_hif8_does() -> None:
    x = turning_points(fp.HIF8, np.float32)
    assert_bits_equal(fp.encode(x, "hif8", rounding="nearest_away"), fp.encode(x, "hif8"))


def test_stochastic_rounding_reaches_inf_where_the_next_value_would_exceed_float64() -> None:
    fmt = fp.TableFormat("top", (0.0, 2.0**1023, 1.5 * 2.0**1023, np.inf))  # 2**1024 would follow
    x = np.full(4000, 1.75 * 2.0**1023)
    codes = fp.encode(x, fmt, rounding="stochastic", seed=1)
    assert set(codes.tolist()) == {2, 3}
    assert abs(np.mean(codes == 3) - 0.5) < 0.05
