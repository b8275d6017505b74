"""Sweeps that a test makes in part, and whole in make test-slow; and cases that one test goes through in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., None]


def sweep(name: str, some: Any, every: Any) -> pytest.MarkDecorator:
    """Give a test `some` of what it goes through, and in make test-slow `every` one besides."""
    return pytest.mark.parametrize(
        name, [pytest.param(some, id="some"), pytest.param(every, id="every", marks=pytest.mark.slow)]
    )


def some_pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Every value with a third of them, as the first of a pair and as the second."""
    return [(x, y) for i, x in enumerate(values) for j, y in enumerate(values) if (i + j) % 3 == 0]


@contextmanager
def case(*values: object) -> Iterator[None]:
    """One case of a loop, whose name stands below the message of whatever fails in it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(str(getattr(each, 'name', each)) for each in values)}")
        raise


def in_turn(names: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Give a test every value in turn, as pytest.mark.parametrize does, but as one test; a failure names the value.

    For short tests with many values: pytest takes longer to find, send and report a test than these take to run.
    """
    listed, single = list(values), "," not in names
    parameters = [name.strip() for name in names.split(",")]

    def decorate(test: Test) -> Test:
        @wraps(test)
        def every(**others: Any) -> None:
            for value in listed:
                with case(*((value,) if single else value)):
                    try:
                        test(**dict(zip(parameters, (value,) if single else value, strict=True)), **others)
                    except pytest.skip.Exception as reason:
                        if value is listed[0]:  # which lacks what all of them need
                            raise
                        raise AssertionError(f"a case that skips would skip those after it; return: {reason}") from None

        of_test = inspect.signature(test).parameters.values()
        every.__signature__ = inspect.Signature([each for each in of_test if each.name not in parameters])  # type: ignore[attr-defined]
        return every

    return decorate
