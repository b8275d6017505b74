"""Arrays for notebooks: the bits of the functions behind the operators, NumPy's shapes, and clear refusals."""

from __future__ import annotations

import copy
import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.casts.loops import random_words
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import casts

FORMATS = [fp.E4M3, fp.E5M2, fp.E4M3FNUZ, fp.E2M1, fp.FP16, fp.BF16, fp.FP32, fp.format("p3109_k8p4uf")]


formats = pytest.mark.parametrize("fmt", FORMATS, ids=str)


def sample(fmt: fp.Format, shape: tuple[int, ...], seed: int = 0) -> fp.EncodedArray:
    """Any codes of a format, specials too."""
    codes = np.random.default_rng(seed).integers(0, 2**fmt.bits, shape, dtype=np.uint64)
    return fp.EncodedArray.from_codes(codes, fmt)


def assert_same(got: Any, want: fp.EncodedArray) -> None:
    """The same format and codes, whatever the values."""
    assert type(got) is fp.EncodedArray
    assert got.fmt == want.fmt
    assert_bits_equal(got.codes, want.codes)


# ---- making one


@formats
def test_floats_are_encoded(fmt: fp.Format) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert_bits_equal(fp.array(x, fmt).codes, fp.encode(x, fmt))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, ml_dtypes.float8_e5m2])
def test_float_arrays_of_every_kind_are_taken(dtype: npt.DTypeLike) -> None:
    x = np.array([1, -0.0, 0.25, np.nan], dtype)
    assert_bits_equal(fp.array(x, fp.E4M3).codes, fp.encode(x, fp.E4M3))


def test_a_float64_beside_a_tie_is_rounded_once() -> None:
    assert fp.array(1.0625 + 2.0**-50, fp.E4M3).tolist() == 1.125
    assert fp.array(1.0625, "e4m3").tolist() == 1.0


def test_a_format_is_found_by_name_and_dtype() -> None:
    assert fp.array([1], "float8_e4m3fn").fmt is fp.array([1], ml_dtypes.float8_e4m3fn).fmt is fp.E4M3


@in_turn("fmt", [fp.BF16, fp.TF32, fp.FP32])
@in_turn("power", [26, 40, 53, 60, 62])
def test_integers_are_rounded_once(fmt: fp.Format, power: int) -> None:
    tie = 2**power + 2 ** (power - fmt.precision)  # halfway between 2**power and the next value
    above = fp.array(2.0**power * (1 + fmt.eps), fmt).tolist()
    for past in (tie + 1, np.int64(tie + 1), np.array(tie + 1), [tie + 1]):
        assert float(fp.array(past, fmt).values.item()) == above
    assert float(fp.array(tie - 1, fmt)) == float(fp.array(2.0**power, fmt))


@pytest.mark.parametrize("values", [2**100 + 2**92 + 1, [2**100 + 2**92 + 1], np.array([2**100 + 2**92 + 1], object)])
def test_integers_beyond_64_bits_are_rounded_once(values: Any) -> None:
    assert fp.array(values, fp.BF16).values.ravel().tolist() == [2.0**100 * (1 + 2**-7)]


