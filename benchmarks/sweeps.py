"""Sweeps: the cost of a cell in addition to its measure, on two processes, in this one, and if all is finished.

python -m benchmarks.sweeps
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import fpsim as fp
from benchmarks.machine import describe

CELLS = 1000
WANTED = 30.0  # seconds for 1,000 small cells on two cores


def small(mantissa_bits: int, seed: int) -> float:
    """Return the measure of one point of the grid: an error of 4096 values in a format with these mantissa bits."""
    x = np.random.default_rng(seed).standard_normal(4096).astype(np.float32)
    return fp.analysis.error(x, fp.Format("own", 5, mantissa_bits)).sqnr_db


def seconds(folder: Path, workers: int) -> float:
    """Return the seconds of a sweep over all points."""
    grid = {"mantissa_bits": range(1, 11), "seed": range(CELLS // 10)}
    began = time.perf_counter()
    frame = fp.analysis.sweep(small, grid, out=folder, workers=workers)
    assert len(frame) == CELLS
    assert set(frame.error) == {""}
    return time.perf_counter() - began


def main() -> int:
    """Print the seconds of sweeps; return 1 if 1,000 points on two processes take longer than the target."""
    machine = describe()
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['date']}; {CELLS:,} cells of 4096 values:")
    with tempfile.TemporaryDirectory() as folder:
        two = seconds(Path(folder) / "two", 2)
        rows = {
            f"two processes (wanted: {WANTED:.0f} s)": two,
            "all finished": seconds(Path(folder) / "two", 2),
            "this process": seconds(Path(folder) / "one", 1),
        }
    for name, taken in rows.items():
        print(f"{name:36s} {taken:6.2f} s  {taken / CELLS * 1e3:6.2f} ms a cell")
    return int(two > WANTED)


if __name__ == "__main__":
    sys.exit(main())
