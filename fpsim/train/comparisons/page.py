"""The page of a comparison as one self-contained HTML file for phones and desktops, and the tables saved with it."""

from __future__ import annotations

import html
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fpsim.display.optional import load
from fpsim.display.pages import Picture, TableCell, TableRow, markup, render, versions
from fpsim.display.wording import bytes_in_words, percent, plural
from fpsim.errors import install
from fpsim.files import replacing
from fpsim.recipes.written import plain
from fpsim.train.comparisons.answer import Interval, nats, signed
from fpsim.train.comparisons.figures import (
    FIGURES,
    difference_axes,
    layer_figure,
    losing,
    loss_axes,
    lost_axes,
    probe_figure,
    scale_axes,
    scaled,
)

PAGE = "report.html"
TABLES = ("recipes", "runs", "curves", "measured", "probe")
OWN = (PAGE, *(f"{name}.parquet" for name in TABLES))
PLOTS = f"Pictures need matplotlib: {install('plot')}"
TITLES = {"underflow": "Underflow", "saturation": "Saturation", "sqnr_db": "SQNR, dB"}
VERDICTS = {
    "same": "cannot be told apart",
    "higher": "ends higher",
    "lower": "ends lower",
    "open": "seeds differ too much",
    "unknown": "too few seeds",
    "diverged": "diverged",
}

DEFINITIONS = (
    ("Loss", "cross entropy in nats, per token or per vector of the perceptron. The final one is the mean of the last "
     "20 steps, then of the seeds; runs that were stopped or diverged are left out of means. A run diverged if the "
     "loss of a step was above 10 times that of the first one. Curves are smoothed by a running mean of 0.9."),
    ("Interval", "± is half the width of the 95 % interval of a mean over seeds by Student's t. Of three seeds it is "
     "2.5 standard deviations of a run."),
    ("Difference", "final loss of the recipe less that of the baseline with the same seed, which begins with the same "
     "weights and reads the same batches. A recipe ends higher or lower if the interval of the mean difference "
     "excludes 0; if it includes 0 and is wider than 0.1 nats to each side, the seeds differ too much. Of twenty "
     "recipes that are equally good, one ends higher or lower by chance. Recipes that cannot be told apart may still "
     "differ: a longer training or more seeds may show it."),
    ("Gradient error", "|g − g32| / |g32| over the weight gradients of all linear layers but the head, of one batch of "
     "1024 tokens at weights that float32 trained; g32 are the recipe FP32's. It grows with how much the gradients of "
     "tokens cancel each other, so it is for comparing recipes at one batch, not models."),
    ("Lost updates", "share of the updates other than 0 that did not change the stored weight, mean over the steps."),
    ("Underflow, saturation, SQNR", "of each operand of each matrix product as it is multiplied: share of the non-zero "
     "values that become 0, share of values beyond the format's range, and 10 log10 of signal over noise. "
     "Pictures show the operand of a layer that loses most."),
    ("Bytes", "those that the recipe's formats need, scales included: weights with masters and compensation, both "
     "moments of AdamW, and activations that one micro-batch keeps for the backward pass. The emulation needs more."),
    ("Time", "of a step of the emulator on this machine, as a ratio to the recipe FP32. It says nothing about a "
     "chip."),
)  # fmt: skip


def page(comparison: Any, files: Sequence[str] = ()) -> str:
    """Return the report of a comparison as an HTML page.

    Args:
      comparison: a `Comparison` of training runs.
      files: file names of the tables in the page's folder, which the page links.
    Raises:
      ImportError: jinja2 is not installed.
    """
    drawn = importlib.util.find_spec("matplotlib") is not None
    rows = comparison.rows()
    settings = comparison.runs[0].settings
    stops = []
    for run in comparison.runs:
        if run.failed:
            reason = run.stopped or f"diverged: the loss rose to {run.highest_loss:.2g}."
            stops.append(f"{run.recipe.name}, seed {run.settings.seed}: {reason}")
    return render(
        "fpsim.train.comparisons",
        "comparison.html.jinja",
        title="fpsim train",
        lead=_lead(comparison),
        answer=comparison.answer,
        stops=stops,
        plots="" if drawn else PLOTS,
        baseline=comparison.baseline,
        seeds=comparison.seeds,
        losses=_losses(comparison) if drawn else [],
        recipes=(HEADS, [_row(comparison, row) for row in rows]),
        costs=(COST_HEADS, [_cost_row(row) for row in rows]),
        probe=[_picture(probe_figure(comparison), "probe", "Error of the gradients, by layer")]
        if drawn and comparison.probed else [],
        probed=(PROBE_HEADS, [_probe_row(row) for row in comparison.probed if row["layer"] == "all"]),
        by_layer=(PROBE_HEADS, [_probe_row(row) for row in comparison.probed if row["layer"] != "all"]),
        layers=_layers(comparison) if drawn and settings.measure else [],
        figures=FIGURES,
        traces=_traces(comparison) if drawn else [],
        written=[(run[0].recipe.name, run[0].recipe.source, _settings(run[0].recipe))
                 for run in comparison.by_recipe.values()],
        definitions=DEFINITIONS,
        files=files,
        versions=versions("fpsim-numerics", "numpy", "torch"),
    )  # fmt: skip


