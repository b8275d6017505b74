"""Optional use of general loops, which handle every format, for small work instead of compiling a loop per format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MOST = 1 << 25  # multiply-adds done in place of one loop: 0.4 to 0.6 s, while compiling it takes 1 to 8 s

_allowed: ContextVar[bool] = ContextVar("general_loops", default=False)
_replaced: dict[Any, int] = {}  # loop -> multiply-adds that a general loop did in its place


@contextmanager
def general_loops() -> Iterator[None]:
    """Return a context in which a general loop may do small work, so that no loop for a single format is compiled.

    A general loop handles every format, with the same bits. It is used only while the loop for the single format is
    not compiled yet, and up to the amount of work that `replaces` allows.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def allows_general_loops() -> bool:
    """Return whether this call is inside a `with general_loops()` block."""
    return _allowed.get()


def replaces(loop: Any, work: int) -> bool:
    """Return whether a general loop, which handles every format, may do some work in place of `loop`.

    It may if the call is inside `general_loops`, `loop`, a kernel for a single format, is not compiled yet, and the
    work that general loops did in place of `loop`, this work included, is at most MOST (2**25) multiply-adds. If the
    result is True, the work counts as done. work: number of multiply-adds.

    Example:
      >>> from fpsim.runtime.general_loops import general_loops, replaces
      >>> def loop(): ...
      >>> with general_loops():
      ...     inside = replaces(loop, 100)
      >>> inside, replaces(loop, 100)
      (True, False)
    """
    if not _allowed.get() or is_compiled(loop):
        return False
    total = _replaced.get(loop, 0) + work
    if total > MOST:
        return False
    _replaced[loop] = total
    return True


def is_compiled(loop: Any) -> bool:
    """Return whether this process has machine code of `loop`, a kernel."""
    return bool(getattr(loop, "signatures", None))
