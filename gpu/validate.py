"""validate: fpsim beside silicon, part by part, each within its time and with its own errors.

`python -m fpsim.gpu.validate --out DIR` runs every part in a process of its own, so that a failed launch or a hang
costs one part alone, prints the table with its summary last, and writes DIR/validation.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fpsim
from fpsim.errors import unknown
from fpsim.gpu.checks import CHECKS, Check
from fpsim.gpu.device import GpuError
from fpsim.gpu.judge import Judgement, ProductCase, judged, said_of
from fpsim.gpu.lab import REAL, Lab, about_of, laboratory
from fpsim.gpu.products import PRODUCTS
from fpsim.gpu.recording import Entry, store
from fpsim.gpu.report import Row, ValidationReport, row_of

PARTS: dict[str, Callable[[Lab], Iterable[Any]]] = {**PRODUCTS, **CHECKS}
GRACE = 45.0  # seconds that a part's process may take beyond its time, for imports and compiling
RECORD, TABLE, UNFIT = "validation.json", "validation.txt", "unfit"
MOST_KEPT = 3  # problems of a case that no model gives


def validate(
    out: str | Path | None = None, minutes: float = 7, parts: Sequence[str] | None = None, *,
    hardware: Any = None, seed: int = 0, isolated: bool = False, small: bool = False,
) -> ValidationReport:  # fmt: skip
    """Compare the emulator with the GPU of this machine, bit by bit.

    Args:
      out: a folder for validation.json, validation.txt, and unfit/*.npz: inputs and results of products that no model
        gives, which `fpsim.gpu.replay` reads. None writes nothing.
      minutes: that all parts may take together; comparisons that find no time are counted and left out.
      parts: some of "units", "tensorwise", "rowwise", "blockwise", "cublaslt", "halves", "matmuls", "casts",
        "arithmetic"; None for all.
      hardware: what to compare with: an object or module with the functions of `fpsim.gpu.hardware`, or a module's
        name; None for the GPU.
      seed: of the inputs.
      isolated: every part in a process of its own; then `hardware` is a name.
      small: few and small comparisons.

    Returns:
      ValidationReport; its str() is a table, with a summary last.

    Raises:
      GpuError: there is no GPU. Whatever fails later is a row of the report.
      ValueError: unknown parts, or an object for parts in processes of their own.

    Source: docs/gpu.md, docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.validate(parts=["units"], minutes=1).summary())
    """
    began = time.monotonic()
    chosen = list(PARTS) if parts is None else list(parts)
    for part in chosen:
        if part not in PARTS:
            raise unknown("part", part, list(PARTS))
    if isolated and not isinstance(hardware, str | None):
        raise ValueError("a part in a process of its own needs the hardware's module by name; got an object.")
    name = hardware if isinstance(hardware, str) else REAL
    silicon = importlib.import_module(name) if hardware is None or isinstance(hardware, str) else hardware
    about = about_of(silicon)
    lab = laboratory(silicon, about, seed, small)
    end = began + 60 * minutes
    rows: list[Row] = []
    keep = None if out is None else Path(out) / UNFIT
    for i, part in enumerate(chosen):
        now = time.monotonic()
        seconds = max((end - now) / (len(chosen) - i), 1.0)
        if isolated:
            rows += _in_its_process(part, seconds, Lab(name, seed=seed, small=small), keep)
        else:
            rows += run_part(part, lab, now + seconds, keep=keep)
    report = ValidationReport(tuple(rows), about, time.monotonic() - began)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        report.save(folder / RECORD)
        (folder / TABLE).write_text(f"{report}\n")
    return report


# ---- a part


def run_part(
    part: str, lab: Lab, deadline: float, found: Callable[[Row], None] | None = None, keep: Path | None = None
) -> list[Row]:
    """The rows of a part, until its time is over; `found` sees each as it comes, `keep` gets what no model gives."""
    rows: list[Row] = []
    left_out = 0

    def add(row: Row) -> None:
        rows.append(row)
        if found is not None:
            found(row)

    try:
        for number, case in enumerate(PARTS[part](lab)):
            if rows and time.monotonic() > deadline:
                left_out += 1
                continue
            for row in _rows_of(case, deadline, None if keep is None else keep / f"{part}-{number}.npz"):
                add(row)
    except Exception as reason:
        add(Row(part, "the part itself", "", error=said_of(reason)))
    if left_out:
        add(Row(part, f"{left_out} more", "", error="no time was left; give more minutes"))
    return rows


def _rows_of(case: ProductCase | Check, deadline: float, keep: Path | None) -> Iterator[Row]:
    """The rows of one case."""
    if isinstance(case, ProductCase):
        judgement = judged(case, deadline)
        yield from judgement.rows
        if keep is not None:
            _keep(case, judgement, keep)
        return
    try:
        yield replace(case.run(), part=case.part, what=case.what, inputs=case.inputs)
    except Exception as reason:
        yield Row(case.part, case.what, case.inputs, error=said_of(reason))


def _keep(case: ProductCase, judgement: Judgement, path: Path) -> None:
    """Store what no model gives, so that it can be looked at without a GPU."""
    model = judgement.best
    unfit = [
        Entry(f"{case.part}: {case.what}, {problem.name}", problem, output, model, row.differing)
        for row, problem, output in zip(judgement.rows, case.problems, judgement.outputs, strict=True)
        if output is not None and model is not None and row.differing
    ]
    if unfit:
        store(path, unfit[:MOST_KEPT], {"case": case.what, "note": judgement.rows[0].note})


def _in_its_process(part: str, seconds: float, lab: Lab, keep: Path | None) -> list[Row]:
    """A part in a process of its own; what it had found is kept where it dies."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        command = [sys.executable, "-m", "fpsim.gpu.validate", "--part", part, "--seconds", f"{seconds:.0f}",
                   "--rows", str(file), "--hardware", lab.hardware, "--seed", str(lab.seed),
                   *(["--small"] if lab.small else []), *(["--keep", str(keep)] if keep else [])]  # fmt: skip
        root = str(Path(fpsim.__file__).resolve().parent.parent)
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        error = ""
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + GRACE, check=False,
                env={**os.environ, "PYTHONPATH": paths},
            )  # fmt: skip
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
                error = f"its process ended with {done.returncode}: {last[:400]}"
        except subprocess.TimeoutExpired:
            error = f"its process did not end within {seconds + GRACE:.0f} s"
        rows = [row_of(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    if error:
        rows.append(Row(part, "the part itself", "", error=error))
    return rows


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 where everything is equal, 1 where something differs or failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu.validate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="out/validation", help="folder for validation.json")
    parser.add_argument("--minutes", type=float, default=7, help="for all parts together")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--small", action="store_true", help="few and small comparisons")
    parser.add_argument("--together", action="store_true", help="all parts in this process")
    parser.add_argument("--hardware", default=REAL, metavar="MODULE", help="compare with this module's functions")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument("--keep", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        if given.part:
            return _one_part(given)
        report = validate(
            given.out, given.minutes, given.parts, hardware=given.hardware, seed=given.seed,
            isolated=not given.together, small=given.small,
        )  # fmt: skip
    except GpuError as reason:
        print(reason, file=sys.stderr)
        return 2
    print(report)
    return 0 if report.all_equal else 1


def _one_part(given: argparse.Namespace) -> int:
    """Run a part and append its rows to a file as they come."""
    began = time.monotonic()
    silicon = importlib.import_module(given.hardware)
    lab = laboratory(silicon, dict(silicon.about()), given.seed, given.small)
    with open(given.rows, "a") as file:

        def write(row: Row) -> None:
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()

        run_part(given.part, lab, began + given.seconds, write, Path(given.keep) if given.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
