"""Which limit of the core binds a row, and the share of it that the row reaches."""

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
    """The limit that binds, a key of `NAMES`, and the seconds that an element takes at least."""

    name: str
    seconds: float


def bound(count: dict[str, Any], limits: dict[str, float]) -> Bound:
    """The longest of the times that an element's bytes and operations take by themselves.

    A copy's time is that of reading and writing as many bytes; what is read costs what reading alone does, and no more
    than the whole copy.
    """
    times = {kind: each / limits[kind] for kind, each in count["operations"].items()}
    reading = min(1 / limits["read"], 2 / limits["copy"])
    writing = 2 / limits["copy"] - reading
    times["memory"] = count["read"] * reading + count["written"] * writing
    name = max(times, key=lambda each: times[each])
    return Bound(name, times[name])


@cache
def counts(processor: str) -> dict[str, Any]:
    """What was counted for this processor, by work; empty where nothing was."""
    found: dict[str, Any] = (
        json.loads(COUNTS.read_text()).get(processor, {}).get("works", {}) if COUNTS.exists() else {}
    )
    return found


def counted(row: str, found: dict[str, Any]) -> dict[str, Any] | None:
    """The count of a row's work; None where it was not counted."""
    return next((one for one in found.values() if any(fnmatchcase(row, each) for each in one["rows"])), None)


def share(rate: float, row: str, found: dict[str, Any], limits: dict[str, float]) -> dict[str, Any] | None:
    """The bound of a row and the share of it that a rate (elements a second) reaches; None if it was not counted."""
    count = counted(row, found)
    if count is None:
        return None
    least = bound(count, limits)
    return {"bound": least.name, "share": rate * least.seconds}
