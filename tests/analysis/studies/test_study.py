"""The study: rows are those of `error`, recommendations follow the stated rules, bad files do not stop it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.measures.error_report import METRICS
from fpsim.analysis.studies.candidates import DEFAULT
from fpsim.analysis.studies.report import StudyReport


def f32(*values: float) -> Any:
    """Make a float32 array."""
    return np.array(values, np.float32)


NORMAL = np.random.default_rng(0).standard_normal(4000).astype(np.float32)


def study(tensors: Any, **options: Any) -> StudyReport:
    return fp.analysis.study(tensors, **options)


def test_rows_are_those_of_error_also_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor that fits into a slab and one of three, with scales of every kind, beside error on the whole array."""
    monkeypatch.setattr("fpsim.analysis.studies.measuring.SLAB", slab := 1 << 19)
    for rows in (300, 2 * slab // 512 + 77):
        x = np.random.default_rng(3).standard_normal((rows, 512)).astype(np.float32)
        x[0, :3] = [np.nan, np.inf, 50.0]
        report = study({"a.weight": x}, seed=9)
        by_name = {candidate.scaling_name: candidate.scaling for candidate in DEFAULT}
        assert {(row.report.format, row.scaling) for row in report.errors} == {
            (c.element.name, c.scaling_name) for c in DEFAULT
        }
        for row in report.errors:
            scaling: Any = by_name[row.scaling]
            option = {"scaling": scaling} if isinstance(scaling, fp.Scaling) else {"scale": scaling}
            want = fp.analysis.error(x, row.report.format, rounding=row.report.rounding, seed=9, **option)
            got = row.report.to_dict()
            for name, value in want.to_dict().items():
                same = got[name] == value or (got[name] != got[name] and value != value)
                close = name in ("sqnr_db", "gain", "mse", "bias", "mean_ulp", "mean_relative", "lost_energy")
                assert same or (close and got[name] == pytest.approx(value, rel=1e-12)), (row.scaling, name)
            assert row.report.scales == want.scales
        assert report.ranges[0].report == fp.analysis.range(x)


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize(("shape", "block"), [
    ((600, 60), (16, 16)), ((100, 64), (-1, 16)), ((5000,), (-1, 16)), ((5000,), (1, 1009)), ((600, 64), (1, 16)),
])  # fmt: skip
def test_scales_of_two_levels_and_odd_tiles_are_those_of_the_whole_tensor(
    shape: tuple[int, ...], block: tuple[int, ...], rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of several rows crashed the study, a wide tile of a row was cut, and every slab drew the same numbers."""
    monkeypatch.setattr("fpsim.analysis.studies.measuring.SLAB", 1 << 13)
    monkeypatch.setattr("fpsim.analysis.studies.measuring.SAMPLE", 60 * 40)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    scaling = fp.Scaling(block=block, scale_format=fp.E4M3, tensor_scale=True)
    report = study({"w": x}, formats="e2m1", scalings=scaling, roundings=rounding).errors[0].report
    whole = fp.analysis.error(x, "e2m1", scaling=scaling, rounding=rounding, seed=0)
    assert report.sqnr_db == pytest.approx(whole.sqnr_db, rel=1e-12)
    assert (report.scales, report.scale_bits) == (whole.scales, whole.scale_bits)


def test_a_scale_at_its_limit_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that brings the largest value into every slab counted as a tile with a scale at its limit."""
    monkeypatch.setattr("fpsim.analysis.studies.measuring.SLAB", 1 << 13)
    x = np.random.default_rng(4).standard_normal((600, 64)).astype(np.float32)
    scales = study({"w": x}, formats="e2m1", scalings="nvfp4", roundings="nearest_even").errors[0].report.scales
    assert scales == fp.analysis.error(x, "e2m1", scaling="nvfp4").scales
    assert scales is not None
    assert scales.clamped_high == 1


@pytest.mark.parametrize("exponent", [-120, -60, 60])
def test_channels_of_tiny_and_huge_tensors_are_judged_as_all_others(exponent: int) -> None:
    """Squares in float32 made the SQNR of the channels of gradients around 1e-30 NaN, so that any channel passed."""
    x = NORMAL.reshape(40, 100).copy()
    x[:, ::4] *= np.float32(2.0**-9)
    chosen = [
        study({"w.grad": x * np.float32(2.0**power)}, formats="e4m3", scalings="amax").errors[0].channel_sqnr_db
        for power in (0, exponent)
    ]
    assert chosen[1] == pytest.approx(chosen[0], rel=1e-3)


def test_an_outlier_hides_no_lost_channels() -> None:
    """Squares relative to an outlier of 2**90 were 0 in float32, so that channels that become 0 were not counted."""
    x = NORMAL.reshape(40, 100).copy()
    x[0, 0] = 2.0**90
    errors = study({"w": x}, formats="e4m3", scalings=["amax", fp.scalings.MX], roundings="nearest_even").errors
    by_scaling = {row.scaling: row.channel_sqnr_db for row in errors}
    assert by_scaling["amax"] == 0
    assert 10 < by_scaling["fp.scalings.MX"] < 30


def test_other_roundings_are_measured_for_a_format_of_few_bits_and_one_of_many() -> None:
    report = study({"w": NORMAL.reshape(40, 100)})
    modes = {(row.report.format, row.scaling): [] for row in report.errors}  # type: ignore[var-annotated]
    for row in report.errors:
        modes[row.report.format, row.scaling].append(row.report.rounding)
    assert modes["E4M3", "amax"] == modes["BF16", "none"] == ["nearest_even", "toward_zero", "stochastic"]
    assert modes["E4M3", "none"] == modes["FP16", "none"] == modes["INT8", "fp.scalings.ROW"] == ["nearest_even"]


def test_the_order_of_roundings_changes_no_recommendation() -> None:
    """Found by a reader: channels were judged in the first rounding, though recommendations use nearest-even."""
    w = (NORMAL[:3600] * 0.06).reshape(60, 60).astype(np.float32)
    w[:, ::4] *= 0.02  # channels that E4M3 without a scale rounds badly
    chosen = [
        study({"w": w}, formats=["e4m3"], scalings=[None], roundings=order).recommendations
        for order in (("nearest_even", "toward_zero"), ("toward_zero", "nearest_even"))
    ]
    assert str(chosen[0]) == str(chosen[1])  # as text, where NaN equals NaN
    assert chosen[0][0].format != "E4M3"


def test_operands_alone_get_few_bits() -> None:
    x = NORMAL.reshape(40, 100)
    tensors = {
        "fc.weight": x, "fc.bias": x[0], "bn.weight": x[1], "bn.running_var": x[2] ** 2, "wte.weight": x,
        "exp_avg.fc.weight": x, "conv.weight": NORMAL[:3600].reshape(20, 20, 3, 3), "gain": np.float32(2.0),
    }  # fmt: skip
    report = study(tensors)
    roles = {row.tensor: row.role for row in report.recommendations}
    assert roles == {
        "fc.weight": "matrix", "fc.bias": "bias", "bn.weight": "norm", "bn.running_var": "statistics",
        "wte.weight": "embedding", "exp_avg.fc.weight": "optimizer_state", "conv.weight": "matrix", "gain": "scalar",
    }  # fmt: skip
    for row in report.recommendations:
        assert row.met == row.operand
        assert (row.bits_per_value == 32) != row.met
        if not row.met:
            assert row.reason.endswith("Keep it in 16 or 32 bits.")
            assert all(error.report.fmt.bits >= 16 for error in report.errors_of.get(row.tensor, ()))
    assert "operands" not in report.answer
    assert report.stored_bytes == 4 * sum(np.size(x) for x in tensors.values())


def test_roles_and_steps_may_be_given() -> None:
    x = NORMAL.reshape(40, 100)
    steps = [fp.analysis.tensor("h", x * np.float32(4.0**step), role="activation", step=step) for step in (1, 2, 3)]
    report = study([*steps, fp.analysis.tensor("w", x, role="matrix", layer="block")])
    assert [row.step for row in report.ranges_of["h"]] == [1, 2, 3]
    assert {row.role for row in report.ranges} == {"activation", "matrix"}
    chosen = report.recommendations[0]
    worst = [row.report.sqnr_db for row in report.errors_of["h"] if (row.report.format, row.scaling) == ("E4M3", "amax")
             and row.report.rounding == "nearest_even"]  # fmt: skip
    assert (chosen.choice, chosen.sqnr_db) == ("E4M3 with one scale", min(worst))
    with pytest.raises(ValueError, match=r"role must be one of .* got array"):
        fp.analysis.tensor("w", np.ones(3), role=np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"role must be one of .* Did you mean 'activation'"):
        fp.analysis.tensor("h", x, role="activations")


def test_scalars_never_make_the_headline() -> None:
    """Hundreds of scalars beside one matrix, as exported graphs have them."""
    scalars = {f"constant.{i}": np.float32(6.0) for i in range(250)}
    report = study({**scalars, "w.weight": NORMAL.reshape(40, 100)})
    assert re.match(r"(E4M3|INT8) with .* for 1 weight \(94.1 % of the values", report.answer)
    assert [group.title for group in report.groups] == ["1 weight", "250 scalars"]
    assert report.groups[1].choice == "keep their dtype"
    assert study({"w.weight": NORMAL.reshape(40, 100), "w.bias": NORMAL[:40]}).groups[1].choice == "keeps its dtype"


def test_outlier_channels_rule_out_what_destroys_the_others() -> None:
    """One channel with nearly all of the energy: the SQNR of the whole is high in few bits, and says nothing."""
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    x[:, 7] *= 3000
    report = study({"w.weight": x})
    row = report.recommendations[0]
    assert row.format == "E4M3"
    assert "INT8 with 1x128 scales" in row.reason
    assert "or less in a tenth of the channels" in row.reason
    int4 = next(e.report for e in report.errors if e.report.format == "INT4")
    assert int4.sqnr_db > 50


def test_dead_channels_rule_out_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)
    x[:, ::5] *= np.float32(2.0**-40)
    assert study({"w.weight": x}).recommendations[0].format in ("E4M3", "INT8")


def test_one_candidate_for_all_operands_is_preferred() -> None:
    rng = np.random.default_rng(0)
    gentle = rng.standard_normal((64, 256)).astype(np.float32)
    harsh = gentle.copy()
    harsh[:, 7] *= 3000
    alone = study({"a.weight": gentle}).recommendations[0]
    both = study({"a.weight": gentle, "b.weight": harsh})
    assert alone.format == "INT8"
    assert both.uniform is not None
    assert {row.format for row in both.recommendations} == {"E4M3"}
    assert both.uniform.share == 1.0
    assert "which other operands do not have" in both.recommendations[0].reason


@pytest.mark.parametrize("shape", [(4096, 2), (1024, 4), (200, 2), (16384, 1)])
def test_scales_of_short_rows_are_bits_too(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (row,) = study({"a.weight": x}).recommendations
    assert (row.format, row.bits_per_value) == ("E4M3", 8.0)
    assert "INT4 with 1x32 scales" in row.reason
    assert re.search(r"INT8 with a scale per row, [\d.]+ dB more, but \d+ bits with its scales\.", row.reason)
    assert re.search(r"not good enough: INT4 with 1x32 scales has \d+ bits with its scales\.", row.reason)


def test_no_recommendation_takes_more_bits_than_another_that_is_as_good() -> None:
    rng = np.random.default_rng(3)
    for shape in [(64, 3), (40, 9), (30, 17), (20, 40), (9, 300)]:
        report = study({"a.weight": rng.standard_t(3, shape).astype(np.float32)})
        (row,) = report.recommendations
        good = [
            one for one in report.errors
            if one.report.sqnr_db >= row.sqnr_db and one.report.lost_energy <= row.lost_energy and one.scaling != "none"
        ]  # fmt: skip
        assert good
        assert all(one.report.bits_per_value >= row.bits_per_value / 1.05 for one in good)


def test_requirements_are_parameters() -> None:
    x = {"w.weight": np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)}
    four = study(x, min_sqnr=18.0, max_lost=0.01).recommendations[0]
    assert (four.met, four.bits_per_value < 5, four.sqnr_db >= 18) == (True, True, True)
    sixteen = study(x, min_sqnr=60.0).recommendations[0]
    assert (sixteen.format, sixteen.met) == ("FP16", True)
    none = study(x, min_sqnr=200.0).recommendations[0]
    assert not none.met
    assert none.reason.startswith("No candidate is good enough. The closest, ")
    budget = study(x, budget_bits=8.0).recommendations[0]
    assert budget.bits_per_value <= 8.0
    lossless = study(x, max_lost=0.0)
    assert all(row.lost_energy == 0 for row in lossless.recommendations if row.met)
    for wrong in ({"min_sqnr": "high"}, {"max_lost": 2}, {"budget_bits": 0.5}, {"min_sqnr": math.nan}):
        with pytest.raises(ValueError, match="must be a number from"):
            study(x, **wrong)


def test_small_and_gradient_like_tensors_get_scales_and_weights_of_training_no_integers() -> None:
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((256, 256)) / 16).astype(np.float32)
    g = (rng.standard_normal((256, 256)) * 2.0 ** (6 * rng.standard_normal((256, 1)) - 30)).astype(np.float32)
    report = study({"w.weight": w, "w.grad": g})
    assert all(fp.format(row.format) for row in report.recommendations if row.met)
    choice = {row.tensor: row for row in report.recommendations}["w.grad"]
    assert choice.scaling == "fp.scalings.ROW"


