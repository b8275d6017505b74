"""Ctrl-C and SIGALRM, deferred while an exception would leave modules or compilers half done."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ctrl-C, and the timer by which tests and scripts end a call that takes too long
DEFERRED = [getattr(signal, name) for name in ("SIGINT", "SIGALRM") if hasattr(signal, name)]
_handlers: list[dict[int, Any]] = []  # former handlers of these signals, while the main thread defers them


def _restore_interrupts() -> None:
    """Set the handlers from before a block of `interrupts_wait`, in a child process that was forked within it."""
    if _handlers:
        with contextlib.suppress(ValueError):
            _set_handlers(_handlers[0])
        _handlers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_interrupts)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Return a context that defers Ctrl-C and SIGALRM to its end; without effect outside the main thread.

    An exception in the middle of importing numba or of compiling would make every later compilation of the process
    fail: a package imported in part lacks its submodules, and numba's registries would be half read. llvmlite has one
    lock for all of LLVM, which an exception would leave locked: other threads that compile would wait forever.

    Example:
      >>> from fpsim.interrupts import interrupts_wait
      >>> with interrupts_wait():
      ...     import numba
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in DEFERRED}
    handlers = {number: handler for number, handler in former.items() if callable(handler)}
    caught: dict[int, Any] = {}
    _set_handlers(dict.fromkeys(handlers, caught.setdefault))
    _handlers.append(handlers)
    try:
        yield
    finally:
        _handlers.pop()
        _set_handlers(handlers)
        with contextlib.ExitStack() as stack:  # a handler that raises does not keep the others from being called
            for number, frame in caught.items():
                stack.callback(handlers[number], number, frame)


def _set_handlers(handlers: dict[int, Any]) -> None:
    """Set the handlers of signals, by their numbers."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
