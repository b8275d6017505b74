"""Reports of GPU benchmarks: rates relative to the copy bandwidth and cuBLAS, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fpsim.files import path_of, write_whole


@dataclass(frozen=True)
class Speed:
    """One row of a benchmark.

    Attributes:
      part, name: part of the benchmark, and name of the row.
      size: number of elements, or the side of square matrices.
      seconds, runs: median of the times, and number of runs.
      bandwidth: bytes per second, 0 for products.
      rate: elements per second, or multiplications per second of a product.
      ratio: bandwidth or rate relative to the row `beside`, 0 if that is unknown.
      beside: name of the row that this one is compared with.
      wanted: target of the ratio, or of the rate of a product; 0 if there is none.
      reduced: whether the size was reduced for lack of time, so that there is no verdict.
      error: why nothing was measured, or "".
      note: further remarks.
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
        """True if the row reaches its target; None without a target or a measurement."""
        reached = self.ratio if self.bandwidth else self.rate
        return None if not self.wanted or not reached or self.reduced else reached >= self.wanted


@dataclass(frozen=True)
class BenchReport:
    """All rows of a benchmark, and the machine that it ran on.

    Attributes:
      rows: rows of the benchmark.
      about: GPU, driver, versions of CUDA, torch, numba, numba-cuda and fpsim, and date.
      seconds: duration of the benchmark.
    """

    rows: tuple[Speed, ...]
    about: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n".join([f"fpsim's speed on the GPU: {head}", "", *table(self.rows), "", self.summary()])

    def summary(self) -> str:
        """Return the outcome in one line."""
        return f"{outcome(self.rows)}, in {self.seconds:.0f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
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
    """Return a row as plain data."""
    return asdict(row) | {"met": row.met}


def speed_of(read: dict[str, Any]) -> Speed:
    """Return a row from plain data."""
    return Speed(**{name: value for name, value in read.items() if name != "met"})


def outcome(rows: tuple[Speed, ...]) -> str:
    """Return how many rows reach their targets, and how many failed, as text."""
    judged = [row for row in rows if row.wanted]
    failed = sum(bool(row.error) for row in rows)
    met = sum(row.met is True for row in judged)
    return f"{met} of {len(judged)} speeds reach their targets; {failed} of {len(rows)} rows failed"


COLUMNS = ("part", "what", "size", "GB/s", "Gel/s", "TMAC/s", "ratio", "target", "verdict")


def table(rows: tuple[Speed, ...]) -> list[str]:
    """Return the lines of a table, with remarks on single rows below it."""
    remarks = [f"{row.name}: {row.error or row.note}" for row in rows if row.error or row.note]
    return [*aligned([COLUMNS, *map(_cells, rows)]), *([""] if remarks else []), *remarks]


def aligned(cells: Sequence[tuple[str, ...]], widest: int = 1 << 20) -> list[str]:
    """Return the lines of a table: its head, a rule of at most `widest` characters, and its rows."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return [shown[0], "-" * min(max(map(len, shown)), widest), *shown[1:]]


def _cells(row: Speed) -> tuple[str, ...]:
    """Return the cells of one row."""
    product = bool(row.rate and not row.bandwidth)
    goal = f"{row.wanted / 1e12:g} TMAC/s" if product else f"{row.wanted:g} of copy"
    ratio = f"{row.ratio:.2g} of {row.beside}" if row.ratio else ""
    verdict = "FAILED" if row.error else {True: "met", False: "MISSED", None: ""}[row.met]
    return (
        row.part, row.name, f"{row.size}^3" if product else str(row.size or ""),
        f"{row.bandwidth / 1e9:.1f}" if row.bandwidth else "", f"{row.rate / 1e9:.2f}" if row.bandwidth else "",
        f"{row.rate / 1e12:.4g}" if product else "", ratio, goal if row.wanted else "", verdict,
    )  # fmt: skip
