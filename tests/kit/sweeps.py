"""Sweeps that a test makes in part, and whole in make test-slow."""

from __future__ import annotations

from typing import Any

import pytest


def sweep(name: str, some: Any, every: Any) -> pytest.MarkDecorator:
    """Give a test `some` of what it goes through, and in make test-slow `every` one besides."""
    return pytest.mark.parametrize(
        name, [pytest.param(some, id="some"), pytest.param(every, id="every", marks=pytest.mark.slow)]
    )
