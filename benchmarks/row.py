"""A row of the benchmark: a race, its targets, and its record."""

from __future__ import annotations

import importlib
import json
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.counting.bounds import NAMES, share
from benchmarks.race import Work, race


class RaceRow(NamedTuple):
    """A race to run: its name, its contestants, and the targets of the first one, which is fpsim."""

    name: str
    contestants: dict[str, Work]
    targets: dict[str, float]  # by peer: the wanted multiple of its rate
    rate: float | None = None  # the wanted elements per second
    size: int | None = None  # number of elements; None for that of the group
    counted: str = "el"  # unit of the rate; "call" shows microseconds a call


def load(name: str) -> Any:
    """Import and return a module, or return None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@dataclass(frozen=True)
class MeasuredCore:
    """Limits of the core on which races run, and the counted operations of their work.

    limits: name -> rate. counts: name of a work -> its bytes and operations per element.
    """

    limits: dict[str, float]
    counts: dict[str, Any]


def report(row: RaceRow, size: int, core: MeasuredCore | None = None) -> dict[str, Any]:
    """Run one race, print its line, and return its record; ratios are first contestant's rate / another's.

    core: limits that the row's share is computed from; None on several cores, whose limits are not measured.
    """
    result = race(row.contestants)
    size = row.size or size
    first, *others = row.contestants
    rates = {name: size / seconds for name, seconds in result.medians.items()}
    ratios = {name: rates[first] / rates[name] for name in others}
    verdicts = {name: ratios[name] >= wanted for name, wanted in row.targets.items() if name in ratios}
    if row.rate is not None:
        verdicts["rate"] = rates[first] >= row.rate
    limit = share(rates[first], row.name, core.counts, core.limits) if core else None
    cells = [f"{name} {ratio:.2f}x{_mark(verdicts.get(name))}" for name, ratio in ratios.items()]
    cells += [f"{limit['share']:.0%} of {NAMES[limit['bound']]}"] if limit else []
    print(f"{row.name:36s} {_rate(row, rates[first])}{_mark(verdicts.get('rate'))}  {'  '.join(cells)}", flush=True)
    return {
        "name": row.name,
        "elements_per_second": rates,
        "best_elements_per_second": {name: size / seconds for name, seconds in result.fastest.items()},
        "spread": result.spreads,
        "first_is_faster_by": ratios,
        "targets": {**row.targets, **({"rate": row.rate} if row.rate else {})},
        "met": verdicts,
        "turns": result.turns,
        "limit": limit,
    }


def chosen(name: str, rows: str) -> bool:
    """Return whether `rows` selects a row: a part of its name, or a pattern with * or ?, regardless of case."""
    name, rows = name.lower(), rows.lower()
    return fnmatchcase(name, rows) if set("*?") & set(rows) else rows in name


def _rate(row: RaceRow, rate: float) -> str:
    if row.counted != "call":
        return f"{rate / 1e9:6.2f} G{row.counted}/s"
    return f"{1e6 / rate:6.1f} us a call" if rate > 100 else f"{1 / rate:6.2f} s a call"


def _mark(met: bool | None) -> str:
    return "" if met is None else " (met)" if met else " (MISSED)"


def write(record: dict[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        json.dump(record, file, indent=2)
        file.write("\n")
    Path(file.name).replace(path)
