"""The soak finds what it is for: wrong results, crashes, words on stderr, and processes that end before the end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.soak.__main__ import DIGESTS, RunningProcess, finding
from tests.soak.calls import CALLS, digest

RIGHT = {"decode": "0123456789abcdef"}
OUTCOMES = {
    "whole": ("print('0123456789abcdef decode'); print('end')", "none", ""),
    "wrong": ("print('1123456789abcdef decode'); print('end')", "none", "decode gave 1123456789abcdef"),
    "crashed": ("import os; os.kill(os.getpid(), 11)", "none", "exit code -11"),
    "said something": ("import sys; print('end'); print('no', file=sys.stderr)", "full disk", "exit code 0: no"),
    "cut short": ("print('0123456789abcdef decode')", "damage", "exit code 0: no word"),
    "killed": ("import os; print('0123456789abcdef dec', end='', flush=True); os.kill(os.getpid(), 9)", "kill", ""),
    "wrong, then killed": (
        "import os; print('1123456789abcdef decode\\n0', flush=True); os.kill(os.getpid(), 9)", "kill", "decode gave",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_is_judged(name: str) -> None:
    script, hazard, want = OUTCOMES[name]
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.wait()
    _, said = finding(RunningProcess(0, hazard, process, float("inf")), RIGHT)
    assert said.startswith(want) if want else said == ""


def test_digests_are_those_of_the_calls() -> None:
    digests = json.loads(DIGESTS.read_text())
    assert list(digests) == list(CALLS)
    for name in ("decode E4M3", "encode E4M3", "add FP16"):
        assert digest(name) == digests[name]
