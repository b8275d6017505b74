"""What comes of a recording: monitors of updates and scales, files, studies and frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.models.trained import mlp, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

# inputs here are small; a test of its own sees the warning
pytestmark = pytest.mark.filterwarnings("ignore:.* had inputs of fewer than:UserWarning")


def test_updates_that_round_away_are_counted() -> None:
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [2.0**-20], [4.0], [0.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-24)
    scales = torch.tensor([1.0, 1.0, 1.0, 0.0])  # gradients: the last row asks for nothing
    with fp.analysis.record(model) as r:
        (model(torch.ones(1, 1)) * scales).sum().backward()
        optimizer.step()
    (one,) = r.monitors
    assert one["gradient_norm"] == 3**0.5
    assert one["lost_updates"] == 1 / 3  # 1 - 2**-24 is a float32, 4 - 2**-24 is 4
    assert one["update_ratio"] == (2 * 2.0**-48) ** 0.5 / (17 + 2.0**-40) ** 0.5
    assert r.monitors.to_frame(by="parameter").parameter.tolist() == ["0.weight"]


def test_a_skipped_step_ends_and_its_fallback_is_noted() -> None:
    class Scaler:
        scale = 4.0

        def get_scale(self) -> float:
            return self.scale

    model, scaler = mlp(), Scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model, scaler=scaler) as r:
        model(torch.randn(64, 32)).sum().backward()
        scaler.scale = 2.0  # instead of a step
        model(torch.randn(64, 32)).sum().backward()
        optimizer.step()
    assert r.steps == (1, 2)
    assert [tuple(one) for one in r.monitors.scales] == [(1, "loss", 4.0, True), (2, "loss", 2.0, False)]


def test_a_scaler_of_torch_is_followed() -> None:
    torch.manual_seed(0)
    model, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model, scaler=scaler) as r:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(64, 32)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert r.steps == (1, 2, 3)
    assert r.monitors.steps == (1, 3)
    assert [(one.step, one.scale, one.fallback) for one in r.monitors.scales] == [
        (1, 8.0, False), (2, 8.0, True), (3, 4.0, False),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_recording_comes_back_from_its_file(kind: str, tmp_path: Path) -> None:
    if kind == "safetensors":
        pytest.importorskip("safetensors")
    _, _, r = training("attention", 2, keep=1, autocast=True)
    path = tmp_path / f"run.{kind}"
    r.save(path)
    again = fp.analysis.Recording.load(path)
    assert list(again) == list(r)
    assert again.monitors == r.monitors
    assert again.steps == r.steps
    assert repr(again) == repr(r)
    for a, b in zip(again.tensors, r.tensors, strict=True):
        assert a == b
        fp.testing.assert_bits_equal(next(a.chunks()), next(b.chunks()))
    assert list(again.merge(r)) == list(r.merge(r))
    with pytest.raises(ValueError, match="this one has ended"):
        again.step()


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "codes.npz"
    fp.encode_scaled(np.ones((4, 32), np.float32), fp.E4M3, fp.scalings.MX).save(path)
    with pytest.raises(ValueError, match="wanted a recording, got a file of something else"):
        fp.analysis.Recording.load(path)


def test_the_study_judges_what_was_kept() -> None:
    _, _, r = training("mlp", 2, keep=2)
    report = r.study(formats="e4m3", scalings=None, roundings="nearest_even")
    assert {row.tensor for row in report.recommendations} == {tensor.name for tensor in r.tensors}
    with pytest.raises(ValueError, match="Pass keep=1 or more"):
        training("mlp", 1)[2].study()


def test_the_frame_has_a_row_for_each_tensor() -> None:
    pytest.importorskip("pandas")
    _, _, r = training("mlp", 2)
    table = r.to_frame()
    assert len(table) == len(r) == 2 * 2 * 5
    assert list(table.columns[:5]) == ["step", "layer", "tensor", "role", "shape"]
    assert {"E4M3_sqnr_db", "E4M3_below", "BF16_sqnr_db"} <= set(table.columns)
    long = r.to_frame(by="format")
    assert len(long) == 2 * len(r)
    report = fp.analysis.error(np.ones(4, np.float32), "bf16")
    assert {"format", *report.to_dict()} - set(long.columns) == {"rounding", "overflow", "subnormals", "bits_per_value"}
    assert long[long.format == "BF16"].sqnr_db.tolist() == table.BF16_sqnr_db.tolist()
    for wrong in (r, r.monitors):
        with pytest.raises(ValueError, match=r"by must be one of .*; got 'layer'"):
            wrong.to_frame(by="layer")


def test_a_sample_has_both_ends_and_all_is_counted() -> None:
    from fpsim.analysis.models.measuring import Measure, sampled

    x = np.arange(10_000, dtype=np.float32)
    assert sampled(x, None) is not None
    assert sampled(x, None).size == 10_000
    spread, (error,) = Measure("bf16", 4096)(x)
    assert spread.count == 10_000
    assert error.count == 4096
    assert sampled(x, 4096)[-1] == 9999


def test_a_recording_and_its_monitors_are_drawn() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    layers = [nn.Linear(8, 8) for _ in range(10)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        layers[7].weight.mul_(2.0**-30)  # lost in E4M3 without a scale
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
    with fp.analysis.record(model) as r:
        for _ in range(2):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    drawn = [label.get_text() for label in r.plot().get_yticklabels()]
    assert len(drawn) == 24  # of 30
    assert "7 weight" in drawn
    names = [name.split(" ", 1) for name in drawn]
    assert [int(layer) for layer, _ in names] == sorted(int(layer) for layer, _ in names)
    assert {which for _, which in names} == {"input", "weight", "output gradient"}
    ax = r.monitors.plot()
    (norm, ratio) = ax.get_lines()
    assert np.asarray(norm.get_ydata()).tolist() == r.monitors.to_frame().gradient_norm.tolist()
    assert np.asarray(ratio.get_xdata()).tolist() == list(r.monitors.steps)
    assert "2 steps; in the last" in r.monitors._repr_html_()


def test_what_was_not_recorded_is_not_drawn() -> None:
    with pytest.warns(UserWarning, match="nothing was recorded"), fp.analysis.record(nn.Linear(4, 4)) as r:
        pass
    with pytest.raises(ValueError, match=r"nothing was recorded that could be drawn\. Run the model in the block"):
        r.plot()
    with pytest.raises(ValueError, match=r"no step of an optimizer was seen\. Call optimizer\.step\(\) in the block"):
        r.monitors.plot()


def test_numbers_of_numpy_are_saved_and_operands_are_drawn_without_formats(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(13)))
    numbers: Any = {"keep": np.int64(1), "seed": np.int64(3), "sample": np.int64(4096), "start": np.int64(2)}
    with fp.analysis.record(model, formats=(), **numbers) as r:
        model(torch.ones(64, 40))
    r.save(tmp_path / "r.npz")
    assert fp.analysis.Recording.load(tmp_path / "r.npz").steps == (2,)
    pytest.importorskip("matplotlib")
    assert r.plot().get_title(loc="left") == "24 of 26 operands, the first"


def test_no_share_of_lost_updates_is_stated_without_a_gradient() -> None:
    from fpsim.analysis.models.monitors import Monitors, Update
    from fpsim.analysis.models.step_figures import figures_of

    monitors = Monitors((Update(1, "w", 0.0, 4.0, 1.0, 0, 0),))
    assert str(monitors) == "1 step; in the last, the gradient norm is 0, update / weight norm 0.5"
    assert str(figures_of(1, [], monitors)) == "step 1: gradient norm 0, update / weight norm 0.5"
