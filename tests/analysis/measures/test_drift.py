"""fpsim.analysis.drift, beside fractions, the bounds of theory, and figures known from other programs."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.analysis.measures.drift.bounds import ALIGNING, unit_roundoff
from fpsim.matrix_units.matrix_unit import Rule
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


def close(want: float, rel: float = 0.2) -> Any:
    return pytest.approx(want, rel=rel)


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


UNITS = [unit for unit in fp.units() if isinstance(unit.a.fmt, fp.Format)]
# one for each of the facts that bounds are made of
SOME_UNITS = {(unit.rule, unit.d.fmt.name, unit.fraction_bits, unit.terms): unit.name for unit in reversed(UNITS)}


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


def test_every_unit_has_bounds() -> None:
    rules = (*ALIGNING, Rule.EXACT, Rule.FLUSHED_TREE, Rule.REVERSED_CHAIN, Rule.TWO_CHAINS)
    units = [unit.name for unit in fp.units() if unit.rule in rules and isinstance(unit.a.fmt, fp.Format)]
    rows = drift("normal", "normal", accumulators=units, lengths=40, trials=2).rows
    assert len(rows) == len(fp.units())
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


# ---- figures that cannot be measured


def test_overflow_leaves_no_figure_and_says_why() -> None:
    x = np.full((2, 4), 40000, np.float32)
    x[1] = 1
    row = drift(x, accumulators=fp.Sequential("fp16"), lengths=4).rows[0]
    assert row.overflowed == 0.5
    assert math.isnan(row.norm_relative)
    assert row.reason.startswith("1 of 2 sums overflowed")


def test_a_sum_that_saturates_in_silence_has_no_bounds() -> None:
    x = np.full((1, 4), 40000, np.float32)
    for how in (fp.Sequential("fp16", overflow="saturate"), fp.Sequential("fp16", rounding="toward_zero")):
        row = drift(x, accumulators=how, lengths=4).rows[0]
        assert math.isnan(row.deterministic_bound)
        assert "largest value" in row.reason


def test_sums_of_0_have_no_relative_error() -> None:
    for x in (np.zeros((2, 4), np.float32), np.array([[1, -1, 2, -2]], np.float32)):
        row = drift(x, accumulators=fp.Sequential("fp16"), lengths=4).rows[0]
        assert math.isnan(row.mean_relative)
        assert "exact sum" in row.reason


def test_terms_that_a_schedule_leaves_out_leave_no_bounds() -> None:
    how = ("hopper_f16_f32", fp.schedules.cublas("sm_90", split_k=9))
    row = drift("uniform", "uniform", accumulators=how, lengths=11528, trials=2).rows[0]
    assert "leaves out the last 8 terms" in row.reason
    assert math.isnan(row.deterministic_bound)
    assert row.bias < -1e-4


# ---- stagnation


def test_the_last_addition_is_the_one_of_each_accumulator() -> None:
    """512 and then n ones in BF16, where 512 + 1 and 512 + 2 are 512; 512 + 4 is not."""
    x = np.ones((1, 9), np.float32)
    x[0, 0] = 512
    hows = [fp.Sequential("bf16"), fp.FusedMultiplyAdd("bf16"), fp.Chunked("bf16", chunk=4), fp.Exact("bf16")]
    rows = drift(x, accumulators=hows, lengths=9).rows
    assert [row.stagnated for row in rows[:3]] == [1, 1, 1]
    assert math.isnan(rows[3].stagnated)
    assert "all terms at once" in rows[3].reason
    assert drift(x, accumulators=fp.Chunked("bf16", chunk=4), lengths=8).rows[0].stagnated == 0  # 512 + 4
    assert drift(x, accumulators=fp.Pairwise("bf16"), lengths=[8, 9]).rows[0].stagnated == 0  # 512 + 4
    assert drift(x, accumulators=fp.Pairwise("bf16"), lengths=[8, 9]).rows[1].stagnated == 1  # 516 + 1


def test_the_last_addition_of_a_unit_is_its_last_step() -> None:
    """Beside 2^14, Hopper's FP8 unit keeps multiples of 2: products of 1.875 are lost, steps and all."""
    a, b = np.full((1, 128), 1.875), np.ones((1, 128))
    a[0, 0], b[0, 0] = 128, 128
    rows = drift(a, b, accumulators=[HOPPER, (HOPPER, 64), "hopper_f16_f32"], lengths=[32, 65, 128]).rows
    assert [row.stagnated for row in rows] == [0, 1, 1, 0, 0, 0, 0, 0, 0]


def test_stochastic_additions_often_change_nothing_and_do_not_stagnate() -> None:
    regimes = drift("uniform", accumulators=[fp.Sequential("bf16", **SR)], lengths=[2**i for i in range(8, 15)]).regimes
    assert regimes[0].word in ("square root", "flat")
    assert regimes[0].onset is None


# ---- known figures


