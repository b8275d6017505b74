"""The verdicts of a study on tensors that no trained model has: exact, constant, huge and tiny ones."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.page import KEPT, page
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.studies.summaries import candidate_summaries, rounding_summaries

NORMAL = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def study(tensors: Any, **options: Any) -> StudyReport:
    return fp.analysis.study(tensors, **options)


def test_exact_candidates_have_the_same_sqnr() -> None:
    """Differences of infinite SQNRs were written as "nan dB less" and "inf dB less"."""
    tensors = {"w": NORMAL, "w.grad": NORMAL * np.float32(2.0**-10), "sign": np.sign(NORMAL)}
    for scalings in ([None, "amax"], [None, "amax", fp.scalings.ROW, fp.scalings.TILE_1X128]):
        report = study(tensors, formats=["e4m3", "e5m2", "bf16"], scalings=scalings)
        row = report.recommendations[-1]
        assert (row.sqnr_db, row.margin_db) == (math.inf, 0.0)
        assert "Runner-up: E5M2" in row.reason
        assert "the same SQNR" in row.reason
        assert not any(word in row.reason for row in report.recommendations for word in ("nan", "inf "))


def test_a_tensor_beyond_the_range_has_no_finite_result() -> None:
    """Its SQNR was said to be unknown since squares overflow, and the medians of other tensors were wrong."""
    tensors = {f"w{i}": NORMAL if i < 3 else np.full((64, 64), 1e6, np.float32) for i in range(5)}
    report = study(tensors, formats=["e4m3", "fp16"], scalings=[None])
    assert "E4M3 without a scale, has 100 % of the values beyond its range and no finite result." in (
        report.recommendations[-1].reason
    )
    for one in candidate_summaries(report):
        known = [row.worst.sqnr_db for row in one.judged if not math.isnan(row.worst.sqnr_db)]
        assert len(known) == 3
        assert one.median_db == sorted(known)[1]
        assert math.isnan(one.sqnr_db)


def test_the_closest_candidate_is_within_the_budget_of_bits_or_next_to_it() -> None:
    """FP16 was called the closest to a budget of 4 bits, since its SQNR is the highest."""
    closest_to = {4: "E2M1 with MX scales, has 4.25 bits per value (more than 4) and", 4.5: "INT4 with 1x32 scales"}
    for bits, closest in closest_to.items():
        reason = study({"w": NORMAL}, budget_bits=bits).recommendations[0].reason
        assert reason.startswith(f"No candidate is good enough. The closest, {closest}")


@pytest.mark.parametrize("fmt", [fp.INT8, fp.NF4])
def test_activations_without_a_float_candidate_keep_their_dtype(fmt: Any) -> None:
    """The report raised "max() arg is an empty sequence" where its recommendations were read."""
    tensors = [fp.analysis.tensor("h", NORMAL, role="activation")]
    report = study(tensors, formats=[fmt], scalings=fp.Scaling(block=(1, 64)))
    assert report.recommendations[0].reason.startswith("Not judged: the study has activations or gradients")
    assert report.answer.startswith("The tensor should not be stored in fewer bits")
    assert "No operand of a product was judged." in page(report, [])
    assert report.uniform is None


def test_a_step_of_zeros_moves_by_no_number() -> None:
    steps = [fp.analysis.tensor("h", NORMAL * np.float32(i), role="activation", step=i) for i in (0, 1, 3)]
    assert "<summary>Steps</summary>" in page(study(steps, formats="e4m3"), [])
    assert "moves by up to 3 times" in page(study(steps[1:], formats="e4m3"), [])


def test_an_operand_whose_sqnr_is_unknown_is_an_exception() -> None:
    """The page said that every operand has a candidate that is good enough."""
    report = study({"a": NORMAL, "b": NORMAL.astype(np.float64) * 1e200})
    row = report.recommendations[1]
    assert row.reason.startswith("No candidate is good enough.")
    assert row.failed
    html = page(report, [])
    assert "every operand has a candidate that is good enough" not in html
    assert html.index("Exceptions") < html.index("no candidate is good enough") < html.index("All tensors, grouped")
    assert KEPT in html
    assert math.isnan(report.groups[-1].sqnr_db)


@pytest.mark.parametrize("value", [1e-158, 5e-160])
def test_noise_may_exceed_the_signal_by_any_factor(value: float) -> None:
    """Rounding up tiny values has an SQNR of -3,000 dB, whose ratio is beyond the range of float64 (OverflowError)."""
    report = study({"w": np.full((64, 64), value)}, formats=["e4m3", "bf16"], roundings="up")
    for one in candidate_summaries(report):
        assert one.sqnr_db == pytest.approx(one.judged[0].worst.sqnr_db, nan_ok=True)
    assert "candidates-matrix" in page(report, [])


def test_a_page_of_many_steps_lists_and_draws_some() -> None:
    """Pictures raised an error from five steps on."""
    pytest.importorskip("matplotlib")
    steps = [fp.analysis.tensor("h", NORMAL * np.float32(1 + i), role="activation", step=i) for i in range(30)]
    text = page(study(steps, formats="e4m3", scalings="amax"), [])
    assert "1 tensor at 30 steps from 0 to 29, " in text
    (cell,) = re.findall(r"<td class=\"text\">([\d., ]*\.\.\.[\d., ]*)</td>\s*<td class=\"n\"", text)
    assert len(cell.split(", ")) == 13
    assert "1 tensor at steps 0, 1, 2, 3, 4, 5, " in page(study(steps[:6], formats="e4m3", scalings="amax"), [])


def test_a_tensor_without_error_is_not_said_to_be_below_normal_data() -> None:
    assert "no error in E2M1 with MX scales.</p>" in page(study({"w": np.ones((256, 256), np.float32)}), [])


@pytest.mark.parametrize("scalings", [[None, "amax"], ["amax", None]])
def test_the_roundings_of_a_format_are_compared_with_a_scale(scalings: Any) -> None:
    report = study({"w": NORMAL}, formats="e4m3", scalings=scalings)
    assert [(row.scaling, row.rounding) for row in rounding_summaries(report)] == [
        ("amax", "nearest_even"), ("amax", "toward_zero"), ("amax", "stochastic"),
    ]  # fmt: skip
    assert "rounding, and E4M3 with one scale also with toward zero and stochastic rounding." in page(report, [])
    assert "also with" not in page(study({"w": NORMAL}, formats="e4m3", scalings=fp.scalings.MX), [])


def test_numbers_of_numpy_are_requirements() -> None:
    report = study({"w": NORMAL}, budget_bits=np.int64(8), min_sqnr=np.float32(30))
    assert report == study({"w": NORMAL}, budget_bits=8, min_sqnr=30.0)
    assert type(report.requirements.budget_bits) is float


def test_a_better_runner_up_of_more_bits_is_dear() -> None:
    """A study of one tensor said that other operands do not have the runner-up."""
    x = np.random.default_rng(6).standard_t(2.5, (64, 64)).astype(np.float32)
    scalings = ["amax", fp.scalings.MX, fp.scalings.TILE_1X128]
    (row,) = study({"w": x}, formats=["e4m3", "e3m4", "int8"], scalings=scalings, min_sqnr=20).recommendations
    assert (row.choice, row.runner_up) == ("INT8 with MX scales", "E3M4 with 1x128 scales")
    assert row.reason.endswith("Runner-up: E3M4 with 1x128 scales, 2.7 dB more, but 8.5 bits with its scales.")


def test_cheaper_scales_that_others_do_not_have_are_told_of() -> None:
    rng = np.random.default_rng(0)
    tensors = {f"w{i}": rng.standard_normal((64, 64)).astype(np.float32) for i in range(3)}
    tensors = {name: x * np.exp2(rng.integers(-9, 9, (64, 64))).astype(np.float32) for name, x in tensors.items()}
    tensors["gentle"] = NORMAL
    rows = study(tensors, formats="e4m3", scalings=[None, "amax", fp.scalings.MX]).recommendations
    assert {row.choice for row in rows} == {"E4M3 with one scale"}
    said = "E4M3 without a scale has the same SQNR at 8 bits, but other operands do not have it."
    assert [row.reason.endswith(said) for row in rows] == [False, False, False, True]
