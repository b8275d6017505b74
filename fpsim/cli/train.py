"""`fpsim train`: train by several recipes, and compare them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpsim.cli.exit_codes import BAD_INPUT
from fpsim.cli.terminal import figure, new_table, print_line, refuse_bad_folder, shown
from fpsim.display.progress import bar
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word

# Columns that are left out if they are empty, and from the last one on in a narrow terminal.
OPTIONAL = ("gradient error", "stopped runs", "skipped steps", "seconds a run")


def train(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipes to compare: names that `fpsim recipes` lists, such as DEEPSEEK_V3, or TOML files."
        ),
    ] = None,
    more: Annotated[
        str | None, typer.Option("--recipes", help="Further recipes, separated by commas, such as BF16,MXFP8.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of runs of each recipe; it takes 3 or more to tell recipes apart.")
    ] = 3,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html, the tables and the runs.")] = Path(
        "out/train"
    ),
    steps: Annotated[int, typer.Option(help="Number of optimizer steps of a run.")] = 250,
    model: Annotated[str, typer.Option(help="The model to train: transformer or perceptron.")] = "transformer",
    text: Annotated[
        Path | None, typer.Option(help="A text file to train on; without it, the help topics of Python.")
    ] = None,
    backend: Annotated[str, typer.Option(help="What multiplies: emulated, float32, gpu or hardware.")] = "emulated",
    batch: Annotated[
        int | None,
        typer.Option(help="Number of sequences in a micro-batch.", show_default="8, or 128 vectors of the perceptron"),
    ] = None,
    micro_batches: Annotated[int, typer.Option(help="Number of micro-batches in a step.")] = 1,
    recompute: Annotated[
        float, typer.Option(help="Share of the blocks, 0 to 1, whose activations the backward pass computes again.")
    ] = 0.0,
    recompute_by: Annotated[
        str, typer.Option(help="What is computed again: layer (whole blocks), or slices of results along m, n or k.")
    ] = "layer",
    slices: Annotated[int, typer.Option(help="Number of slices along m, n or k.")] = 1,
    recompute_layers: Annotated[
        list[str] | None,
        typer.Option(
            help="Layer whose result is computed again in slices, such as qkv; repeat for several.",
            show_default="gate_up; first and second of the perceptron",
        ),
    ] = None,
    offload: Annotated[
        float, typer.Option(help="Share of the blocks, 0 to 1, whose activations wait in temporary files.")
    ] = 0.0,
    accumulate: Annotated[int | None, typer.Option(hidden=True, help="The old name of --micro-batches.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The recipe with which the others are compared.", show_default="BF16, else FP32, else the first recipe"
        ),
    ] = None,
) -> None:
    """Train a small model by several recipes, and compare them with one. Repeat a stopped call to resume it."""
    from fpsim.recipes.look_up import find as find_recipe
    from fpsim.train import Ranks, Recompute, compare
    from fpsim.train.settings import MODELS

    if accumulate is not None:
        typer.echo("--accumulate is now called --micro-batches; the next release removes the old name.", err=True)
        micro_batches = accumulate
    with Ranks.from_environment() as ranks, _silent(ranks.rank), warnings.catch_warnings():
        refuse_bad_folder(out)
        words = [word for text in (*(recipes or []), more or "") for word in text.split(",") if word]
        require_word("model", model, MODELS)
        if not words:
            raise ValueError(
                "recipes must be named, such as `fpsim train BF16 DEEPSEEK_V3`; `fpsim recipes` lists them. Each one "
                f"trains a small {model} {plural(seeds, 'time')} for {plural(steps, 'step')}, which takes minutes, and "
                f"the comparison is written to {out}. Nothing was trained."
            )
        chosen = [find_recipe(word) for word in words]
        if not recompute and (recompute_by != "layer" or slices != 1 or recompute_layers):
            raise ValueError("--recompute-by, --slices and --recompute-layers need --recompute, such as --recompute 1.")
        if recompute_by == "layer" and (slices != 1 or recompute_layers):
            raise ValueError("--slices and --recompute-layers need --recompute-by m, n or k.")
        again = Recompute(recompute, recompute_by, slices, tuple(recompute_layers) if recompute_layers else None)
        warnings.simplefilter("ignore", RuntimeWarning)  # a run that was stopped is in the table
        with bar(lines=True, quiet=ranks.rank > 0) as progress:
            comparison = compare(
                chosen, seeds=seeds, out=out, steps=steps, model=model, text=text, backend=backend, batch=batch,
                micro_batches=micro_batches, baseline=baseline, ranks=ranks, progress=progress, recompute=again,
                offload=offload,
            )  # fmt: skip
    if ranks.rank == 0:
        _print_comparison(Console(), comparison, out)


@contextlib.contextmanager
def _silent(rank: int) -> Iterator[None]:
    """Exit silently from a `with` block on an error that another process of the training reports.

    rank: number of this process. Rank 0 reports errors, or rank 1 if rank 0 is lost; only other ranks exit silently.
    """
    try:
        yield
    except ConnectionError as lost:
        if rank > 1 or (rank == 1 and getattr(lost, "rank", 0) > 0):
            raise typer.Exit(BAD_INPUT) from None
        raise
    except (ValueError, TypeError, ImportError, OSError):
        if rank > 0:
            raise typer.Exit(BAD_INPUT) from None
        raise


def _print_comparison(console: Console, comparison: Any, out: Path) -> None:
    """Print a table with a row for each recipe, a summary that says which recipes differ, and the path of the report.

    The summary is the text `comparison.answer`. Optional columns are left out if they are empty or the table is wider
    than the console. comparison: the result of `fp.train.compare`. out: folder of the report.
    """
    colors = {"higher": "red", "lower": "green", "same": "", "open": "yellow", "unknown": "dim", "diverged": "red"}
    rows = comparison.rows()
    columns: dict[str, list[str | Text]] = {
        "recipe": [shown(row["recipe"]) for row in rows],
        "final loss": [figure("{:.3f}".format, row["final_loss"]) for row in rows],
        "above baseline": [
            Text(_above(comparison, row), style=colors[row["verdict"]]) for row in rows
        ],
        "gradient error": [figure("{:.1e}".format, row["gradient_error"]) for row in rows],
        "lost updates": [percent(row["lost_updates"]) for row in rows],
        "skipped steps": [f"{row['skipped_steps']:.3g}" for row in rows],
        "stopped runs": [str(row["stopped"]) for row in rows],
        "seconds a run": [f"{row['seconds']:.1f}" for row in rows],
    }  # fmt: skip
    dropped = [name for name in OPTIONAL if {str(cell) for cell in columns[name]} <= {"0", "–"}]  # empty ones
    table, unbounded = _table(columns, dropped), console.options.update(max_width=1000)
    for name in reversed(OPTIONAL):
        if console.measure(table, options=unbounded).maximum > console.width and name not in dropped:
            dropped.append(name)
            table = _table(columns, dropped)
    console.print(table)
    console.print(Text(shown(comparison.answer), style="bold"))
    print_line(console, f"{out / 'report.html'}: the report")


def _above(comparison: Any, row: dict[str, Any]) -> str:
    """Return as text the loss of a recipe minus the baseline's loss, or "baseline", or "diverged".

    comparison: the result of `fp.train.compare`. row: the recipe's row of its table.
    """
    from fpsim.train.comparisons.answer import signed

    if row["verdict"] == "diverged":
        return "diverged"
    return "baseline" if row["recipe"] == comparison.baseline else signed(comparison.difference(row["recipe"]))


def _table(columns: dict[str, list[str | Text]], dropped: list[str]) -> Table:
    """Return a table of the columns that are not in `dropped`; heads of two words are printed on two lines.

    columns: {head: cells}.
    """
    table = new_table()
    kept = {name: cells for name, cells in columns.items() if name not in dropped}
    for name in kept:
        first = name == "recipe"
        head = name.replace(" ", "\n", 1)
        table.add_column(head, justify="left" if first else "right", no_wrap=not first, overflow="fold")
    for cells in zip(*kept.values(), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table