def test_where_nothing_fits_it_says_so() -> None:
    row = study({"w": NORMAL}, formats=("E2M1",), scalings=(None, "amax")).recommendations[0]
    assert (row.format, row.met) == ("float32", False)
    assert row.reason.startswith("No candidate is good enough. The closest, E2M1 with one scale, has ")
    for empty in (np.zeros(5, np.float32), f32(np.nan, np.inf), np.zeros(0, np.float32)):
        row = study({"w": empty}).recommendations[0]
        assert not row.met
        assert "nothing to judge" in row.reason


def test_integers_in_a_state_dict_are_left_out_and_said() -> None:
    report = study({"w": NORMAL.reshape(40, 100), "steps": np.arange(4)})
    assert report.notes == ("steps left out, it holds int64 and not floats",)
    with pytest.raises(TypeError, match="must be an array of float16"):
        study({"steps": np.arange(4)})
    with pytest.raises(TypeError, match="tensors must hold floats; got 2 arrays of integers"):
        study({"a": np.arange(4), "b": np.arange(3)})


def test_two_studies_compare() -> None:
    pytest.importorskip("pandas")
    x = NORMAL.reshape(40, 100)
    wide = x * np.float32(2) ** (x * 12)
    before, after = (
        study(tensors, formats="E4M3", scalings="amax") for tensors in ({"a": x, "b": x}, {"a": x, "b": wide, "c": x})
    )
    frame = before.compare(after)
    assert frame["tensor"].tolist()[0] in ("b", "c")
    changes = dict(zip(frame["tensor"], frame["change_db"], strict=True))
    assert changes["a"] == 0
    assert changes["b"] != 0
    assert math.isnan(changes["c"])


