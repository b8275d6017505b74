"""`fp.cpu.validate`: compares the instructions of this processor with the emulator, bit by bit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fpsim.cpu.availability import CpuError, available, require
from fpsim.cpu.emulations import emulation_of
from fpsim.cpu.execution import execute
from fpsim.cpu.inputs import Operands, inputs_of
from fpsim.cpu.instructions import INSTRUCTIONS, AnyInstruction, named
from fpsim.cpu.report import CpuReport, InstructionRow
from fpsim.errors import require_integer, require_minutes, shown
from fpsim.files import require_folder, write_whole
from fpsim.gpu.lab.report import difference
from fpsim.lazy import public

CHUNK = 1 << 20  # results that are compared at a time
RECORD, TABLE = "cpu-validation.json", "cpu-validation.txt"
VALUES = 100_000


def validate(
    instructions: Sequence[str] | None = None, *, values: int = VALUES, seed: int = 0, minutes: float = 7,
    out: str | Path | None = None,
) -> CpuReport:  # fmt: skip
    """Run the instructions of this processor, and compare every result with the emulator's, bit by bit.

    Args:
      instructions: names of `fp.cpu.available()`; None for all that this processor has.
      values: number of results to compare for each instruction, divided among kinds of inputs; square roots of
        FP16 and conversions from FP16 are compared on all 65,536 codes.
      seed: seed of the inputs.
      minutes: time after which no further comparison begins.
      out: a folder for cpu-validation.json and cpu-validation.txt; None writes nothing.

    Returns:
      A CpuReport, with a row for each instruction and kind of inputs.

    Raises:
      CpuError: a requested instruction cannot be run here.
      ValueError: there is no such instruction, `minutes` is negative, or `out` cannot be written to.
      TypeError: values is not an integer, or instructions is not a sequence.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> report = fp.cpu.validate(values=100)
      >>> report.ok == bool(fp.cpu.available())
      True
    """
    require_integer("values", values, 1)
    require_integer("seed", seed, 0)
    require_minutes(minutes)
    began = time.monotonic()
    rows = chosen(instructions)
    folder = None if out is None else require_folder(out)
    here = available()
    compared: list[InstructionRow] = []
    for row in rows:
        compared += _compared(row, values, seed, began + 60 * minutes)
    missing = here.missing if instructions is None else ()
    report = CpuReport(tuple(compared), missing, about_here(), time.monotonic() - began)
    if folder is not None:
        report.save(folder / RECORD)
        write_whole(folder / TABLE, f"{report}\n")
    return report


def chosen(instructions: Sequence[str] | None) -> list[AnyInstruction]:
    """Return the instructions with the names in `instructions`; for None, all instructions that this processor has.

    Raises:
      CpuError: this processor does not have one of the named instructions.
      ValueError: there is no such instruction.
      TypeError: instructions is not a sequence.
    """
    if instructions is None:
        return [INSTRUCTIONS[name] for name in available().present]
    try:
        names = [instructions] if isinstance(instructions, str) else list(instructions)
    except TypeError:
        raise TypeError(f"instructions must be names of fp.cpu.available(); got {shown(instructions)}.") from None
    rows = [named(name) for name in names]
    for row in rows:
        require(row)
    return rows


def about_here() -> dict[str, str]:
    """Return facts for reports and recordings, name -> text: the processor, versions of LLVM and fpsim, the date."""
    version = str(getattr(public(), "__version__", "a checkout"))
    return {**available().about, "fpsim": version, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


def _compared(row: AnyInstruction, values: int, seed: int, deadline: float) -> Iterator[InstructionRow]:
    """Compare an instruction with its emulation on each kind of inputs, and yield an InstructionRow for each kind.

    row: the instruction. values: number of results to compare, divided among the kinds. seed: seed of the inputs.
    deadline: the time.monotonic() after which no kind is run, and its InstructionRow says that no time was left. If
    the processor cannot run the instruction, an InstructionRow says why.
    """
    emulation = emulation_of(row.name)
    try:
        for kind, operands in inputs_of(row.name, values, seed).items():
            if time.monotonic() > deadline:
                yield InstructionRow(row.name, emulation.words, kind, error="No time was left; give more minutes")
            else:
                yield _row(row, kind, operands)
    except CpuError as reason:
        yield InstructionRow(row.name, emulation.words, "", error=str(reason).rstrip("."))


def _row(row: AnyInstruction, kind: str, operands: Operands) -> InstructionRow:
    """Run and emulate an instruction on inputs of one kind; return the comparison of the results as an InstructionRow.

    row: the instruction. kind: name of the kind, such as "any bits". operands: the inputs as arrays of bit patterns,
    whose first axis counts results.
    """
    emulation = emulation_of(row.name)
    count, differing, other_nans, first = 0, 0, 0, ""
    same = {name for name, _ in emulation.rivals}
    for start in range(0, len(operands[0]), CHUNK):
        part = tuple(x[start : start + CHUNK] for x in operands)
        results = execute(row, part)
        comparison = difference(results, emulation.compute(*part), emulation.fmt)
        if comparison.differing and not differing:
            first = comparison.first if start == 0 else f"from row {start} on, {comparison.first}"
        count, differing = count + comparison.compared, differing + comparison.differing
        other_nans += comparison.other_nans
        for name, compute in emulation.rivals:
            if name in same and difference(results, compute(*part), emulation.fmt).differing:
                same.discard(name)
    return InstructionRow(
        row.name, emulation.words, kind, count, differing, other_nans, first, tuple(sorted(same)), len(emulation.rivals)
    )
