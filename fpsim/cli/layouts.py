"""`fpsim export` and `fpsim verify`: quantised checkpoints and their layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fpsim.cli.exit_codes import BAD_INPUT
from fpsim.cli.terminal import print_line, shown


def export(
    checkpoint: Annotated[Path, typer.Argument(help="The model to export: a file, an index of shards, or a folder.")],
    layout: Annotated[
        str, typer.Option("--layout", "-l", help="The layout, such as deepseek_fp8, modelopt:nvfp4, gptq or gguf:Q8_0.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder, .safetensors or .gguf file to write.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of layers to leave unquantised; repeat for several.", show_default="lm_head"),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Number of inputs that share a scale in INT4, GPTQ, AWQ and HQQ.", show_default="128; HQQ 64"
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of a GPTQ code: 4 or 8.")] = 4,
    symmetric: Annotated[bool, typer.Option(help="Whether GPTQ's zero points are the middle code.")] = True,
) -> None:
    """Write a model as a quantised checkpoint in a library's layout, and report the error of its weights."""
    from fpsim.torch.exporting import export as run_export

    kept = ("lm_head",) if keep is None else keep
    report = run_export(
        checkpoint, layout=layout, out=out, keep=kept, group_size=group_size, bits=bits, symmetric=symmetric
    )
    console = Console()
    first, *lines = str(report).splitlines()
    print_line(console, first, "bold")
    for line in lines:
        print_line(console, line, "dim" if line in report.notes else "")


def verify(
    checkpoint: Annotated[Path, typer.Argument(help="The checkpoint: a file, an index of shards, or a folder.")],
    reference: Annotated[
        Path | None, typer.Option("--reference", "-r", help="The unquantised model, whose values are compared.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Identify the layout of a quantised checkpoint, and list its errors. The exit code is 1 if there are any."""
    import json

    from fpsim.analysis.tensors.tensor import TensorFileError
    from fpsim.analysis.tensors.verifying.verify import verify as run_verify

    try:
        report = run_verify(checkpoint, reference=reference)
    except TensorFileError as problem:
        typer.echo(f"fpsim: {shown(str(problem))}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    if as_json:
        findings = [one._asdict() for one in report.findings]
        content = {"path": report.path, "layout": report.layout, "ok": report.ok, "weights": report.weights}
        typer.echo(json.dumps({**content, "findings": findings}, indent=1))
    else:
        console = Console()
        print_line(console, report.verdict, "bold green" if report.ok else "bold red")
        for line in report.problems:
            print_line(console, line)
        for line in report.notes:
            print_line(console, line, "dim")
    if not report.ok:
        raise typer.Exit(1)
