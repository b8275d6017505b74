"""Reports as files, work that was stopped and goes on, tables, figures and identities."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.studies.sensitivity.models import E4M3, FP32, made, torch
from tests.kit.forks import fork


def study_and_die(folder: Path) -> None:
    """Run a study whose process kills itself after nine cells."""
    model, batches, loss = made("mlp")
    done = 0

    def progress(share: float, text: str) -> None:
        nonlocal done
        done += 1
        if done > 9:
            os.kill(os.getpid(), signal.SIGKILL)

    fp.analysis.sensitivity(model, batches, loss, recipes=[E4M3, "BF16"], out=folder, progress=progress)


def test_a_killed_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with fork(tmp_path / "said", study_and_die, tmp_path) as process:
        assert process.end() == -signal.SIGKILL, process.errors
    kept = len((tmp_path / "cells.jsonl").read_text().splitlines()) - 1
    assert kept == 9
    model, batches, loss = made("mlp")
    steps: list[str] = []
    report = fp.analysis.sensitivity(
        model, batches, loss, recipes=[E4M3, "BF16"], out=tmp_path, progress=lambda _, text: steps.append(text)
    )
    cells = sum(len(row.batches) for row in report.rows)
    assert len(steps) - 1 == cells - kept  # and the one that says that all is done
    assert report == fp.analysis.sensitivity(model, batches, loss, recipes=[E4M3, "BF16"])


class Counter:
    """The number of calls of a loss; a captured number would be part of the loss itself."""

    runs = 0


def test_what_is_known_is_not_computed_again(tmp_path: Path) -> None:
    model, batches, loss = made("mlp")
    counter = Counter()

    def counted(model: Any, batch: Any) -> Any:
        counter.runs += 1
        return loss(model, batch)

    first = fp.analysis.sensitivity(model, batches, counted, recipes=E4M3, out=tmp_path)
    two = {("0", "fprop"): "E4M3", ("2", "wgrad"): "E4M3"}
    measured, before = first.measure(two), counter.runs
    assert first.measure(two) == measured
    counter.runs = 0
    again = fp.analysis.sensitivity(model, batches, counted, recipes=E4M3, out=tmp_path)
    assert again == first
    assert again.measure(two) == measured
    assert counter.runs == 4 < before  # each batch twice in exact products
    more = fp.analysis.sensitivity(model, batches, counted, recipes=[E4M3, "BF16"], out=tmp_path)
    assert [row for row in more.rows if row.recipe == "E4M3"] == list(first.rows)


def test_a_folder_of_another_model_or_data_is_refused(tmp_path: Path) -> None:
    model, batches, loss = made("mlp")
    fp.analysis.sensitivity(model, batches, loss, recipes=E4M3, out=tmp_path, products="wgrad")
    changes: list[dict[str, Any]] = [{"seed": 1}, {"batches": batches[:1]}, {"model": made("mlp")[0].eval()}]
    with torch.no_grad():
        other = made("mlp")[0]
        other[0].weight[0, 0] += 1e-6
    changes += [{"model": other}, {"loss": lambda model, batch: model(batch[0]).mean()}]
    for change in changes:
        arguments = {"model": model, "batches": batches, "loss": loss, "seed": 0} | change
        first = [arguments.pop(name) for name in ("model", "batches", "loss")]
        with pytest.raises(ValueError, match=r"results of another version, with other weights, settings, batches"):
            fp.analysis.sensitivity(*first, recipes=E4M3, out=tmp_path, products="wgrad", **arguments)


def test_a_folder_of_a_model_of_other_settings_or_code_is_refused(tmp_path: Path) -> None:
    """Measurements of a model of equal weights and another forward pass were taken for the model's own."""

    class Scaled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(16, 8)

        def forward(self, x: Any) -> Any:
            return self.linear(self.factor * x)

    class Shifted(Scaled):
        def forward(self, x: Any) -> Any:
            return self.linear(self.factor + x)

    Shifted.__qualname__ = Scaled.__qualname__
    fp.analysis.sensitivity(Scaled(1.0), [torch.ones(4, 16)], recipes="BF16", out=tmp_path)
    fp.analysis.sensitivity(Scaled(np.float64(1.0)), [torch.ones(4, 16)], recipes="BF16", out=tmp_path)
    for model in (Scaled(0.5), Shifted(1.0)):
        with pytest.raises(ValueError, match=r"with other weights, settings, batches, draws or code"):
            fp.analysis.sensitivity(model, [torch.ones(4, 16)], recipes="BF16", out=tmp_path)


def test_texts_functions_and_helpers_of_a_model_are_settings(tmp_path: Path) -> None:
    class Active(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, active: Any) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)
            torch.nn.init.eye_(self.linear.weight)
            torch.nn.init.zeros_(self.linear.bias)
            self.active = active

        def forward(self, x: Any) -> Any:
            return self.inner(x)

        def inner(self, x: Any) -> Any:
            return (getattr(torch, self.active) if isinstance(self.active, str) else self.active)(self.linear(x))

    class Doubled(Active):
        def inner(self, x: Any) -> Any:
            return 2 * super().inner(x)

    Doubled.__qualname__ = Active.__qualname__
    batches = [torch.ones(4, 16)]
    for i, (active, other) in enumerate((("relu", "tanh"), (torch.relu, torch.tanh))):
        fp.analysis.sensitivity(Active(active), batches, recipes="BF16", out=tmp_path / str(i))
        for model in (Active(other), Doubled(active)):
            with pytest.raises(ValueError, match=r"with other weights, settings, batches, draws or code"):
                fp.analysis.sensitivity(model, batches, recipes="BF16", out=tmp_path / str(i))