def scaled_operands(name: str, length: int) -> tuple[Array, Array]:
    """64 pairs of lines, each side scaled so that its largest magnitude is 448."""
    rng = np.random.default_rng(0)
    x, y = ((rng.standard_normal((64, length)) if name == "normal" else rng.random((64, length))) for _ in range(2))
    return x * (448 / np.abs(x).max()), y * (448 / np.abs(y).max())


FP8_SUMS = {
    "uniform": ({128: 5.7e-4, 512: 5.8e-3, 1024: 1.5e-2, 4096: 7.4e-2, 8192: 1.45e-1}, 5.6e-4, 5.8e-3),
    "normal": ({128: 1.2e-4, 512: 3.4e-4, 1024: 5.4e-4, 4096: 1.4e-3, 16384: 2.9e-3}, 1.3e-4, 3.2e-4),
}


@pytest.mark.parametrize("name", FP8_SUMS)
def test_fp8_sums_lose_what_other_programs_found(name: str) -> None:
    """Relative Frobenius errors of E4M3 operands; 64 sums, where the figures come from 32 x 32 and more."""
    chained, every_128, every_512 = FP8_SUMS[name]
    a, b = scaled_operands(name, max(chained))
    report = drift(a, b, accumulators=[HOPPER, (HOPPER, 128), (HOPPER, 512)], lengths=list(chained))
    tolerance = 0.2 if name == "uniform" else 0.45  # 64 sums that cancel
    for row, want in zip(report.of(HOPPER), chained.values(), strict=True):
        assert row.norm_relative == close(want, tolerance)
    for promote, want in ((128, every_128), (512, every_512)):
        rows = [row for row in report.of(f"{HOPPER}, promote={promote}") if row.length >= promote]
        assert all(row.norm_relative == close(want, tolerance) for row in rows)
    assert report.regimes[0].word == {"uniform": "linear", "normal": "square root"}[name]
    assert report.regimes[1].word == "flat"


def test_wide_units_lose_next_to_nothing() -> None:
    a, b = scaled_operands("uniform", 4096)
    assert drift(a, b, accumulators="blackwell_e4m3_f32", lengths=4096).rows[0].norm_relative == close(1.1e-6)


def test_sums_stop_where_other_programs_found() -> None:
    """Uniform terms of mean 1 and deviation 1 (Wang et al. 2018, figure 3b), 65536 of them."""
    x = 1 + math.sqrt(3) * (2 * np.random.default_rng(0).random((4, 65536)) - 1)
    wang = fp.Format("wang", 6, 9)
    hows = [
        fp.Sequential(wang), fp.Sequential("bf16"), fp.Sequential("fp16", overflow="saturate"), fp.Chunked(wang),
        fp.Chunked("bf16"), fp.Sequential(wang, **SR),
    ]  # fmt: skip
    stops = [4096, 1024, 8192, 65536, 32768, 65536]
    for row, stop in zip(drift(x, accumulators=hows, lengths=65536).rows, stops, strict=True):
        assert (1 + row.bias) * 65536 == close(stop, 0.02)


def test_stochastic_rounding_is_worse_for_short_sums_and_better_for_long_ones() -> None:
    hows = [fp.Sequential("bf16"), fp.Sequential("bf16", **SR)]
    report = drift("uniform", accumulators=hows, lengths=[100, 1000, 10000], trials=64)
    for how, wanted in zip(hows, ([0.0077, 0.487, 0.949], [0.0118, 0.022, 0.035]), strict=True):
        for row, want in zip(report.of(how), wanted, strict=True):
            assert row.mean_relative == close(want, 0.35)
    assert report.of(hows[1])[0].mean_relative > report.of(hows[0])[0].mean_relative


# ---- reports


def test_merged_reports_pool_their_trials() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12, 64)).astype(np.float32)
    how = fp.Sequential("bf16")
    whole = drift(x, accumulators=how, lengths=[8, 64])
    merged = drift(x[:5], accumulators=how, lengths=[8, 64]).merge(drift(x[5:], accumulators=how, lengths=[8, 64]))
    for got, want in zip(merged.rows, whole.rows, strict=True):
        mine, others = got.to_dict(), want.to_dict()
        assert (mine.pop("accumulator"), mine.pop("reason")) == (others.pop("accumulator"), others.pop("reason"))
        assert mine == pytest.approx(others, rel=1e-12)


def test_merging_adds_accumulators_and_refuses_the_same_trials_twice() -> None:
    first, second = (drift(accumulators=how, lengths=[8]) for how in (fp.Sequential("bf16"), fp.Exact("bf16")))
    assert first.merge(second).accumulators == ("Sequential(BF16)", "Exact(BF16)")
    with pytest.raises(ValueError, match="must not hold the same trials twice"):
        first.merge(first)
    with pytest.raises(ValueError, match="must have the same a"):
        first.merge(drift("uniform", accumulators=fp.Exact("bf16"), lengths=[8]))


