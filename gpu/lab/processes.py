"""Runs processes at the same time, such as parts of a validation, each of which mostly compiles on one core."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fpsim.lazy import public

PAUSE = 0.05  # seconds between two polls of the processes
SAID = 400  # most characters of a failed process's last line in an error
SPREAD = 2  # threads per core, because processes mostly compile on one thread


class Ended(NamedTuple):
    """The result of a process that has ended: its name, the complete lines of its file, and its error.

    The error is why it failed or ran out of time; "" if it succeeded, or was killed because the caller stopped.
    """

    name: str
    lines: list[str]
    error: str


class _Running(NamedTuple):
    """A running process and the files that it writes to.

    Attributes:
      name: name of the process.
      process: the process.
      file: the file to which it writes its results as lines of JSON.
      errors: the file that receives its standard error.
    """

    name: str
    process: subprocess.Popen[bytes]
    file: Path
    errors: Path


@contextmanager
def row_file(path: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open the file `path` for a `with` block, and give the function that appends a dict to it as a line of JSON."""
    with open(path, "a") as file:

        def write(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        yield write


def side_by_side(
    names: Sequence[str], command: Callable[[str, Path], list[str]], most: float, ended: Callable[[Ended], None]
) -> None:
    """Run one process for each of `names`, all at the same time, with a time limit.

    command: command(name, file) returns the command line of a process, which writes its lines to `file`, a path in a
    temporary folder that is removed at the end. most: seconds after which a process is killed; the lines that it has
    written are kept. ended: called with the result of each process as it ends. If an exception, such as Ctrl-C, stops
    this function, the processes that still run are killed, `ended` is called for them too, and the exception is raised
    again.
    """
    end = time.monotonic() + most
    with TemporaryDirectory() as folder:
        running: list[_Running] = []
        try:
            for name in names:
                running.append(_started(name, command, Path(folder), len(names)))
            while running:
                for worker in [
                    worker for worker in running if worker.process.poll() is not None or time.monotonic() > end
                ]:
                    running.remove(worker)
                    ended(_ended(worker, f"its process did not end within {most:.0f} s"))
                time.sleep(PAUSE if running else 0)
        finally:
            for result in [_ended(worker, "") for worker in running]:  # all are killed, whatever `ended` raises
                ended(result)


def _started(name: str, command: Callable[[str, Path], list[str]], folder: Path, together: int) -> _Running:
    """Start a process; if `together` > 1 processes run at the same time, it gets its share of the cores.

    The process writes lines to name.jsonl and errors to name.txt in `folder`. command: command(name, file) returns the
    command line of the process.
    """
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
    """Return the result of the process `worker`; if it still runs, kill it first, and give it the error text `late`."""
    code = worker.process.poll()
    if code is None:
        worker.process.kill()
        worker.process.wait()
        error = late
    else:
        last = (worker.errors.read_text(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
        error = f"its process ended with {code}: {last[:SAID]}" if code else ""
    lines = worker.file.read_text().splitlines(keepends=True) if worker.file.exists() else []
    return Ended(worker.name, [line for line in lines if line.endswith("\n")], error)  # without one that was cut
