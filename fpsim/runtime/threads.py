"""Splitting of long arrays over the processor's cores; kernels release the GIL, so Python threads suffice."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

SMALLEST = 1 << 20  # elements below which one thread is as fast
ALIGNMENT = 4096  # spans start at multiples, so that no two threads share a cache line


def thread_count() -> int:
    """Return the number of threads per call: FPSIM_NUM_THREADS, else OMP_NUM_THREADS, else `cores()`.

    Of a list such as "4,2", as OMP_NUM_THREADS may be, the first number counts.

    Raises:
      ValueError: a variable is set to something else than an integer >= 1.
    """
    for name in ("FPSIM_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text:
            if not (text.isascii() and text.isdigit() and int(text) >= 1):
                raise ValueError(f"{name} must be an integer >= 1; got {text!r}. Unset it to use every core.")
            return int(text)
    return cores()


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_this_thread = threading.local()


class Task(NamedTuple):
    """A function `work` for a thread to call; the queue `answers` then gets None, or the exception that it raised."""

    work: Callable[[], object]
    answers: SimpleQueue[BaseException | None]


class Workers:
    """Daemon threads that wait for tasks.

    Ctrl-C may interrupt the caller at any point. The executors of the standard library can then lose a thread that they
    have just started, or keep a lock forever, so that the process never ends. Here all shared state is a queue written
    in C: a thread that was not recorded serves tasks like the others, and a thread left over blocks nothing.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = False

    def ready(self, count: int) -> bool:
        """Start threads until there are `count`, or as many as possible; return whether there is at least one."""
        while len(self._threads) < count and not self._ended:
            thread = threading.Thread(target=self._serve, name=f"fpsim_{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system, or an interpreter that is shutting down, starts no more threads
                break
            self._threads.append(thread)
        return bool(self._threads) and not self._ended

    def submit(self, work: Callable[[], object]) -> SimpleQueue[BaseException | None]:
        """Queue `work` for a thread to call; return the queue that gets None, or the exception that `work` raised."""
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._tasks.put(Task(work, answers))
        return answers

    def _serve(self) -> None:
        """Run tasks from the queue until a task is None; each thread runs this method.

        For each task, put None, or the exception that its function raised, in its queue of answers.
        """
        _this_thread.is_worker = True
        while (task := self._tasks.get()) is not None:
            try:
                task.work()
            except BaseException as problem:
                task.answers.put(problem)
            else:
                task.answers.put(None)
            del task  # arrays must be freed before the next task
        self._tasks.put(None)  # so that the next thread ends too

    def end(self) -> None:
        """End the threads, each after its current task, and wait for them."""
        self._ended = True
        self._tasks.put(None)
        for thread in self._threads:
            thread.join()


_workers = Workers()


def _start_anew() -> None:
    """Replace the workers by new ones in a forked child process, which has none of the parent's threads."""
    global _workers
    _workers = Workers()


atexit.register(lambda: _workers.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)  # threads do not survive a fork


def over_units(count: int, cost: int, work: Callable[[int, int], None]) -> None:
    """Call work(first, stop) for spans that cover range(count), on several threads if the work is long enough.

    cost: duration of each of the `count` units of work, as the number of elements that a cast converts in that time. An
    exception of `work` is raised to the caller.
    """
    over_spans(count * cost, lambda start, stop: work(start // cost, stop // cost), alignment=cost)


def over_tasks(count: int, work: Callable[[int], object]) -> None:
    """Call work(i) for each i in range(count) on all cores, each call as soon as a thread is free.

    Loops inside a call run on its thread only. After an exception, which is raised to the caller, no further call
    begins.
    """
    numbers: SimpleQueue[int] = SimpleQueue()
    for i in range(count):
        numbers.put(i)
    stopped = threading.Event()

    def several() -> None:
        was_worker = getattr(_this_thread, "is_worker", False)
        _this_thread.is_worker = True
        try:
            while not stopped.is_set():
                try:
                    number = numbers.get_nowait()
                except Empty:
                    return
                work(number)
        except BaseException:
            stopped.set()
            raise
        finally:
            _this_thread.is_worker = was_worker

    workers = min(thread_count(), count)
    if workers <= 1 or getattr(_this_thread, "is_worker", False) or not _workers.ready(workers - 1):
        several()
        return
    answers = [_workers.submit(several) for _ in range(workers - 1)]
    try:
        several()
    except BaseException:  # also Ctrl-C
        stopped.set()
        raise
    finally:
        problems = [answer.get() for answer in answers]
    for problem in problems:
        if problem is not None:
            raise problem


def over_spans(size: int, work: Callable[[int, int], None], alignment: int = ALIGNMENT, weight: float = 1.0) -> None:
    """Call work(start, stop) for spans that cover range(size), on several threads if the work is long enough.

    An exception of `work` is raised to the caller after all spans have ended.

    Args:
      size: the number of elements.
      work: a function of the first element of a span and of the one after its last.
      alignment: each span starts at a multiple of this number of elements.
      weight: duration of the work on one element, relative to the cast of an element.
    """
    workers = thread_count() if size * weight >= SMALLEST else 1
    # a worker that waited for other workers could wait for ever, as all may be waiting
    if workers == 1 or getattr(_this_thread, "is_worker", False):
        work(0, size)
        return
    step = -(-size // workers)
    step += -step % alignment
    spans = [(start, min(start + step, size)) for start in range(0, size, step)]
    if not _workers.ready(len(spans) - 1):
        work(0, size)
        return
    answers = [_workers.submit(partial(work, *span)) for span in spans[1:]]
    try:
        work(*spans[0])
    finally:
        problems = [answer.get() for answer in answers]
    for problem in problems:
        if problem is not None:
            raise problem
