"""The clock that stands still while kernels compile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fpsim.runtime import clock
from fpsim.runtime.compile import kernel


@pytest.fixture
def hours(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the processor's clock says."""
    now = [1000.0]
    monkeypatch.setattr(clock, "_spent", 0.0)
    monkeypatch.setattr(clock, "_own", threading.local())
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0]))
    return now


@pytest.mark.parametrize("seconds", [clock.seconds, clock.thread_seconds])
def test_compiling_takes_no_time(seconds: Callable[[], float], hours: list[float]) -> None:
    start = seconds()
    hours[0] += 1
    with clock.compiling():
        hours[0] += 10
        with clock.compiling():
            hours[0] += 100
        assert seconds() - start == pytest.approx(1)
        hours[0] += 1000
    hours[0] += 2
    assert seconds() - start == pytest.approx(3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_clock_of_a_child_forked_in_a_context_goes_on() -> None:
    with clock.compiling():
        child = os.fork()
    if child == 0:
        start = clock.seconds()
        time.sleep(0.01)
        os._exit(0 if clock.seconds() > start else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_that_compile_at_once_stop_it_once(hours: list[float]) -> None:
    start = clock.seconds()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with clock.compiling():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with clock.compiling():
        thread.start()
        assert inside.wait(60)
        hours[0] += 5
    hours[0] += 7
    leave.set()
    thread.join()
    hours[0] += 1
    assert clock.seconds() - start == pytest.approx(1)


def test_kernels_stop_it() -> None:
    spent = clock._spent

    def plus(x: int) -> int:
        return x + 1

    assert kernel(plus)(1) == 2
    assert clock._spent > spent


def test_waiting_and_other_threads_take_no_time_of_a_thread() -> None:
    start = clock.thread_seconds()
    thread = threading.Thread(target=sum, args=(range(10**6),))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert 0 <= clock.thread_seconds() - start < 0.1
