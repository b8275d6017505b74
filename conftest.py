"""Doctests see the names that the README's examples import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["np"] = np
    doctest_namespace["fp"] = fpsim
