"""fpsim.analysis.drift, beside fractions, the bounds of theory, and figures known from other programs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.analysis.measures.drift.bounds import unit_roundoff
from fpsim.matrix_units.catalogue import float_units
from tests.kit.sweeps import case, in_turn, sweep

Array = npt.NDArray[Any]


drift = fp.analysis.drift


SR: dict[str, Any] = {"rounding": "stochastic", "seed": 3}


HOPPER = "hopper_e4m3_f32"


ACCUMULATORS = [
    fp.Sequential("bf16"), fp.Sequential("bf16", **SR), fp.Sequential("fp16", rounding="toward_zero"),
    fp.FusedMultiplyAdd("fp32"), fp.FusedMultiplyAdd("fp16", rounding="odd"), fp.Pairwise("fp16"),
    fp.Pairwise("bf16", rounding="up"), fp.Chunked("fp16"), fp.Chunked("bf16", chunk=7, outer="fp32"),
    fp.Exact("bf16"), fp.Exact("fp16", rounding="down"), fp.Sequential("fp64"), fp.Sequential("e5m2"),
    fp.Sequential("fp16", subnormals="flush"), fp.Chunked("e4m3", chunk=4, outer="bf16"),
]  # fmt: skip


SCHEDULES = [
    fp.schedules.FLAT, fp.schedules.cutlass_2xacc(128), fp.schedules.cublas("sm_90", split_k=4),
    fp.schedules.cublas("sm_90", split_k=3), fp.schedules.deepgemm(),
]  # fmt: skip


# ---- the figures


def test_figures_are_those_of_fractions() -> None:
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    how = fp.Sequential("bf16")
    row = drift(x, accumulators=how, lengths=[33]).rows[0]
    exact = [sum(map(Fraction, line.tolist()), Fraction(0)) for line in x[:, :33].astype(np.float64)]
    got = [Fraction(float(fp.sum(line[:33], accumulate=how))) for line in x]
    errors = [float(g - e) for g, e in zip(got, exact, strict=True)]
    relative = [error / abs(float(e)) for error, e in zip(errors, exact, strict=True)]
    assert row.mean_relative == pytest.approx(np.mean(np.abs(relative)), rel=1e-12)
    assert row.rms_relative == pytest.approx(np.sqrt(np.mean(np.square(relative))), rel=1e-12)
    assert row.max_relative == pytest.approx(np.max(np.abs(relative)), rel=1e-12)
    assert row.bias == pytest.approx(np.mean(relative), rel=1e-12)
    assert row.norm_relative == pytest.approx(np.linalg.norm(errors) / np.linalg.norm([float(e) for e in exact]))


def test_the_exact_sum_has_more_than_53_bits() -> None:
    """An FP64 sum of these is off by less than the last place of float64 at the exact sum."""
    x = np.array([[1.0, 2.0**-60, 2.0**-60, 2.0**-60]], np.float32)
    row = drift(x, accumulators=fp.Sequential("fp64"), lengths=[4]).rows[0]
    assert row.bias == pytest.approx(-3 * 2.0**-60, rel=1e-9)


def test_a_shorter_sum_is_the_beginning_of_the_longer_one() -> None:
    long = drift("normal", "uniform", accumulators=[HOPPER, fp.Pairwise("bf16")], lengths=[10, 100, 1000], trials=4)
    for length in (10, 100):
        short = drift("normal", "uniform", accumulators=[HOPPER, fp.Pairwise("bf16")], lengths=length, trials=4)
        assert repr(short.rows) == repr(tuple(row for row in long.rows if row.length == length))


@pytest.mark.parametrize("name", ["normal", "half_normal", "uniform", "lognormal", "cauchy"])
def test_draws_depend_on_the_seed_and_on_nothing_else(name: str) -> None:
    first, again, other = (drift(name, name, accumulators="ampere_f16_f32", lengths=64, seed=s) for s in (1, 1, 2))
    assert repr(first) == repr(again)  # NaN is NaN there
    assert first.rows[0].norm_relative != other.rows[0].norm_relative


def test_operands_are_rounded_to_what_a_unit_takes() -> None:
    """Values that E4M3 holds give the same errors as those that it rounds to them."""
    x = np.random.default_rng(0).standard_normal((3, 64)) * 200
    rounded = fp.quantize(x, "e4m3", overflow="saturate")
    for how in (HOPPER, fp.Exact("fp32")):
        options: Any = {} if how is HOPPER else {"fmt": "e4m3"}
        got, want = (
            drift(x, x, accumulators=how, lengths=64, **options),
            drift(rounded, rounded, accumulators=how, lengths=64),
        )
        assert got.rows[0].squares[:3] == want.rows[0].squares[:3]


@pytest.mark.parametrize("second", [256, fp.schedules.cutlass_2xacc(256), fp.schedules.cublas("sm_90", split_k=4)])
def test_a_pair_is_the_product_that_matmul_gives(second: Any) -> None:
    x, y = (np.random.default_rng(i).random((4, 1024)).astype(np.float32) for i in (0, 1))
    a, b = fp.cast(x, "e4m3"), fp.cast(y, "e4m3")
    how: Any = {"promote": second} if isinstance(second, int) else {"schedule": second, "strict": False}
    got = np.diagonal(fp.matmul(a, b.T, accumulate=HOPPER, **how)).astype(np.float64)
    exact = np.sum(a.astype(np.float64) * b.astype(np.float64), axis=1)
    row = drift(x, y, accumulators=(HOPPER, second), lengths=1024).rows[0]
    assert row.norm_relative == pytest.approx(np.linalg.norm(got - exact) / np.linalg.norm(exact), rel=1e-9)


# ---- bounds


def hard_terms(trials: int, length: int) -> tuple[Array, Array]:
    """Operands of many sizes and both signs, with cancellation and subnormals of small formats."""
    rng = np.random.default_rng(9)
    a = rng.standard_normal((trials, length)) * 2.0 ** rng.integers(-12, 7, (trials, length))
    b = rng.standard_normal((trials, length)) * 2.0 ** rng.integers(-12, 4, (trials, length))
    a[:, 1::7] = -a[:, 0:-1:7][:, : a[:, 1::7].shape[1]]
    b[:, 1::7] = b[:, 0:-1:7][:, : b[:, 1::7].shape[1]]
    return a, b


UNITS = [unit for unit in float_units() if isinstance(unit.a.fmt, fp.Format)]


# One for each rule of addition, whose results are mostly FP32, and one of FP16; each compiles a kernel.
SOME_UNITS = {unit.rule if unit.d.fmt == fp.FP32 else "narrow": unit.name for unit in reversed(UNITS)}


@sweep("units", list(SOME_UNITS.values()), [unit.name for unit in UNITS])
def test_the_deterministic_bound_of_a_unit_always_holds(units: list[str]) -> None:
    for unit in units:
        with case(unit):
            check_bounds(unit)


def check_bounds(unit: str) -> None:
    a, b = hard_terms(8, 512)
    lengths = [1, 3, 16, 65, 512]
    for report in (
        drift(a, b, accumulators=unit, lengths=lengths),
        drift(np.abs(a), np.abs(b), accumulators=unit, lengths=lengths),
        drift("normal", "normal", accumulators=unit, lengths=lengths, trials=8),
        drift("uniform", "uniform", accumulators=unit, lengths=lengths, trials=8),
        drift(a * 2.0**-20, b * 2.0**-20, accumulators=unit, lengths=lengths),
    ):
        for row in report.rows:
            unknown = (
                row.overflowed or "no relative error is defined" in row.reason or "no bound is known" in row.reason
            )
            assert unknown or row.max_relative <= row.deterministic_bound


@sweep("units", list(SOME_UNITS.values()), [unit.name for unit in float_units()])
def test_every_unit_has_bounds(units: list[str]) -> None:
    rows = drift("normal", "normal", accumulators=units, lengths=40, trials=2).rows
    assert len(rows) == len(units)
    assert [row.accumulator for row in rows if math.isnan(row.deterministic_bound)] == []


@pytest.mark.parametrize("how", ACCUMULATORS, ids=repr)
def test_the_deterministic_bound_of_an_accumulator_always_holds(how: Any) -> None:
    a, b = hard_terms(8, 512)
    lengths = [1, 2, 5, 64, 100, 512]
    known = 0
    for x, y in ((a, b), (a, None), (np.abs(a), np.abs(b)), (a * 2.0**-9, b * 2.0**-9), (a * 2.0**-30, None)):
        for row in drift(x, y, accumulators=how, lengths=lengths).rows:
            if not math.isnan(row.deterministic_bound + row.max_relative):
                assert row.max_relative <= row.deterministic_bound
                known += 1
    assert known > 8


@in_turn("schedule", SCHEDULES)
@in_turn("name", ["normal", "uniform"])
def test_the_deterministic_bound_of_a_schedule_always_holds(schedule: Any, name: str) -> None:
    for row in drift(name, name, accumulators=(HOPPER, schedule), lengths=[100, 512, 3000], trials=8).rows:
        assert row.max_relative <= row.deterministic_bound


COVERED = [
    fp.Sequential("bf16", **SR), fp.Sequential("fp16", **SR), fp.FusedMultiplyAdd("fp32"), fp.Sequential("fp32"),
    fp.Pairwise("bf16"), fp.Chunked("bf16"), fp.Pairwise("fp16", **SR), fp.Exact("fp16"), "cdna1_f16_f32",
    "cdna2_f16_f32", "hopper_f64_f64", fp.Sequential("bf16", rounding="stochastic", seed=0, random_bits=3),
]  # fmt: skip


@pytest.mark.parametrize("name", ["normal", "uniform", "cauchy", "lognormal"])
@sweep("trials", 40, 100)
def test_the_probabilistic_bound_covers_what_it_says(name: str, trials: int) -> None:
    report = drift(name, name, accumulators=COVERED, lengths=[64, 512, 4096], trials=trials)
    assert all(row.coverage >= 0.95 for row in report.rows if not row.overflowed)
    assert sum(not math.isnan(row.coverage) for row in report.rows) >= 30


@sweep("trials", 40, 100)
def test_units_that_cut_have_a_probabilistic_bound_where_signs_are_random(trials: int) -> None:
    cutting = [HOPPER, "ampere_f16_f32", "hopper_mma_e4m3_f32", "cdna3_f16_f32", "blackwell_nvfp4_f32", (HOPPER, 128)]
    for first, second in (("normal", "normal"), ("uniform", "normal"), ("cauchy", "lognormal")):
        report = drift(first, second, accumulators=cutting, lengths=[64, 512, 4096], trials=trials)
        assert all(row.coverage >= 0.95 for row in report.rows)
    row = drift("normal", "normal", accumulators=HOPPER, lengths=4096, trials=2 * trials).rows[0]
    assert row.norm_probabilistic < row.norm_deterministic / 5


def test_units_that_cut_terms_of_one_sign_have_no_probabilistic_bound() -> None:
    row = drift("uniform", "uniform", accumulators=HOPPER, lengths=512).rows[0]
    assert math.isnan(row.probabilistic_bound)
    assert math.isnan(row.coverage)
    assert "biased" in row.reason


@pytest.mark.parametrize("rounding", ["toward_zero", "up", "down"])
def test_directed_rounding_has_no_probabilistic_bound(rounding: str) -> None:
    row = drift("normal", accumulators=fp.Sequential("fp16", rounding=rounding), lengths=512).rows[0]
    assert math.isnan(row.probabilistic_bound)
    assert "errs to one side" in row.reason
    assert row.deterministic_bound >= row.max_relative


def test_nearest_rounding_breaks_the_square_root_law_once_it_stagnates_and_stochastic_does_not() -> None:
    hows = [fp.Sequential("fp16"), fp.Sequential("fp16", **SR)]
    report = drift("uniform", accumulators=hows, lengths=[256, 1024, 8192, 16384, 32768], trials=24)
    nearest, stochastic = (report.of(how) for how in hows)
    assert [row.coverage for row in nearest] == [1, 1, 0, 0, 0]
    assert all(row.coverage == 1 for row in stochastic)
    assert nearest[-1].stagnated == 1


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_each_lambda_covers_its_share_of_sums(factor: float, rounding: str) -> None:
    """Of a single sum, at least 1 - 2 exp(-lambda^2 / 2), where n unions are not counted."""
    how = fp.Sequential("bf16", rounding=rounding, seed=0 if rounding == "stochastic" else None)
    row = drift("normal", accumulators=how, lengths=1000, trials=1000, factor=factor).rows[0]
    assert row.coverage >= 1 - 2 * math.exp(-(factor**2) / 2)


def test_a_bound_has_the_form_of_higham_and_mary() -> None:
    x = np.random.default_rng(0).random((1, 100)).astype(np.float32)
    row = drift(x, accumulators=fp.Sequential("bf16"), lengths=100, factor=2.0).rows[0]
    u = 2.0**-8
    assert row.deterministic_bound == pytest.approx((1 + u) ** 100 - 1, rel=1e-6)
    assert row.probabilistic_bound == pytest.approx(math.expm1(2 * 10 * u + 100 * u * u / (1 - u)), rel=1e-6)


@pytest.mark.parametrize("rounding", ["nearest_even", "nearest_away", "toward_zero", "up", "down", "odd"])
def test_the_unit_roundoff_is_the_largest_relative_error_of_a_rounding(rounding: str) -> None:
    mode = fp.Rounding[rounding.upper()]
    x = np.linspace(1, 2, 4097)
    largest = np.max(np.abs(fp.quantize(x, "e4m3", rounding=rounding) - x) / x)
    unit = unit_roundoff(fp.E4M3, mode)
    assert 0.85 * unit < largest <= unit


def test_underflow_in_the_accumulator_is_part_of_the_bounds() -> None:
    """Products of 2^-12 squared vanish in FP16, whose smallest value is 2^-24: their error is all of them."""
    x = np.full((1, 64), 2.0**-13, np.float32)
    row = drift(x, x, accumulators=fp.Sequential("fp16"), lengths=64).rows[0]
    assert row.max_relative == 1
    assert row.deterministic_bound >= 1
