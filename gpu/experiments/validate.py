"""validate: compares fpsim with a GPU, part by part, each with a time limit and separate errors.

`python -m fpsim.gpu validate --out DIR` runs every part in a separate process, all but the benchmark at the same time:
a failed launch or a hang costs one part only, and compilation uses all cores.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fpsim.errors import require_minutes, require_word
from fpsim.files import INTERRUPTED, require_folder, write_whole
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.experiments.bench import run as measure_rows
from fpsim.gpu.experiments.bench import works_of
from fpsim.gpu.experiments.checks import CHECKS, Check
from fpsim.gpu.experiments.layer_cases import layers
from fpsim.gpu.experiments.product_cases import PRODUCTS
from fpsim.gpu.experiments.twins import TWINS
from fpsim.gpu.lab.bench_report import Speed, speed_of
from fpsim.gpu.lab.judge import Judgement, ProductCase, judged, said_of
from fpsim.gpu.lab.lab import REAL, Lab, about_of, laboratory
from fpsim.gpu.lab.processes import Ended, row_file, side_by_side
from fpsim.gpu.lab.recording import Entry, store
from fpsim.gpu.lab.report import ValidationReport, ValidationRow, row_of

PARTS: dict[str, Callable[[Lab], Iterable[Any]]] = {**PRODUCTS, "layers": layers, **CHECKS, **TWINS}
SPEED = "speed"  # the part that measures speeds; the others compare bits
NAMES = (*PARTS, SPEED)
SPEED_WEIGHT = 2  # time for speeds relative to another part: compilation alone takes half a minute
GRACE = 45.0  # seconds that the process of a part may take beyond its time, for imports and compiling
RECORD, TABLE, UNFIT = "validation.json", "validation.txt", "unfit"
MOST_KEPT = 3  # most products to store of a case that no model fits


def validate(
    out: str | Path | None = None, minutes: float = 7, parts: Sequence[str] | None = None, *,
    hardware: Any = None, seed: int = 0, isolated: bool = False, small: bool = False,
) -> ValidationReport:  # fmt: skip
    """Compare the emulator with the GPU of this machine, bit by bit, and measure its speed.

    Args:
      out: a folder for validation.json, validation.txt, and unfit/*.npz: products whose bits no model predicts, which
        `fpsim.gpu.replay` reads. The first two files are written after every part, so that an interrupted validation
        keeps its results. None to write no files.
      minutes: time limit for all parts together; comparisons without time left are counted and left out.
      parts: one or more of "blockwise", "tensorwise", "rowwise", "halves", "cublaslt", "units", "layers", "matmuls",
        "casts", "arithmetic", "scaling", "sums", "functions", "elementary", "stacks", "speed"; None for all.
      hardware: an object or module with the functions of `fpsim.gpu.hardware`, or the name of a module; None for the
        GPU.
      seed: seed of the inputs.
      isolated: True to run every part in a separate process, all but "speed" at the same time; then `hardware` must be
        a name.
      small: True for few and small comparisons.

    Returns:
      ValidationReport; its str() is a table with a summary at the end.

    Raises:
      GpuError: there is no GPU. Later failures are rows of the report.
      ValueError: a part is unknown, `minutes` is negative, `hardware` is an object although `isolated`, or `out` cannot
        be written to.

    Source: docs/gpu.md, docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.validate(parts=["units"], minutes=1).summary())
    """
    began = time.monotonic()
    require_minutes(minutes)
    chosen = list(NAMES if parts is None else dict.fromkeys(parts))
    for part in chosen:
        require_word("part", part, NAMES)
    if isolated and not isinstance(hardware, str | None):
        raise ValueError(
            "hardware must be the name of a module if isolated=True; got an object. Pass isolated=False, or a name."
        )
    name = hardware if isinstance(hardware, str) else REAL
    silicon = importlib.import_module(name) if hardware is None or isinstance(hardware, str) else hardware
    about = about_of(silicon)
    folder = None if out is None else require_folder(out)
    keep = None if folder is None else folder / UNFIT
    lab = laboratory(silicon, about, seed, small)
    end = began + 60 * minutes
    rows: list[ValidationRow] = []
    speeds: list[Speed] = []

    def report() -> ValidationReport:
        made = ValidationReport(tuple(rows), about, time.monotonic() - began, tuple(speeds))
        if folder is not None:
            made.save(folder / RECORD)
            write_whole(folder / TABLE, f"{made}\n")
        return made

    try:
        for i, parts_now in enumerate(turns := _turns(chosen, isolated)):
            left = end - time.monotonic()
            weights = [SPEED_WEIGHT if turn == [SPEED] else len(turn) for turn in turns[i:]]
            seconds = max(left * weights[0] / sum(weights), 1.0)
            if isolated:
                most = min(seconds + GRACE, max(left + GRACE, 1.0))
                named = Lab(name, seed=seed, small=small)
                _in_processes(parts_now, seconds, most, named, keep, rows, speeds, report)
            elif parts_now == [SPEED]:
                measure_rows(silicon, works_of(short=True), time.monotonic() + seconds, speeds.append)
            else:
                run_part(parts_now[0], lab, time.monotonic() + seconds, rows.append, keep)
            report()
    except KeyboardInterrupt:
        rows.append(ValidationRow(parts_now[0], "the part itself", "", error="interrupted, and all later parts"))
        report()
        raise
    return report()


def run_part(
    part: str, lab: Lab, deadline: float, each_row: Callable[[ValidationRow], Any] = lambda row: None,
    keep: Path | None = None,
) -> list[ValidationRow]:  # fmt: skip
    """Run a part of the validation until its time is over, and return its comparisons.

    Args:
      part, lab: name of the part, and settings of the validation.
      deadline: the time of time.monotonic() after which no further comparison of the part is started.
      each_row: called with each comparison.
      keep: folder in which to store products whose bits no model predicts, or None.
    """
    rows: list[ValidationRow] = []
    left_out = 0

    def add(row: ValidationRow) -> None:
        rows.append(row)
        each_row(row)

    try:
        for number, case in enumerate(PARTS[part](lab)):
            if rows and time.monotonic() > deadline:
                left_out += 1
                continue
            for row in _rows_of(case, deadline, None if keep is None else keep / f"{part}-{number}.npz"):
                add(row)
    except Exception as reason:
        add(ValidationRow(part, "the part itself", "", error=said_of(reason)))
    if left_out:
        add(ValidationRow(part, f"{left_out} more", "", error="no time was left; give more minutes"))
    return rows


def _rows_of(case: ProductCase | Check, deadline: float, keep: Path | None) -> Iterator[ValidationRow]:
    """Run one case and yield its comparisons; a check that raises an exception yields one with the error.

    case: the products or the check to run. deadline: value of time.monotonic() at which the case ends. keep: a file in
    which to store products whose bits no model predicts, or None.
    """
    if isinstance(case, ProductCase):
        judgement = judged(case, deadline)
        yield from judgement.rows
        try:
            if keep is not None:
                _keep(case, judgement, keep)
        except OSError as reason:  # such as a full disk
            yield ValidationRow(
                case.part, f"{case.name}: products whose bits no model predicts", "", error=said_of(reason)
            )
        return
    try:
        yield replace(case.run(), part=case.part, what=case.name, inputs=case.inputs)
    except Exception as reason:
        yield ValidationRow(case.part, case.name, case.inputs, error=said_of(reason))


def _keep(case: ProductCase, judgement: Judgement, path: Path) -> None:
    """Write to a file those products of a case for which no model predicts all bits of the hardware's result.

    At most MOST_KEPT products are written; if there is none, no file is written. case: the products. judgement: the
    hardware's results, and the model that predicts them best. path: the .npz file, which `fpsim.gpu.replay` reads.
    """
    model = judgement.best
    unfit = [
        Entry(f"{case.part}: {case.name}, {problem.name}", problem, output, model, row.differing)
        for row, problem, output in zip(judgement.rows, case.problems, judgement.outputs, strict=True)
        if output is not None and model is not None and row.differing
    ]
    if unfit:
        store(path, unfit[:MOST_KEPT], {"case": case.name, "note": judgement.rows[0].note})


def _turns(chosen: list[str], isolated: bool) -> list[list[str]]:
    """Divide the names `chosen` of parts of a validation into groups; the parts of a group run at the same time.

    If isolated, the first group has all parts but "speed", and the second one "speed"; an empty group is left out.
    Otherwise each part is a group.
    """
    if not isolated:
        return [[part] for part in chosen]
    return [turn for turn in ([part for part in chosen if part != SPEED], [SPEED] * (SPEED in chosen)) if turn]


def _in_processes(
    parts: list[str], seconds: float, most: float, lab: Lab, keep: Path | None, rows: list[ValidationRow],
    speeds: list[Speed], report: Callable[[], Any],
) -> None:  # fmt: skip
    """Run parts of a validation in separate processes, add results to `rows` and `speeds`, call `report` as each ends.

    seconds: the time limit that each process observes. most: seconds after which a process is killed; the results that
    it has written until then are used. lab: settings of the validation; `lab.hardware` must be a module's name. keep:
    folder in which to store products whose bits no model predicts, or None.
    """
    of_parts: dict[str, list[ValidationRow]] = {part: [] for part in parts}
    before = tuple(rows)

    def ended(worker: Ended) -> None:
        if worker.name == SPEED:
            speeds.extend(speed_of(json.loads(line)) for line in worker.lines)
        else:
            of_parts[worker.name].extend(row_of(json.loads(line)) for line in worker.lines)
        if worker.error:
            of_parts[worker.name].append(ValidationRow(worker.name, "the part itself", "", error=worker.error))
        rows[:] = [*before, *(row for part in parts for row in of_parts[part])]
        report()

    def command(part: str, file: Path) -> list[str]:
        python, to_file = [sys.executable, "-m", "fpsim.gpu"], ["--rows", str(file), "--hardware", lab.hardware]
        if part == SPEED:
            return [*python, "bench", "--short", "--minutes", f"{seconds / 60:.3f}", *to_file]
        return [*python, "validate", "--part", part, "--seconds", f"{seconds:.0f}", *to_file, "--seed", str(lab.seed),
                *(["--small"] if lab.small else []), *(["--keep", str(keep)] if keep else [])]  # fmt: skip

    side_by_side(parts, command, most, ended)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m fpsim.gpu validate`, and return its exit code.

    The code is 0 if all compared bits are equal, 1 if some differ or a comparison failed, 2 without a GPU or a writable
    folder, and 130 after Ctrl-C. arguments: the words after `validate` on the command line; None for sys.argv[1:].
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu validate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", "-o", default="out/validation", help="folder for validation.json")
    parser.add_argument("--minutes", type=float, default=7, help="time for all parts together")
    parser.add_argument("--parts", nargs="+", choices=NAMES, metavar="PART", help=", ".join(NAMES))
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--small", action="store_true", help="make few and small comparisons")
    parser.add_argument("--together", action="store_true", help="run all parts in this process")
    parser.add_argument("--hardware", default=REAL, metavar="MODULE", help="compare with this module's functions")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument("--keep", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    began = time.time()
    try:
        if options.part:
            end, keep = time.monotonic() + options.seconds, Path(options.keep) if options.keep else None
            silicon = importlib.import_module(options.hardware)
            lab = laboratory(silicon, dict(silicon.about()), options.seed, options.small)
            with row_file(options.rows) as write:
                run_part(options.part, lab, end, lambda row: write(asdict(row)), keep)
            return 0
        report = validate(
            options.out, options.minutes, options.parts, hardware=options.hardware, seed=options.seed,
            isolated=not options.together, small=options.small,
        )  # fmt: skip
    except (GpuError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        record = Path(options.out) / RECORD
        if record.exists() and record.stat().st_mtime >= began:
            print(ValidationReport.load(record))
            print(f"Interrupted; the results so far are in {record.parent}.", file=sys.stderr)
        else:
            print("Interrupted before there were any results.", file=sys.stderr)
        return INTERRUPTED
    print(report)
    return 0 if report.all_equal else 1
