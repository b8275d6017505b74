"""Decoding: the exact value of every code, and codes that come back unchanged."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.samples import (
    NARROW,
    P3109,
    STRANGE,
    all_float16,
    float32_patterns,
    float64_patterns,
    formats,
    p3109_names,
)
from tests.kit.sweeps import case, in_turn, sweep
from tests.oracles import casts

Array = npt.NDArray[Any]


def all_codes(fmt: fp.Format) -> Array:
    """Every code of a format of up to 16 bits."""
    return np.arange(1 << fmt.bits).astype(fmt.storage)


def assert_every_code_decodes_and_comes_back(fmt: fp.Format) -> None:
    codes = all_codes(fmt)
    values = fp.decode(codes, fmt, np.float64)
    assert_bits_equal(values, casts.values(fmt))
    numbers = ~np.isnan(values)
    back = fp.encode(values, fmt)
    assert_bits_equal(back[numbers], codes[numbers])
    if fmt.has_nan:
        assert np.isnan(casts.values(fmt)[back[~numbers]]).all()


@in_turn("fmt", [*NARROW, *P3109, *STRANGE])
def test_every_code_has_the_value_of_the_oracle_and_comes_back(fmt: fp.Format) -> None:
    assert_every_code_decodes_and_comes_back(fmt)


ALL_P3109 = [fp.format(name) for name in p3109_names(within_float64=True)]
SHORT_P3109 = [fmt for fmt in ALL_P3109 if fmt.bits <= 10]
LONG_P3109 = [fmt for fmt in ALL_P3109 if fmt.bits > 10]


@sweep("fmts", [*SHORT_P3109, *LONG_P3109[::5]], LONG_P3109)
def test_every_code_of_every_p3109_format_has_its_value_and_comes_back(fmts: list[fp.Format]) -> None:
    for fmt in fmts:
        with case(fmt):
            assert_every_code_decodes_and_comes_back(fmt)


@in_turn("fmt", [fmt for fmt in [*NARROW, *P3109, *STRANGE] if fp.FP32.holds(fmt)])
def test_float32_results_are_the_float64_ones(fmt: fp.Format) -> None:
    codes = all_codes(fmt)
    assert_bits_equal(fp.decode(codes, fmt), fp.decode(codes, fmt, np.float64).astype(np.float32))


@in_turn("fmt", [fmt for fmt in NARROW if fmt.dtype is not None])
def test_ml_dtypes_gives_every_code_the_same_value(fmt: fp.Format) -> None:
    codes = all_codes(fmt)
    assert fmt.dtype is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        want = codes.view(fmt.dtype).astype(np.float32)
    assert_bits_equal(fp.decode(codes, fmt), want)
    assert_bits_equal(fp.decode(codes.view(fmt.dtype), fmt), want)


@in_turn("target", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.E2M1, fp.E4M3FNUZ])
def test_every_float_dtype_that_holds_the_format_can_be_the_target(fmt: fp.Format, target: type) -> None:
    got = fp.decode(all_codes(fmt), fmt, target)
    assert_bits_equal(got, casts.values(fmt).astype(target))


@in_turn("code", [0x7C01, 0x7E00, 0x7FFF, 0xFC01, 0xFE00, 0xFFFF])
def test_nan_codes_give_a_quiet_nan_with_the_sign_of_the_code(code: int) -> None:
    sign = code >> 15
    got = int(fp.decode(np.uint16(code), fp.FP16).view(np.uint32))
    assert got == 0x7FC00000 | sign << 31
    got = int(fp.decode(np.uint16(code), fp.FP16, np.float64).view(np.uint64))
    assert got == 0x7FF8 << 48 | sign << 63


def test_float32_and_float64_codes_decode_to_their_own_bits() -> None:
    x, y = float32_patterns(1, 100_000), float64_patterns(2, 100_000)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    assert_bits_equal(fp.decode(x.view(np.uint32), fp.FP32), x)
    assert_bits_equal(fp.decode(x.view(np.uint32), fp.FP32, np.float64), wide)
    assert_bits_equal(fp.decode(y.view(np.uint64), fp.FP64, np.float64), y)


def test_tf32_codes_are_the_upper_19_bits_of_a_float32() -> None:
    codes = np.arange(1 << 19, dtype=np.uint32)
    assert_bits_equal(fp.decode(codes, fp.TF32), (codes << 13).view(np.float32))
    numbers = codes[~np.isnan((codes << 13).view(np.float32))]
    assert_bits_equal(fp.encode((numbers << 13).view(np.float32), fp.TF32), numbers)


@settings(max_examples=80, deadline=None)
@given(formats(), st.data())
def test_codes_of_user_defined_formats_have_their_value_and_come_back(fmt: fp.Format, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, (1 << fmt.bits) - 1), min_size=1, max_size=20))
    want = np.array([casts.value(fmt, code) for code in codes], np.float64)
    got = fp.decode(np.array(codes, fmt.storage), fmt, np.float64)
    assert_bits_equal(got, want)
    numbers = ~np.isnan(got)
    assert_bits_equal(fp.encode(got, fmt)[numbers], np.array(codes, fmt.storage)[numbers])


@in_turn("integer", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64])
def test_codes_in_any_integer_dtype_decode_alike(integer: type) -> None:
    codes = np.arange(16)
    assert_bits_equal(fp.decode(codes.astype(integer), fp.E2M1), fp.E2M1.table().astype(np.float32))


@in_turn("fmt", [fp.E4M3, fp.FP16, fp.FP32, fp.FP64])
def test_signed_integers_as_wide_as_the_format_are_bit_patterns(fmt: fp.Format) -> None:
    codes = np.array([0, 1, (1 << fmt.bits) - 1, 1 << (fmt.bits - 1), fmt.sign_bit | fmt.max_code], fmt.storage)
    signed = codes.view(f"i{fmt.storage.itemsize}")
    assert_bits_equal(fp.decode(signed, fmt, np.float64), fp.decode(codes, fmt, np.float64))
    assert_bits_equal(fp.decode(signed.astype(signed.dtype.newbyteorder()), fmt, np.float64)[1:2],
                      fp.decode(codes[1:2], fmt, np.float64))  # fmt: skip
    assert_bits_equal(fp.EncodedArray.from_codes(signed, fmt).codes, codes)
    assert_bits_equal(fp.negative(signed, fmt=fmt), fp.negative(codes, fmt=fmt))
    with pytest.raises(ValueError, match="got -0x1"):
        fp.add([-1], [1], fmt=fmt)


@in_turn(
    "codes, fmt, bad",
    [
        (np.array([0, 16], np.uint8), fp.E2M1, "0x10"),
        (np.array([0, 256], np.int64), fp.E4M3, "0x100"),
        (np.array([3, -1], np.int16), fp.E4M3, "-0x1"),
        (np.array([3, -1], np.int8), fp.E2M1, "-0x1"),
        (np.array([1 << 12], np.uint16), fp.format("p3109_k12p5se"), "0x1000"),
        (np.array([1 << 63], np.uint64), fp.FP32, "0x8000000000000000"),
        (np.array([1 << 19], np.uint32), fp.TF32, "0x80000"),
        ([[1, 300]], fp.E5M2, "0x12c"),
    ],
)
def test_a_code_outside_the_format_is_refused(codes: npt.ArrayLike, fmt: fp.Format, bad: str) -> None:
    with pytest.raises(ValueError, match=f"codes must lie in 0 .. {(1 << fmt.bits) - 1:#x}.*got {bad}\\."):
        fp.decode(codes, fmt)


@in_turn(
    "codes", [np.array([1.0], np.float32), np.array(["a"]), np.array([True], np.bool_), np.array([1], object), [1.5]]
)
def test_codes_that_are_no_integers_are_refused(codes: npt.ArrayLike) -> None:
    with pytest.raises(TypeError, match="codes"):
        fp.decode(codes, fp.E4M3)


def test_an_array_of_another_formats_dtype_is_refused() -> None:
    x = np.ones(3, ml_dtypes.float8_e5m2)
    with pytest.raises(TypeError, match="of E4M3, unsigned integers; got an array of float8_e5m2, which stores E5M2"):
        fp.decode(x, fp.E4M3)


@in_turn(
    "fmt, dtype, remedy",
    [
        (fp.FP64, np.float32, "use dtype=np.float64"),
        (fp.BF16, np.float16, "use dtype=np.float64"),
        (fp.format("p3109_k16p5se"), np.float32, "use dtype=np.float64"),
        (fp.FP32, ml_dtypes.bfloat16, "use dtype=np.float64"),
    ],
)
def test_a_dtype_that_cannot_hold_the_format_is_refused(fmt: fp.Format, dtype: type, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"{np.dtype(dtype).name} cannot hold every value of {fmt}.*{remedy}"):
        fp.decode(np.zeros(1, fmt.storage), fmt, dtype)


@in_turn("dtype", [np.int32, "text", object, np.longdouble])
def test_a_target_dtype_that_is_no_float_is_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype must be a float dtype such as np\.float32"):
        fp.decode(np.array([0], np.uint8), fp.E4M3, dtype)


def test_half_precision_decodes_as_numpy_reads_it() -> None:
    with np.errstate(invalid="ignore"):
        assert_bits_equal(fp.decode(all_float16(), fp.FP16), all_float16().astype(np.float32))


@pytest.mark.parametrize("fmt", [fp.FP32, fp.FP64])
def test_a_nan_of_all_ones_keeps_its_sign(fmt: fp.Format) -> None:
    code = np.array([2**fmt.bits - 1], fmt.storage)
    assert np.signbit(fp.decode(code, fmt, np.float64)).all()
