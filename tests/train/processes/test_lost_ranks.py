"""A rank that is killed in the middle of a step: one sentence, a whole checkpoint, the same bits after a restart."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from fpsim.testing import assert_bits_equal
from fpsim.train.ranks import LostRankError
from tests.kit.forks import Fork, fork
from tests.kit.processes import ROOT
from tests.train.processes.lost_rank import train

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()) or os.name != "posix":
    pytest.skip("this torch connects no processes, or none can be killed", allow_module_level=True)

STEPS = 40
WORDS = ["BF16", "--model", "perceptron", "--seeds", "1", "--batch", "32", "--steps", str(STEPS)]


def started(folder: Path, out: Path, lost: int, stack: contextlib.ExitStack) -> list[Fork]:
    """Two ranks that train together, each with what torchrun sets; one of them kills itself once, or none for -1."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
              "LOST_RANK": str(lost), "LOST_MARK": str(out.parent / "killed")}  # fmt: skip
    arguments = [*WORDS, "--out", str(out)]
    return [
        stack.enter_context(fork(folder / rank, train, arguments, environment=shared | {"RANK": rank}))
        for rank in ("0", "1")
    ]


def weights(out: Path) -> dict[str, Any]:
    """The weights that a finished run left."""
    (run,) = (out / "runs").iterdir()
    last = max(run.glob("step-*"))
    assert last.name == f"step-{STEPS:06}", last
    return dict(load_file(last / "arrays.safetensors"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks leave that nobody kills."""
    folder = tmp_path_factory.mktemp("unbroken")
    with contextlib.ExitStack() as stack:
        for process in started(folder / "ranks", folder / "out", -1, stack):
            assert process.end() == 0, process.errors
    return weights(folder / "out")


@pytest.mark.ranks
@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_rank_ends_all_with_one_sentence_and_the_same_call_goes_on(
    killed: int, unbroken: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        processes = started(tmp_path / "first", out, killed, stack)
        assert processes[killed].end() == -signal.SIGKILL
        left = processes[1 - killed]
        assert left.end(60) == 2, left.errors
        last = left.errors.strip().splitlines()[-1]
        assert last == f"fpsim: {LostRankError(killed, 2)}"
        assert "Traceback" not in left.errors
    with contextlib.ExitStack() as stack:
        for process in started(tmp_path / "second", out, killed, stack):
            assert process.end() == 0, process.errors
    got = weights(out)
    assert got.keys() == unbroken.keys()
    for name, want in unbroken.items():
        assert_bits_equal(got[name], want)


@pytest.mark.ranks
def test_torchrun_restarts_ranks_which_go_on_with_the_same_bits(unbroken: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "--max-restarts", "1", "-m", "tests.train.processes.lost_rank", *WORDS, "--out", str(out)]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"LOST_RANK": "1", "LOST_MARK": str(tmp_path / "killed")},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "killed").exists(), "the second rank has killed itself once"
    got = weights(out)
    for name, want in unbroken.items():
        assert_bits_equal(got[name], want)
