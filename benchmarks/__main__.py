"""Speed beside other libraries: `make bench`, or `python -m benchmarks`.

Every row is one race on the same data with preallocated outputs where the library takes them. Ratios are what counts;
absolute figures move from machine to machine.
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import arithmetic, casts, measures, products, scaled, schedules
from benchmarks.machine import describe
from benchmarks.race import one_core
from benchmarks.row import load, report, write
from fpsim.runtime.threads import thread_count

SIZE = 1 << 24  # elements


def main(arguments: list[str] | None = None) -> int:
    """Run the races; exit code 1 if a target of the README was missed with --strict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE, help="elements per array")
    parser.add_argument("--out", "-o", type=Path, default=Path("out/bench.json"), help="where the record goes")
    parser.add_argument("--only", default="", help="run the rows whose name contains this")
    parser.add_argument("--strict", action="store_true", help="fail where a target is missed")
    options = parser.parse_args(arguments)

    machine = describe()
    torch, jax, gfloat = load("torch"), load("jax"), load("gfloat")
    threads = thread_count()
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)  # type: ignore[attr-defined]
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['date']}; {versions}")
    print(f"{options.size:,} elements; ratios say how many times as fast fpsim is. One core:")
    records: list[dict[str, Any]] = []
    with one_core():
        if torch:
            torch.set_num_threads(1)
        groups = casts.rows(options.size, torch, jax, gfloat), arithmetic.rows(options.size, torch, jax)
        for row in chain(*groups):
            if options.only in row.name:
                records.append(report(row, options.size))
        print(f"{scaled.SIZE} x {scaled.SIZE} elements with scales:")
        for row in scaled.rows():
            if options.only in row.name:
                records.append(report(row, scaled.SIZE**2))
        print("Matrix products (multiply-adds), beside NumPy's float32 product and other emulators:")
        for row in products.rows():
            if options.only in row.name:
                records.append(report(row, options.size))
        print("Library schedules, beside the flat product of the same unit:")
        for row in schedules.rows():
            if options.only in row.name:
                records.append(report(row, options.size))
        print("Measures:")
        for row in measures.rows():
            if options.only in row.name:
                records.append(report(row, options.size))
    if threads > 1:
        print(f"All {threads} cores:")
        for row in chain(casts.thread_rows(casts.data(options.size), threads), products.thread_rows(threads)):
            if options.only in row.name:
                records.append(report(row, options.size))
    write({"machine": machine, "elements": options.size, "rows": records}, options.out)
    print(f"Recorded in {options.out}.")
    missed = [record["name"] for record in records if not all(record["met"].values())]
    if torch and options.only in "training":  # which prints a table of its own
        missed += ["training"] * load("benchmarks.training").main([])
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
