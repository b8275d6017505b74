"""`fpsim study`: recommend a format for each tensor."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fpsim.cli.exit_codes import BAD_INPUT
from fpsim.cli.terminal import figure, print_line, refuse_bad_folder, scaling_named, shown
from fpsim.display.optional import load
from fpsim.display.progress import bar
from fpsim.display.wording import decibels, percent, plural

HARDEST = 12  # tensors that the terminal shows; report.html has them all
BESIDE = 58  # columns of a row after the tensor's name


def study(
    tensors: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files (.npy .npz .safetensors .pt .onnx .gguf ...) or folders; leave out to study a small "
            "transformer, which is trained first."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and the tables.")] = Path(
        "out/study"
    ),
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", "-f", help="A format to compare; repeat for several.", show_default="those of the 14 candidates"
        ),
    ] = None,
    scalings: Annotated[
        list[str] | None,
        typer.Option(
            "--scaling",
            help="A scaling to compare: none, amax or a name of fp.scalings, such as MX; repeat for several.",
        ),
    ] = None,
    roundings: Annotated[
        list[str] | None,
        typer.Option(
            "--rounding",
            "-r",
            help="A rounding mode to compare; repeat for several.",
            show_default="nearest_even toward_zero stochastic",
        ),
    ] = None,
    min_sqnr: Annotated[float, typer.Option(help="The least SQNR of a recommended format, in dB.")] = 25.0,
    max_lost: Annotated[
        float, typer.Option(help="The largest share of a tensor's energy that may become zero.")
    ] = 1e-3,
    budget_bits: Annotated[
        float | None, typer.Option(help="The most bits per value of a recommended format, scales included.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a dask scheduler, whose workers read the files.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and of stochastic rounding.")] = 0,
) -> None:
    """Measure the errors of tensors in low-precision formats, and recommend a format for each."""
    from fpsim.analysis.studies.study import ROUNDINGS
    from fpsim.analysis.studies.study import study as run_study
    from fpsim.analysis.studies.summaries import folded
    from fpsim.analysis.tensors.tensor import TensorFileError

    refuse_bad_folder(out)
    try:
        joined: Any = contextlib.nullcontext()
        if scheduler is not None:
            joined = load("distributed", "--scheduler").Client(scheduler)
        with joined as client, bar(lines=True) as progress:
            report = run_study(
                tensors or None,
                formats=formats,
                scalings=[scaling_named(word) for word in scalings] if scalings else None,
                roundings=roundings or ROUNDINGS,
                min_sqnr=min_sqnr,
                max_lost=max_lost,
                budget_bits=budget_bits,
                seed=seed,
                progress=progress,
                client=client,
            )
            progress(1.0, "writing the report")
            files, notes = report.save(out)
    except TensorFileError as nothing:
        for line in (*nothing.problems, "there is nothing to study."):
            typer.echo(f"fpsim: {shown(line)}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    for line in report.problems:
        typer.echo(f"fpsim: {shown(line)}", err=True)
    console = Console()
    _print_study(console, report)
    for line in (*folded(report.notes), *notes):
        console.print(Text(shown(line), style="dim"))
    pages = [file for file in files if file.suffix == ".html"]
    for file in pages:
        print_line(console, f"{file}: the report", "bold")
    print_line(console, f"{out}: {', '.join(file.name for file in files if file not in pages)}")
    if report.problems:
        raise typer.Exit(BAD_INPUT)


def _print_study(console: Console, report: Any) -> None:
    """Print the answer of a report, recommendations for groups of tensors, and the operands that are hardest to store.

    report: a StudyReport. The hardest operands have no good format, or the largest deficit: how far their SQNR is below
    that of normally distributed numbers in the same format.
    """
    from fpsim.analysis.studies.candidates import short_name
    from fpsim.analysis.studies.page import KEPT
    from fpsim.analysis.studies.summaries import hardest, specials

    console.print(Text(report.answer, style="bold"))
    table = _study_table("tensors", "choice", "SQNR", "bits", "values")
    for group in report.groups:
        bits = sum(row.values * row.bits_per_value for row in group.rows) / group.values if group.values else 0.0
        kept = not group.met and group.rows[0].operand
        choice = Text(group.choice, style=_style(group.met, kept))
        table.add_row(group.title, choice, figure(decibels, group.sqnr_db), f"{bits:.4g}", f"{group.values:,}")
    console.print(table)
    odd = [name for name in report.ranges_of if any(specials(report, name))]
    if odd:
        names = ", ".join(shown(name, 40) for name in odd[:3]) + (f" and {len(odd) - 3} more" if len(odd) > 3 else "")
        console.print(Text(f"NaN or Inf in {plural(len(odd), 'tensor')}: {names}", style="yellow"))
    rows = hardest(report)
    if not rows:
        return
    table = _study_table("hardest", "choice", "SQNR", "deficit", "lost energy")
    for row in rows[:HARDEST]:
        short = short_name(row.format, row.scaling) if row.met else f"keep {row.choice}"
        name = shown(row.tensor, min(max(console.width - BESIDE, 16), 60))
        figures = figure(decibels, row.sqnr_db), figure(decibels, row.deficit_db), percent(row.lost_energy)
        table.add_row(Text(name), Text(short, style=_style(row.met, not row.met)), *figures)
    console.print(table)
    if any(row.failed for row in rows[:HARDEST]):
        console.print(Text(KEPT, style="dim"))
    if len(rows) > HARDEST:
        console.print(Text(f"The hardest {HARDEST} of {len(rows)} operands; the report has them all.", style="dim"))


def _study_table(first: str, second: str, *numbers: str) -> Table:
    """Return an empty table with two columns of text, `first` and `second`, and right-aligned columns `numbers`."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, overflow="fold")
    table.add_column(second, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _style(met: bool, kept: bool) -> str:
    """Return the terminal style of a recommendation, such as "green".

    met: whether the recommended format meets the requirements. kept: whether the tensor should keep its own dtype,
    because no format meets them.
    """
    return "green" if met else "yellow" if kept else "dim"
