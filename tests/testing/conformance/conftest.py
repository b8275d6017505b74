"""Fixtures that several tests of this folder take."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpsim.testing.conformance.choice import chosen
from fpsim.testing.conformance.files import save
from fpsim.testing.conformance.vectors import Vectors


@pytest.fixture(scope="session")
def sets() -> list[Vectors]:
    return chosen()


@pytest.fixture(scope="session")
def text(sets: list[Vectors], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("text") / "vectors.txt"
    save(sets, path)
    return path


@pytest.fixture(scope="session")
def few(sets: list[Vectors], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the casts that FOREIGN knows and the square roots alone, which are read and checked sooner."""
    path: Path = tmp_path_factory.mktemp("few") / "vectors.txt"
    known = [each for each in sets if each.kind == "cast" and each.words["format"] in ("E4M3", "E5M2", "FP16")]
    save([*known, *(each for each in sets if each.kind == "sqrt")], path)
    return path
