"""A run of the tests ends, whatever becomes of a worker, and names the test at which it died."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import pytest_xdist_auto_num_workers
from tests.kit.processes import ROOT

MODULE = """
import os, signal, time
import pytest

@pytest.mark.parametrize("i", range(10))
def test_passes(i):
    time.sleep(0.05)

def test_ends_badly():
    {ends}

def test_after():
    pass
"""
WAYS = {"killed": "os.kill(os.getpid(), signal.SIGKILL)", "hanging": "time.sleep(600)"}


def flags() -> list[str]:
    """Return the words of the Makefile that say how workers run."""
    found = re.search(r"^WORKERS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].replace("-n auto", "-n 2").split()


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_a_dead_worker_ends_and_names_its_test(way: str, tmp_path: Path) -> None:
    """Found by a user: three workers died of one fault, and the run waited for them until it was interrupted."""
    for name, ends in (("bad", WAYS[way]), ("good", "pass")):
        (tmp_path / f"test_{name}.py").write_text(MODULE.format(ends=ends))
    options = (ROOT / "pyproject.toml").read_text()
    assert 'timeout_method = "thread"' in options
    (tmp_path / "conftest.py").write_text(
        "from tests.kit.short_reports import *\nfrom tests.kit.time_limits import *\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 2\ntimeout_method = thread\n")
    command = [sys.executable, "-m", "pytest", *flags(), "--dist", "loadfile", "--no-loadscope-reorder"]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_bad.py::test_ends_badly'" in done.stdout


def test_workers_are_as_many_as_the_cores_that_a_process_may_use() -> None:
    assert pytest_xdist_auto_num_workers() == len(os.sched_getaffinity(0))