def summary_table(comparison: Any) -> str:
    """Return `comparison.answer` and the table of recipes as HTML for a notebook, whose own styles apply to it."""
    heads = "".join(f"<th>{html.escape(title)}</th>" for title, _ in HEADS)
    rows = ""
    for row in comparison.rows():
        texts = (cell if isinstance(cell, str) else cell.text for cell in _row(comparison, row).cells)
        rows += "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts) + "</tr>"
    return f"<p>{html.escape(comparison.answer)}</p><table><tr>{heads}</tr>{rows}</table>"


def _lead(comparison: Any) -> str:
    """Return the first line of a `Comparison`'s page: model, steps, batch, numbers of recipes and seeds, backend."""
    settings = comparison.runs[0].settings
    tokens = settings.batch * settings.micro_batches * comparison.runs[0].world
    size = f"{tokens} × {settings.context} tokens" if settings.model == "transformer" else f"{tokens} vectors"
    where = "" if settings.backend == "emulated" else f", backend {settings.backend}"
    text = "" if settings.text is None else f" on {settings.text}"
    return (
        f"A small {settings.model}{text}, {plural(settings.steps, 'step')} of {size}, "
        f"{plural(len(comparison.recipes), 'recipe')}, {plural(comparison.seeds, 'seed')}{where}"
    )


# ---- tables

HEADS = (
    ("recipe", False), ("final loss", True), ("above the baseline", True), ("", False), ("validation", True),
    ("gradient error", True), ("lost updates", True), ("skipped steps", True), ("stopped", True),
)  # fmt: skip


def _row(comparison: Any, row: dict[str, Any]) -> TableRow:
    """Return the row of the page's table of recipes for one recipe of a `Comparison`.

    row: the recipe's dict from `comparison.rows()`.
    """
    name = row["recipe"]
    base = name == comparison.baseline
    verdict = "baseline" if base else VERDICTS[row["verdict"]]
    return TableRow(
        (
            name, TableCell(nats(comparison.final_loss(name)), row["final_loss"]),
            TableCell("–", math.nan) if base else TableCell(signed(comparison.difference(name)), row["difference"]),
            verdict,
            TableCell(nats(Interval(row["validation_loss"], math.nan)), row["validation_loss"]),
            _error(row, "gradient_error"), TableCell(percent(row["lost_updates"]), row["lost_updates"]),
            TableCell(f"{row['skipped_steps']:.3g}", row["skipped_steps"]),
            TableCell(str(row["stopped"]), row["stopped"]),
        ),
        marked=bool(row["stopped"]) or row["verdict"] in ("higher", "diverged"),
    )  # fmt: skip


COST_HEADS = (
    ("recipe", False), ("seconds a run", True), ("time to FP32", True), ("weights", True), ("moments", True),
    ("activations", True), ("all", True),
)  # fmt: skip


def _cost_row(row: dict[str, Any]) -> TableRow:
    """Return the row of the page's table of times and bytes for one recipe; row: its dict from `Comparison.rows`."""
    kept = [row["weight_bytes"], row["moment_bytes"], row["activation_bytes"]]
    kept = [math.nan if size is None else size for size in kept]
    ratio = row["time_ratio"]
    return TableRow((
        row["recipe"], TableCell(f"{row['seconds']:.1f}", row["seconds"]),
        TableCell("–" if math.isnan(ratio) else f"{ratio:.2f}", ratio),
        *(TableCell("–" if math.isnan(size) else bytes_in_words(size), size) for size in (*kept, sum(kept))),
    ))  # fmt: skip


PROBE_HEADS = (("recipe", False), ("layer", False), ("relative error", True), ("cosine", True))


