"""What changed between two runs of the benchmark, where it is more than noise.

The noise of a row is how far its own turns lie apart in both runs, and how far the limits of the core moved within
each: other work on a machine slows everything. Where two runs were on different processors, or the limits of the core
itself differ, shares of the limits say more than rates, and both are shown.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

LEAST = 0.03  # what no run can tell apart


class RateChange(NamedTuple):
    """A row in both runs: new rate as a multiple of the old, the noise of that as a share, old and new share."""

    name: str
    ratio: float
    noise: float
    shares: tuple[float | None, float | None]

    @property
    def word(self) -> str:
        """ "faster" or "slower" beyond the noise, else "same"."""
        if abs(math.log(self.ratio)) <= math.log1p(self.noise):
            return "same"
        return "faster" if self.ratio > 1 else "slower"


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[RateChange]:
    """Every row that both records have, in the new one's order."""
    before = {row["name"]: row for row in old["rows"]}
    drift = math.hypot(old.get("drift", 0.0), new.get("drift", 0.0))
    found = []
    for row in new["rows"]:
        if row["name"] in before:
            earlier = before[row["name"]]
            noise = LEAST + math.hypot(_spread(earlier), _spread(row), drift)
            found.append(RateChange(row["name"], _rate(row) / _rate(earlier), noise, (_share(earlier), _share(row))))
    return found


def _rate(row: dict[str, Any]) -> float:
    """The first contestant's."""
    rate: float = next(iter(row["elements_per_second"].values()))
    return rate


def _spread(row: dict[str, Any]) -> float:
    """The first contestant's; records from before it was kept have the distance from the fastest turn."""
    if "spread" in row:
        kept: float = next(iter(row["spread"].values()))
        return kept
    best: float = next(iter(row["best_elements_per_second"].values()))
    return best / _rate(row) - 1


def _share(row: dict[str, Any]) -> float | None:
    found = row.get("limit")
    return found["share"] if found else None


def text(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What changed, the largest change first; then how many rows did not, and which are in one record only."""
    lines = [f"Beside {old['machine']['processor']}, {old['machine']['date']}:"]
    if old["machine"]["processor"] != new["machine"]["processor"]:
        lines.append(f"another processor than {new['machine']['processor']}: compare the shares, not the rates")
    limits = old.get("limits", {})
    moved = [f"{name} {new['limits'][name] / limits[name]:.2f}x" for name in new.get("limits", {}) if name in limits]
    lines += [f"limits of the core: {', '.join(moved)}"] if moved else []
    found = changes(old, new)
    for each in sorted((one for one in found if one.word != "same"), key=lambda one: -abs(math.log(one.ratio))):
        before, after = each.shares
        shares = f", {before:.0%} -> {after:.0%} of the limit" if before is not None and after is not None else ""
        lines.append(f"{each.name:36s} {each.ratio:5.2f}x {each.word} (noise {each.noise:.0%}){shares}")
    lines.append(f"{sum(one.word == 'same' for one in found)} of {len(found)} rows are the same within their noise.")
    names = [{row["name"] for row in record["rows"]} for record in (old, new)]
    for title, only in (("Only in the old record", names[0] - names[1]), ("New", names[1] - names[0])):
        lines += [f"{title}: {', '.join(sorted(only))}."] if only else []
    return "\n".join(lines)


def read(path: Path) -> dict[str, Any]:
    """A record that `make bench` wrote.

    Raises: ValueError if the file is something else.
    """
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or not {"machine", "rows"} <= record.keys():
        raise ValueError(
            f"{path} must be a record that `make bench` wrote, with machine and rows; it has neither or one"
        )
    return record
