"""The commands `fpsim units` (list matrix units) and `fpsim validate` (compare them with this machine's hardware)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

import fpsim
from fpsim.cli.exit_codes import BAD_INPUT
from fpsim.cli.terminal import new_table
from fpsim.errors import require_word
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule

Unit = MatrixUnit | IntegerUnit
WIDE = 100  # columns of a terminal from which on instructions are shown
UNIT_WORDS = (
    "terms: products that a step adds. bits: fraction bits kept where they are aligned. result: RZ rounds toward zero "
    "(RZ13: to 13 mantissa bits), RNE to nearest even; RZ+RNE: steps toward zero, their sum to nearest even; sums "
    "of integers wrap or (sat) saturate. hardware: "
    "compared with real chips; simulated: from a simulator; inferred: neither. Rules: docs/matrix-units.md."
)


def units(
    chip: Annotated[
        str | None,
        typer.Argument(
            help="A chip such as H100, 'RTX 4090' or MI300X, its architecture (volta, turing, ampere, ada, hopper, "
            "blackwell, cdna1, cdna2, cdna3, x86, arm), target (sm_90) or compute capability (9.0); leave out to list "
            "all units."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print a row for every pair of operands.")] = False,
) -> None:
    """List the matrix units: how matrix instructions of GPUs and CPUs multiply, align, add and round."""
    listed = fpsim.units(chip or None)
    sources = list(dict.fromkeys(unit.source for unit in listed))
    rows = [[unit] for unit in listed] if every else _alike(listed)
    console = Console()
    wide = console.width >= WIDE
    table = new_table()
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
        scale = bits = ""
        if isinstance(unit, MatrixUnit):
            scale, bits = f"{unit.scale}/{unit.block}" if unit.scale else "", str(unit.fraction_bits or "")
        evidence = Text(unit.evidence, style={"hardware": "green", "inferred": "yellow"}.get(unit.evidence, ""))
        evidence.append(f" [{1 + sources.index(unit.source)}]", style="dim default")
        cells = str(unit.terms), bits, _rounding(unit), scale, evidence
        table.add_row(name, *cells, *([unit.instruction] if wide else []))
    console.print(table)
    for i, source in enumerate(sources):
        console.print(Text(f"[{i + 1}] {source}", style="dim"))
    console.print(Text(UNIT_WORDS, style="dim"))
    if len(rows) < len(listed):
        console.print(
            Text(
                "<a> and <b> stand for the elements below the name, which differ in <a>x<b>; --all lists every unit.",
                style="dim",
            )
        )


def _alike(units: tuple[Unit, ...]) -> list[list[Unit]]:
    """Return the units in groups, so that the units of one group differ only in the formats of their operands.

    Float units whose two operands have the same format, and those with two formats, are in separate groups.
    """
    classes: dict[tuple[object, ...], list[Unit]] = {}
    arches = list(dict.fromkeys(unit.arch for unit in units))
    for unit in sorted(units, key=lambda unit: arches.index(unit.arch)):
        adds = (unit.rule, unit.a == unit.b) if isinstance(unit, MatrixUnit) else unit.saturates
        key = (_named(unit, ""), adds, unit.terms, unit.instruction, unit.evidence)
        classes.setdefault(key, []).append(unit)
    return list(classes.values())


def _named(unit: Unit, operands: str) -> str:
    """Return the name of a unit in which the text `operands` replaces the formats of its operands.

    For "<a>", for example, "hopper_e4m3_f32" becomes "hopper_<a>_f32". Names stay unchanged if the operands have more
    than 8 bits.
    """
    end = f"_{unit.d.name}_sat" if unit.name.endswith("_sat") else f"_{unit.d.name}"
    mixed, same = f"_{unit.a.name}x{unit.b.name}{end}", f"_{unit.a.name}{end}"
    bits = unit.a.bits if isinstance(unit, IntegerUnit) else unit.a.fmt.bits
    if bits > 8 or not unit.name.endswith((mixed, same)):
        return unit.name
    return f"{unit.name.removesuffix(mixed).removesuffix(same)}_{operands}{end}"


def _names(row: list[Unit], below: list[str]) -> Group:
    """Return a table cell: the name of a group of units, then dimmed lines with its operands' formats and `below`.

    row: the units of the group. below: further lines.
    """
    first, name = row[0], row[0].name
    if len(row) > 1:
        name = _named(first, "<a>" if first.a == first.b else "<a>x<b>")
        elements = [x.name for unit in row for x in (unit.a, unit.b)]
        if isinstance(first, IntegerUnit):  # mixed operands are among them
            elements = [x.a.name if x.a == x.b else f"{x.a.name}x{x.b.name}" for x in row]
        below = [" ".join(dict.fromkeys(elements)), *below]
    return Group(Text(name), *(Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in below))


def _rounding(unit: Unit) -> str:
    """Return an abbreviation for how a unit rounds its result.

    "RNE": to nearest even. "RZ": toward zero. "RZ13": toward zero, to 13 mantissa bits of a format that has more.
    "RZ+RNE": in two passes (`Rule.TWO_PASSES`). For integers "sat" if the unit saturates, else "wrap" (modulo 2**32).
    """
    if isinstance(unit, IntegerUnit):
        return "sat" if unit.saturates else "wrap"
    if unit.rounding == "nearest_even":
        return "RNE"
    if unit.rule is Rule.TWO_PASSES:
        return "RZ+RNE"
    return "RZ" if unit.result_bits == unit.d.fmt.mantissa_bits else f"RZ{unit.result_bits}"


def validate(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report, as JSON and as text.")] = Path(
        "out/validation"
    ),
    minutes: Annotated[float, typer.Option(help="Time limit of all parts together, in minutes.")] = 7,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", "-p", help="Compare only this part (with --cpu: this instruction); repeat for several."),
    ] = None,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Compare with the instructions of this processor instead of the GPU.")
    ] = False,
    values: Annotated[int, typer.Option(help="With --cpu: results to compare for each instruction.")] = 100_000,
) -> None:
    """Compare the emulator with this machine's GPU or processor bit by bit; the exit code is 1 if something differs."""
    if cpu:
        report = fpsim.cpu.validate(part or None, values=values, minutes=minutes, out=out)
        typer.echo(str(report))
        differs = any(row.differing for row in report.rows)
        raise typer.Exit(1 if differs else 0 if report.ok else BAD_INPUT)  # where something was not compared
    from fpsim.gpu.experiments.validate import NAMES, main

    for word in part or ():
        require_word("part", word, NAMES)
    raise typer.Exit(main(["--out", str(out), "--minutes", str(minutes), *(["--parts", *part] if part else [])]))
