"""Comparisons, minima and classes: NaN is unordered, -0 equals +0 and is below it, formats may differ."""

from __future__ import annotations

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
    Formats,
    check,
    columns_of,
    compare_with,
    keywords,
)
from tests.kit import operands
from tests.kit.samples import exactly
from tests.kit.sweeps import in_turn
from tests.oracles import arithmetic as ao
from tests.oracles import casts
from tests.oracles import code_operations as co

Array = npt.NDArray[Any]
ALL = [*SMALL, *EIGHT_BITS, *SOME_P3109, *ODD_WIDTHS, *UNUSUAL, *WIDE, fp.FP64]
COMPARISONS = ("equal", "less", "less_equal")
MIXED: list[Formats] = [
    (fp.E4M3, fp.E5M2), (fp.E2M1, fp.E8M0), (fp.FP16, fp.BF16), (fp.FP32, fp.FP16), (fp.E4M3FNUZ, fp.E4M3),
    (fp.TF32, fp.FP32), (fp.format("p3109_k8p3se"), fp.FP16), (fp.E8M0, fp.FP32), (fp.E5M2FNUZ, fp.E5M2),
    (fp.FP64, fp.FP32), (fp.E4M3, fp.FP64),
]  # fmt: skip


def check_comparison(operation: str, columns: list[Array], fmts: Formats, input_subnormals: str = "keep") -> None:
    options = ao.Options(input_subnormals=input_subnormals)
    rows = [co.compare(operation, row, fmts, options) for row in zip(*[c.tolist() for c in columns], strict=True)]
    named = keywords(fmts, None, {"input_subnormals": input_subnormals})
    want, flags = columns_of(rows, np.dtype(np.bool_))
    compare_with(operation, columns, named, want)
    compare_with(operation, columns, named, want, flags)


@in_turn("fmt", ALL)
def test_edges_compare_as_their_values_do(fmt: fp.Format) -> None:
    columns = operands.tuples((fmt, fmt), 300, seed=1)
    if fmt.bits <= 4:
        columns = list(operands.every_pair(fmt))
    same = np.concatenate([columns[0][:100], columns[0][:100]])  # every operand meets itself and its negative
    twin = np.concatenate([columns[0][:100], columns[0][:100] ^ fmt.storage.type(casts.sign_of(fmt))])
    for operation in COMPARISONS:
        check_comparison(operation, [np.append(columns[0], same), np.append(columns[1], twin)], (fmt, fmt))


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k8p3ue")], ids=str)
def test_every_pair_of_an_8_bit_format_compares_as_numpy_compares_its_values(fmt: fp.Format) -> None:
    a, b = operands.every_pair(fmt)
    x, y = casts.values(fmt)[a], casts.values(fmt)[b]
    for ours, theirs in ((fp.equal, np.equal), (fp.less, np.less), (fp.less_equal, np.less_equal)):
        assert_bits_equal(ours(a, b, fmt=fmt), theirs(x, y))


@in_turn("operation", COMPARISONS)
@in_turn("fmts", MIXED)
def test_operands_of_two_formats_compare_by_value(fmts: Formats, operation: str) -> None:
    check_comparison(operation, operands.tuples(fmts, 300, seed=2), fmts)
    codes = operands.level_one(fmts[0])[::4]
    same = [codes, np.array([twin(fmts, int(c)) for c in codes])]
    check_comparison(operation, [same[0], same[1].astype(fmts[1].storage)], fmts)


def twin(fmts: Formats, code: int) -> int:
    """The code of the second format nearest to a code of the first one."""
    finite = ao.read(fmts[0], code).kind == "finite"
    return operands.near(fmts[1], operands.exact_value(fmts[0], code)) if finite else 0


@pytest.mark.parametrize("fmt", [fp.E5M2, fp.E4M3FNUZ, fp.FP16, fp.FP32, fp.format("p3109_k8p4sf")], ids=str)
def test_a_flushed_operand_compares_as_zero(fmt: fp.Format) -> None:
    for operation in COMPARISONS:
        check_comparison(operation, operands.tuples((fmt, fmt), 500, seed=3), (fmt, fmt), input_subnormals="flush")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_numpy_compares_arrays_of_its_dtypes_alike(dtype: type) -> None:
    fmt = fp.format(dtype)
    a, b = operands.as_floats(operands.tuples((fmt, fmt), 60_000, seed=4), dtype)
    for ours, theirs in ((fp.equal, np.equal), (fp.less, np.less), (fp.less_equal, np.less_equal)):
        with np.errstate(all="ignore"):
            assert_bits_equal(ours(a, b), theirs(a, b).astype(np.bool_))


def test_comparisons_broadcast_and_fill_out() -> None:
    a, b = np.array([[0x38], [0x40], [0x7F]], np.uint8), np.array([0x38, 0x3C], np.uint8)
    out = np.empty((3, 2), np.bool_)
    assert fp.less(a, b, fmt="e4m3", out=out) is out
    assert out.tolist() == [[False, True], [False, False], [False, False]]


