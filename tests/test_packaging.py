"""What leaves the checkout: source distributions that can be tested, messages that advise what is possible."""

from __future__ import annotations

import re
import shutil
import subprocess
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


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("target", [".installed", ".installed-peers"])
def test_make_says_that_it_installs_before_it_is_silent(target: str, tmp_path: Path) -> None:
    python = tmp_path / "python"  # it makes environments of itself, and shows when it installs
    python.write_text(
        '#!/bin/sh\n[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"\n'
        '[ "$2" = pip ] && echo "pip runs"\nexit 0\n'
    )
    python.chmod(0o755)
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["make", "--silent", f"PYTHON={python}", f"VENV={venv}", f"{venv}/{target}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "pip runs" in lines
    for said, runs in zip(lines[::2], lines[1::2], strict=True):
        assert said.startswith("Installing ")
        assert str(venv) in said
        assert runs == "pip runs"
