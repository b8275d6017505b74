"""Settings of every test: names for doctests, the profile of Hypothesis, time limits, the number of workers."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import fpsim
from _fpsim_hypothesis import PROFILE, register
from fpsim.runtime.threads import cores
from tests.kit.short_reports import pytest_runtest_protocol  # noqa: F401  a hook
from tests.kit.time_limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer  # noqa: F401  hooks

register()  # as hypothesis does where fpsim is installed
# every `find` of Hypothesis keeps its result under one key, from which the next one would begin, and end there
settings.register_profile(PROFILE, settings.get_profile(PROFILE), database=None)
settings.load_profile(PROFILE)
# a shell that starts tests in the background has them ignore interrupts, and so would the processes that they start
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Switch garbage collection off while ten thousand tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Switch it on again, rarer, and without the collected tests and libraries: a search of those takes a second."""
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files of few tests first, so that workers end together, and give slow tests an hour."""
    items.sort(key=lambda item: not item.path.stem.endswith("_ptx"))
    for item in items:
        if item.name == "fpsim.analysis.systems.processes.processes.processes":  # its example starts torchrun
            item.add_marker(pytest.mark.ranks)
        if item.get_closest_marker("slow") or item.get_closest_marker("ptx"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers of `-n auto`: the cores that this process may use, each thread of one counted."""
    return cores()


@pytest.fixture(autouse=True, scope="session")
def _keys_of_kernels() -> Iterator[None]:
    """Check in every test process that the key of each compiled kernel covers all the source that the kernel uses."""
    from tests.kit.keys import keys_are_checked  # it loads numba, which the process that hands tests out does not need

    with keys_are_checked():
        yield


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """Close the figures that a test drew: matplotlib warns of more than 20, which would fail another test."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(autouse=True, scope="session")
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace["np"] = np
    doctest_namespace["fp"] = fpsim
