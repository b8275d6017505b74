"""Reports of GPU benchmarks: rates relative to the copy bandwidth and to cuBLAS, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fpsim.display import tables
from fpsim.files import path_of, write_whole


@dataclass(frozen=True)
class Speed:
    """The measured speed of one function: a row of a benchmark.

    Attributes:
      part, name: the benchmark's part, such as "casts", and the measured call.
      size: number of elements, or the side of square matrices.
      seconds, runs: median time of a run, and number of runs.
      bandwidth: bytes read and written per second; 0 for matrix products.
      rate: elements per second; for matrix products multiply-adds per second.
      ratio: bandwidth (or rate) divided by that of the row `beside`; 0 if that is unknown.
      beside: name of the row that this one is compared with.
      wanted: target of the ratio, or of a matrix product's rate; 0 for no target.
      reduced: True if a smaller size was measured for lack of time, so that there is no verdict.
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
        """True if the row reaches its target; None without a target, without a measurement, or for a reduced size."""
        reached = self.ratio if self.bandwidth else self.rate
        return None if not self.wanted or not reached or self.reduced else reached >= self.wanted


@dataclass(frozen=True)
class BenchReport:
    """The report of a benchmark: a measured speed for each function, and the machine.

    Attributes:
      rows: the measured speeds.
      about: name -> text on GPU, driver, versions of CUDA, torch, numba, numba-cuda and fpsim, and date.
      seconds: duration of the benchmark.
    """

    rows: tuple[Speed, ...]
    about: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        head = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n".join([f"fpsim's speed on the GPU: {head}", "", *table(self.rows), "", self.summary()])

    def summary(self) -> str:
        """Return in one line how many speeds reach their targets, how many failed, and the duration."""
        return f"{outcome(self.rows)}, in {self.seconds:.0f} s"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as nested dicts and lists of str, numbers, bools and None, for JSON."""
        return {"about": self.about, "seconds": round(self.seconds, 1), "summary": self.summary(),
                "rows": [plain(row) for row in self.rows]}  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the report as a JSON file.

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
        """Return the report in a file that `save` wrote; raise a ValueError if the file holds something else."""
        with reading(path, "BenchReport") as read:
            return cls(tuple(speed_of(row) for row in read["rows"]), dict(read["about"]), read["seconds"])


@contextmanager
def reading(path: str | Path, report: str) -> Iterator[dict[str, Any]]:
    """Read the JSON file of a report for a `with` block; report: its class, for the error.

    A ValueError is raised if the file is not JSON, or if the block fails because an entry is missing or wrong.
    """
    file = path_of(path)
    try:
        yield json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"path must be a report that {report}.save wrote; got {file}, which is none.") from reason


def plain(row: Speed) -> dict[str, Any]:
    """Return the attributes of `row` as a dict for JSON, and "met": whether the speed reaches its target, or None."""
    return asdict(row) | {"met": row.met}


def speed_of(read: dict[str, Any]) -> Speed:
    """Return a measured speed from `read`, the dict that `plain` made: the attributes of Speed, and "met"."""
    return Speed(**{name: value for name, value in read.items() if name != "met"})


def outcome(rows: tuple[Speed, ...]) -> str:
    """Return, as a clause, how many of the speeds `rows` reach their targets and how many measurements failed."""
    judged = [row for row in rows if row.wanted]
    failed = sum(bool(row.error) for row in rows)
    met = sum(row.met is True for row in judged)
    return f"{met} of {len(judged)} speeds reach their targets; {failed} of {len(rows)} rows failed"


COLUMNS = ("part", "what", "size", "GB/s", "Gel/s", "TMAC/s", "ratio", "target", "verdict")


def table(rows: tuple[Speed, ...]) -> list[str]:
    """Return a table of the speeds `rows` as lines of text; below it, remarks on single speeds."""
    remarks = [f"{row.name}: {row.error or row.note}" for row in rows if row.error or row.note]
    return [*aligned([COLUMNS, *map(_cells, rows)]), *([""] if remarks else []), *remarks]


def aligned(cells: Sequence[tuple[str, ...]], widest: int = 1 << 20) -> list[str]:
    """Return a table of cells as aligned lines of text: the first row, a rule of dashes, and the other rows.

    cells: the texts of each row. widest: the largest number of dashes in the rule.
    """
    shown = tables.aligned(cells, len(cells[0]))
    return [shown[0], "-" * min(max(map(len, shown)), widest), *shown[1:]]


def _cells(row: Speed) -> tuple[str, ...]:
    """Return the cells of the table for one speed, in the order of COLUMNS."""
    product = bool(row.rate and not row.bandwidth)
    goal = f"{row.wanted / 1e12:g} TMAC/s" if product else f"{row.wanted:g} of copy"
    ratio = f"{row.ratio:.2g} of {row.beside}" if row.ratio else ""
    verdict = "FAILED" if row.error else {True: "met", False: "MISSED", None: ""}[row.met]
    return (
        row.part, row.name, f"{row.size}^3" if product else str(row.size or ""),
        f"{row.bandwidth / 1e9:.1f}" if row.bandwidth else "", f"{row.rate / 1e9:.2f}" if row.bandwidth else "",
        f"{row.rate / 1e12:.4g}" if product else "", ratio, goal if row.wanted else "", verdict,
    )  # fmt: skip
