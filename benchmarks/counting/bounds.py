"""The limit of the core that binds a row, and the share of it that the row reaches."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

COUNTS = Path(__file__).with_name("instructions.json")  # which benchmarks.counting.instructions writes
NAMES = {
    "memory": "memory", "integer": "vector operations", "float": "float products", "multiply": "integer products",
    "scalar": "scalar instructions",
}  # fmt: skip


class Bound(NamedTuple):
    """The limit of the core that determines a row's largest rate.

    name: a key of `NAMES`. seconds: the least time for an element under this limit.
    """

    name: str
    seconds: float


def bound(count: dict[str, Any], limits: dict[str, float]) -> Bound:
    """Return the limit, of memory or of a kind of operation, under which an element takes longest.

    count: "read" and "written" bytes and "operations" by kind of an element. limits: rates of the core by name.

    Bytes read cost what reading alone does, but no more than copying them; bytes written cost the rest of a copy.
    """
    times = {kind: operations / limits[kind] for kind, operations in count["operations"].items()}
    reading = min(1 / limits["read"], 2 / limits["copy"])
    writing = 2 / limits["copy"] - reading
    times["memory"] = count["read"] * reading + count["written"] * writing
    name = max(times, key=times.__getitem__)
    return Bound(name, times[name])


@cache
def counts(processor: str) -> dict[str, Any]:
    """Return the counts of this processor by work; empty if it was not counted."""
    works: dict[str, Any] = (
        json.loads(COUNTS.read_text()).get(processor, {}).get("works", {}) if COUNTS.exists() else {}
    )
    return works


def counted(row: str, works: dict[str, Any]) -> dict[str, Any] | None:
    """Return the counted bytes and operations of a row's work; None if they were not counted.

    row: name of the row. works: name of a work -> its count, with the rows that do this work.
    """
    return next((work for work in works.values() if any(fnmatchcase(row, pattern) for pattern in work["rows"])), None)


def share(rate: float, row: str, works: dict[str, Any], limits: dict[str, float]) -> dict[str, Any] | None:
    """Return the bound of a row and the share that a rate (elements a second) reaches; None if not counted."""
    count = counted(row, works)
    if count is None:
        return None
    least = bound(count, limits)
    return {"bound": least.name, "share": rate * least.seconds}
