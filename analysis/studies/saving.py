"""The files of a study: written as drafts, which then all replace the files of an earlier study at once."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.page import PLOTS, page
from fpsim.analysis.studies.pictures import drawable
from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.table import spreadsheet_cell, utf8
from fpsim.display.optional import load
from fpsim.errors import install
from fpsim.files import replacing


def save(report: StudyResults, folder: Path) -> tuple[list[Path], list[str]]:
    """Write a study's page and tables into a folder, which is created if missing.

    Return the paths written, and a sentence for each output left out because an optional package is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    parquet = importlib.util.find_spec("pyarrow") is not None
    if not parquet:
        notes.append("Parquet tables need pyarrow: pip install pyarrow")
    if not drawable():
        notes.append(PLOTS)
    paged = importlib.util.find_spec("jinja2") is not None
    if not paged:
        notes.append(f"The page needs jinja2: {install('plot')}")
    tables = {
        "recommendations": list(report.recommendation_rows()),
        "errors": list(report.error_rows()),
        "ranges": list(report.range_rows()),
        "exponents": list(report.exponent_rows()),
    }
    names = [f"{table}.{kind}" for table in tables for kind in (("csv", "parquet") if parquet else ("csv",))]
    files = ["report.html", *(f"{table}.{kind}" for table in tables for kind in ("csv", "parquet"))]
    with replacing(folder, files) as drafts:
        for name, rows in tables.items():
            rows = _filled(rows)
            _write_csv(drafts / f"{name}.csv", rows)
            if parquet:
                columns = [{column: utf8(value) for column, value in row.items()} for row in rows]
                table = load("pyarrow", "parquet").Table.from_pylist(columns)
                load("pyarrow.parquet", "parquet").write_table(table, drafts / f"{name}.parquet")
        if paged:
            (drafts / "report.html").write_text(page(report, names), encoding="utf-8")
    return [folder / name for name in (("report.html",) if paged else ()) + tuple(names)], notes


def _filled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with equal keys in equal order; a row gets None for each key that it lacks.

    Rows of candidates with a scale per tile have more metrics than others.
    """
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows (column name -> value) as a CSV file whose cells a spreadsheet does not read as formulas.

    All rows must have the same keys. Without rows the file is empty.
    """
    rows = [{name: spreadsheet_cell(utf8(value)) for name, value in row.items()} for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