# ---- the smaller and the larger


@in_turn("fmt", ALL)
def test_the_smaller_and_the_larger_are_picked_as_the_rules_say(fmt: fp.Format) -> None:
    columns = operands.tuples((fmt, fmt), 120, seed=5)
    for operation in ao.EXTREMA:
        check(operation, columns, (fmt, fmt), roundings=("nearest_even",), flags=True)


def test_the_smaller_and_the_larger_of_every_pair_are_picked() -> None:
    for fmt in (
        fp.E2M1,
        fp.format("p3109_k5p3se"),
        fp.Format("ieee", 3, 2),
        fp.Format("one_zero", 2, 2, nan="negative_zero"),
    ):
        for operation in ao.EXTREMA:
            check(operation, operands.every_pair(fmt), (fmt, fmt), roundings=("down",))


@in_turn("operation", ao.EXTREMA)
@in_turn("fmts", MIXED)
def test_the_smaller_and_the_larger_of_two_formats_round_into_a_third(fmts: Formats, operation: str) -> None:
    for out in (fp.FP32, fp.E4M3, fp.E8M0):
        check(operation, operands.tuples(fmts, 60, seed=6), fmts, out, roundings=("nearest_even", "up"), flags=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numpy_picks_the_same_numbers(dtype: type) -> None:
    fmt = fp.format(dtype)
    a, b = operands.as_floats(operands.tuples((fmt, fmt), 60_000, seed=7), dtype)
    zeros = (a == 0) & (b == 0)  # NumPy picks either
    pairs = ((fp.minimum, np.minimum), (fp.maximum, np.maximum), (fp.minimum_number, np.fmin),
             (fp.maximum_number, np.fmax))  # fmt: skip
    for ours, theirs in pairs:
        with np.errstate(all="ignore"):
            assert_bits_equal(ours(a, b)[~zeros], theirs(a, b)[~zeros])


def test_minus_zero_is_below_zero_in_minima_and_maxima() -> None:
    zero, minus = np.array([0.0], np.float16), np.array([-0.0], np.float16)
    for smaller in (fp.minimum, fp.minimum_number):
        assert_bits_equal(smaller(zero, minus), minus)
        assert_bits_equal(smaller(minus, zero), minus)
    for larger in (fp.maximum, fp.maximum_number):
        assert_bits_equal(larger(zero, minus), zero)
        assert_bits_equal(larger(minus, zero), zero)


# ---- classes


@in_turn("fmt", ALL)
def test_every_code_has_the_class_of_its_value(fmt: fp.Format) -> None:
    codes = operands.every_code(fmt) if fmt.bits <= 8 else operands.level_one(fmt)
    want = np.array([fp.FloatClass[co.classify(code, fmt)] for code in codes.tolist()], np.uint8)
    compare_with("classify", [codes], {"fmt": fmt}, want)


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_classes_of_a_16_bit_format_fill_the_code_space_in_order(fmt: fp.Format) -> None:
    classes = fp.classify(operands.every_code(fmt), fmt=fmt)
    field, m = 2**fmt.exponent_bits - 1, fmt.mantissa_bits
    sizes = [1, 2**m - 1, (field - 1) * 2**m, 1, 2 ** (m - 1) - 1, 2 ** (m - 1)]
    names = ["POSITIVE_ZERO", "POSITIVE_SUBNORMAL", "POSITIVE_NORMAL", "POSITIVE_INFINITY"]
    nans = ["SIGNALING_NAN", "QUIET_NAN"]
    halves = [[*names, *nans], [*[name.replace("POSITIVE", "NEGATIVE") for name in names], *nans]]
    want = [fp.FloatClass[name] for half in halves for name in half]
    assert_bits_equal(classes, np.repeat(np.array(want, np.uint8), sizes * 2))


def test_classes_have_the_order_of_risc_v() -> None:
    names = ["NEGATIVE_INFINITY", "NEGATIVE_NORMAL", "NEGATIVE_SUBNORMAL", "NEGATIVE_ZERO", "POSITIVE_ZERO",
             "POSITIVE_SUBNORMAL", "POSITIVE_NORMAL", "POSITIVE_INFINITY", "SIGNALING_NAN", "QUIET_NAN"]  # fmt: skip
    assert [member.name for member in fp.FloatClass] == names
    assert [int(member) for member in fp.FloatClass] == list(range(10))


def test_numpy_classifies_float32_alike() -> None:
    x = operands.level_one(fp.FP32).view(np.float32)
    classes = fp.classify(x)
    with np.errstate(all="ignore"):
        values = exactly(x)
    assert_bits_equal(np.isin(classes, [8, 9]), np.isnan(values))
    assert_bits_equal(np.isin(classes, [0, 7]), np.isinf(values))
    assert_bits_equal(np.isin(classes, [3, 4]), values == 0)
    assert_bits_equal(np.isin(classes, [2, 5]), (values != 0) & (np.abs(values) < 2.0**-126))
