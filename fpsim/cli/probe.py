"""The command `fpsim probe`, which reveals how a function adds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fpsim
from fpsim.cli.functions import exit_refused, function_at
from fpsim.cli.terminal import echo_lines, shown
from fpsim.errors import require_integer, unknown
from fpsim.files import require_file

PROBES = ("sum", "dot", "matmul")


def probe(
    function: Annotated[
        str, typer.Argument(help="MODULE:FUNCTION, such as numpy:sum; the module may be a file in this folder.")
    ],
    terms: Annotated[int, typer.Option("--terms", "-n", help="Number of terms of a sum.")] = 256,
    kind: Annotated[str, typer.Option(help="The kind of function: sum for fn(x), dot or matmul for fn(a, b).")] = "sum",
    a: Annotated[str, typer.Option("--a", help="The format of x or a, such as float32 or e4m3.")] = "float32",
    b: Annotated[str | None, typer.Option("--b", help="The format of b.", show_default="the same as a")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .json file to which the model is saved.")] = None,
) -> None:
    """Reveal how a function adds: its order, rounding, unit or schedule. The exit code is 1 if no known order fits."""
    if kind not in PROBES:
        raise unknown("kind", kind, PROBES)
    require_integer("terms", terms, 1)
    if kind == "sum" and b is not None:
        raise ValueError(f"b is the format of the second operand of dot and matmul; got {b!r} for a sum. Leave it out.")
    for name, fmt in (("a", a), ("b", a if b is None else b)):
        fpsim.probe.operands.operand_of(fmt, name, integers=True)  # raises errors with the names of options
    if out is not None:
        require_file(out)
    fn = function_at(function)
    with exit_refused(function):
        if kind == "sum":
            model = fpsim.probe.sum(fn, terms, a)
        else:
            make = fpsim.probe.dot if kind == "dot" else fpsim.probe.matmul
            model = make(fn, terms, a=a, b=b)
    echo_lines(model.explain())
    if not model.found:
        raise typer.Exit(1)
    if out is not None:
        model.save(out)
        typer.echo(f"{shown(str(out))}: the model")
