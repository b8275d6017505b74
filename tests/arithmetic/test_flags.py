"""Flags: every element raises what IEEE 754 says, in every mode, with tininess found after rounding or before."""

from __future__ import annotations

import itertools
from typing import Any

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
    Words,
    check,
    check_stochastic,
    subnormals_of,
)
from tests.kit import operands
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import casts

Array = npt.NDArray[Any]
ALL = [*SMALL, *EIGHT_BITS, *SOME_P3109, *ODD_WIDTHS, *UNUSUAL, *WIDE]
SEED = 0xFEDCBA9876543210
OPERATIONS = (*ao.BINARY, "fma", "sqrt", *ao.EXTREMA)
every_format = in_turn("fmt", ALL)


def operands_of(operation: str, fmt: fp.Format, count: int, seed: int) -> tuple[list[Array], Formats]:
    """Level-one operands of an operation, and their formats."""
    fmts = (fmt,) * {"fma": 3, "sqrt": 1}.get(operation, 2)
    columns = operands.tuples(fmts, count, seed)
    rows = np.random.default_rng(seed).permutation(columns[0].size)[:count]
    return [column[rows] for column in columns], fmts


@every_format
@sweep("count", 16, 120)
def test_every_element_raises_what_the_rules_say(fmt: fp.Format, count: int) -> None:
    for seed, operation in enumerate(OPERATIONS):
        columns, fmts = operands_of(operation, fmt, count, seed)
        roundings = casts.MODES if operation in ao.BINARY else casts.MODES[seed % 3 :: 3]
        for tininess in ao.TININESS:
            check(operation, columns, fmts, flags=True, tininess=tininess, roundings=roundings)


@every_format
@sweep("count", 24, 200)
def test_products_around_the_smallest_normal_value_are_tiny_or_not_by_the_word(fmt: fp.Format, count: int) -> None:
    normal, unit = casts.power(casts.lowest_exponent(fmt)), operands.tiny_unit(fmt)
    targets = [normal - unit * k / 8 for k in range(-2, 9)] + [unit / 2, unit / 4, unit * 3 / 4, unit * 3 / 2]
    factors = operands.level_one(fmt)[:: 1 + operands.level_one(fmt).size // 25].tolist()
    factors = [factor for factor in factors if ao.read(fmt, factor).kind == "finite" and ao.read(fmt, factor).magnitude]
    cases = list(itertools.product(targets, factors, (-1, 0, 1)))
    rows = [
        (factor, operands.near(fmt, target / operands.exact_value(fmt, factor), ulps))
        for target, factor, ulps in cases[:: 1 + len(cases) // count]
    ]
    columns = [np.array(column, fmt.storage) for column in zip(*rows, strict=True)]
    for tininess in ao.TININESS:
        check("multiply", columns, (fmt, fmt), flags=True, tininess=tininess)


@pytest.mark.parametrize("out", [fp.E4M3, fp.E5M2, fp.E2M1, fp.E8M0, fp.E4M3FNUZ, fp.E4M3_IEEE, *SOME_P3109, fp.FP16],
                         ids=str)  # fmt: skip
def test_flags_do_not_depend_on_what_is_delivered_but_inf_and_nan_for_numbers_do(out: fp.Format) -> None:
    for operation in ("multiply", "divide", "maximum_number"):
        columns, fmts = operands_of(operation, fp.BF16, 60, seed=20)
        for overflow in casts.OVERFLOWS:
            check(operation, columns, fmts, out, flags=True, overflow=overflow, roundings=("nearest_even", "up"))


@every_format
@sweep("count", 16, 120)
def test_flushing_results_raises_underflow_and_flushing_operands_nothing(fmt: fp.Format, count: int) -> None:
    for seed, operation in enumerate(("add", "multiply", "divide", "remainder", "fma", "sqrt", "minimum")):
        columns, fmts = operands_of(operation, fmt, count, 30 + seed)
        for inward, outward in (("flush", "keep"), ("flush", "flush"), ("keep", "flush")):
            if outward in subnormals_of(fmt):
                words: Words = {"input_subnormals": inward, "subnormals": outward, "tininess": ao.TININESS[seed % 2]}
                check(operation, columns, fmts, flags=True, roundings=casts.MODES[seed % 3 :: 3], **words)


@pytest.mark.parametrize("tininess", ao.TININESS)
@every_format
def test_stochastic_results_raise_flags_by_their_random_word(fmt: fp.Format, tininess: str) -> None:
    for seed, operation in enumerate((*ao.BINARY, "fma", "sqrt")):
        columns, fmts = operands_of(operation, fmt, 16, 40 + seed)
        bits = (32, 1, 8, 23, 31, 2, 16)[seed]
        check_stochastic(operation, columns, fmts, seed=SEED, flags=True, tininess=tininess, random_bits=bits)


# ---- what a call returns


@in_turn("operation", OPERATIONS)
def test_flags_of_all_elements_are_the_or_of_the_flags_of_each(operation: str) -> None:
    function = getattr(fp, operation)
    for fmt in (fp.E4M3, fp.E5M2, fp.FP16, fp.FP32):
        columns, _ = operands_of(operation, fmt, 500, seed=50)
        for size in (0, 1, 2, 7, 400):
            some = [column[:size] for column in columns]
            codes, each = function(*some, fmt=fmt, flags=True)
            same, together = function(*some, fmt=fmt, flags="any")
            assert_bits_equal(same, codes)
            assert isinstance(together, fp.Flags)
            assert int(together) == int(np.bitwise_or.reduce(each)) if size else together == fp.Flags.NONE
            assert_bits_equal(codes, function(*some, fmt=fmt))


def test_other_functions_or_their_flags_too() -> None:
    codes = operands.level_one(fp.E5M2)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (fp.round_to_integral, (codes,)), (fp.next_up, (codes,)), (fp.next_down, (codes,)),
        (fp.convert, (codes, fp.E4M3)), (fp.to_int, (codes, np.int8)), (fp.equal, (codes, codes[::-1])),
        (fp.less, (codes, codes[::-1])), (fp.less_equal, (codes, codes[::-1])),
    ]  # fmt: skip
    for function, arguments in calls:
        _, each = function(*arguments, fmt=fp.E5M2, flags=True)
        _, together = function(*arguments, fmt=fp.E5M2, flags="any")
        assert int(together) == int(np.bitwise_or.reduce(each)) > 0
    _, together = fp.from_int(np.arange(100), fp.E4M3, flags="any")
    assert together == fp.Flags.INEXACT


def test_flags_have_the_shape_of_the_result() -> None:
    a, b = np.zeros((3, 1), np.uint8), np.zeros((1, 5), np.uint8)
    codes, flags = fp.divide(a, b, fmt="e4m3", flags=True)
    assert codes.shape == flags.shape == (3, 5)
    assert flags.dtype == np.uint8
    assert (flags == fp.Flags.INVALID).all()


def test_flags_carry_the_bits_of_risc_v() -> None:
    named = {flag.name: int(flag) for flag in fp.Flags}
    assert named == {"INEXACT": 1, "UNDERFLOW": 2, "OVERFLOW": 4, "DIVIDE_BY_ZERO": 8, "INVALID": 16}


def test_nothing_warns() -> None:  # warnings are errors in this suite
    codes = operands.level_one(fp.FP32)
    for operation in (fp.divide, fp.multiply, fp.remainder):
        operation(codes.view(np.float32), codes[::-1].copy().view(np.float32), flags="any")
    fp.sqrt(codes.view(np.float32))
    fp.to_int(codes.view(np.float32))
