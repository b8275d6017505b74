"""Splits long arrays over the processor's cores. Kernels release the GIL, so Python threads are enough."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SMALLEST = 1 << 20  # elements below which one thread is as fast
ALIGNMENT = 4096  # spans start at multiples, so that no two threads share a cache line


def thread_count() -> int:
    """Threads for one call: FPSIM_NUM_THREADS, OMP_NUM_THREADS, or the cores that this process may use."""
    for name in ("FPSIM_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text:
            if not (text.isascii() and text.isdigit() and int(text) >= 1):
                raise ValueError(f"{name} must be an integer >= 1; got {text!r}. Unset it to use every core.")
            return int(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_this_thread = threading.local()


def _mark_as_worker() -> None:
    _this_thread.is_worker = True


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(workers, thread_name_prefix="fpsim", initializer=_mark_as_worker)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def _spans(size: int, parts: int, alignment: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of about equal parts of 0 .. size."""
    step = -(-size // parts)
    step += -step % alignment
    for start in range(0, size, step):
        yield start, min(start + step, size)


def over_spans(size: int, work: Callable[[int, int], None], alignment: int = ALIGNMENT, weight: float = 1.0) -> None:
    """Call work(start, stop) for spans that cover 0 .. size, at once where that pays; starts are aligned.

    weight: how many elements of a cast one of these takes as long as.
    """
    workers = thread_count() if size * weight >= SMALLEST else 1
    # a worker that waited for the others of its own pool would wait for ever
    if workers == 1 or getattr(_this_thread, "is_worker", False):
        work(0, size)
        return
    spans = list(_spans(size, workers, alignment))
    try:
        futures = [_pool(workers - 1).submit(work, *span) for span in spans[1:]]
    except RuntimeError:  # the interpreter is shutting down and takes no more threads; spans may be done twice
        work(0, size)
        return
    try:
        work(*spans[0])
    finally:
        for future in futures:
            future.result()
