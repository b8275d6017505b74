"""Splits long arrays over the processor's cores. Kernels release the GIL, so Python threads are enough."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

SMALLEST = 1 << 20  # elements below which one thread is as fast
ALIGNMENT = 4096  # spans start at multiples, so that no two threads share a cache line


def thread_count() -> int:
    """Return the threads for one call: FPSIM_NUM_THREADS, OMP_NUM_THREADS, or the cores that the process may use."""
    for name in ("FPSIM_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text:
            if not (text.isascii() and text.isdigit() and int(text) >= 1):
                raise ValueError(f"{name} must be an integer >= 1; got {text!r}. Unset it to use every core.")
            return int(text)
    return cores()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_this_thread = threading.local()


class Task(NamedTuple):
    """Work for a thread, and the queue in which the thread puts None when it is done, or the error that ended it."""

    work: Callable[[], object]
    answers: SimpleQueue[BaseException | None]


class Workers:
    """Threads that wait for tasks, and end with the process.

    Ctrl-C may come between any two steps of the caller. The executors of the standard library then lose a thread that
    they have just started, or keep a lock for good, and the process never ends. Here whatever is shared is a queue
    written in C, a thread that was not recorded takes tasks like the others, and one that is left over blocks nothing.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = False

    def ready(self, count: int) -> bool:
        """Start threads up to a number, as far as the system gives them, and return whether there is one."""
        while len(self._threads) < count and not self._ended:
            thread = threading.Thread(target=self._serve, name=f"fpsim_{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system or an interpreter that is shutting down takes no more threads
                break
            self._threads.append(thread)
        return bool(self._threads) and not self._ended

    def submit(self, work: Callable[[], object]) -> SimpleQueue[BaseException | None]:
        """Give a function to a thread, and return the queue that will hold None after it ran, or its error."""
        answers: SimpleQueue[BaseException | None] = SimpleQueue()
        self._tasks.put(Task(work, answers))
        return answers

    def _serve(self) -> None:
        """Do tasks from the queue until None comes."""
        _this_thread.is_worker = True
        while (task := self._tasks.get()) is not None:
            try:
                task.work()
            except BaseException as problem:
                task.answers.put(problem)
            else:
                task.answers.put(None)
            del task  # arrays must be freed before the next task
        self._tasks.put(None)  # for the next thread

    def end(self) -> None:
        """End the threads, each after its current task."""
        self._ended = True
        self._tasks.put(None)
        for thread in self._threads:
            thread.join()


_workers = Workers()


def _start_anew() -> None:
    """Replace the workers after a fork, which copies no threads."""
    global _workers
    _workers = Workers()


atexit.register(lambda: _workers.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)  # threads do not survive a fork


def _spans(size: int, parts: int, alignment: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of about equal parts of 0 .. size."""
    step = -(-size // parts)
    step += -step % alignment
    for start in range(0, size, step):
        yield start, min(start + step, size)


def over_units(count: int, cost: int, work: Callable[[int, int], None]) -> None:
    """Call work(first, stop) for spans of 0 .. count; each unit takes as long as `cost` elements of a cast."""
    over_spans(count * cost, lambda start, stop: work(start // cost, stop // cost), alignment=cost)


def over_tasks(count: int, work: Callable[[int], object]) -> None:
    """Call work(i) for i of 0 .. count - 1 on every core, each call as soon as a thread is free.

    Loops inside a call run on its thread alone. After an error, which the caller gets, no further call begins.
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
                work(numbers.get_nowait())
        except Empty:
            pass
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
    except BaseException:  # Ctrl-C too
        stopped.set()
        raise
    finally:
        problems = [answer.get() for answer in answers]
    for problem in problems:
        if problem is not None:
            raise problem


def over_spans(size: int, work: Callable[[int, int], None], alignment: int = ALIGNMENT, weight: float = 1.0) -> None:
    """Call work(start, stop) for spans that cover range(size), on several threads if the work is long enough.

    Args:
      size: the number of elements.
      work: a function of the first element of a span and of the one after its last.
      alignment: a span starts at a multiple of so many elements.
      weight: the time that an element takes, as a multiple of the time that a cast takes.
    """
    workers = thread_count() if size * weight >= SMALLEST else 1
    # a worker that waited for the others of its own pool would wait for ever
    if workers == 1 or getattr(_this_thread, "is_worker", False):
        work(0, size)
        return
    spans = list(_spans(size, workers, alignment))
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
