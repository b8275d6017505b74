"""What leaves the checkout: source distributions that can be tested, messages that advise what is possible."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["analysis", "gpu", "tests", "docs", "notebooks", "benchmarks"])
def test_source_distributions_hold_the_folder(folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert f"graft {folder}" in (ROOT / "MANIFEST.in").read_text().splitlines()


def test_wheels_hold_every_template() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folders = {package: ROOT / package.replace(".", "/") for package in patterns}
    held = {
        file.resolve() for package, globs in patterns.items() for glob in globs for file in folders[package].glob(glob)
    }
    others = [
        file.resolve()
        for folder in ("fpsim", "analysis", "gpu")
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc", ".pyi")
    ]
    assert len(others) >= 6
    assert set(others) - held == set()


def test_no_message_advises_an_index_that_lacks_fpsim() -> None:
    files = [
        *(ROOT / "fpsim").rglob("*.py"), *(ROOT / "analysis").rglob("*.py"), *(ROOT / "gpu").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"), ROOT / "README.md",
    ]  # fmt: skip
    assert len(files) > 150
    assert [file for file in files if re.search(r"pip install [^\n]*fpsim-numerics", file.read_text())] == []
