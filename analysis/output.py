"""The files of a study. Each is written beside its place and then moved there, so that it is complete or absent."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpsim.analysis.optional import load

if TYPE_CHECKING:
    from fpsim.analysis.study_report import StudyReport


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends, and vanishes if it fails.

    Example:
      >>> import tempfile, pathlib
      >>> from fpsim.analysis.output import replacing
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "a.txt")
      ...     with replacing(path) as draft:
      ...         _ = draft.write_text("complete")
      ...     path.read_text(), len(list(path.parent.iterdir()))
      ('complete', 1)
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        mask = os.umask(0)
        os.umask(mask)
        draft.chmod(0o666 & ~mask)  # mkstemp's files are for their owner alone
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def save(report: StudyReport, folder: Path) -> tuple[list[Path], list[str]]:
    """Write a study's page and tables into a folder; see `StudyReport.save`."""
    from fpsim.analysis.report import page

    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    notes: list[str] = []
    parquet = importlib.util.find_spec("pyarrow") is not None
    if not parquet:
        notes.append("Parquet tables need pyarrow: pip install pyarrow")
    tables = {
        "recommendations": list(report.recommendation_rows()),
        "errors": list(report.error_rows()),
        "ranges": list(report.range_rows()),
        "exponents": list(report.exponent_rows()),
    }
    for name, rows in tables.items():
        files.append(_write_csv(folder / f"{name}.csv", rows))
        if parquet:
            files.append(_write_parquet(folder / f"{name}.parquet", rows))
    if importlib.util.find_spec("matplotlib") is None:
        notes.append("Pictures need matplotlib: pip install 'fpsim-numerics[plot]'")
    text = page(report, [file.name for file in files])
    with replacing(folder / "report.html") as draft:
        draft.write_text(text, encoding="utf-8")
    return [folder / "report.html", *files], notes


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with replacing(path) as draft:
        draft.write_text(text.getvalue(), encoding="utf-8")
    return path


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    table = load("pyarrow", "parquet").Table.from_pylist(list(rows))
    with replacing(path) as draft:
        load("pyarrow.parquet", "parquet").write_table(table, draft)
    return path