def test_the_sentence_names_the_regime() -> None:
    lengths = [2**i for i in range(7, 14)]
    hows = [fp.Sequential("bf16"), fp.Pairwise("bf16"), fp.FusedMultiplyAdd("fp32"), fp.Exact("fp32")]
    text = str(drift("uniform", accumulators=hows, lengths=lengths))
    assert text.startswith("sums of uniform (32 trials): Sequential(BF16) stagnates from 512 terms on")
    assert "the error of Pairwise(BF16) hardly grows with the length" in text
    assert "FusedMultiplyAdd(FP32) grows as length ** 0." in text
    ones = drift(np.ones((1, 64)), accumulators=fp.Sequential("fp32"), lengths=[8, 64])
    assert ones.regimes[0].word == "exact"
    assert "too few lengths" in str(drift("uniform", accumulators=hows[0], lengths=8))


def test_frames_pages_and_figures_hold_every_row() -> None:
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    report = drift("uniform", accumulators=[fp.Sequential("bf16"), (HOPPER, 128)], lengths=[64, 1024, 2048, 4096])
    frame = report.to_frame()
    assert len(frame) == 8
    assert frame["norm_relative"].tolist() == [row.norm_relative for row in report.rows]
    assert report._repr_html_().count("<tr>") == 9
    ax = report.plot()
    drawn = [line.get_ydata() for line in ax.get_lines()]
    for name in report.accumulators:
        assert any(list(y) == [row.norm_relative for row in report.of(name)] for y in drawn)
    ax.figure.canvas.draw()
    matplotlib.pyplot.close(ax.figure)


# ---- bad input

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"a": "norml"}, ValueError, "a must be one of normal, .*; got 'norml'. Did you mean 'normal'?"),
    ({"b": "gauss"}, ValueError, "b must be one of"),
    ({"a": np.ones((2, 9), int)}, TypeError, "a must be an array of float16, .*; got int64"),
    ({"a": np.ones(9)}, ValueError, r"a must be an array \(trials, K\).*got shape \(9,\)"),
    ({"a": np.ones((0, 9))}, ValueError, r"a must be an array \(trials, K\)"),
    ({"a": np.ones((2, 7))}, ValueError, "a must have as many terms as the longest length, 8; got 7"),
    ({"a": np.full((2, 9), np.nan)}, ValueError, "a must have finite terms, .*; got 16 NaN or Inf"),
    ({"a": np.ones((2, 9)), "b": np.ones((3, 9))}, ValueError, "same number of trials; got 2 and 3"),
    ({"accumulators": []}, ValueError, "accumulators must name at least one"),
    ({"accumulators": 3}, TypeError, "accumulators must be one or several of"),
    ({"accumulators": [3]}, TypeError, "an accumulator must be a unit or its name"),
    ({"accumulators": "hopper_e4m3"}, ValueError, "Did you mean"),
    ({"accumulators": [("hopper_e4m3_f32", 100)]}, ValueError, "multiple of the 32 that hopper_e4m3_f32 adds"),
    ({"accumulators": [(fp.Exact("fp32"), 128)]}, TypeError, "an accumulator must be"),
    ({"lengths": []}, ValueError, "lengths must be positive integers"),
    ({"lengths": [8, 0]}, ValueError, "lengths must be positive integers"),
    ({"lengths": [2.0]}, ValueError, "lengths must be positive integers"),
    ({"lengths": np.array(8)}, TypeError, "lengths must be positive integers"),
    ({"lengths": "12"}, TypeError, "lengths must be positive integers"),
    ({"lengths": [1 << 40]}, ValueError, "drift holds at most 134217728 terms"),
    ({"trials": 0}, ValueError, "trials must be an integer >= 1"),
    ({"seed": -1}, ValueError, "seed must be an integer >= 0"),
    ({"confidence": 1.0}, ValueError, "confidence must be a number between 0 and 1"),
    ({"factor": 0}, ValueError, "factor must be a positive number"),
    ({"fmt": "e9m9"}, ValueError, "e9m9"),
    ({"accumulators": HOPPER, "fmt": "e4m3"}, ValueError, "fmt is for accumulators other than matrix units"),
]  # fmt: skip


@in_turn("changed, kind, match", WRONG)
def test_bad_input_gets_one_clear_sentence(changed: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as raised:
        drift(**{"accumulators": [fp.Exact("fp32")], "lengths": [8], **changed})
    assert "\n" not in str(raised.value)


def test_the_format_is_taken_by_its_old_name_too() -> None:
    call: dict[str, Any] = {"a": "uniform", "accumulators": fp.Sequential(fp.BF16), "lengths": [8], "trials": 2}
    with pytest.warns(DeprecationWarning, match="format= is now called fmt="):
        old = drift(**call, format="e4m3")  # type: ignore[call-arg]
    assert old == drift(**call, fmt="e4m3")


def test_meta_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="meta device"):
        drift(torch.empty(2, 8, device="meta"), accumulators=HOPPER, lengths=8)
