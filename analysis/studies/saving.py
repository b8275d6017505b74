"""Writing the files of a study: all are first written as drafts, which then replace an earlier study's files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fpsim.analysis.studies.page import PLOTS, drawable, page
from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.table import columns_of, csv_text, utf8
from fpsim.display.optional import load
from fpsim.errors import install
from fpsim.files import replacing


def save(report: StudyResults, folder: Path) -> tuple[list[Path], list[str]]:
    """Write a study's page and tables into a folder, which is created if missing.

    The page is report.html, if jinja2 is installed. The tables are recommendations, errors, ranges and exponents, as
    CSV and, if pyarrow is installed, also as Parquet. Return the paths written, and a sentence for each output left out
    because an optional package is missing.
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
            columns = columns_of(rows, ())
            text = csv_text(columns) if rows else ""
            (drafts / f"{name}.csv").write_text(text, encoding="utf-8", newline="")
            if parquet:
                filled = [{column: utf8(row.get(column)) for column in columns} for row in rows]
                table = load("pyarrow", "parquet").Table.from_pylist(filled)
                load("pyarrow.parquet", "parquet").write_table(table, drafts / f"{name}.parquet")
        if paged:
            (drafts / "report.html").write_text(page(report, names), encoding="utf-8")
    return [folder / name for name in (("report.html",) if paged else ()) + tuple(names)], notes
