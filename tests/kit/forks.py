"""Processes that start at once: forks of a process that has imported torch and the package, and done nothing else.

A process that imports them anew takes seconds, which is most of what tests of kills, of Ctrl-C and of ranks would take.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# torch._dynamo: what torch's own optimizers and data parallel models import when they are first used
IMPORTED = ["torch", "torch._dynamo", "torch.distributed", "pandas", "pytest", "fpsim.torch", "fpsim.train.runs"]


def _context() -> Any:
    """Return the context that forks a server process, or starts new processes where forks don't exist."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


class Fork:
    """A process that calls a function, and the files that it writes to."""

    def __init__(self, process: BaseProcess, out: Path, errors: Path) -> None:
        self._process, self._out, self._errors = process, out, errors

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.is_alive()

    @property
    def out(self) -> str:
        """What it has written to its output."""
        return self._out.read_text() if self._out.exists() else ""

    @property
    def errors(self) -> str:
        """What it has written to its errors."""
        return self._errors.read_text() if self._errors.exists() else ""

    def end(self, seconds: float = 120) -> int:
        """Wait for its end: the exit code, negative for a signal."""
        self._process.join(seconds)
        code = self._process.exitcode
        assert code is not None, f"it must end in {seconds} s; it said {self.out!r} and {self.errors!r}"
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@contextlib.contextmanager
def fork(
    folder: Path, call: Callable[..., object], *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[Fork]:
    """Start a process that calls `call(*arguments)`, and kill it at the end of the block.

    Args:
      folder: where the two files lie that it writes its output and its errors to, with those of other forks.
      call: a function of a module, which the process imports. Warnings are errors in it, and torch has one thread.
      environment: what it has besides the variables of the first fork.
    """
    number = len(list(folder.glob("*.out"))) if folder.exists() else 0
    folder.mkdir(exist_ok=True)
    out, errors = (folder / f"{number}.{name}" for name in ("out", "errors"))
    out.touch()
    process = _context().Process(target=_run, args=(out, errors, dict(environment or {}), call, arguments))
    process.start()
    found = Fork(process, out, errors)
    try:
        yield found
    finally:
        found.kill()


def _run(
    out: Path, errors: Path, environment: dict[str, str], call: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    """Redirect the output to the files, then call the function."""
    import signal
    import warnings

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has in background jobs ignore it
    os.environ.update(environment)
    for number, name, path in ((1, "stdout", out), (2, "stderr", errors)):
        written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, number)
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    sys.modules["torch"].set_num_threads(1)  # as under torchrun
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(*arguments)
