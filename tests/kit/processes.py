"""Runs a snippet in a process of its own, for what a process decides once: caches, switches, imports."""

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
    """What the script prints, run from `root` so that it imports the package that lies there."""
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    run = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def printed(script: str) -> str:
    """What the script prints in this process, whose kernels are compiled already."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(textwrap.dedent(script), {"__name__": "__main__"})
    return out.getvalue().strip()


def simulate(module: str, file: Path, *words: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays that a module of tests writes to a file, with CUDA simulated and the core as plain Python.

    words: what the module is told besides.
    """
    done = call(f"{module}:main", str(file), *words)
    assert done.code == 0, done.errors
    with np.load(file) as found:
        return dict(found)


def say_refusals(setup: str, *calls: str) -> None:
    """Print what each call after a setup says, a line for each."""
    from numba import cuda

    given: dict[str, Any] = {"np": np, "fp": fp, "cuda": cuda}
    exec(setup, given)
    for each in calls:
        try:
            eval(each, given)
        except (TypeError, ValueError, fp.gpu.GpuError) as reason:
            print(type(reason).__name__, reason)
        else:
            print("no error for", each)


def assert_refused(setup: str, calls: Mapping[str, str]) -> None:
    """That each call of the simulated GPU, after a setup, is refused with words that match its pattern."""
    done = call("tests.kit.processes:say_refusals", setup, *calls)
    assert done.code == 0, done.errors
    lines = done.out.splitlines()
    assert len(lines) == len(calls)
    for line, words in zip(lines, calls.values(), strict=True):
        assert re.match(words, line), line
