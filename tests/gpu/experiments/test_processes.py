"""Processes side by side: they run at the same time, and what one wrote is kept however it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fpsim.gpu.lab import processes
from fpsim.gpu.lab.processes import Ended, side_by_side

MEET = """
import pathlib, sys, time
folder, own, other, file = map(pathlib.Path, sys.argv[1:])
(folder / own).touch()
end = time.monotonic() + 30
while not (folder / other).exists() and time.monotonic() < end:
    time.sleep(0.01)
file.write_text(f"{(folder / other).exists()}\\n")
"""
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('one\\ntwo\\nthr')"


def test_processes_run_at_the_same_time(tmp_path: Path) -> None:
    found: list[Ended] = []
    others = {"a": "b", "b": "a"}
    side_by_side(
        ["a", "b"],
        lambda name, file: [sys.executable, "-c", MEET, str(tmp_path), name, others[name], str(file)],
        60, found.append,
    )  # fmt: skip
    assert sorted(found) == [Ended("a", ["True\n"], ""), Ended("b", ["True\n"], "")]


def test_what_a_process_wrote_is_kept_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    began, clock = time.monotonic(), 0.0
    found: dict[str, Ended] = {}
    scripts = {
        "fine": WRITE,
        "dead": WRITE + "; sys.exit('no more\\nand why')",
        "slow": WRITE + "; import time; time.sleep(60)",
    }

    def monotonic() -> float:
        """Return a time: a minute is over once the first two have ended, however long that takes."""
        nonlocal clock
        clock += 0.001 if {"fine", "dead"} - set(found) else 60
        return clock

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    side_by_side(
        list(scripts), lambda name, file: [sys.executable, "-c", scripts[name], str(file)], 50,
        lambda one: found.update({one.name: one}),
    )  # fmt: skip
    assert time.monotonic() - began < 30
    assert {one.error for one in found.values()} == {
        "", "its process ended with 1: and why", "its process did not end within 50 s",
    }  # fmt: skip
    assert found["fine"] == Ended("fine", ["one\n", "two\n"], "")
    assert found["dead"].lines == ["one\n", "two\n"]


def test_no_process_outlives_a_failed_start_or_a_failing_report(monkeypatch: pytest.MonkeyPatch) -> None:
    began, started = time.monotonic(), list[subprocess.Popen[bytes]]()
    popen = subprocess.Popen

    def kept(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("fpsim.gpu.lab.processes.subprocess.Popen", kept)
    told: list[str] = []

    def ended(one: Ended) -> None:
        told.append(one.name)
        raise OSError("no space")

    commands = {"one": [sys.executable, "-c", "import time; time.sleep(60)"], "none": ["/no/such/program"]}
    with pytest.raises(OSError, match="no space"):
        side_by_side(["one", "one", "none"], lambda name, file: commands[name], 60, ended)
    assert told == ["one"]
    with pytest.raises(OSError, match="no space"):
        side_by_side(["one", "one"], lambda name, file: commands[name], 0, ended)
    assert len(started) == 4
    assert all(process.poll() is not None for process in started)
    assert time.monotonic() - began < 30


def test_an_interrupt_ends_all_and_tells_of_them() -> None:
    began, told = time.monotonic(), []
    scripts = {"short": WRITE, "long": "import time; time.sleep(60)"}

    def ended(one: Ended) -> None:
        told.append(one.name)
        if len(told) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(list(scripts), lambda name, file: [sys.executable, "-c", scripts[name], str(file)], 60, ended)
    assert told == ["short", "long"]
    assert time.monotonic() - began < 30
