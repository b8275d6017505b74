"""Every notebook runs from its first cell to its last, and looks the way notebooks/README.md says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.processes import ROOT

matplotlib = pytest.importorskip("matplotlib")
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000  # bytes, with its figures

every_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook: Path, kind: str) -> list[Any]:
    """The cells of a kind."""
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@every_notebook
def test_a_notebook_runs(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    monkeypatch.chdir(FOLDER)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with matplotlib.rc_context():
        pyplot.switch_backend("Agg")
        try:
            for i, cell in enumerate(cells(notebook, "code")):
                exec(compile("".join(cell["source"]), f"{notebook.name}, code cell {i}", "exec"), namespace)
            for number in pyplot.get_fignums():  # what a notebook draws is only laid out when it is shown
                pyplot.figure(number).canvas.draw()
        finally:
            pyplot.close("all")


@every_notebook
def test_a_notebook_opens_with_a_question_and_closes_with_the_answer(notebook: Path) -> None:
    words = ["".join(cell["source"]) for cell in cells(notebook, "markdown")]
    assert words[0].splitlines()[0].endswith("?")
    assert words[-1].startswith("## The answer")


@every_notebook
def test_a_notebook_is_small_and_holds_the_results_of_a_run_in_order(notebook: Path) -> None:
    code = cells(notebook, "code")
    assert notebook.stat().st_size < LARGEST
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"])


@every_notebook
def test_a_notebook_defines_nothing(notebook: Path) -> None:
    lines = [line for cell in cells(notebook, "code") for line in "".join(cell["source"]).splitlines()]
    assert not [line for line in lines if line.lstrip().startswith(("def ", "class "))]


@every_notebook
def test_the_readme_lists_a_notebook(notebook: Path) -> None:
    assert f"({notebook.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
