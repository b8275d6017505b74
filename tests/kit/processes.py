"""Runs a script in a new process, to test what a process decides once: caches, switches, imports."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from tests.kit.simulated import call

ROOT = Path(__file__).resolve().parents[2]


def python(script: str, root: Path = ROOT, **environment: str) -> str:
    """Return what a script prints that runs in `root`, and so imports the package there."""
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    run = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


BARE = """
    import os, sys, traceback
    import numba, numpy

    numba.njit(lambda x: x + 1)(1)  # which loads what every compilation needs
    for line in sys.stdin:
        root, environment, script = eval(line)
        if (child := os.fork()) == 0:
            failed = 1
            try:
                os.environ.update(environment)
                sys.path.insert(0, root)
                exec(script, {"__name__": "__main__"})
                failed = 0
            except BaseException:
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(failed)
        print("\\nend", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Bare:
    """Runs scripts, as `python` does, each in a fork of a process that has used numba but not the package.

    Machine code is hardly optimised; without any optimisation it would not be kept on disk.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def python(self, script: str, root: Path = ROOT, **environment: str) -> str:
        if not hasattr(os, "fork"):
            return python(script, root, **environment, NUMBA_OPT="1")
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", textwrap.dedent(BARE)],
                env={**os.environ, "NUMBA_OPT": "1", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{(str(root), environment, textwrap.dedent(script))!r}\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.startswith("end "):
                assert line == "end 0\n", "".join(lines)
                break
            lines.append(line)
        return "".join(lines).strip()

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def printed(script: str) -> str:
    """Return what the script prints in this process, whose kernels are already compiled."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(textwrap.dedent(script), {"__name__": "__main__"})
    return out.getvalue().strip()


def simulate(module: str, file: Path, *words: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that a module of tests writes to a file, with CUDA simulated and the core as plain Python.

    words: what the module is told besides.
    """
    done = call(f"{module}:main", str(file), *words)
    assert done.code == 0, done.errors
    with np.load(file) as found:
        return dict(found)


def say_refusals(setup: str, *calls: str) -> None:
    """Print the error of each call after a setup, a line for each."""
    from numba import cuda

    variables: dict[str, Any] = {"np": np, "fp": fp, "cuda": cuda}
    exec(setup, variables)
    for each in calls:
        try:
            eval(each, variables)
        except (TypeError, ValueError, fp.gpu.GpuError) as reason:
            print(type(reason).__name__, reason)
        else:
            print("no error for", each)


def assert_refused(setup: str, calls: Mapping[str, str]) -> None:
    """Check that each call of the simulated GPU, after a setup, is refused with a sentence that matches its pattern."""
    done = call("tests.kit.processes:say_refusals", setup, *calls)
    assert done.code == 0, done.errors
    lines = done.out.splitlines()
    assert len(lines) == len(calls)
    for line, words in zip(lines, calls.values(), strict=True):
        assert re.match(words, line), line
