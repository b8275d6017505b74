"""`fpsim units` and `fpsim validate`: the matrix units, and the GPU of this machine beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import fpsim
from fpsim.matrix_units.matrix_unit import Rule

WIDE = 100  # columns of a terminal that has room for instructions beside the other columns
UNIT_WORDS = (
    "terms: products that a step adds. bits: fraction bits kept where they are aligned. result: RZ rounds toward zero "
    "(RZ13: to 13 mantissa bits), RNE to nearest even; RZ+RNE: steps toward zero, their sum to nearest even. hardware: "
    "compared with real chips; simulated: from a simulator; inferred: neither. The rules: docs/matrix-units.md."
)


def units(
    arch: Annotated[
        str | None,
        typer.Argument(
            help="A chip such as H100, A100, 'RTX 4090' or MI300X, or its architecture (volta, turing, ampere, ada, "
            "hopper, blackwell, cdna1, cdna2, cdna3); none: all of them."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="A row for every pair of operands.")] = False,
) -> None:
    """List the matrix units: how the instructions of GPUs multiply, align, add and round."""
    found = fpsim.units(arch or None)
    sources = list(dict.fromkeys(unit.source for unit in found))
    rows = [[unit] for unit in found] if every else _alike(found)
    console = Console()
    wide = console.width >= WIDE
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("unit", no_wrap=wide)
    for head in ("terms", "bits"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("result", "scale", "evidence"):
        table.add_column(head, no_wrap=True)
    if wide:
        table.add_column("instruction")
    for before, row in zip([None, *rows], rows, strict=False):
        unit = row[0]
        if before is not None and before[0].arch != unit.arch:
            table.add_section()
        name = _names(row, [] if wide else [unit.instruction])
        scale = f"{unit.scale}/{unit.block}" if unit.scale else ""
        evidence = Text(unit.evidence, style={"hardware": "green", "inferred": "yellow"}.get(unit.evidence, ""))
        evidence.append(f" [{1 + sources.index(unit.source)}]", style="dim default")
        cells = str(unit.terms), str(unit.fraction_bits or ""), _rounding(unit), scale, evidence
        table.add_row(name, *cells, *([unit.instruction] if wide else []))
    console.print(table)
    for i, source in enumerate(sources):
        console.print(Text(f"[{i + 1}] {source}", style="dim"))
    console.print(Text(UNIT_WORDS, style="dim"))
    if len(rows) < len(found):
        console.print(
            Text(
                "<a>, <b>: the elements below the name, two different ones for <a>x<b>; --all lists every unit.",
                style="dim",
            )
        )


def _alike(found: tuple[fpsim.MatrixUnit, ...]) -> list[list[fpsim.MatrixUnit]]:
    """Units that differ in their operands alone, together; equal and mixed operands apart."""
    classes: dict[tuple[object, ...], list[fpsim.MatrixUnit]] = {}
    arches = list(dict.fromkeys(unit.arch for unit in found))
    for unit in sorted(found, key=lambda unit: arches.index(unit.arch)):
        key = (_named(unit, ""), unit.rule, unit.terms, unit.instruction, unit.evidence, unit.a == unit.b)
        classes.setdefault(key, []).append(unit)
    return list(classes.values())


def _named(unit: fpsim.MatrixUnit, operands: str) -> str:
    """A unit's name with other words for its operands, where these take several elements."""
    mixed = f"_{unit.a.name}x{unit.b.name}_{unit.d.name}"
    same = f"_{unit.a.name}_{unit.d.name}"
    if unit.a.fmt.bits > 8 or not unit.name.endswith((mixed, same)):
        return unit.name
    return f"{unit.name.removesuffix(mixed).removesuffix(same)}_{operands}_{unit.d.name}"


def _names(row: list[fpsim.MatrixUnit], below: list[str]) -> Group:
    """The name of units that differ in their operands alone, over what they take and lines below that."""
    first, name = row[0], row[0].name
    if len(row) > 1:
        name = _named(first, "<a>" if first.a == first.b else "<a>x<b>")
        below = [" ".join(dict.fromkeys(x.name for unit in row for x in (unit.a, unit.b))), *below]
    return Group(Text(name), *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in below))


def _rounding(unit: fpsim.MatrixUnit) -> str:
    """How a unit rounds its result, in short."""
    if unit.rounding == "nearest_even":
        return "RNE"
    if unit.rule is Rule.TWO_PASSES:
        return "RZ+RNE"
    return "RZ" if unit.result_bits == unit.d.fmt.mantissa_bits else f"RZ{unit.result_bits}"


def validate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for validation.json and validation.txt.")] = Path(
        "out/validation"
    ),
    minutes: Annotated[float, typer.Option(help="For all parts together.")] = 7,
    part: Annotated[list[str] | None, typer.Option("--part", "-p", help="Only this part; may be repeated.")] = None,
) -> None:
    """Compare the emulator with the GPU of this machine, bit by bit; ends with 1 where something differs."""
    from fpsim.gpu.experiments.validate import main

    raise typer.Exit(main(["--out", str(out), "--minutes", str(minutes), *(["--parts", *part] if part else [])]))
