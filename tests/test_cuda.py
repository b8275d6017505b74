"""The scalar core is what CUDA kernels will call; the simulator needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_scalar_core_gives_the_same_bits_inside_simulated_cuda_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda_simulator"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.strip() == "equal", done.stderr
