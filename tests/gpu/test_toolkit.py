"""CUDA's toolkit for numba-cuda where no Python package brings its compiler: toolkits as they are laid out."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fpsim.gpu.device import toolkit
from tests.kit.processes import python

find: Any = toolkit.point_to_toolkit.__wrapped__  # as often as it is called


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a toolkit whose nvcc is on the path, on a machine without packages or variables."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    (tmp_path / "nvvm" / "libdevice").mkdir(parents=True)
    for name in toolkit.VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(toolkit, "_is_installed", lambda package: False)
    monkeypatch.setattr(toolkit, "USUAL", tmp_path / "nowhere")
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / "bin" / name))
    return tmp_path


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the libraries that are loaded."""
    found: list[str] = []
    monkeypatch.setattr("ctypes.CDLL", found.append)
    return found


def library(root: Path, place: str) -> str:
    """libnvvm in a folder of a toolkit."""
    (root / place).mkdir(parents=True, exist_ok=True)
    (root / place / "libnvvm.so.4").touch()
    return str(root / place / "libnvvm.so.4")


def test_the_toolkit_of_nvcc_is_named_and_its_library_found_in_nvidias_place(root: Path, loaded: list[str]) -> None:
    library(root, "nvvm/lib64")
    find()
    assert os.environ["CUDA_HOME"] == str(root)
    assert loaded == []  # numba-cuda finds it there


def test_a_library_in_another_place_is_loaded(root: Path, loaded: list[str]) -> None:
    path = library(root, "lib64")
    find()
    assert loaded == [path]


def test_a_variable_is_kept(root: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", str(root / "other"))
    path = library(root / "other", "lib")
    find()
    assert os.environ["CUDA_HOME"] == ""
    assert loaded == [path]


def test_the_usual_place_is_looked_at_and_nothing_happens_without_a_compiler(
    root: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "nvvm" / "libdevice").rmdir()
    library(root, "lib64")
    find()
    assert os.environ["CUDA_HOME"] == ""
    assert loaded == []
    (root / "nowhere" / "nvvm" / "libdevice").mkdir(parents=True)
    find()
    assert os.environ["CUDA_HOME"] == str(root / "nowhere")


def test_nothing_happens_where_a_package_brings_it(
    root: Path, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "_is_installed", lambda package: package == "nvidia-nvvm")
    library(root, "lib64")
    find()
    assert os.environ["CUDA_HOME"] == ""
    assert loaded == []


@pytest.mark.skipif(not find_spec("numba_cuda"), reason="numba-cuda is not installed")
def test_numba_cuda_loads_beside_a_numpy_without_row_stack() -> None:
    said = python(
        """
        import numpy as np
        import scipy.linalg  # which numba-cuda imports, and which reads the names that this NumPy says it has
        vars(np).pop("row_stack", None)
        from fpsim.gpu.device.toolkit import lend_row_stack
        lend_row_stack()
        from numba.cuda.np import arrayobj
        print(hasattr(np, "row_stack"), hasattr(arrayobj, "impl_np_vstack"))
        """
    )
    assert said.split() == ["False", "True"]
