"""A clock that stops while kernels are compiled or loaded, for time limits that should not include compiling."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# A reload of this module keeps these values, as threads may be compiling.
_lock: threading.Lock = globals().get("_lock") or threading.Lock()
_compiling: int = globals().get("_compiling", 0)  # threads that are compiling
_since: float = globals().get("_since", 0.0)  # when the first of these threads began to compile
_spent: float = globals().get("_spent", 0.0)  # seconds of compiling before that
_own: threading.local = globals().get("_own") or threading.local()  # of each thread: its blocks, and what these took


def seconds() -> float:
    """Return the seconds of real time since an arbitrary start, without those in which any thread compiled.

    Example:
      >>> from fpsim.runtime.clock import compiling, seconds
      >>> with compiling():
      ...     first, second = seconds(), seconds()
      >>> first == second
      True
    """
    with _lock:
        return (_since if _compiling else time.perf_counter()) - _spent


def thread_seconds() -> float:
    """Return the seconds of this thread's processor time since an arbitrary start, without those in which it compiled.

    Other processes that share the processor make no difference, and neither does the number of other threads.

    Example:
      >>> from fpsim.runtime.clock import compiling, thread_seconds
      >>> with compiling():
      ...     first, second = thread_seconds(), thread_seconds()
      >>> first == second
      True
    """
    now = _own.since if getattr(_own, "blocks", 0) else time.thread_time()
    return float(now - getattr(_own, "spent", 0.0))


def spent() -> float:
    """Return the seconds of real time in which this process has compiled or loaded kernels.

    Seconds in which several threads did so count once.
    """
    with _lock:
        return _spent + (time.perf_counter() - _since if _compiling else 0.0)


def _start_anew() -> None:
    """Reset the clock's lock and count of open contexts in a forked child, which has only the thread that forked."""
    global _lock, _compiling
    _lock, _compiling = threading.Lock(), getattr(_own, "blocks", 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


@contextmanager
def compiling() -> Iterator[None]:
    """Return a context in which this module's clocks stop; contexts of several threads may overlap, and be nested."""
    global _compiling, _since, _spent
    with _lock:
        if not _compiling:
            _since = time.perf_counter()
        _compiling += 1
    blocks = getattr(_own, "blocks", 0)
    if not blocks:
        _own.since = time.thread_time()
    _own.blocks = blocks + 1
    try:
        yield
    finally:
        _own.blocks = blocks
        if not blocks:
            _own.spent = getattr(_own, "spent", 0.0) + time.thread_time() - _own.since
        with _lock:
            _compiling -= 1
            if not _compiling:
                _spent += time.perf_counter() - _since
