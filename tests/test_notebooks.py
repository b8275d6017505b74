"""Every notebook runs from its first cell to its last, and looks the way notebooks/README.md says."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.processes import ROOT

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
MARK = re.compile(r"^# %%(?P<rest>.*)$", re.MULTILINE)  # where a cell begins, in the percent format

every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


class Cell(NamedTuple):
    """A cell: its source as Jupyter shows it, and the line on which it begins."""

    is_code: bool
    text: str
    line: int


def cells(notebook: Path) -> list[Cell]:
    """Return the cells of a notebook in the percent format."""
    source = notebook.read_text(encoding="utf-8")
    marks = list(MARK.finditer(source))
    found = []
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(source)], strict=True):
        is_code = mark["rest"].strip() == ""
        text = source[mark.end() : end].strip("\n")
        text = text if is_code else re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        found.append(Cell(is_code, text, source.count("\n", 0, mark.end()) + 2))
    return found


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
    assert not list(FOLDER.glob("*.ipynb")), "notebooks are kept as sources: jupytext --to py:percent"


@every_notebook
def test_a_notebook_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    monkeypatch.chdir(FOLDER)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
        pyplot.switch_backend("Agg")
        try:
            for cell in cells(notebook):
                if cell.is_code:  # with the line numbers of the file
                    exec(compile("\n" * (cell.line - 1) + cell.text, str(notebook), "exec"), namespace)
            for number in pyplot.get_fignums():  # what a notebook draws is only laid out when it is shown
                pyplot.figure(number).canvas.draw()
        finally:
            pyplot.close("all")


@every_notebook
def test_a_notebook_opens_with_a_question_and_closes_with_the_answer(notebook: Path) -> None:
    words = [cell.text for cell in cells(notebook) if not cell.is_code]
    assert words[0].splitlines()[0].endswith("?")
    assert words[-1].startswith("## The answer")


@every_notebook
def test_a_notebook_defines_nothing(notebook: Path) -> None:
    code = [cell.text for cell in cells(notebook) if cell.is_code]
    assert code
    lines = [line for text in code for line in text.splitlines()]
    assert not [line for line in lines if line.lstrip().startswith(("def ", "class ", "%", "!")) or "lambda" in line]


@every_notebook
def test_every_cell_is_marked_as_jupytext_marks_it(notebook: Path) -> None:
    rest = {mark["rest"] for mark in MARK.finditer(notebook.read_text(encoding="utf-8"))}
    assert rest <= {"", " [markdown]"}


@every_notebook
def test_the_readme_lists_a_notebook(notebook: Path) -> None:
    assert f"({notebook.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
