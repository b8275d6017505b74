"""Fixtures that several tests of this folder take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.studies.diagnosis.models import diagnosed, healthy, shrunk


# Figures of a model are computed once, and kept in a folder for other tests of it: that a call goes on from there with
# the bits of a whole one is a test of its own.
@pytest.fixture(scope="session")
def of_shrunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shrunk")


@pytest.fixture(scope="session")
def of_healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("healthy")


@pytest.fixture(scope="session")
def raw(of_shrunk: Path) -> Any:
    return diagnosed(*shrunk(), recipes="FP8_RAW", out=of_shrunk)


@pytest.fixture(scope="session")
def usual(of_healthy: Path) -> Any:
    return diagnosed(*healthy(), out=of_healthy)


@pytest.fixture(scope="session")
def tensor() -> Any:
    """Diagnose the healthy model in one recipe, without a folder."""
    return diagnosed(*healthy(), recipes="FP8_TENSOR")
