"""What leaves the checkout: source distributions that can be tested, messages that advise what is possible."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
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


EVERY_NAME = """
import importlib, sys
from importlib.metadata import distribution
from pathlib import Path

place, kind, *faces = sys.argv[1:]


def found(name):
    module = importlib.import_module(name)
    assert Path(module.__file__).is_relative_to(place), module.__file__
    return module


for face in faces:
    print(face, *(name for name in found(face).__all__ if getattr(found(face), name, None) is None))
if kind != "checkout":  # which is not installed
    for point in distribution("fpsim-numerics").entry_points:
        found(point.module), point.load()
"""
FACES = sorted(
    ".".join(file.relative_to(ROOT).parent.parts)
    for pattern in ("__init__.py", "*/__init__.py", "*/*/__init__.py")  # which follow links
    for file in (ROOT / "fpsim").glob(pattern)
    if "__all__" in file.read_text()
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a copy of the installed folders, without caches and build files, and an unpacked wheel of it."""
    copy, built, unpacked = (tmp_path_factory.mktemp(name) for name in ("checkout", "built", "unpacked"))
    for name in ("fpsim", "analysis", "gpu"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy / file)
    for module in ROOT.glob("_fpsim_*.py"):
        shutil.copy(module, copy)
    source = shutil.copytree(copy, tmp_path_factory.mktemp("source") / "fpsim", symlinks=True)
    # what pip calls, without pip's own second
    build = [
        sys.executable,
        "-c",
        "import sys, setuptools.build_meta as made; made.build_wheel(sys.argv[1])",
        str(built),
    ]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = built.glob("*.whl")
    shutil.unpack_archive(wheel, unpacked, "zip")
    return {"checkout": copy, "wheel": unpacked, "editable": ROOT}


def run(folder: Path, path: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with a path for modules besides what is installed."""
    words = [sys.executable, "-W", "error", "-c", *command]
    return subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize(
    "kind", ["wheel", *(pytest.param(x, marks=pytest.mark.slow) for x in ("checkout", "editable"))]
)
def test_every_public_name_is_there_from(kind: str, places: dict[str, Path], tmp_path: Path) -> None:
    path = "" if kind == "editable" else str(places[kind])
    if kind == "editable":
        where = run(tmp_path, path, "import fpsim; print(fpsim.__file__)")
        if Path(where.stdout.strip()) != ROOT / "fpsim" / "__init__.py":
            pytest.skip("fpsim is not installed from this checkout: pip install -e .")
    done = run(tmp_path, path, EVERY_NAME, str(places[kind]), kind, *FACES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == FACES
    assert {"fpsim", "fpsim.analysis", "fpsim.gpu", "fpsim.gpu.hardware", "fpsim.torch"} <= set(FACES)


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
