"""fp.analysis.drift: stagnation, known figures, reports, and bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]


drift = fp.analysis.drift


SR: dict[str, Any] = {"rounding": "stochastic", "seed": 3}


HOPPER = "hopper_e4m3_f32"


def close(want: float, rel: float = 0.2) -> Any:
    return pytest.approx(want, rel=rel)


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


def test_reports_on_sums_of_0_are_drawn_without_curves() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    report = drift(np.zeros((2, 4), np.float32), accumulators=fp.Sequential("fp16"), lengths=[1, 4])
    report.plot().figure.canvas.draw()


def test_numbers_of_numpy_are_numbers() -> None:
    settings: dict[str, Any] = {"accumulators": fp.Sequential("bf16"), "lengths": 8}
    report = drift(**settings, confidence=np.float32(0.5), factor=np.int64(2))  # type: ignore[arg-type]
    assert report == drift(**settings, confidence=0.5, factor=2.0)


def test_one_term_is_in_the_singular() -> None:
    assert str(drift(accumulators=fp.Sequential("bf16"), lengths=1)).endswith(" at 1 term.")


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
    drawn = [np.asarray(line.get_ydata()) for line in ax.get_lines()]
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
