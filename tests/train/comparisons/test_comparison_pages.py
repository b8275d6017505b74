"""Comparisons of training recipes: pages, tables, and whole runs."""

from __future__ import annotations

import dataclasses
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp

for package in ("torch", "pandas", "jinja2", "matplotlib", "pyarrow", "safetensors"):
    pytest.importorskip(package)
import pandas as pd  # noqa: E402

from fpsim.train import Comparison, OptimizerRecipe, recipes  # noqa: E402
from fpsim.train.comparisons import gradient_probe  # noqa: E402
from fpsim.train.comparisons.answer import interval  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402
from tests.train.comparisons.comparison_cases import made  # noqa: E402

TABLES = ("recipes", "runs", "curves", "measured")


def small(names: Any, **options: Any) -> Comparison:
    """A comparison that takes seconds."""
    return fp.train.compare(names, **{"steps": 4, "model": "perceptron", "batch": 16, "measure": 2, **options})


# ---- pages


class _Ids(HTMLParser):
    """Collects ids, references to them, and texts of headings."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.wanted: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if value and name in ("xlink:href", "href") and value.startswith("#"):
                self.wanted.append(value[1:])


def test_the_page_begins_with_the_answer_and_needs_nothing_else(tmp_path: Path) -> None:
    named = recipes.FP8_RAW.replace(name="<b>raw")
    comparison = small(["FP16_DYNAMIC", named], seeds=3, out=tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"<h1>(After|1 seed)", text)
    assert text.index("<h1>") < text.index("<svg")
    assert "<b>raw" not in text
    assert "&lt;b&gt;raw" in text
    assert not re.search(r'(src|href)="(https?:)?//', text.replace("http://www.w3.org", ""))
    ids = _Ids()
    ids.feed(text)
    assert len(ids.ids) == len(set(ids.ids))
    assert set(ids.wanted) <= set(ids.ids)
    for section in ("losses", "recipes", "layers", "traces", "costs"):
        assert f'id="{section}"' in text
    for name in TABLES:
        assert f'href="{name}.parquet"' in text
    assert comparison._repr_html_().startswith(f"<p>{comparison.answer.replace('<b>', '&lt;b&gt;')}</p><table>")


@pytest.mark.usefixtures("without_figures")
def test_tables_hold_what_the_frames_hold(tmp_path: Path) -> None:
    comparison = small(["FP32", "BF16"], seeds=1)
    files = comparison.save(tmp_path)
    assert [file.name for file in files] == ["report.html", *(f"{name}.parquet" for name in TABLES)]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "curves.parquet"), comparison.curves())
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "measured.parquet"), comparison.measurements())
    assert pd.read_parquet(tmp_path / "recipes.parquet").recipe.tolist() == ["FP32", "BF16"]
    assert pd.read_parquet(tmp_path / "runs.parquet").seed.tolist() == [0, 0]


@pytest.mark.usefixtures("without_figures")
def test_tables_that_cannot_be_written_leave_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    comparison = small(["FP32"], seeds=1)
    comparison.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        comparison.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_plot_has_a_line_for_each_recipe_and_bands_for_several_seeds() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    comparison = small(["FP32", "BF16"], seeds=2)
    assert comparison.plot(axes) is axes
    assert len(axes.lines) == 2
    assert len(axes.collections) == 2
    last = interval([fp.train.runs.smoothed(each.losses)[-1] for each in comparison.by_recipe["BF16"]])
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(last.mean)
    assert not small(["FP32"], seeds=1).plot(Figure().subplots()).collections


def test_ticks_of_steps_are_whole_numbers_even_for_a_single_step() -> None:
    from fpsim.display.figure import blank_figure
    from fpsim.train.comparisons.figures import _plain

    for steps in ([0], [0, 1], [0, 200]):
        axes = blank_figure(1.0).subplots()
        axes.plot(steps, [1.0] * len(steps), "o")
        _plain(axes)
        assert all(float(tick).is_integer() for tick in axes.get_xticks()), steps


def test_a_comparison_of_nothing_but_stopped_runs_still_has_a_page() -> None:
    comparison = made(
        {"BF16": [math.nan] * 3, "BAD": [math.nan] * 3}, [f"{n}-{s}" for n in ("BF16", "BAD") for s in range(3)]
    )
    text = comparison.to_html()
    assert "Ended early by Inf or NaN in the loss or in gradients: BF16 in 3 of 3 and BAD in 3 of 3." in text


def test_differences_are_drawn_only_if_a_recipe_has_one() -> None:
    comparison = made({"BAD": [math.nan] * 3, "BF16": [2.0] * 3}, [f"BAD-{seed}" for seed in range(3)])
    text = comparison.to_html()
    assert 'id="loss-' in text
    assert 'id="difference-' not in text


def test_the_page_shows_the_probe_of_the_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_probe, "SEQUENCES", 4)  # 256 tokens
    comparison = fp.train.compare(["BF16", "FP8_RAW"], seeds=1, steps=1, batch=2, context=32, measure=0, out=tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="probe"' in text
    probed = pd.read_parquet(tmp_path / "probe.parquet")
    assert probed.recipe.unique().tolist() == ["BF16", "FP8_RAW"]
    assert comparison.to_frame().gradient_error.tolist() == probed[probed.layer == "all"].relative_error.tolist()
    assert "1 seed cannot tell recipes apart" in text
    assert comparison.to_frame().gradient_error_low.isna().all()


@in_turn("error", [0.0, math.nan])
def test_a_probe_without_any_error_still_has_a_picture(error: float) -> None:
    keys = ("relative_error", "relative_error_low", "relative_error_high", "cosine")
    row = {"recipe": "BF16", "layer": "all", **dict.fromkeys(keys, error)}
    comparison = dataclasses.replace(made({"BF16": [2.0]}), probed=(row,))
    assert 'id="probe"' in comparison.to_html()


def test_the_probe_of_a_comparison_has_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_probe, "SEQUENCES", 4)  # 256 tokens
    options: dict[str, Any] = {"steps": 1, "batch": 2, "context": 32, "measure": 0}
    comparison = fp.train.compare(["BF16", "FP8_RAW"], seeds=2, out=tmp_path, **options)
    wanted = fp.train.gradient_probe(["BF16", "FP8_RAW"], steps=1, seeds=2)
    pd.testing.assert_frame_equal(pd.DataFrame(comparison.probed), wanted)
    assert set(wanted.seeds) == {2}
    of_all = wanted[wanted.layer == "all"]
    table = comparison.to_frame()
    for end in ("", "_low", "_high"):
        assert table[f"gradient_error{end}"].tolist() == of_all[f"relative_error{end}"].tolist()
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(r"\d\.\de-\d ± \d\.\de-\d", text[text.index('id="probe"') :])


# ---- whole runs


@pytest.mark.slow
def test_raw_fp8_and_fp16_of_a_small_loss_fail_and_the_others_do_not() -> None:
    small_loss = recipes.FP16_UNSCALED.replace(name="SMALL", loss_factor=2.0**-12)
    names = ["BF16", "FP32", "FP8_RAW", small_loss, "FP16_DYNAMIC", "DEEPSEEK_V3", "DEEPSEEK_V3_POW2", "FP8_TENSOR"]
    comparison = fp.train.compare(names, measure=0, gradients=False)
    means = {name: comparison.difference(name).mean for name in comparison.recipes}
    assert means.pop("FP8_RAW") > 0.2
    assert means.pop("SMALL") > 1.0
    assert {name: mean for name, mean in means.items() if abs(mean) > 0.05} == {}


@pytest.mark.slow
def test_weights_without_masters_lose_updates_unless_they_round_stochastically() -> None:
    slow = {
        name: OptimizerRecipe(lr=3e-5, weights="bf16", masters=False, update_rounding=name)
        for name in ("nearest_even", "stochastic")
    }
    names = [recipes.BF16.replace(name=name, optimizer=optimizer) for name, optimizer in slow.items()]
    found = fp.train.compare(names, seeds=3, measure=0, gradients=False).to_frame().set_index("recipe")
    assert found.lost_updates["nearest_even"] == pytest.approx(0.8, abs=0.1)
    assert found.final_loss["nearest_even"] - found.final_loss["stochastic"] > 0.2
