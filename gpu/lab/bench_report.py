"""What a GPU benchmark found: rates beside the copy bandwidth and cuBLAS, as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fpsim.files import path_of, write_whole


@dataclass(frozen=True)
class Speed:
    """One row.

    size: elements, or the side of square matrices; seconds: the median of `runs`; bandwidth: bytes per second, 0 for
    products; rate: elements per second, or multiplications of a product; ratio: of the bandwidth or rate to that of the
    row `beside`, 0 where that is not known; wanted: what is asked of the ratio, or of the rate of a product;
    reduced: at a smaller size than is asked about, for want of time, so that no verdict follows; error: why nothing was
    measured; note: what else is known.
    """

    part: str
    name: str
    size: int = 0
    seconds: float = 0.0
    runs: int = 0
    bandwidth: float = 0.0
    rate: float = 0.0
    ratio: float = 0.0
    beside: str = ""
    wanted: float = 0.0
    reduced: bool = False
    error: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the row is as fast as is asked; None where nothing is asked, or nothing is known."""
        reached = self.ratio if self.bandwidth else self.rate
        return None if not self.wanted or not reached or self.reduced else reached >= self.wanted


@dataclass(frozen=True)
class BenchReport:
    """All rows of a benchmark, and what it ran on.

    Attributes:
      rows: of `Speed`.
      about: GPU, driver, CUDA, torch, numba, numba-cuda, fpsim, date.
      seconds: that it took.
    """

    rows: tuple[Speed, ...]
    about: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n".join([f"fpsim's speed on the GPU: {head}", "", *table(self.rows), "", self.summary()])

    def summary(self) -> str:
        """The outcome in a line."""
        return f"{outcome(self.rows)}, in {self.seconds:.0f} s"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"about": self.about, "seconds": round(self.seconds, 1), "summary": self.summary(),
                "rows": [plain(row) for row in self.rows]}  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the report as JSON.

        Example:
          >>> import tempfile
          >>> from fpsim.gpu.lab.bench_report import BenchReport, Speed
          >>> file = tempfile.mkdtemp() + "/bench.json"
          >>> BenchReport((Speed("casts", "encode E4M3", 1 << 28, 1e-3, 7, ratio=0.8, bandwidth=3e12),)).save(file)
          >>> BenchReport.load(file).rows[0].ratio
          0.8
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> BenchReport:
        """Read what `save` wrote."""
        read = json.loads(path_of(path).read_text())
        return cls(tuple(speed_of(row) for row in read["rows"]), read["about"], read["seconds"])


def plain(row: Speed) -> dict[str, Any]:
    """A row as plain data."""
    return asdict(row) | {"met": row.met}


def speed_of(read: dict[str, Any]) -> Speed:
    """A row from plain data."""
    return Speed(**{name: value for name, value in read.items() if name != "met"})


def outcome(rows: tuple[Speed, ...]) -> str:
    """How many rows are as fast as is asked."""
    judged = [row for row in rows if row.wanted]
    failed = sum(bool(row.error) for row in rows)
    return f"{sum(row.met is True for row in judged)} of {len(judged)} speeds as asked; {failed} of {len(rows)} failed"


COLUMNS = ("part", "what", "size", "GB/s", "Gel/s", "TMAC/s", "ratio", "asked", "verdict")


def table(rows: tuple[Speed, ...]) -> list[str]:
    """Lines of a table, with the sentences about single rows below it."""
    cells = [COLUMNS, *map(_cells, rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    said = [f"{row.name}: {row.error or row.note}" for row in rows if row.error or row.note]
    return [shown[0], "-" * max(map(len, shown)), *shown[1:], *([""] if said else []), *said]


def _cells(row: Speed) -> tuple[str, ...]:
    """The cells of one row."""
    product = bool(row.rate and not row.bandwidth)
    goal = f"{row.wanted / 1e12:g} TMAC/s" if product else f"{row.wanted:g} of copy"
    ratio = f"{row.ratio:.2g} of {row.beside}" if row.ratio else ""
    verdict = "FAILED" if row.error else {True: "met", False: "MISSED", None: ""}[row.met]
    return (
        row.part, row.name, f"{row.size}^3" if product else str(row.size or ""),
        f"{row.bandwidth / 1e9:.1f}" if row.bandwidth else "", f"{row.rate / 1e9:.2f}" if row.bandwidth else "",
        f"{row.rate / 1e12:.4g}" if product else "", ratio, goal if row.wanted else "", verdict,
    )  # fmt: skip
