"""The files of a comparison: written to a temporary place, then moved over those of an earlier comparison together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from fpsim.display.optional import load
from fpsim.files import replacing
from fpsim.train.comparisons.answer import Compared
from fpsim.train.comparisons.page import page

PAGE = "report.html"
TABLES = ("recipes", "runs", "curves", "measured", "probe")
OWN = (PAGE, *(f"{name}.parquet" for name in TABLES))


class Tabled(Compared, Protocol):
    """A comparison whose runs, curves and measurements can be written as tables."""

    def run_rows(self) -> Iterator[dict[str, Any]]: ...
    def curve_rows(self) -> Iterator[dict[str, Any]]: ...
    def measured_rows(self) -> Iterator[dict[str, Any]]: ...


def save(comparison: Tabled, folder: Path) -> list[Path]:
    """Write a comparison's page and tables into a folder; see `Comparison.save`."""
    pyarrow, parquet = load("pyarrow", "saving a comparison"), load("pyarrow.parquet", "saving a comparison")
    tables = {
        "recipes": comparison.rows(), "runs": list(comparison.run_rows()), "curves": list(comparison.curve_rows()),
        "measured": list(comparison.measured_rows()), "probe": list(comparison.probed),
    }  # fmt: skip
    text = page(comparison, [name for name in OWN[1:] if tables[name.removesuffix(".parquet")]])
    with replacing(folder, OWN) as drafts:
        (drafts / PAGE).write_text(text, encoding="utf-8")
        for name, rows in tables.items():
            if rows:
                parquet.write_table(pyarrow.Table.from_pylist(rows), drafts / f"{name}.parquet")
    return [folder / name for name in OWN if (folder / name).exists()]
