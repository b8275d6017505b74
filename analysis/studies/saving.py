"""The files of a study: written aside and then moved to their place together, so that each is complete or absent."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.page import page
from fpsim.analysis.studies.results import StudyResults
from fpsim.display.optional import INSTALL_PLOT, load
from fpsim.files import replacing


def save(report: StudyResults, folder: Path) -> tuple[list[Path], list[str]]:
    """Write a study's page and tables into a folder; see `StudyReport.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    parquet = importlib.util.find_spec("pyarrow") is not None
    if not parquet:
        notes.append("Parquet tables need pyarrow: pip install pyarrow")
    if importlib.util.find_spec("matplotlib") is None:
        notes.append("Pictures need matplotlib: " + INSTALL_PLOT)
    tables = {
        "recommendations": list(report.recommendation_rows()),
        "errors": list(report.error_rows()),
        "ranges": list(report.range_rows()),
        "exponents": list(report.exponent_rows()),
    }
    names = [f"{table}.{kind}" for table in tables for kind in (("csv", "parquet") if parquet else ("csv",))]
    with replacing(folder) as drafts:
        for name, rows in tables.items():
            _write_csv(drafts / f"{name}.csv", rows)
            if parquet:
                _write_parquet(drafts / f"{name}.parquet", rows)
        (drafts / "report.html").write_text(page(report, names), encoding="utf-8")
    for name in tables:
        if not parquet:
            (folder / f"{name}.parquet").unlink(missing_ok=True)  # of an earlier study
    return [folder / "report.html", *(folder / name for name in names)], notes


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    table = load("pyarrow", "parquet").Table.from_pylist(list(rows))
    load("pyarrow.parquet", "parquet").write_table(table, path)
