"""quantize and cast: encode and decode in one call."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.formats.named import DTYPES
from fpsim.testing import assert_bits_equal
from tests.kit.samples import (
    NARROW,
    P3109,
    STRANGE,
    all_float16,
    any_float,
    edges,
    exactly,
    float32_patterns,
    float64_patterns,
    formats,
)
from tests.kit.sweeps import in_turn
from tests.oracles import casts

Array = npt.NDArray[Any]
WORDS: list[dict[str, Any]] = [
    {},
    {"rounding": "up", "overflow": "saturate"},
    {"rounding": "odd", "subnormals": "flush"},
    {"rounding": "stochastic", "seed": 5, "random_bits": 9},
]


@pytest.mark.parametrize("words", WORDS, ids=str)
@in_turn("fmt", [*NARROW, *P3109, *STRANGE, fp.TF32, fp.FP32, fp.FP64])
def test_quantize_is_decode_of_encode(fmt: fp.Format, words: dict[str, Any]) -> None:
    wide = float64_patterns(1, 2_000)
    assert_bits_equal(fp.quantize(wide, fmt, **words), fp.decode(fp.encode(wide, fmt, **words), fmt, np.float64))
    if fp.FP32.holds(fmt):
        narrow = float32_patterns(2, 2_000)
        assert_bits_equal(fp.quantize(narrow, fmt, **words), fp.decode(fp.encode(narrow, fmt, **words), fmt))


@in_turn("fmt", [*NARROW, *P3109, *STRANGE])
@in_turn("rounding", ["nearest_even", "up", "odd"])  # test_encode.py has the rest
def test_every_float16_and_every_tie_quantizes_to_the_value_of_the_oracles_code(fmt: fp.Format, rounding: str) -> None:
    for x in (exactly(all_float16()), edges(fmt)[:20_000]):
        for overflow in ("nonfinite", "saturate", "ml_dtypes"):
            want = casts.values(fmt)[casts.encode_all(x, fmt, rounding, overflow)]
            assert_bits_equal(fp.quantize(x, fmt, rounding=rounding, overflow=overflow), want)
            if fp.FP32.holds(fmt) and x.size == 1 << 16:
                got = fp.quantize(all_float16(), fmt, rounding=rounding, overflow=overflow)
                assert_bits_equal(got, want.astype(np.float32))


@settings(max_examples=80, deadline=None)
@given(formats(), st.data())
def test_quantize_returns_the_value_of_the_oracles_code(fmt: fp.Format, data: st.DataObject) -> None:
    x = data.draw(st.lists(any_float(fmt), min_size=1, max_size=8))
    want = [casts.value(fmt, casts.encode(v, fmt)) for v in x]
    assert_bits_equal(fp.quantize(np.array(x), fmt), np.array(want))


@in_turn("dtype", DTYPES.values())
def test_quantize_returns_float64_for_float64_and_else_float32(dtype: np.dtype[Any]) -> None:
    want = np.float64 if dtype == np.float64 else np.float32
    assert fp.quantize(np.ones(3, dtype), fp.E4M3).dtype == want


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E8M0, fp.FP16], ids=str)
def test_quantizing_twice_changes_nothing(fmt: fp.Format) -> None:
    once = fp.quantize(float32_patterns(3, 20_000), fmt)
    assert_bits_equal(fp.quantize(once, fmt), once)


@pytest.mark.parametrize("words", WORDS, ids=str)
@in_turn("fmt", [fmt for fmt in DTYPES if fmt.bits <= 16])
def test_cast_returns_the_codes_as_the_formats_dtype(fmt: fp.Format, words: dict[str, Any]) -> None:
    x = all_float16()
    got = fp.cast(x, fmt, **words)
    assert got.dtype == fmt.dtype
    assert_bits_equal(got.view(fmt.storage), fp.encode(x, fmt, **words))


def test_cast_to_float32_rounds_float64_once() -> None:
    x = np.array([1 + 2.0**-24 + 2.0**-50])
    assert_bits_equal(fp.cast(x, fp.FP32), np.array([1 + 2.0**-23], np.float32))


def test_cast_fills_out_and_returns_it() -> None:
    out = np.empty(2, ml_dtypes.float8_e4m3fn)
    assert fp.cast(np.array([1, 2], np.float32), fp.E4M3, out=out) is out
    assert out.astype(np.float32).tolist() == [1, 2]


def test_cast_to_a_format_without_a_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"TF32 has no NumPy or ml_dtypes dtype.*Use fpsim\.encode or quantize"):
        fp.cast(np.array([1], np.float32), fp.TF32)


@pytest.mark.parametrize("fmt", [fp.FP64, fp.format("p3109_k16p5se")], ids=str)
def test_quantize_refuses_a_format_that_the_result_cannot_hold(fmt: fp.Format) -> None:
    with pytest.raises(ValueError, match=r"float32 cannot hold every value.*pass x\.astype\(np\.float64\)"):
        fp.quantize(np.array([1], np.float32), fmt)


@in_turn("function", [fp.encode, fp.quantize, fp.cast])
@in_turn(
    "words, message",
    [
        ({"fmt": "e4m4"}, r"format must be one of the \d+ .* E4M3, .*got 'e4m4'\. Did you mean"),
        ({"rounding": "nearest"}, r"rounding must be one of nearest_even, .*Did you mean 'nearest_even'\?"),
        ({"rounding": 3}, "rounding must be one of nearest_even, .*got 3"),
        ({"overflow": "saturat"}, r"overflow must be one of nonfinite, .*Did you mean 'saturate'\?"),
        ({"overflow": None}, "overflow must be one of nonfinite, .*got None"),
        ({"subnormals": "flushed"}, r"subnormals must be one of keep, flush; got 'flushed'\. Did you mean 'flush'\?"),
        ({"rounding": "stochastic"}, r"stochastic rounding needs a seed.*Pass seed=0"),
        ({"rounding": "SR", "seed": -1}, r"seed must be an integer in 0 \.\. 2\*\*64 - 1; got -1"),
        ({"rounding": "SR", "seed": 1 << 64}, "seed must be an integer in 0"),
        ({"rounding": "SR", "seed": 1.0}, r"seed must be an integer in 0.*got 1\.0"),
        ({"rounding": "SR", "seed": True}, "seed must be an integer in 0.*got True"),
        ({"rounding": "SR", "seed": [1]}, r"seed must be an integer in 0.*got \[1\]"),
        ({"rounding": "SR", "seed": 1, "random_bits": 0}, r"random_bits must be an integer in 1 \.\. 32; got 0"),
        ({"rounding": "SR", "seed": 1, "random_bits": 33}, r"random_bits must be an integer in 1 \.\. 32; got 33"),
        ({"rounding": "SR", "seed": 1, "random_bits": 8.0}, r"random_bits must be an integer in 1 \.\. 32; got 8\.0"),
    ],
)
def test_bad_words_are_refused_with_what_was_wanted(function: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(np.array([1], np.float32), **{"fmt": fp.E4M3, **words})
