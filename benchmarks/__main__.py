"""Rates compared with other libraries and with the limits of the core: `make bench`, or `python -m benchmarks`.

Every row is one race on the same data, with preallocated outputs where the library takes them. Compare ratios and
shares of the core's limits; absolute rates differ between machines. docs/performance.md says how to read the output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import (
    arithmetic,
    calls,
    casts,
    compare,
    limits,
    measures,
    memory,
    models,
    products,
    scaled,
    schedules,
    systems,
)  # fmt: skip
from benchmarks.counting.bounds import counts, share
from benchmarks.counting.instructions import target
from benchmarks.machine import describe
from benchmarks.race import one_core
from benchmarks.row import MeasuredCore, RaceRow, chosen, load, report, write
from fpsim.runtime.threads import thread_count

SIZE = 1 << 24  # elements
TRAINED = ("BF16", "FP16_DYNAMIC", "FP8_TENSOR", "DEEPSEEK_V3", "MXFP8", "NVFP4")  # a recipe of each kind


class RowGroup(NamedTuple):
    """Rows printed below a title.

    size: number of elements of rows that state none; None for that of --size.
    """

    title: str
    rows: Callable[[int], Iterator[RaceRow]]
    size: int | None = None


# Groups that run on one core; a new file of rows gets a line here.
GROUPS = (
    RowGroup("One core:", lambda size: casts.rows(size, load("torch"), load("jax"), load("gfloat"))),
    RowGroup("Arithmetic on codes:", lambda size: arithmetic.rows(size, load("torch"), load("jax"))),
    RowGroup("Elementary functions:", lambda size: arithmetic.elementary_rows(size, load("torch"))),
    RowGroup(f"{scaled.SIZE} x {scaled.SIZE} elements with scales:", lambda _: scaled.rows(), scaled.SIZE**2),
    RowGroup("Matrix products, beside NumPy's float32 product and other emulators:", lambda _: products.rows()),
    RowGroup("Library schedules, beside the flat product of the same unit:", lambda _: schedules.rows()),
    RowGroup("Measures:", lambda _: measures.rows()),
    RowGroup("Models:", lambda _: models.rows()),
    RowGroup("Systems:", lambda _: systems.rows()),
    RowGroup("Small calls, and checks:", lambda _: calls.rows()),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the races; return 1 if --strict is given and a target was missed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="elements per array")
    parser.add_argument("--out", "-o", type=Path, help="the file to write, out/bench.json by default")
    parser.add_argument(
        "--rows", "--only", default="", help="run the rows whose name contains this or matches a pattern"
    )
    parser.add_argument("--strict", action="store_true", help="return 1 if a target is missed")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="print what changed since that record")
    parser.add_argument("--with", type=Path, dest="new", metavar="NEW.json", help="compare these two; nothing is run")
    options = parser.parse_args(arguments)
    if options.new and not options.compare:
        parser.error("--with NEW.json needs --compare OLD.json")
    old = compare.read(options.compare) if options.compare else None
    if options.new:
        print(compare.text(old or {}, compare.read(options.new)))
        return 0

    record = run(options.rows, options.size)
    # some rows would replace the record of all
    out = options.out or Path("out/bench-rows.json" if options.rows else "out/bench.json")
    write(record, out)
    print(f"Recorded in {out}, after {record['seconds']:.0f} s.")
    if old:
        print(compare.text(old, record))
    missed = [row["name"] for row in record["rows"] if not all(row["met"].values())]
    missed += [row["name"] for row in record["memory"] if not row["met"]]
    if chosen("training", options.rows) and load(
        "torch"
    ):  # a table of its own, which `python -m benchmarks.training` prints whole
        missed += ["training"] * load("benchmarks.training").main(list(TRAINED))
    return 1 if options.strict and missed else 0


def run(rows: str, size: int) -> dict[str, Any]:
    """Run the selected races, measure the core's limits before and after, keep the higher ones, and return the record.

    rows: part of the name of a row, or a pattern with * or ?. size: number of elements of rows that state none.
    """
    machine, began, threads, torch = describe(), time.perf_counter(), thread_count(), load("torch")
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)  # type: ignore[attr-defined]
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['date']}; {versions}")
    records: list[dict[str, Any]] = []
    with one_core():
        if torch:
            torch.set_num_threads(1)
        processor = target()
        first = limits.measure()
        core = MeasuredCore(first, counts(processor))
        print(f"Limits of one core ({processor}): {_in_words(first)}")
        print(f"{size:,} elements; ratios say how many times as fast fpsim is, shares what of a limit it reaches.")
        for group in GROUPS:
            records += _group(group, rows, size, core)
        best = limits.best(first, last := limits.measure())
    for record in records:  # of the limits that are kept
        rate = next(iter(record["elements_per_second"].values()))
        record["limit"] = share(rate, record["name"], core.counts, best)
    if threads > 1:
        everywhere = RowGroup(f"All {threads} cores:", lambda count: _on_all_cores(count, threads))
        records += _group(everywhere, rows, size, None)
    product_memory = memory.report() if chosen(memory.NAME, rows) else None
    return {
        "machine": machine,
        "target": processor,
        "elements": size,
        "limits": best,
        "units": limits.UNITS,
        "drift": limits.drift(first, last),
        "rows": records,
        "memory": [product_memory] if product_memory else [],
        "seconds": time.perf_counter() - began,
    }


def _group(group: RowGroup, rows: str, size: int, core: MeasuredCore | None) -> list[dict[str, Any]]:
    """Run the selected rows of a group, print its title above the first, and return their records."""
    records: list[dict[str, Any]] = []
    for row in group.rows(size):
        if chosen(row.name, rows):
            if not records:
                print(group.title)
            records.append(report(row, group.size or size, core))
    return records


def _on_all_cores(size: int, threads: int) -> Iterator[RaceRow]:
    yield from casts.thread_rows(casts.data(size), threads)
    yield from products.thread_rows(threads)


def _in_words(measured: dict[str, float]) -> str:
    return ", ".join(f"{name} {value / 1e9:.1f} G {limits.UNITS[name]}" for name, value in measured.items())


if __name__ == "__main__":
    sys.exit(main())