def test_frames_and_plots() -> None:
    pytest.importorskip("pandas")
    report = study({"w": NORMAL})
    frame = report.to_frame()
    assert len(frame) == len(report.errors)
    assert {"tensor", "scaling", *METRICS} <= set(frame.columns)
    assert not math.isnan(frame["sqnr_db"].max())
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().add_subplot()
    assert report.plot(ax) is ax
    assert report.ranges[0].report.plot(ax) is ax


def test_formats_of_ones_own_are_studied_like_any_other(tmp_path: Path) -> None:
    mine = fp.Format("mine", exponent_bits=3, mantissa_bits=2)
    x = np.random.default_rng(0).standard_normal(1000)
    report = fp.analysis.study({"x": x}, formats=[mine, "p3109_k6p3se"], roundings=["nearest_even"])
    assert [row.report.fmt for row in report.errors if row.scaling == "none"] == [mine, fp.format("p3109_k6p3se")]
    report.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "mine: 6 bits = 1 sign + 3 exponent" in page


def test_a_group_has_one_format_where_it_is_good_enough() -> None:
    """Found on a real model: two of seven weights had E4M3 and the others INT8, in as many bits."""
    rng = np.random.default_rng(0)
    weights = {f"layers.{i}.fc.weight": rng.standard_normal((256, 256)).astype(np.float32) for i in range(7)}
    for i in (2, 5):
        weights[f"layers.{i}.fc.weight"] *= np.exp(2 * rng.standard_normal((256, 256))).astype(np.float32)
    weights["layers.7.fc.weight"] = (10 ** rng.uniform(-12, 4, (512, 512))).astype(np.float32)
    rows = {row.tensor: row for row in fp.analysis.study(weights).recommendations}
    assert {row.choice for name, row in rows.items() if "7" not in name} == {"INT8 with 1x128 scales"}
    assert rows["layers.7.fc.weight"].bits_per_value < 5
    assert "which other operands do not have" in rows["layers.2.fc.weight"].reason


def test_scales_per_row_suit_where_smaller_tiles_gain_less_than_a_decibel() -> None:
    """Tokens of very different sizes, for which row scales are as good as 1x128 and cost less."""
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((256, 1024)).astype(np.float32)
    tokens *= np.float32(2.0) ** rng.integers(-30, 30, (256, 1)).astype(np.float32)
    for width, bits, more in ((1024, 8.03125, "only 0.4 dB more for another 0.22 bits"), (64, 8.5, "the same SQNR")):
        h = fp.analysis.tensor("h", tokens[:, :width].copy(), role="activation")
        (row,) = fp.analysis.study([h], roundings="nearest_even").recommendations
        assert (row.choice, row.bits_per_value) == ("E4M3 with a scale per row", bits)
        assert f"E4M3 with 1x128 scales has {more}." in row.reason
    tokens *= np.repeat(np.float32(2.0) ** np.arange(0, -160, -20, dtype=np.float32), 128)
    (row,) = fp.analysis.study([fp.analysis.tensor("h", tokens, role="activation")]).recommendations
    assert row.choice == "E4M3 with 1x128 scales"
