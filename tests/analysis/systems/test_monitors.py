"""Figures of a training as it runs: lines, event files, the first overflow over ranks, and the page."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.models.step_figures import StepFigures
from fpsim.analysis.systems.monitors.overflow import Overflow

torch = pytest.importorskip("torch")


def trained(steps: int, *listeners: Any, spoilt: int = 0, scaler: Any = None) -> fp.analysis.Recording:
    """The recording of a few steps; the input of one of them holds Inf."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    with fp.analysis.record(model, scaler=scaler) as recording:
        for listener in listeners:
            recording.listen(listener)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            x = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
            if step == spoilt:
                x[3, 5] = math.inf
            model(x).square().mean().backward()
            optimizer.step()
    return recording


def test_listeners_get_the_figures_of_the_monitors_as_each_step_ends() -> None:
    seen: list[StepFigures] = []
    recording = trained(3, seen.append)
    assert [figures.step for figures in seen] == [1, 2, 3]
    for figures, row in zip(seen, recording.monitors, strict=True):
        assert (figures.gradient_norm, figures.update_ratio) == (row["gradient_norm"], row["update_ratio"])
        ranges = [one.range for one in recording if one.step == figures.step and one.role == "activation"]
        assert figures.amax == max(one.amax for one in ranges)
        assert figures.smallest == min(one.smallest for one in ranges)
        assert figures.overflow is None


def test_lines_come_every_so_many_steps_and_where_something_overflows() -> None:
    text = io.StringIO()
    trained(7, fp.analysis.to_terminal(text, every=3), spoilt=6)
    lines = text.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 1", "step 4", "step 6", "step 7"]
    assert lines[2].endswith("Inf or NaN first in the input of layer 0")
    assert "gradient norm nan" in lines[2]


def test_a_step_that_is_skipped_is_said() -> None:
    class Scaler:
        scale = 1024.0

        def get_scale(self) -> float:
            return self.scale

    scaler, text = Scaler(), io.StringIO()
    model = torch.nn.Sequential(torch.nn.Linear(32, 64))
    with fp.analysis.record(model, scaler=scaler) as recording:
        recording.listen(fp.analysis.to_terminal(text, every=9))
        for _ in range(3):
            model(torch.ones(64, 32)).sum().backward()
            scaler.scale /= 2
    assert "loss scale 1024, step skipped" in text.getvalue()


def test_event_files_hold_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recording = trained(4, fp.analysis.to_events(tmp_path / "events"), spoilt=4)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    norms = {event.step: event.value for event in events.Scalars("gradient_norm")}
    wanted = {row["step"]: row["gradient_norm"] for row in recording.monitors if not math.isnan(row["gradient_norm"])}
    assert norms == pytest.approx(wanted, rel=1e-6)  # event files hold float32
    assert [event.value for event in events.Scalars("overflow")] == [0, 0, 0, 1]


def test_without_tensorboard_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    with pytest.raises(ImportError, match="event files needs tensorboard, which is not installed: pip install tens"):
        fp.analysis.to_events(tmp_path)


def test_the_first_overflow_is_found_over_ranks(tmp_path: Path) -> None:
    whole, late, early = trained(5), trained(5, spoilt=4), trained(5, spoilt=3)
    early.save(tmp_path / "rank-2.npz")
    assert fp.analysis.first_overflow(whole) is None
    found = fp.analysis.first_overflow([whole, late, tmp_path / "rank-2.npz"])
    assert found == Overflow(3, 2, "0", "input", 1, 0, 1, 3)
    assert str(found) == "Inf or NaN first at step 3 on rank 2, in the input of layer 0: 1 Inf and 0 NaN."
    both = fp.analysis.first_overflow([early, early])
    assert both is not None
    assert (both.rank, both.ranks) == (0, 2)
    assert str(both).endswith("; 2 ranks had one at that step.")
    assert " on rank " not in str(fp.analysis.first_overflow(early))


def test_the_page_says_what_overflowed_and_marks_it(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    place = fp.analysis.monitors_page(trained(3, spoilt=3), tmp_path / "pages" / "run.html")
    text = place.read_text()
    assert "<h1>Inf or NaN first at step 3, in the input of layer 0: 1 Inf and 0 NaN.</h1>" in text
    assert text.count('class="marked"') >= 5
    assert "Gradients and updates" in text
    assert "inf</td>" not in text
    healthy = fp.analysis.monitors_page(trained(2), tmp_path / "healthy.html").read_text()
    assert "<h1>No tensor held Inf or NaN.</h1>" in healthy
    assert 'class="marked"' not in healthy


def test_bad_input_is_refused(tmp_path: Path) -> None:
    loose: Any = fp.analysis
    with pytest.raises(TypeError, match=r"recordings must be a recording or its file, .*; got None"):
        fp.analysis.first_overflow(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="recordings must hold one recording for each rank; got none"):
        fp.analysis.first_overflow([])
    with pytest.raises(ValueError, match="every must be an integer >= 1; got 0"):
        fp.analysis.to_terminal(every=0)
    with pytest.raises(TypeError, match="recording must be a recording of"):
        loose.monitors_page("run.npz", tmp_path / "x.html")
    recording = trained(1)
    loose_recording: Any = recording
    with pytest.raises(TypeError, match="listener must be a function of the figures of a step; got 3"):
        loose_recording.listen(3)
    with pytest.raises(ValueError, match="recording must have rows; got none"):
        fp.analysis.monitors_page(fp.analysis.Recording("Sequential", ()), tmp_path / "x.html")
    with pytest.raises(ValueError, match="recordings must be of one model"):
        fp.analysis.first_overflow([recording, fp.analysis.Recording("Sequential", ())])