@pytest.mark.parametrize("mode", casts.MODES)
@pytest.mark.parametrize("fmt", [fp.BF16], ids=str)
def test_integers_beyond_64_bits_take_the_mode(mode: str, fmt: fp.Format) -> None:
    ulp = 2 ** (100 - fmt.mantissa_bits)
    for rest in (0, 1, ulp // 2 - 1, ulp // 2, ulp // 2 + 1, ulp - 1, ulp, ulp + ulp // 2):
        for integer in (2**100 + rest, -(2**100) - rest):
            want = casts.round_magnitude(Fraction(abs(integer)), integer < 0, fmt, mode, 0, 32)
            with fp.rounding(mode):
                assert Fraction(float(fp.array(integer, fmt))) == (want if integer > 0 else -want)
    with fp.rounding(mode):
        beyond = float(fp.array(10**400, fmt))
    assert beyond == (fmt.max if mode in ("toward_zero", "down", "odd") else np.inf)


def test_integers_beyond_64_bits_need_a_narrower_format_than_fp64() -> None:
    with pytest.raises(ValueError, match=r"FP64 takes integers of up to 64 bits; got larger ones"):
        fp.array([2**70], fp.FP64)
    assert fp.array([2**62], fp.FP64).tolist() == [2.0**62]


def test_lists_that_numpy_makes_floats_of_keep_their_integers() -> None:
    tie = 2**63 + 2**55  # between two values of BF16
    assert fp.array([tie + 1, -1], fp.BF16).tolist() == [2.0**63 * (1 + 2**-7), -1]
    assert fp.array([2**53, 0.5], fp.BF16).tolist() == [2.0**53, 0.5]
    with pytest.raises(
        ValueError, match=r"beside floats must lie within 2\*\*53.*got 9007199254740993\. Make an array"
    ):
        fp.array([2**53 + 1, 0.5], fp.BF16)


def test_integers_beyond_the_format_overflow() -> None:
    assert_bits_equal(fp.array([1000, -1000], fp.E4M3).codes, fp.encode(np.array([1000, -1000], np.float64), fp.E4M3))
    assert fp.array([10**30, -(10**30)], fp.FP16).tolist() == [np.inf, -np.inf]


@in_turn("sign", [1, -1])
@in_turn("random_bits", [1, 28, 29, 31, 32])
def test_long_integers_round_to_float32_by_exact_fractions(sign: int, random_bits: int) -> None:
    draws = random_words(3, 0, 64) >> (32 - random_bits)
    limit = 1 << random_bits
    fractions = [min(max(limit - int(draw) + i % 3 - 1, 0), limit - 1) for i, draw in enumerate(draws)]
    integers = [sign * (((1 << 23) + 5 << 80) + (part << 80 - random_bits) + 1) for part in fractions]
    away = [part + int(draw) >= limit for part, draw in zip(fractions, draws, strict=True)]
    with fp.rounding("stochastic", seed=3, random_bits=random_bits):
        got = fp.array(integers, fp.FP32)
        assert fp.array(np.array([sign * (1 << 128) - sign, sign * 10**400]), fp.FP32).tolist()[1] == sign * np.inf
    assert got.tolist() == [sign * float((1 << 23) + 5 + up << 80) for up in away]
    assert random_bits == 1 or 0 < sum(away) < 64


def test_booleans_and_small_integers_are_integers() -> None:
    assert fp.array([True, False], fp.E4M3).tolist() == [1, 0]
    assert fp.array(np.array([-8, 7], ml_dtypes.int4), fp.E4M3).tolist() == [-8, 7]
    assert fp.array(np.zeros((0, 2), int), fp.E4M3).shape == (0, 2)


def test_torch_tensors_are_taken() -> None:
    torch = pytest.importorskip("torch")
    assert fp.array(torch.tensor([0.3, 500.0], dtype=torch.bfloat16), fp.E5M2).tolist() == [0.3125, 512]
    assert fp.array(torch.tensor([3, -2]), fp.E5M2).tolist() == [3, -2]


def test_an_encoded_array_is_converted_or_copied() -> None:
    x = fp.array([0.3, 448, np.nan, -0.0], fp.E4M3)
    assert_same(fp.array(x, fp.E5M2), fp.array([0.3125, 448, np.nan, -0.0], fp.E5M2))
    same = fp.array(x, "e4m3")
    same[0] = 2
    assert float(x[0]) == 0.3125


def test_a_conversion_to_fewer_bits_rounds() -> None:
    assert fp.array([1.0625, 1.1875], fp.FP16).astype(fp.E4M3).tolist() == [1, 1.25]
    with fp.rounding("up"):
        assert fp.array([1.0625], fp.FP16).astype(fp.E4M3).tolist() == [1.125]


def test_codes_make_an_array_of_their_own_memory() -> None:
    codes = np.array([0x38, 0x80], np.uint8)
    x = fp.EncodedArray.from_codes(codes, "e4m3")
    codes[0] = 0
    assert_bits_equal(x.codes, np.array([0x38, 0x80], np.uint8))
    assert_bits_equal(
        fp.EncodedArray.from_codes(np.array([1.5], ml_dtypes.float8_e4m3fn), fp.E4M3).codes, np.array([60], np.uint8)
    )
    assert fp.EncodedArray.from_codes([1, 2], fp.FP16).codes.dtype == np.uint16


def test_the_class_is_not_mistaken_for_the_function_that_rounds() -> None:
    for codes, fmt in (([1.0, 2.0], fp.E4M3), (np.array([1], np.uint16), fp.E4M3), (np.array([1], np.uint8), "e4m3")):
        with pytest.raises(
            TypeError, match=r"fpsim\.array rounds values into a format, EncodedArray\.from_codes checks"
        ):
            fp.EncodedArray(codes, fmt)  # type: ignore[arg-type]


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"values must be an array of float16.*got texts"):
        fp.array(["a"], fp.E4M3)
    with pytest.raises(TypeError, match=r"got objects"):
        fp.array([None], fp.E4M3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got complex128"):
        fp.array([1j], fp.E4M3)
    with pytest.raises(ValueError, match=r"format must be one of .* got 'fp8'. Did you mean 'E4M3' or 'E5M2'"):
        fp.array([1], "fp8")
    with pytest.raises(ValueError, match=r"codes must lie in 0 \.\. 0xff"):
        fp.EncodedArray.from_codes([256], fp.E4M3)
    with pytest.raises(TypeError, match=r"codes must be codes of E4M3, unsigned integers; got an array of float64"):
        fp.EncodedArray.from_codes([0.5], fp.E4M3)


# ---- elements and shapes


def test_indexing_follows_numpy() -> None:
    codes = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    x = fp.EncodedArray.from_codes(codes, fp.E4M3)
    indices: tuple[Any, ...] = (
        0,
        (1, 2, 3),
        (slice(None), 1),
        (..., 2),
        [0, 0],
        (0, [1, 2], [3, 0]),
        codes > 5,
        None,
        (1, slice(2, 0, -1)),
    )
    for index in indices:
        assert_bits_equal(x[index].codes, np.asarray(codes[index]))
    assert_bits_equal(x[x > 0.01].codes, codes[x.values > 0.01])
    with pytest.raises(IndexError):
        x[2]


def test_a_single_element_is_an_array_without_axes() -> None:
    element = fp.array([1, 2], fp.E4M3)[1]
    assert type(element) is fp.EncodedArray
    assert element.shape == ()
    assert (element + 1).shape == ()


def test_assignment_rounds_into_the_format() -> None:
    x = fp.array(np.zeros((2, 3)), fp.E4M3)
    x[0] = 0.3
    x[1, 1:] = fp.array([0.3, 1000], fp.FP16)
    with fp.rounding("up"):
        x[1, 0] = 0.29
    assert_same(x, fp.array([[0.3125] * 3, [0.3125, 0.3125, np.nan]], fp.E4M3))
    x[x <= 0.32] = 7
    assert x[1, 0] == 7


def test_slices_share_memory_and_codes_are_read_only() -> None:
    x = fp.array(np.zeros((2, 3)), fp.E4M3)
    x[0][1] = 1
    x.T[2, 0] = 2
    x.reshape(6)[3] = 3
    x.ravel()[4] = 4
    x.copy()[:] = 9
    copy.copy(x)[:] = 9
    assert x.tolist() == [[0, 1, 2], [3, 4, 0]]
    with pytest.raises(ValueError, match="read-only"):
        x.codes[0, 0] = 1
    with pytest.raises(AttributeError):
        x.fmt = fp.E5M2  # type: ignore[misc]


def test_shapes_are_those_of_the_codes() -> None:
    x = fp.array(np.zeros((2, 3)), fp.E4M3)
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
    assert x.T.shape == x.reshape(3, 2).shape == x.reshape((3, -1)).shape == (3, 2)
    assert x.ravel().shape == (6,)
    assert [row.shape for row in x] == [(3,), (3,)]
    with pytest.raises(TypeError, match=r"len\(\) needs an array with an axis; got one of shape \(\)"):
        len(x[0, 0])
    with pytest.raises(TypeError):
        iter(x[0, 0])


def test_one_element_converts_to_a_python_number() -> None:
    x = fp.array([-2.75], fp.E4M3)
    assert (float(x), int(x), bool(x), bool(x[0] * 0)) == (-2.75, -2, True, False)
    two = fp.array([1, 2], fp.E4M3)
    for convert in (float, int, bool):
        with pytest.raises(TypeError, match=rf"{convert.__name__}\(\) takes an array of one element; got shape \(2,\)"):
            convert(two)


# ---- values


@formats
def test_numpy_reads_the_exact_values(fmt: fp.Format) -> None:
    x = sample(fmt, (5, 6))
    assert_bits_equal(np.asarray(x), fp.decode(x.codes, fmt))
    assert_bits_equal(x.values, fp.decode(x.codes, fmt))
    assert_bits_equal(np.asarray(x, np.float64), fp.decode(x.codes, fmt, np.float64))


@pytest.mark.parametrize("fmt", [fp.FP64, fp.Format("wide", 9, 3)], ids=str)
def test_values_that_float32_does_not_hold_are_float64(fmt: fp.Format) -> None:
    x = fp.array([1.0, 0.125], fmt)
    assert_bits_equal(np.asarray(x), np.array([1.0, 0.125], np.float64))
    assert x.values.dtype == np.float64


def test_numpy_functions_of_values_work() -> None:
    x = fp.array([[1, 2], [3, 4]], fp.E4M3)
    assert np.mean(x) == 2.5
    assert np.asarray([x[0], x[1]]).tolist() == [[1, 2], [3, 4]]
    assert np.allclose(x, [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="the values of an encoded array are computed; got copy=False"):
        np.asarray(x, copy=False)


def test_an_array_survives_pickling_and_copying() -> None:
    x = sample(fp.E5M2, (3, 4))
    assert_same(pickle.loads(pickle.dumps(x)), x)
    assert_same(copy.deepcopy(x), x)


# ---- repr


def test_repr_shows_the_values_and_the_format() -> None:
    assert repr(fp.array([1, 0.3, 448], fp.E4M3)) == "fp.array([1, 0.3125, 448], E4M3)"
    specials = fp.array([-0.0, np.nan, np.inf, -np.inf, 2**-16, 57344], fp.E5M2)
    assert str(specials) == "fp.array([-0.0, nan, inf, -inf, 1.5258789e-05, 57344], E5M2)"
    assert repr(specials[0]) == "fp.array(-0.0, E5M2)"


def test_repr_lines_columns_up_and_shortens_what_is_long() -> None:
    matrix = fp.array([[1, 0.3, 448], [-0.0, 20, np.nan]], fp.E4M3)
    assert repr(matrix) == "fp.array([[     1, 0.3125,    448],\n          [  -0.0,     20,    nan]], E4M3)"
    assert repr(fp.array(np.arange(2000), "fp16")) == "fp.array([0, 1, 2, ..., 1997, 1998, 1999], FP16, shape=(2000,))"
    assert len(repr(sample(fp.E4M3, (2000, 2000))).splitlines()) < 20


def test_repr_of_nothing_keeps_the_shape() -> None:
    assert repr(fp.array([], fp.E4M3)) == "fp.array([], E4M3)"
    assert repr(fp.array(np.zeros((0, 3)), fp.E4M3)) == "fp.array([], E4M3, shape=(0, 3))"


@formats
def test_repr_reads_back_as_the_same_values(fmt: fp.Format) -> None:
    x = sample(fmt, (4, 30))
    names = {"fp": fp, str(fmt): fmt, "nan": np.nan, "inf": np.inf}
    assert_bits_equal(eval(repr(x), names).values, x.values)
