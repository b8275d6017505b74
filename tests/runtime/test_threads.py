"""Work over the processor's cores: spans cover everything once, also where workers divide their work again."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from fpsim.runtime import threads
from fpsim.runtime.threads import SMALLEST, Workers, over_spans, over_tasks


def test_workers_may_divide_their_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "3")
    found, lock = [0] * 6, threading.Lock()

    def outer(start: int, stop: int) -> None:
        for part in range(start, stop):
            over_spans(2, partial(inner, part), 1, weight=SMALLEST)

    def inner(part: int, start: int, stop: int) -> None:
        with lock:
            found[part] += stop - start

    for _ in range(20):
        over_spans(6, outer, 1, weight=SMALLEST)
    assert found == [40] * 6


def test_tasks_run_once_each_and_their_loops_on_their_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "3")
    lock = threading.Lock()
    runs: list[int] = []
    used: dict[int, set[int]] = {}

    def task(i: int) -> None:
        def loop(start: int, stop: int) -> None:
            with lock:
                used.setdefault(i, set()).add(threading.get_ident())

        over_spans(SMALLEST * 4, loop)
        over_tasks(2, lambda j: loop(j, j + 1))
        with lock:
            runs.append(i)

    over_tasks(50, task)
    assert sorted(runs) == list(range(50))
    assert all(len(threads_of_task) == 1 for threads_of_task in used.values())
    over_tasks(0, task)
    spans: list[int] = []
    over_spans(SMALLEST * 4, lambda start, stop: spans.append(start))  # the caller divides its work again
    assert len(spans) == 3


def test_after_an_error_no_further_task_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "2")
    runs: list[int] = []

    def task(i: int) -> None:
        runs.append(i)
        if i == 3:
            raise ValueError("task 3")
        time.sleep(0.001)

    with pytest.raises(ValueError, match="task 3"):
        over_tasks(1000, task)
    assert len(runs) < 100


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_task_may_raise_the_error_of_an_empty_queue(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", threads)

    def task(i: int) -> None:
        if i == 1:
            raise queue.Empty

    with pytest.raises(queue.Empty):
        over_tasks(20, task)


def test_an_error_of_a_worker_is_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "2")

    def work(start: int, stop: int) -> None:
        if start:
            raise ValueError(f"{start}")

    with pytest.raises(ValueError, match="4096"):
        over_spans(8192, work, weight=SMALLEST)


def test_without_further_threads_the_caller_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "2")
    workers = Workers()
    monkeypatch.setattr(threads, "_workers", workers)
    spans: list[tuple[int, int]] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        over_spans(SMALLEST, lambda *span: spans.append(span))
    assert spans == [(0, SMALLEST)]
    assert workers.ready(1)
    workers.end()
    over_spans(SMALLEST, lambda *span: spans.append(span))  # as a process does that is about to end
    assert spans[1:] == [(0, SMALLEST)]


def test_a_thread_whose_start_is_interrupted_holds_nothing_up() -> None:
    program = """
import threading
from fpsim.runtime.threads import SMALLEST, over_spans
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt
threading.Thread.start = interrupted
try:
    over_spans(SMALLEST, lambda *span: None)
except KeyboardInterrupt:
    threading.Thread.start = start
done = []
over_spans(SMALLEST, lambda *span: done.append(span))
print(sorted(done))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "FPSIM_NUM_THREADS": "2"},
    )
    assert (done.stdout, done.stderr) == ("[(0, 524288), (524288, 1048576)]\n", "")


def test_a_child_of_a_fork_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "2")
    over_spans(SMALLEST, lambda *_: None)
    before = threads._workers
    threads._start_anew()
    assert threads._workers is not before
    over_spans(SMALLEST, lambda *_: None)
    before.end()
