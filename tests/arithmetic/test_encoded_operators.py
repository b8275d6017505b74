"""Operators of encoded arrays: arithmetic, matrix products and comparisons."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import casts

Array = npt.NDArray[Any]


FORMATS = [fp.E4M3, fp.E5M2, fp.E4M3FNUZ, fp.E2M1, fp.FP16, fp.BF16, fp.FP32, fp.format("p3109_k8p4uf")]


formats = pytest.mark.parametrize("fmt", FORMATS, ids=str)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}


operators = pytest.mark.parametrize("name", OPERATORS)


def sample(fmt: fp.Format, shape: tuple[int, ...], seed: int = 0) -> fp.EncodedArray:
    """Any codes of a format, specials too."""
    codes = np.random.default_rng(seed).integers(0, 2**fmt.bits, shape, dtype=np.uint64)
    return fp.EncodedArray.from_codes(codes, fmt)


def assert_same(got: Any, want: fp.EncodedArray) -> None:
    """The same format and codes, whatever the values."""
    assert type(got) is fp.EncodedArray
    assert got.fmt == want.fmt
    assert_bits_equal(got.codes, want.codes)


# ---- arithmetic


@formats
@operators
def test_operators_are_the_functions(name: str, fmt: fp.Format) -> None:
    a, b = sample(fmt, (50, 1), 1), sample(fmt, (40,), 2)
    want = getattr(fp, name)(a.codes, b.codes, fmt=fmt)
    got = OPERATORS[name](a, b)
    assert got.fmt == fmt
    assert got.shape == (50, 40)
    assert_bits_equal(got.codes, want)


@formats
def test_methods_are_the_functions(fmt: fp.Format) -> None:
    a, b, c = (sample(fmt, (300,), seed) for seed in range(3))
    assert_bits_equal(a.sqrt().codes, fp.sqrt(a.codes, fmt=fmt))
    assert_bits_equal(a.round().codes, fp.round_to_integral(a.codes, fmt=fmt))
    assert_bits_equal(a.remainder(b).codes, fp.remainder(a.codes, b.codes, fmt=fmt))
    assert_bits_equal(a.fma(b, c).codes, fp.fma(a.codes, b.codes, c.codes, fmt=fmt))
    assert_bits_equal((-a).codes, fp.negative(a.codes, fmt=fmt))
    assert_bits_equal(abs(a).codes, fp.absolute(a.codes, fmt=fmt))
    assert_same(+a, a)


def test_results_are_those_of_the_oracle() -> None:
    a, b = sample(fp.E4M3, (64, 1), 3), sample(fp.E4M3, (64,), 4)
    for symbol in (operator.add, operator.sub, operator.mul):  # float64 holds them exactly
        exact = symbol(a.values.astype(np.float64), b.values.astype(np.float64))
        want = np.where(np.isnan(exact), 0x7F, casts.encode_all(exact.ravel(), fp.E4M3).reshape(exact.shape)).astype(
            np.uint8
        )
        assert_bits_equal(symbol(a, b).codes, want)


VALUES: dict[str, Any] = {
    "an integer": 3,
    "a float": 0.1,
    "a truth": True,
    "an infinity": -np.inf,
    "a NumPy scalar": np.float32(0.7),
    "a NumPy integer": np.int64(-5),
    "a list": [0.1, 2, -3],
    "an array": np.array([[0.1], [5.3]]),
    "an integer array": np.array([1, 2, 3]),
    "an array of bfloat16": np.array([1.0, 0.1, 3], ml_dtypes.bfloat16),
}


@operators
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_values_beside_an_array_are_first_rounded_into_its_format(name: str, value: Any) -> None:
    x, symbol = fp.array([0.3, -1.5, 7], fp.E4M3), OPERATORS[name]
    assert_same(symbol(x, value), symbol(x, fp.array(value, fp.E4M3)))
    assert_same(symbol(value, x), symbol(fp.array(value, fp.E4M3), x))


def test_augmented_assignment_makes_a_new_array() -> None:
    x = y = fp.array([1, 2], fp.E4M3)
    x += 1
    assert x.tolist() == [2, 3]
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize("n", [1, 2, 3, 7, np.int32(3), np.array(2)])
def test_a_power_multiplies_from_the_left(n: int) -> None:
    x = sample(fp.E5M2, (256,))
    want = x
    for _ in range(int(n) - 1):
        want = fp.EncodedArray.from_codes(fp.multiply(want.codes, x.codes, fmt=fp.E5M2), fp.E5M2)
    assert_same(x**n, want)


def test_powers_of_zero_half_and_negative_integers() -> None:
    x = sample(fp.E5M2, (256,))
    assert_same(x**0, fp.array(np.ones(256), fp.E5M2))
    assert_same(x**0.5, x.sqrt())
    assert_same(x ** np.float32(0.5), x.sqrt())
    assert_same(x**-3, 1 / (x * x * x))


@pytest.mark.parametrize("exponent", [2.0, 1.5, "2", None, [2], np.array([1, 2])])
def test_other_powers_are_refused(exponent: Any) -> None:
    with pytest.raises(TypeError, match=re.escape("** takes an integer exponent, or 0.5 for the root; got ")):
        fp.array([1.0], fp.E4M3) ** exponent
    with pytest.raises(TypeError, match="unsupported operand"):
        2 ** fp.array([1.0], fp.E4M3)  # type: ignore[operator]


def test_what_has_no_one_meaning_is_no_operator() -> None:
    x = fp.array([5.0], fp.E4M3)
    with pytest.raises(TypeError, match="unsupported operand"):
        x % 3  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        np.array([5.0]) % x
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "1"
    with pytest.raises(TypeError, match="unsupported operand"):
        x + 1j
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.exp(x)


SYMBOLS = [*OPERATORS.values(), operator.matmul, operator.eq, operator.lt, operator.ge]


def test_functions_do_not_take_the_values_for_float32() -> None:
    x = fp.array([1, 2], fp.E4M3)
    with pytest.raises(TypeError, match="a must be codes or of a float dtype"):
        fp.add(x, x)
    with pytest.raises(TypeError, match="must be codes of E4M3"):
        fp.decode(x, fp.E4M3)
    assert_bits_equal(fp.encode(x, fp.E5M2), x.astype(fp.E5M2).codes)  # values are floats


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_operands_of_two_formats_are_refused(symbol: Callable[[Any, Any], Any]) -> None:
    message = "operands must have one format; got E4M3 and E5M2. Convert one of them, such as y.astype('E4M3')."
    with pytest.raises(TypeError, match=re.escape(message)):
        symbol(fp.array([1], fp.E4M3), fp.array([1], fp.E5M2))
    with pytest.raises(TypeError, match="one format"):
        fp.array([1], fp.E4M3).fma(2, fp.array([1], fp.E5M2))


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        fp.array([1, 2], fp.E4M3) + fp.array([1, 2, 3], fp.E4M3)


# ---- matrix products


def slow_matmul(a: Array, b: Array, fmt: fp.Format) -> Array:
    """(m, k) @ (k, n) values, rounded one by one; float64 holds each product and sum exactly."""

    def rounded(exact: Any) -> float:
        return casts.value(fmt, casts.encode(float(exact), fmt))

    result = np.empty((a.shape[0], b.shape[1]))
    for i, j in np.ndindex(result.shape):
        total = rounded(a[i, 0] * b[0, j])
        for k in range(1, a.shape[1]):
            total = rounded(total + rounded(a[i, k] * b[k, j]))
        result[i, j] = total
    return result


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.FP16], ids=str)
def test_a_matrix_product_rounds_each_product_and_sum_in_order(fmt: fp.Format) -> None:
    random = np.random.default_rng(0)
    a, b = (fp.array(random.standard_normal(shape), fmt) for shape in ((5, 9), (9, 4)))
    want = slow_matmul(a.values.astype(np.float64), b.values.astype(np.float64), fmt)
    assert_same(a @ b, fp.array(want, fmt))
    assert (a @ b).tolist() != fp.array(a.values @ b.values, fmt).tolist()  # the order matters


SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)), ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((2, 0), (0, 4)), ((0,), (0,)), ((0, 3), (3, 2)),
]  # fmt: skip


@in_turn("a, b", SHAPES)
def test_matrix_products_have_the_shapes_of_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(-3, 4, a).astype(np.float64), random.integers(-3, 4, b).astype(np.float64)
    want = fp.array(x @ y, fp.FP16)  # small integers are exact in any order
    # a product of -0 and a sum from it may be -0, where NumPy starts from +0
    got = fp.array(x, fp.FP16) @ fp.array(y, fp.FP16)
    assert got.shape == want.shape
    assert got.tolist() == want.tolist()
    assert (x @ fp.array(y, fp.FP16)).tolist() == want.tolist()
    assert (fp.array(x, fp.FP16) @ y).tolist() == want.tolist()


def test_a_sum_starts_with_the_first_product() -> None:
    assert_bits_equal((fp.array([-0.0], fp.E4M3) @ [1.0]).codes, np.array(0x80, np.uint8))


def test_matrices_that_do_not_fit_are_refused() -> None:
    x = fp.array(np.ones((2, 3)), fp.E4M3)
    with pytest.raises(ValueError, match=r"equally long; got shapes \(2, 3\) and \(2, 3\)"):
        x @ x
    with pytest.raises(ValueError, match=r"@ takes arrays with axes; got shapes \(2, 3\) and \(\)"):
        x @ 2
    with pytest.raises(TypeError, match="unsupported operand"):
        x @ "a"


# ---- comparisons

COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


comparisons = pytest.mark.parametrize("compare", COMPARISONS)


@formats
@comparisons
def test_comparisons_are_those_of_the_values(compare: Callable[[Any, Any], Any], fmt: fp.Format) -> None:
    a, b = sample(fmt, (60, 1), 1), sample(fmt, (50,), 2)
    a[:2, 0], b[:2] = [0.0, 2.0], [-0.0, 2.0]
    assert_bits_equal(compare(a, b), compare(a.values, b.values))
    assert_bits_equal(compare(a, b.values), compare(a.values, b.values))
    assert_bits_equal(compare(a.values, b), compare(a.values, b.values))


@comparisons
def test_a_number_is_compared_exactly(compare: Callable[[Any, Any], Any]) -> None:
    x = fp.array([0.1, 448, -448, np.nan, 2**8], fp.E4M3)
    values = [0.1015625, 448.0, -448.0, np.nan, 256.0]
    for number in (0.1, 0.1015625, 1000, -1000, 10**400, -(10**400), np.inf, 448, np.float32(0.1), np.int64(256)):
        want = [bool(compare(value, number)) for value in values]
        assert compare(x, number).tolist() == want
        assert compare(number, x).tolist() == [bool(compare(number, value)) for value in values]
        assert compare(x, [number] * 5).tolist() == want
        assert compare(x, np.array([number] * 5)).tolist() == want


def test_integers_that_float64_rounds_are_compared_exactly() -> None:
    x = fp.array(2**60, fp.BF16)
    assert x == 2**60
    assert x != 2**60 + 1
    assert x < 2**60 + 1
    assert x > np.int64(2**60 - 1)
    assert (x < np.array([2**60 - 1, 2**60 + 1])).tolist() == [False, True]


def test_a_comparison_of_single_elements_is_a_truth() -> None:
    x = fp.array([1, 2], fp.E4M3)
    for truth in (x[0] == x[0], x[0] < 3, np.int64(3) > x[0]):
        assert type(truth) is np.bool_
        assert truth
    assert 2 in x
    assert 2.01 not in x
    assert None not in x
    assert max(x).tolist() == 2


def test_an_array_differs_from_what_is_no_number() -> None:
    x = fp.array([1], fp.E4M3)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
    with pytest.raises(TypeError, match="not supported between"):
        max(x, "a")
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
