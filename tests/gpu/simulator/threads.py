"""Threads of numba's CUDA simulator that get their turns, and that find the same shared memory."""

from __future__ import annotations

import itertools
import threading
from typing import Any


class _Allocations(dict[Any, Any]):
    """Shared arrays by the line that asks for them.

    The simulator looks for one, and makes it where there is none; two threads that look at the same time would each
    make their own. Here the first is told that there is none, and the others wait for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._made: dict[Any, threading.Event] = {}

    def get(self, key: Any, default: Any = None) -> Any:
        with self._lock:
            first = key not in self._made
            made = self._made.setdefault(key, threading.Event())
        if first:
            return default
        made.wait()
        return self[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._made[key].set()


def _wait_at_barrier(thread: Any) -> None:
    """What cuda.syncthreads does in a simulated thread."""
    if thread.abort:
        raise RuntimeError("another thread of the block failed before this one came to the barrier")
    thread.syncthreads_blocked = True
    thread._manager.arrived.release()
    thread.syncthreads_event.wait()
    thread.syncthreads_event.clear()
    if thread.abort:
        raise RuntimeError("another thread of the block failed while this one waited at the barrier")


def _run_block(block: Any, grid_point: Any, *arguments: Any) -> None:
    """The threads of a block, from barrier to barrier; one that is done has come to all the barriers that follow."""
    from numba.cuda.simulator.kernel import BlockThread

    block.arrived = threading.Semaphore(0)

    def work() -> None:
        try:
            block._f(*arguments)
        finally:
            block.arrived.release()

    threads = [
        BlockThread(work, block, grid_point, place, block._debug)
        for place in itertools.product(*map(range, block._block_dim))
    ]
    for thread in threads:
        thread.start()
    waiting = threads
    while waiting:
        for _ in waiting:
            block.arrived.acquire()
        failed = next((thread for thread in waiting if not thread.syncthreads_blocked and _failure(thread)), None)
        waiting = [thread for thread in waiting if thread.syncthreads_blocked]
        for thread in waiting:
            thread.abort = failed is not None
            thread.syncthreads_blocked = False
            thread.syncthreads_event.set()
        if failed is not None:
            kind, trace = failed.exception
            raise kind.with_traceback(trace)


def _failure(thread: Any) -> Any:
    """What ended a thread that does not wait at a barrier, if it was an exception."""
    thread.join()
    return thread.exception


def prepare() -> None:
    """Let the threads of a block meet at barriers of this file, and share what they allocate.

    The simulator itself looks at all threads in a loop that never rests, which takes most of the processor's time.
    """
    from numba.cuda.simulator import kernelapi
    from numba.cuda.simulator.kernel import BlockManager, BlockThread

    plain = kernelapi.FakeCUDAShared.__init__

    def start(self: Any, *arguments: Any, **keywords: Any) -> None:
        plain(self, *arguments, **keywords)
        self._allocations = _Allocations()

    kernelapi.FakeCUDAShared.__init__ = start
    BlockManager.run = _run_block
    BlockThread.syncthreads = _wait_at_barrier
