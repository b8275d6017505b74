"""Time limits of tests: one thread watches them all, which costs less than pytest-timeout's timer for each of them."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import pytest


class Limit(NamedTuple):
    """A test that runs, the settings of pytest-timeout for it, and the time at which it has to be over."""

    item: pytest.Item
    settings: Any
    end: float


class Watch(threading.Thread):
    """A thread that prints the stacks of all threads and ends the process where a test takes too long."""

    def __init__(self) -> None:
        super().__init__(name="time limits of tests", daemon=True)
        self.limit: Limit | None = None

    def run(self) -> None:
        from pytest_timeout import timeout_timer  # type: ignore[import-untyped]

        while True:
            time.sleep(1)
            limit = self.limit
            if limit is not None and time.monotonic() > limit.end:
                timeout_timer(limit.item, limit.settings)


watch = Watch()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Set the limit of a test, in place of pytest-timeout's own timer."""
    if settings.method != "thread":
        return None
    if watch.ident is None:
        watch.start()
    watch.limit = Limit(item, settings, time.monotonic() + settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer() -> None:
    """Take the limit away."""
    watch.limit = None
