"""Comparison of two runs of the benchmark: rows that changed by more than noise.

The noise of a row is the spread of its turns in both runs and the drift of the core's limits within each, since other
work on a machine slows everything. Shares of the limits compare between processors, rates do not; both are shown.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

LEAST = 0.03  # relative changes below this are noise in any run


class RateChange(NamedTuple):
    """The change of a row's rate between two runs.

    name: name of the row. ratio: new rate / old rate. noise: relative noise of the ratio. shares: (old, new) share of
    the core's limit, None where none was computed.
    """

    name: str
    ratio: float
    noise: float
    shares: tuple[float | None, float | None]

    @property
    def word(self) -> str:
        """Verdict: "faster" or "slower" if the change is beyond the noise, else "same"."""
        if abs(math.log(self.ratio)) <= math.log1p(self.noise):
            return "same"
        return "faster" if self.ratio > 1 else "slower"


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[RateChange]:
    """Return the change of each row that both records have, in the order of the new one."""
    before = {row["name"]: row for row in old["rows"]}
    drift = math.hypot(old.get("drift", 0.0), new.get("drift", 0.0))
    result = []
    for row in new["rows"]:
        if row["name"] in before:
            earlier = before[row["name"]]
            noise = LEAST + math.hypot(_spread(earlier), _spread(row), drift)
            result.append(RateChange(row["name"], _rate(row) / _rate(earlier), noise, (_share(earlier), _share(row))))
    return result


def _rate(row: dict[str, Any]) -> float:
    """Return the rate of a row's first contestant, in elements a second."""
    rate: float = next(iter(row["elements_per_second"].values()))
    return rate


def _spread(row: dict[str, Any]) -> float:
    """Return the relative spread of the first contestant's times.

    For old records without a spread, return median time / fastest time - 1.
    """
    if "spread" in row:
        kept: float = next(iter(row["spread"].values()))
        return kept
    best: float = next(iter(row["best_elements_per_second"].values()))
    return best / _rate(row) - 1


def _share(row: dict[str, Any]) -> float | None:
    limit = row.get("limit")
    return limit["share"] if limit else None


def text(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return the comparison as text: changed rows, largest change first; unchanged rows counted; rows of one record."""
    lines = [f"Compared with {old['machine']['processor']}, {old['machine']['date']}:"]
    if old["machine"]["processor"] != new["machine"]["processor"]:
        lines.append(f"The processors differ (now {new['machine']['processor']}): compare the shares, not the rates.")
    limits = old.get("limits", {})
    moved = [f"{name} {new['limits'][name] / limits[name]:.2f}x" for name in new.get("limits", {}) if name in limits]
    lines += [f"limits of the core: {', '.join(moved)}"] if moved else []
    compared = changes(old, new)
    for row in sorted((row for row in compared if row.word != "same"), key=lambda row: -abs(math.log(row.ratio))):
        before, after = row.shares
        shares = f", {before:.0%} -> {after:.0%} of the limit" if before is not None and after is not None else ""
        lines.append(f"{row.name:36s} {row.ratio:5.2f}x {row.word} (noise {row.noise:.0%}){shares}")
    same = sum(row.word == "same" for row in compared)
    lines.append(f"{same} of {len(compared)} rows are the same within their noise.")
    names = [{entry["name"] for entry in record["rows"]} for record in (old, new)]
    for title, only in (("Only in the old record", names[0] - names[1]), ("New", names[1] - names[0])):
        lines += [f"{title}: {', '.join(sorted(only))}."] if only else []
    return "\n".join(lines)


def read(path: Path) -> dict[str, Any]:
    """Read a record that `make bench` wrote.

    Raises: ValueError if the file is not such a record.
    """
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or not {"machine", "rows"} <= record.keys():
        raise ValueError(
            f"{path} must be a record that `make bench` wrote, with the keys machine and rows; one or both are missing"
        )
    return record
