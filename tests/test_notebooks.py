"""Every notebook runs from its first cell to its last, and looks the way notebooks/README.md says."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.kit.processes import ROOT

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
MARK = re.compile(r"^# %%(?P<rest>.*)$", re.MULTILINE)  # where a cell begins, in the percent format

# A notebook -> whether its variables still say what its text says.
ANSWERS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "02_truncation": lambda names: names["near"].sqnr_db - names["cut"].sqnr_db > 5,
    "03_scales": lambda names: names["report"].sqnr_db > 40 and np.quantile(names["columns"], 0.1) < 1,
    "04_accumulation": lambda names: 1.2 < names["never"]["N(0, 1)"].norm_relative * 1e3 < 1.4,
    "05_diagnosis": lambda names: (
        names["diagnosis"].to_frame().fits.all()
        and names["figures"].layer.iloc[0] == "blocks.1.attn.qkv"
        and "None of the 2 linear layers" in str(names["raw"].sentences)
        and next(verdict.layer for verdict in names["bad"].verdicts if verdict.recipe == "INT8" and not verdict.fits)
        == "blocks.0.mlp.gate_up"
    ),
    "06_training": lambda names: names["measured"].query("recipe == 'FP8_RAW'").underflow.max() > 0.5,
    "07_quantizers": lambda names: bool(names["report"].broken),
    "08_probe": lambda names: names["model"].units == ("hopper_e4m3_f32",) and names["model"].promotion == 64,
    "09_two_chips": lambda names: (
        names["divergence"].layer == "blocks.0.attn.qkv"
        and max(row.differing for row in names["divergence"].growth) > 0.6
        and names["older"].growth[-1].differing < 2.5e-4
        and names["one_layer"].layer == "blocks.1.mlp.down"
    ),
    "10_claims": lambda names: names["report"]["bf16-precision"].verdict == "wrong",
    "11_one_run": lambda names: names["run"].digest == names["RECORDED"] and max(names["distance"]) > 1e-4,
}

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
            assert ANSWERS[notebook.stem](namespace)
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
