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
    """Restore the handlers of Ctrl-C and SIGALRM in a child process that was forked within `interrupts_wait`."""
    if _handlers:
        with contextlib.suppress(ValueError):
            _set_handlers(_handlers[0])
        _handlers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restore_interrupts)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Return a context that defers Ctrl-C and SIGALRM to its end; without effect outside the main thread.

    An exception while numba is imported or compiles would make every later compilation of the process fail: packages
    would lack submodules, and numba's registries would be half read. It could also leave LLVM's one lock locked, for
    which other threads would then wait forever.

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
    """Install signal handlers, given as {number of the signal: handler}."""
    for number, handler in handlers.items():
        signal.signal(number, handler)
