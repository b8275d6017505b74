"""Sweeps that are partial in `make test` and complete in `make test-slow`; cases that share one test."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

import pytest

Test = Callable[..., None]


def sweep(name: str, some: Any, every: Any) -> pytest.MarkDecorator:
    """Parametrize a test with `some` values, and in `make test-slow` with `every` one."""
    return pytest.mark.parametrize(
        name, [pytest.param(some, id="some"), pytest.param(every, id="every", marks=pytest.mark.slow)]
    )


def each_once(
    names: str, *axes: Sequence[Any], turns: int = 1, ids: Callable[[Any], Any] | None = None
) -> pytest.MarkDecorator:
    """Parametrize a test with every combination of values, of which `make test` takes each value `turns` times or more.

    names: "a, b", one for each axis.
    """
    longest = max(map(len, axes))
    some = {
        tuple((i + turn * place) % len(axis) for place, axis in enumerate(axes))
        for i in range(longest) for turn in range(turns)
    }  # fmt: skip
    combinations = [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, places, strict=True)), marks=[] if places in some else pytest.mark.slow
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]
    return pytest.mark.parametrize([name.strip() for name in names.split(",")], combinations, ids=ids)


def some_pairs(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of every value with a third of the values, as the first of a pair and as the second."""
    return [(x, y) for i, x in enumerate(values) for j, y in enumerate(values) if (i + j) % 3 == 0]


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Inside the block, add the name of a case to the message of an error."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {', '.join(str(getattr(each, 'name', each)) for each in values)}")
        raise


def in_turn(names: str, values: Iterable[Any], some: Iterable[Any] | None = None) -> Callable[[Test], Test]:
    """Run a test with every value in turn, like pytest.mark.parametrize but as one test; a failure names the value.

    For short tests with many values: pytest takes longer to find, send and report a test than these take to run.
    Where `some` is given, `make test` runs these alone, and `make test-slow` all values.
    """
    listed, single = list(values), "," not in names
    parameters = [name.strip() for name in names.split(",")]

    def decorate(test: Test) -> Test:
        def run(chosen: list[Any], **others: Any) -> None:
            for value in chosen:
                with case(*((value,) if single else value)):
                    try:
                        test(**dict(zip(parameters, (value,) if single else value, strict=True)), **others)
                    except pytest.skip.Exception as reason:
                        if value is chosen[0]:  # which lacks what all of them need
                            raise
                        raise AssertionError(f"a case that skips would skip those after it; return: {reason}") from None

        @wraps(test)
        def every(**others: Any) -> None:
            run(listed if some is None else others.pop("cases"), **others)

        left = [of_test for name, of_test in inspect.signature(test).parameters.items() if name not in parameters]
        if some is None:
            every.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
            return every
        left.append(inspect.Parameter("cases", inspect.Parameter.KEYWORD_ONLY))
        every.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        return cast("Test", sweep("cases", list(some), listed)(every))

    return decorate
