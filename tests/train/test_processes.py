"""Two processes train with the bits of one that takes their micro-batches one after another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fpsim.testing import assert_bits_equal  # noqa: E402
from tests.kit.processes import ROOT  # noqa: E402

if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch connects no processes", allow_module_level=True)

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("DEEPSEEK_V3", "FP8_DELAYED")]


@pytest.mark.parametrize("recipe", ["NVFP4", *SLOW])
def test_two_processes_have_the_bits_of_two_micro_batches(recipe: str, tmp_path: Path) -> None:
    # stochastic draws, gradients that travel in BF16, delayed scales and AdamW included
    for launcher, name, accumulate in ((TORCHRUN, "two", 1), ([], "one", 2)):
        command = [
            sys.executable,
            *launcher,
            "-m",
            "tests.train.shared_run",
            recipe,
            str(tmp_path / name),
            str(accumulate),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Warning: `" not in done.stderr
    first, second, single = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("two-0", "two-1", "one-0"))
    assert first.keys() == second.keys() == single.keys()
    for name, want in single.items():
        assert_bits_equal(first[name], want)
        assert_bits_equal(second[name], want)
