"""`fpsim probe`: a function in, how it adds out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import fpsim
from fpsim.cli.functions import function_at
from fpsim.cli.terminal import shown
from fpsim.errors import unknown

PROBES = ("sum", "dot", "matmul")


def probe(
    function: Annotated[str, typer.Argument(help="MODULE:FUNCTION, of a module that Python finds from here.")],
    terms: Annotated[int, typer.Option("--terms", "-n", help="Terms of a sum.")] = 256,
    kind: Annotated[str, typer.Option(help="sum: fn(x); dot, matmul: fn(a, b).")] = "sum",
    a: Annotated[str, typer.Option("--a", help="What x or a holds, such as float32 or e4m3.")] = "float32",
    b: Annotated[str | None, typer.Option("--b", help="What b holds.", show_default="the same as a")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the model, .json.")] = None,
) -> None:
    """Reveal how a function adds: in which order, what is rounded, which unit or schedule it equals; 1 if none fits."""
    if kind not in PROBES:
        raise unknown("kind", kind, PROBES)
    fn = function_at(function)
    if kind == "sum":
        model = fpsim.probe.sum(fn, terms, a)
    else:
        make = fpsim.probe.dot if kind == "dot" else fpsim.probe.matmul
        model = make(fn, terms, a=a, b=a if b is None else b)
    for line in model.explain().splitlines():
        typer.echo(shown(line))
    if not model.found:
        raise typer.Exit(1)
    if out is not None:
        model.save(out)
        typer.echo(f"{shown(str(out))}: the model")
