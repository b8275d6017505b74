"""Sweeps that a test makes in part, and whole in make test-slow; and names of their cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def sweep(name: str, some: Any, every: Any) -> pytest.MarkDecorator:
    """Give a test `some` of what it goes through, and in make test-slow `every` one besides."""
    return pytest.mark.parametrize(
        name, [pytest.param(some, id="some"), pytest.param(every, id="every", marks=pytest.mark.slow)]
    )


@contextmanager
def case(*what: object) -> Iterator[None]:
    """One case of a loop, whose name stands below the message of whatever fails in it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(map(str, what))}")
        raise
