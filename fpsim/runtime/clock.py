"""A clock that stops while kernels are compiled or loaded, for work that is to stop after some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_compiling = 0  # threads that are
_since = 0.0  # when the first of them began
_spent = 0.0  # seconds before


def seconds() -> float:
    """Seconds since some moment, without those in which any thread compiled.

    Example:
      >>> from fpsim.runtime.clock import compiling, seconds
      >>> with compiling():
      ...     first, second = seconds(), seconds()
      >>> first == second
      True
    """
    with _lock:
        return (_since if _compiling else time.perf_counter()) - _spent


@contextmanager
def compiling() -> Iterator[None]:
    """Stop the clock; several threads may, and one may within itself."""
    global _compiling, _since, _spent
    with _lock:
        if not _compiling:
            _since = time.perf_counter()
        _compiling += 1
    try:
        yield
    finally:
        with _lock:
            _compiling -= 1
            if not _compiling:
                _spent += time.perf_counter() - _since
