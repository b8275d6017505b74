"""Every broken quantizer is caught and named, and mutation_score says what a test does not see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing.mutants.quantizers import QUANTIZERS, right

CAUSES = {
    "ties_away": "takes ties away from zero",
    "truncates": "rounds toward zero",
    "ties_up": "takes ties up, toward +Inf",
    "through_fp16": "rounds to FP16 first",
    "through_bf16": "rounds to BF16 first",
    "truncated_to_bf16": "truncates to BF16 first",
    "flushes": "turns subnormal results into zeros",
    "subnormals_halved": "gives subnormals at half their size",
    "subnormals_away": "takes ties away from zero where the result is subnormal",
    "never_zero": "gives the smallest value for what rounds to zero",
    "unsigned_zero": "loses the sign of zeros",
    "limited": "overflows as overflow='saturate' does",
    "early_overflow": "takes every value above the largest one as too large, also those that round to it",
    "nan_to_max": "gives the largest value for NaN",
    "bias_off": "multiplies by 2**1: its exponent bias is off by 1",
}
PROPERTIES = {
    "tail": {"batch"},
    "memory_order": {"layout"},
    "writes": {"leaves its input alone"},
    "remembers": {"calls"},
    "draws": {"calls"},
}


def report(name: str, fmt: str = "e4m3") -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(QUANTIZERS[name].make(fmt), fmt, raises=False)


def test_there_are_twenty() -> None:
    assert len(QUANTIZERS) == 20
    assert set(CAUSES) | set(PROPERTIES) == set(QUANTIZERS)


@pytest.mark.parametrize("name", CAUSES)
def test_a_mutant_of_values_is_named(name: str) -> None:
    found = report(name)
    assert found.causes == (CAUSES[name],), found
    assert found.unexplained == 0


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_mutant_that_depends_on_more_than_the_value_is_caught(name: str) -> None:
    assert {one.property for one in report(name).broken} >= PROPERTIES[name]


@pytest.mark.parametrize("fmt", ["e4m3fnuz", pytest.param("e5m2", marks=pytest.mark.slow)])
def test_mutants_of_other_formats_are_caught(fmt: str) -> None:
    missed = [name for name in QUANTIZERS if report(name, fmt).ok]
    assert missed == (["unsigned_zero"] if fmt == "e4m3fnuz" else [])  # which has no zero with a sign


def test_the_right_one_is_fpsims() -> None:
    x = fp.testing.points("e4m3")
    np.testing.assert_array_equal(right("e4m3")(x), fp.quantize(x, "e4m3"))


def test_check_quantizer_catches_all() -> None:
    score = fp.testing.mutation_score(lambda fn: fp.testing.check_quantizer(fn, "e4m3"))
    assert (score.score, score.missed, score.passes_right) == (1.0, (), True)


def test_random_floats_miss_what_points_show() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def usual(fn: Callable[..., Any]) -> None:
        np.testing.assert_array_equal(fn(x.copy()), fp.quantize(x, "e4m3"))

    score = fp.testing.mutation_score(usual)
    assert {"ties_away", "tail", "nan_to_max", "unsigned_zero"} <= set(score.missed)
    assert "missed: ties_away, which takes ties away from zero" in str(score)


def test_a_test_that_fails_the_right_one_scores_nothing() -> None:
    def never(fn: Callable[..., Any]) -> None:
        raise AssertionError("no")

    score = fp.testing.mutation_score(never)
    assert (score.score, score.passes_right, score.complaint) == (0.0, False, "no")
    assert str(score).startswith("The test fails the right function")


def test_other_exceptions_are_no_catch() -> None:
    def broken(fn: Callable[..., Any]) -> None:
        raise KeyError("x")

    score = fp.testing.mutation_score(broken)
    assert score.caught == ()
    assert "error: ties_away, which takes ties away from zero (KeyError: 'x')" in str(score)


def test_a_test_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="test must be a function of a quantizer"):
        fp.testing.mutation_score(3)  # type: ignore[arg-type]
