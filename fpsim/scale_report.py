"""What happened to the scales of an array: counts of tiles."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class ScaleReport:
    """Counts of tiles; `merge` adds those of another part.

    Attributes:
      tiles: in all.
      zero_tiles: with an amax of 0.
      nan_tiles: with a NaN.
      infinite_tiles: with an infinite element.
      clamped_low: whose scale would have been too small, and is the smallest allowed.
      clamped_high: whose scale would have been too large for its format.
    """

    tiles: int = 0
    zero_tiles: int = 0
    nan_tiles: int = 0
    infinite_tiles: int = 0
    clamped_low: int = 0
    clamped_high: int = 0

    def merge(self, other: ScaleReport) -> ScaleReport:
        """The counts of both parts."""
        return ScaleReport(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