def test_a_criterion_of_a_class_inside_of_a_function_is_a_loss(tmp_path: Path) -> None:
    class Power(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, exponent: float) -> None:
            super().__init__()
            self.exponent = exponent

        def forward(self, y: Any, target: Any) -> Any:
            return (y - target).abs().pow(self.exponent).mean()

    model, batches, _ = made("mlp")
    for _ in range(2):
        fp.analysis.sensitivity(model, batches, Power(2.0), recipes="BF16", products="wgrad", out=tmp_path)
    with pytest.raises(ValueError, match=r"with other weights, settings, batches, draws or code"):
        fp.analysis.sensitivity(model, batches, Power(4.0), recipes="BF16", products="wgrad", out=tmp_path)


def test_identities_tell_models_batches_and_recipes_apart() -> None:
    model, batches, loss = made("mlp")

    def identity(model: Any, batches: Any, recipes: Any) -> str:
        return str(fp.analysis.sensitivity(model, batches, loss, recipes=recipes, products="wgrad").identity)

    report = [
        identity(model, batches, E4M3), identity(model, batches, "BF16"), identity(model, batches[::-1], E4M3),
        identity(model.eval(), batches, E4M3),
    ]  # fmt: skip
    assert len(set(report)) == 4
    assert identity(model.train(), batches, E4M3) == report[0]


def test_a_report_is_saved_and_loaded_bit_for_bit(tmp_path: Path) -> None:
    model, batches, loss = made("mlp")
    with torch.no_grad():
        model[2].weight[0, 0] = 1e6  # Inf and NaN too
    overflows = fp.torch.LinearRecipe("fp16", "fp16", fprop=fp.torch.Product(out_fmt="bf16"))
    report = fp.analysis.sensitivity(model, batches, loss, recipes={"fp16": overflows, "mx": "MXFP8"})
    report.save(tmp_path / "report.json")
    loaded = fp.analysis.Sensitivity.load(tmp_path / "report.json")
    assert loaded == report
    assert loaded.recipes == report.recipes
    assert str(loaded) == str(report)
    assert any(math.isinf(row.gradient_error) for row in loaded.rows)
    with pytest.raises(ValueError, match=r"which a loaded report does not have. Call sensitivity\(\) again"):
        loaded.measure({("0", "fprop"): "mx"})
    for text in ("", "{}", '{"kind": "fpsim sensitivity", "version": 1}', "[" * 5000):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match=r"path must be a file that Sensitivity.save\(\) of version 1 wrote"):
            fp.analysis.Sensitivity.load(tmp_path / "other.json")


def test_tables_and_texts() -> None:
    pytest.importorskip("pandas")
    model, batches, loss = made("mlp")
    report = fp.analysis.sensitivity(model, batches, loss, recipes=[E4M3, "BF16"])
    table = report.to_frame()
    assert len(table) == len(report.rows) == 16
    assert {"layer", "loss_change", "gradient_cosine", "fisher", "left_elements"} <= set(table.columns)
    assert len(report.to_frame("batch")) == 32
    assert repr(report) == "<sensitivity of Sequential: 3 layers, 2 recipes, 16 rows>"
    worst = report.ranking()[0]
    assert str(report).splitlines()[3].split()[:3] == [worst.layer, worst.product, worst.recipe]
    assert report._repr_html_().count("<tr>") == 17


def test_the_figure_has_a_mark_for_each_row() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    model, batches, loss = made("mlp")
    report = fp.analysis.sensitivity(model, batches, loss, recipes=[E4M3, "FP32"])
    ax = report.plot()
    marks = [line for line in ax.lines if np.size(line.get_xdata()) == 1]
    assert len(marks) == len(report.rows)
    hollow = [line for line in marks if line.get_markerfacecolor() == "white"]
    assert len(hollow) == len(report.rows) / 2  # the exact recipe
    assert next(label.get_text() for label in ax.get_yticklabels()) == report.ranking()[0].layer
    assert report.plot(ax) is ax


def test_recipes_have_the_names_of_the_catalogue_or_of_their_file(tmp_path: Path) -> None:
    from fpsim.analysis.studies.sensitivity.request import recipes_named

    path = tmp_path / "mine-2.toml"
    path.write_text(fp.train.recipes.NVFP4.to_toml())
    assert list(recipes_named([" bf16 ", "te-hybrid", str(path)])) == ["BF16", "TE_HYBRID", "mine-2.toml"]
    assert list(recipes_named([path])) == ["mine-2.toml"]


def test_label_and_legend_of_the_figure_are_not_cut_off() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    model, batches, loss = made("mlp")
    names = ["BF16", "FP8_RAW", "MXFP8", "NVFP4", "FP8_TENSOR"]
    report = fp.analysis.sensitivity(model, batches[:1], loss, recipes=dict.fromkeys(names, FP32), products="wgrad")
    rows = tuple(dataclasses.replace(row, layer="a_long_name_of_a_layer_that_is_cut") for row in report.rows)
    ax = dataclasses.replace(report, rows=rows).plot()
    ax.figure.canvas.draw()
    for artist in (ax.xaxis.label, ax.get_legend()):
        box = artist.get_window_extent()  # type: ignore[union-attr]
        assert box.x0 >= 0
        assert box.x1 <= ax.figure.bbox.x1
