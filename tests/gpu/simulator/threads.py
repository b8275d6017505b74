"""Threads of numba's CUDA simulator that get their turns, and that find the same shared memory."""

from __future__ import annotations

import sys
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


def prepare() -> None:
    """Let the threads of this process take turns often: the simulator waits for them in a loop that never rests."""
    from numba.cuda.simulator import kernelapi

    plain = kernelapi.FakeCUDAShared.__init__

    def start(self: Any, *arguments: Any, **keywords: Any) -> None:
        plain(self, *arguments, **keywords)
        self._allocations = _Allocations()

    kernelapi.FakeCUDAShared.__init__ = start
    sys.setswitchinterval(1e-5)
