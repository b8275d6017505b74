"""The commands that compare other code with the exact arithmetic: `fpsim check` and `fpsim conformance`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import fpsim
from fpsim.cli.app import command
from fpsim.cli.functions import exit_refused, function_at
from fpsim.cli.terminal import echo_lines, scaling_named, shown
from fpsim.exact_json import to_json


def check(
    function: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION, such as my_casts:to_e4m3; the module may be a file in this folder.")
    ],
    format: Annotated[str, typer.Option("--format", "-f", help="The format to which it rounds, such as e4m3.")],
    rounding: Annotated[
        str,
        typer.Option("--rounding", "-r", help="Its rounding mode, such as nearest_even, toward_zero or stochastic."),
    ] = "nearest_even",
    overflow: Annotated[
        str | None,
        typer.Option(
            help="Its treatment of values beyond the range: nonfinite, saturate or saturate_finite.",
            show_default="nonfinite",
        ),
    ] = None,
    subnormals: Annotated[str, typer.Option(help="Its treatment of subnormals: keep, or flush to zero.")] = "keep",
    scaling: Annotated[
        str | None,
        typer.Option(help="The scaling of its tiles, a name of fp.scalings such as MX; leave out without scales."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="The dtype of its inputs.", show_default="float32, and float64 where it takes it")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of stochastic rounding.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check that a function rounds to a format bit for bit, and list its faults. The exit code is 1 if it has any."""
    fn = function_at(function)
    words: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed}
    if source is not None:
        words["source"] = source
    if scaling is not None:
        words["scaling"] = scaling_named(scaling)
    # text that the function prints is not part of the report
    with exit_refused(function), contextlib.redirect_stdout(sys.stderr):
        report = fpsim.testing.check_quantizer(fn, format, **words, raises=False)
    if as_json:
        typer.echo(json.dumps(_fields(report), indent=1))
    else:
        echo_lines(str(report))
    if not report.ok:
        raise typer.Exit(1)


conformance = typer.Typer(
    no_args_is_help=True, help="Write portable test vectors for other implementations, or check their results."
)


@command(conformance)
def make(path: Annotated[Path, typer.Argument(help="The file to write, .txt or .npz.")]) -> None:
    """Write test vectors: casts, arithmetic, instructions, products and scaled tiles."""
    fpsim.testing.conformance.make(path)
    typer.echo(f"{shown(str(path))}: {path.stat().st_size:,} bytes")


@command(conformance, name="check")
def check_vectors(
    path: Annotated[Path, typer.Argument(help="The file of vectors, .txt or .npz.")],
    run: Annotated[
        str | None,
        typer.Option("--run", help="A program to check, which reads lines of inputs and writes lines of outputs."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Check only this kind, such as cast or cast:E5M2; repeat for several."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Time limit of the program, in seconds.")] = 600.0,
) -> None:
    """Recompute the vectors of a file, and check another program with --run. The exit code is 1 if some differ."""
    report = fpsim.testing.conformance.check(path, run, only=only, timeout=timeout)
    echo_lines(str(report))
    if not report.ok:
        raise typer.Exit(1)


def _fields(report: Any) -> dict[str, Any]:
    """Return a report of `fpsim.testing.check_quantizer` as plain values for JSON.

    Formats and scalings become their names, tuples become lists.
    """
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    fields |= {"ok": report.ok, "fmt": str(report.fmt), "broken": [dataclasses.asdict(one) for one in report.broken]}
    shapes = [list(shape) for shape in report.covered.shapes]
    fields["covered"] = _without_tuples(vars(report.covered)) | {"shapes": shapes}
    fields["asked"] = {
        word: value if value is None or isinstance(value, (bool, int, float)) else str(value)
        for word, value in report.asked.items()
    }
    values: dict[str, Any] = to_json(_without_tuples(fields))
    return values


def _without_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the dict `fields` with lists in place of tuples among its values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
