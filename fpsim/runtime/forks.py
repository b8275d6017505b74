"""Locks that make forks wait until no other thread imports or compiles, as the child could never finish that.

The threads of a process do not exist in its child, and locks that they hold stay locked there.
"""

from __future__ import annotations

import importlib
import logging  # noqa: F401  # first: forks take its lock after they have waited here, as threads that import need it
import os
import threading
import time
from typing import Any

AWAITED = ("fpsim", "numba", "llvmlite", "numpy", "ml_dtypes", "scipy")  # packages that first calls import
PATIENCE = 30.0  # seconds
# Held by whoever calls LLVM without numba. A reload of this module keeps its locks, as threads may hold them.
llvm_lock: Any = globals().get("llvm_lock") or threading.RLock()
LOCKS: list[Any] = globals().get("LOCKS") or [llvm_lock]  # numba's is added once it is loaded; the last is taken first
_held: dict[int, list[Any]] = {}  # locks by the thread that forks


def _others_import() -> bool:
    """Return whether another thread is importing a module of a package in AWAITED, such as numba or numpy.

    This is read from a private table of Python's import system; False if this Python has no such table.
    """
    table = getattr(importlib._bootstrap, "_module_locks", {})
    locks = [reference() for name, reference in list(table.items()) if name.partition(".")[0] in AWAITED]
    return any(getattr(lock, "owner", None) not in (None, threading.get_ident()) for lock in locks)


def _before() -> None:
    """Wait until no other thread imports, at most PATIENCE (30) seconds, then acquire all LOCKS; called before a fork.

    LOCKS are those of LLVM and of numba's compiler. Imports of packages outside AWAITED are not waited for.
    """
    end = time.monotonic() + PATIENCE
    while True:
        while _others_import() and time.monotonic() < end:
            time.sleep(0.001)
        locks = LOCKS[::-1]
        for lock in locks:
            lock.acquire()
        if not _others_import() or time.monotonic() >= end:
            _held[threading.get_ident()] = locks
            return
        for lock in reversed(locks):
            lock.release()


def _after() -> None:
    """Release the locks that `_before` acquired; called after a fork, in parent and child."""
    for lock in reversed(_held.pop(threading.get_ident(), [])):
        lock.release()


if hasattr(os, "register_at_fork") and "_registered" not in globals():
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
    _registered = True
