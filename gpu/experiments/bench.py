"""bench: measures fpsim on the GPU of this machine, relative to the copy bandwidth and cuBLAS."""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fpsim.errors import require_minutes, require_word
from fpsim.files import INTERRUPTED, require_folder, write_whole
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.lab.bench_report import BenchReport, Speed, plain
from fpsim.gpu.lab.bench_rows import COPY, ELEMENTS, SHORT, SIDE, SMALL_ELEMENTS, SMALL_SIDE, WORKS, BenchWork
from fpsim.gpu.lab.judge import said_of
from fpsim.gpu.lab.lab import REAL, about_of
from fpsim.gpu.lab.processes import row_file

RECORD, TABLE = "bench.json", "bench.txt"
PARTS = tuple(dict.fromkeys(work.part for work in WORKS if work.part != COPY))
LEAST_RUNS = 3  # without time for so many runs, only a small size is measured
SPARE = 2  # free bytes on the GPU that a call requires, relative to its data


def bench(
    out: str | Path | None = None, minutes: float = 4, parts: Sequence[str] | None = None, *, hardware: Any = None,
    short: bool = False,
) -> BenchReport:  # fmt: skip
    """Measure the speed of fpsim on the GPU of this machine, relative to the copy bandwidth and to cuBLAS.

    Args:
      out: a folder for bench.json and bench.txt; None to write no files.
      minutes: time limit for all measurements; those not done yet share the time left equally. One that would take
        longer than its share uses a smaller size.
      parts: one or more of "casts", "arithmetic", "scaling", "products"; None for all. The copy is always measured.
      hardware: an object or module with `about`, `room` and `measure` of `fpsim.gpu.hardware`, or the name of a module;
        None for the GPU.
      short: True to measure only a few functions of every part.

    Returns:
      BenchReport; its str() is a table with a summary at the end.

    Raises:
      GpuError: there is no GPU. Later failures are reported as the `error` of a measurement.
      ValueError: a part is unknown, `minutes` is negative, or `out` cannot be written to.

    Source: docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.bench(parts=["casts"], minutes=1, short=True).summary())
    """
    began = time.monotonic()
    require_minutes(minutes)
    for part in parts or ():
        require_word("part", part, PARTS)
    silicon = importlib.import_module(hardware or REAL) if hardware is None or isinstance(hardware, str) else hardware
    about = about_of(silicon)
    folder = None if out is None else require_folder(out)
    rows: list[Speed] = []
    try:
        run(silicon, works_of(parts, short), began + 60 * minutes, rows.append)
    finally:  # also where Ctrl-C ends it
        report = BenchReport(tuple(rows), about, time.monotonic() - began)
        if folder is not None and rows:
            report.save(folder / RECORD)
            write_whole(folder / TABLE, f"{report}\n")
    return report


def works_of(parts: Sequence[str] | None = None, short: bool = False) -> list[BenchWork]:
    """Return the calls to measure: a copy, and the calls of the given parts.

    parts: names of parts, such as "casts"; None for all. short: True for only the calls whose names are in SHORT.
    """
    return [
        work for work in WORKS
        if work.part == COPY or (work.part in (parts or PARTS) and (not short or work.name in SHORT))
    ]  # fmt: skip


def run(silicon: Any, works: Sequence[BenchWork], deadline: float, add: Callable[[Speed], Any]) -> None:
    """Measure the calls `works` until the time `deadline` of time.monotonic(), and pass the speed of each to `add`.

    silicon: an object with `measure` and `room` of `fpsim.gpu.hardware`. Calls for which no time is left get a speed
    with an error.
    """
    known: dict[str, Speed] = {}
    for i, work in enumerate(works):
        left = deadline - time.monotonic()
        if left <= 0 and known:
            add(Speed(work.part, work.name, wanted=work.wanted, error="no time was left; give more minutes"))
            continue
        try:
            row = _measured(silicon, work, left / (len(works) - i), known.get(work.beside))
        except Exception as reason:
            row = Speed(work.part, work.name, wanted=work.wanted, error=said_of(reason))
        known[work.name] = row
        add(row)


def _measured(silicon: Any, work: BenchWork, seconds: float, beside: Speed | None) -> Speed:
    """Return the speed of a call at the full size or, if `seconds` are too few for that, at the small size.

    silicon: an object with the functions `measure` and `room` of `fpsim.gpu.hardware`. work: the call. beside: the
    measured speed of the call named work.beside, for the ratio of both speeds; None if it was not measured.
    """
    small, size = (SMALL_SIDE, SIDE) if work.is_product else (SMALL_ELEMENTS, ELEMENTS)
    free = 0 if work.is_product else silicon.room()
    while size > small and SPARE * work.moved * size > free:
        size //= 2
    times = silicon.measure(work, small, seconds / 8)
    expected = statistics.median(times) * work.count(size) / work.count(small)
    reduced, note = expected * LEAST_RUNS > seconds, ""
    if reduced:
        note = f"{size}{'^3' if work.is_product else ' elements'} would take about {expected:.3g} s; give more minutes"
        size = small
    else:
        times = silicon.measure(work, size, seconds / 2)
    middle = statistics.median(times)
    rate, bandwidth = work.count(size) / middle, work.moved * size / middle
    ratio, name = 0.0, ""
    if beside is not None and beside.rate and work.name != work.beside and reduced == beside.reduced:
        ratio, name = (bandwidth / beside.bandwidth if bandwidth else rate / beside.rate), work.beside
    return Speed(
        work.part, work.name, size, middle, len(times), bandwidth, rate, ratio, name, work.wanted, reduced, note=note
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m fpsim.gpu bench`, and return its exit code.

    The code is 0 if all was measured, 1 if a measurement failed, 2 without a GPU or a writable folder, and 130 after
    Ctrl-C. arguments: the words after `bench` on the command line; None for sys.argv[1:].
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", "-o", default="out/bench", help="folder for bench.json")
    parser.add_argument("--minutes", type=float, default=4, help="time limit for all measurements")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="measure only a few functions of every part")
    parser.add_argument("--hardware", default=REAL, metavar="MODULE", help="measure this module's functions")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.rows:  # a process of a validation
            end, works = time.monotonic() + 60 * options.minutes, works_of(options.parts, options.short)
            with row_file(options.rows) as write:
                run(importlib.import_module(options.hardware), works, end, lambda row: write(plain(row)))
            return 0
        report = bench(options.out, options.minutes, options.parts, hardware=options.hardware, short=options.short)
    except (GpuError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"Interrupted; what was measured, if anything, is in {options.out}.", file=sys.stderr)
        return INTERRUPTED
    print(report)
    return int(any(row.error for row in report.rows))
