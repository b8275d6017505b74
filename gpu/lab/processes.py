"""Processes side by side: the parts of a validation, of which each spends most of its time compiling on one core."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fpsim.lazy import public

PAUSE = 0.05  # seconds between two looks at the processes
SAID = 400  # characters of what a process said last
SPREAD = 2  # threads per core, for processes compile more than they calculate


class Ended(NamedTuple):
    """A process that is over."""

    name: str
    lines: list[str]  # whole ones of its file
    error: str  # "" where it ended by itself and well


class _Running(NamedTuple):
    """A process at work."""

    name: str
    process: subprocess.Popen[bytes]
    file: Path  # that it writes to
    errors: Path


def side_by_side(
    names: Sequence[str], command: Callable[[str, Path], list[str]], most: float, ended: Callable[[Ended], None]
) -> None:
    """Run a command per name, all at the same time, for at most so many seconds.

    Args:
      names: of the processes.
      command: the arguments that start a process of a name, which writes lines to a file.
      most: seconds after which a process is killed; what it had written is kept.
      ended: called for each as it ends. An exception, as of Ctrl-C, ends all of them, and it is called for those too.
    """
    end = time.monotonic() + most
    with TemporaryDirectory() as folder:
        running: list[_Running] = []
        try:
            running = [_started(name, command, Path(folder), len(names)) for name in names]
            while running:
                for worker in [
                    worker for worker in running if worker.process.poll() is not None or time.monotonic() > end
                ]:
                    running.remove(worker)
                    ended(_ended(worker, f"its process did not end within {most:.0f} s"))
                time.sleep(PAUSE if running else 0)
        finally:
            for worker in running:
                ended(_ended(worker, ""))


def _started(name: str, command: Callable[[str, Path], list[str]], folder: Path, together: int) -> _Running:
    """A process, with its share of the cores for what the CPU calculates."""
    root = str(Path(public().__file__).resolve().parent.parent)
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    threads = {} if together == 1 else {"NUMBA_NUM_THREADS": str(max(SPREAD * (os.cpu_count() or 1) // together, 1))}
    file, errors = folder / f"{name}.jsonl", folder / f"{name}.txt"
    with errors.open("wb") as said:
        process: Any = subprocess.Popen(
            command(name, file), stdout=subprocess.DEVNULL, stderr=said,
            env={**threads, **os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
    return _Running(name, process, file, errors)


def _ended(worker: _Running, late: str) -> Ended:
    """What a process has written; it is killed if it still runs, and `late` is then its error."""
    code = worker.process.poll()
    if code is None:
        worker.process.kill()
        worker.process.wait()
        error = late
    else:
        last = (worker.errors.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
        error = f"its process ended with {code}: {last[:SAID]}" if code else ""
    return Ended(worker.name, list(_whole_lines(worker.file)), error)


def _whole_lines(file: Path) -> Iterator[str]:
    """The lines of a file but one that its process was about to write when it died."""
    if file.exists():
        yield from (line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n"))
