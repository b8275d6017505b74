"""Recordings of inputs and results of a processor's instructions in a small file, and their replay on any machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.cpu.availability import CpuError
from fpsim.cpu.emulations import emulation_of
from fpsim.cpu.execution import execute
from fpsim.cpu.inputs import Operands, inputs_of
from fpsim.cpu.instructions import INSTRUCTIONS
from fpsim.cpu.report import CpuReport, InstructionRow
from fpsim.cpu.validation import about_here, chosen
from fpsim.errors import require_integer
from fpsim.files import path_of, require_folder, whole_file
from fpsim.gpu.lab.recording import DAMAGED, opened
from fpsim.gpu.lab.report import difference

FORMAT = "fpsim.cpu 1"  # name and version of the file's format
VALUES = 500


def record(
    path: str | Path, instructions: Sequence[str] | None = None, *, values: int = VALUES, seed: int = 0
) -> CpuReport:
    """Run instructions of this processor, and store their operands and results in a file that `replay` reads.

    Args:
      path: name of the file, .npz.
      instructions: names of `fp.cpu.available()`; None for all that this processor has.
      values: number of results of each instruction, divided among kinds of inputs.
      seed: seed of the inputs.

    Returns:
      A CpuReport, which compares the stored results with the emulator's. Results that differ are stored too.

    Raises:
      CpuError: a requested instruction cannot be run here, or the processor has none.
      ValueError: there is no such instruction, or the folder of the path cannot be written to.

    Example:
      >>> import tempfile, fpsim as fp
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     if fp.cpu.available():
      ...         assert fp.cpu.record(folder + "/mine.npz", values=50).ok
    """
    require_integer("values", values, 1)
    require_integer("seed", seed, 0)
    rows = chosen(instructions)
    if not rows:
        raise CpuError("this processor has no instruction to record. fp.cpu.available() lists the reasons.")
    require_folder(path_of(path).parent)
    entries = []
    for row in rows:
        kinds = inputs_of(row.name, values, seed)
        few = {kind: _thinned(operands, -(-values // len(kinds)), seed) for kind, operands in kinds.items()}
        operands = tuple(np.concatenate(parts) for parts in zip(*few.values(), strict=True))
        counts = {kind: len(of[0]) for kind, of in few.items()}
        entries.append(RecordedInstruction(row.name, counts, operands, execute(row, operands)))
    store(path, entries, about_here())
    return replay(path)


class RecordedInstruction(NamedTuple):
    """The recorded operands and results of an instruction, one kind of inputs after the other.

    Attributes:
      name: name of the instruction.
      counts: kind of inputs, such as "any bits" -> number of its results.
      operands, result: bit patterns, as for `fp.cpu.run`.
    """

    name: str
    counts: dict[str, int]
    operands: Operands
    result: Array


def _thinned(operands: Operands, count: int, seed: int) -> Operands:
    """Return operands for at most `count` results: all of them, or a random selection in their order.

    operands: arrays with one row per result. seed: seed of the selection.
    """
    size = len(operands[0])
    if size <= count:
        return operands
    kept = np.sort(np.random.default_rng(seed).choice(size, count, replace=False))
    return tuple(x[kept] for x in operands)


def store(path: str | Path, entries: Sequence[RecordedInstruction], about: dict[str, str]) -> None:
    """Write recorded instructions, `entries`, to the .npz file `path`, whole or not at all.

    The file has the arrays "i.j" for operand j of entry i, "i.d" for its result, and "meta", a dict as JSON text in
    uint8 bytes: "format" names the version of the file, "about" has facts on the processor as name -> text, and
    "entries" has a pair (name, counts) for each instruction.
    """
    data: dict[str, Any] = {}
    for i, entry in enumerate(entries):
        data |= {f"{i}.{j}": x for j, x in enumerate(entry.operands)} | {f"{i}.d": entry.result}
    meta = {"format": FORMAT, "about": about, "entries": [[entry.name, entry.counts] for entry in entries]}
    with whole_file(path) as file:
        np.savez_compressed(file, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **data)


def replay(path: str | Path) -> CpuReport:
    """Compute the results of a recording by the emulator, on any machine, and compare them bit by bit.

    Args:
      path: a file that `record` wrote.

    Returns:
      A CpuReport whose `about` describes the recorded processor, with a row for each instruction and kind of inputs.

    Raises:
      ValueError: the file is not a recording, damaged, or of another version.

    Example:
      >>> import fpsim as fp
      >>> from pathlib import Path
      >>> [path.name for path in Path("tests/cpu/recordings").glob("*.npz") if not fp.cpu.replay(path).ok]
      []
    """
    with opened(path, "fpsim.cpu.record") as data:
        try:
            meta = json.loads(data["meta"].tobytes()) if "meta" in data else {}
            if meta.get("format") == FORMAT and all(name in INSTRUCTIONS for name, _ in meta["entries"]):
                rows = [row for i, (name, counts) in enumerate(meta["entries"]) for row in _rows(data, i, name, counts)]
                return CpuReport(tuple(rows), about=dict(meta["about"]))
        except DAMAGED as reason:
            raise ValueError(
                f"{path} must be a recording of fpsim.cpu.record; it is damaged. Record again."
            ) from reason
    if meta.get("format") != FORMAT:
        got = f"its format is {meta['format']!r}" if "format" in meta else "it has no metadata"
        raise ValueError(f"{path} must be a recording of fpsim.cpu.record in the format {FORMAT!r}; {got}.")
    name = next(name for name, _ in meta["entries"] if name not in INSTRUCTIONS)
    raise ValueError(f"{path} has the instruction {name!r}, which this version does not know.")


def _rows(data: Any, i: int, name: str, counts: dict[str, int]) -> Iterator[InstructionRow]:
    """Yield the comparisons of entry i of a recording, the instruction `name`: a row for each kind of inputs.

    data: the recording's arrays, which `store` describes. counts: kind of inputs -> number of its results.

    Raises:
      KeyError, ValueError: arrays are missing, or have other shapes or dtypes than the instruction's.
    """
    emulation, result, start = emulation_of(name), data[f"{i}.d"], 0
    want = emulation.compute(*(data[f"{i}.{j}"] for j in range(3) if f"{i}.{j}" in data))
    if sum(counts.values()) != len(result):
        raise ValueError(f"entry {i} must have {sum(counts.values())} results; got {len(result)}.")
    for kind, count in counts.items():
        part = slice(start, start := start + count)
        yield InstructionRow(name, emulation.words, kind, *difference(result[part], want[part], emulation.fmt))