def _probe_row(row: dict[str, Any]) -> TableRow:
    """Return the row of the table of gradient errors for one recipe and layer; row: a dict from `gradient_probe`."""
    cosine = row["cosine"]
    layer = "all but the head" if row["layer"] == "all" else row["layer"]
    text = "–" if math.isnan(cosine) else f"{cosine:.5f}"
    return TableRow((row["recipe"], layer, _error(row, "relative_error"), TableCell(text, cosine)))


def _error(row: dict[str, Any], name: str) -> TableCell:
    """Return a table cell with the relative error row[name], and half the width of its interval if it has one.

    row: a dict whose keys NAME_low and NAME_high hold the ends of the interval, NaN without one.
    """
    mean = _scientific(row[name])
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    return mean if math.isnan(half) else TableCell(f"{mean.text} ± {_scientific(half).text}", row[name])


def _scientific(value: float) -> TableCell:
    """Return a table cell with a relative error to two or three digits, "–" for NaN."""
    text = "–" if math.isnan(value) else "0" if value == 0 else f"{value:.1e}" if value < 0.01 else f"{value:.3f}"
    return TableCell(text.replace("e-0", "e-"), value)


def _settings(recipe: Any) -> list[str]:
    """Return the settings of a `Recipe` as lines "name = value"."""
    return [f"{name} = {value}" for name, value in plain(recipe).items() if name not in ("name", "source")]


# ---- pictures


def _losses(comparison: Any) -> list[Picture]:
    """Return pictures of a `Comparison`'s losses and their differences from the baseline's; [] if all runs failed."""
    if all(run.failed for run in comparison.runs):
        return []
    pictures = [_picture(loss_axes(comparison, _axes(3.4)).figure, "loss", "Loss")]
    others = [name for name in comparison.recipes if name != comparison.baseline]
    if not all(math.isnan(comparison.difference(name).mean) for name in others):
        title = f"Above {comparison.baseline}, seed by seed"
        pictures.append(_picture(difference_axes(comparison, _axes(3.4)).figure, "difference", title))
    return pictures


def _layers(comparison: Any) -> list[Picture]:
    """Return a picture per rounding metric of a `Comparison`, with a plot for each layer; [] if nothing was rounded."""
    if not any(math.isfinite(row["sqnr_db"]) for run in comparison.runs for row in run.measured):
        return []
    return [_picture(layer_figure(comparison, metric), f"layers-{metric}", title) for metric, title in TITLES.items()]


def _traces(comparison: Any) -> list[Picture]:
    """Return a picture of a `Comparison`'s loss scales if there are any, and one of lost updates if there are any."""
    pictures = []
    if scaled(comparison):
        pictures.append(_picture(scale_axes(comparison, _axes(2.6)).figure, "scales", "Loss scale"))
    if losing(comparison):
        pictures.append(_picture(lost_axes(comparison, _axes(2.6)).figure, "lost", "Lost updates"))
    return pictures


def _axes(height: float) -> Any:
    """Return matplotlib axes of a new figure whose height is given in inches."""
    from fpsim.display.figure import blank_figure, figure_style

    with figure_style():
        return blank_figure(height).subplots()


def _picture(figure: Any, name: str, title: str) -> Picture:
    """Return a matplotlib figure as an SVG picture with a title; name: the prefix of ids in the SVG."""
    from fpsim.display.figure import to_svg

    return Picture(title, markup(to_svg(figure, name, title)))


# ---- files


def save(comparison: Any, folder: Path) -> list[Path]:
    """Write a comparison's page and tables into a folder, and return their paths; see `Comparison.save`.

    Raises:
      ImportError: pyarrow or jinja2 is not installed.
    """
    pyarrow, parquet = load("pyarrow", "saving a comparison"), load("pyarrow.parquet", "saving a comparison")
    tables = {
        "recipes": comparison.rows(), "runs": list(comparison.run_rows()), "curves": comparison.rows_of("rows"),
        "measured": comparison.rows_of("measured"), "probe": list(comparison.probed),
    }  # fmt: skip
    text = page(comparison, [name for name in OWN[1:] if tables[name.removesuffix(".parquet")]])
    with replacing(folder, OWN) as drafts:
        (drafts / PAGE).write_text(text, encoding="utf-8")
        for name, rows in tables.items():
            if rows:
                parquet.write_table(pyarrow.Table.from_pylist(rows), drafts / f"{name}.parquet")
    return [folder / name for name in OWN if (folder / name).exists()]
