"""Packages that fpsim works without: what their absence advises would help."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from fpsim.display.optional import EXTRAS, load, require
from tests.kit.processes import ROOT


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_that_an_absence_advises_brings_the_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"^a plot needs {package}, which is not installed: ") as refused:
        load(package, "a plot")
    (extra,) = re.findall(r"pip install -e '\.\[(\w+)\]' in the checkout of fpsim$", str(refused.value))
    brought = {re.split(r"[\[<>=;]", word)[0].replace("-", "_") for word in extras[extra]}
    assert package in brought


def test_a_package_that_no_extra_brings_is_named_as_the_index_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"^a figure needs scikit-learn, which is not installed: pip install scikit"):
        load("sklearn.cluster", "a figure")
    with pytest.raises(ImportError, match=r"^a table needs no_such_package, which is not installed: pip install no_su"):
        require(["json", "no_such_package"], "a table")


def test_what_an_installed_package_lacks_is_said_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_package'$"):
        load("half_installed", "a plot")
