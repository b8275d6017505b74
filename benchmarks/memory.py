"""Memory of a product in addition to its operands and result: `python -m benchmarks.memory`.

It is measured in a separate process, whose peak of resident memory is reset before the product (Linux only).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import fpsim as fp

SIDE = 4096
WANTED = 80e6  # bytes
NAME = f"memory of hopper_e4m3_f32, {SIDE}^3"
STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(line: str) -> int:
    """Return the bytes of "VmRSS", the process's memory in RAM, or "VmHWM", its peak."""
    entry = next(text for text in STATUS.read_text().splitlines() if text.startswith(line))
    return 1024 * int(entry.split()[1])


def beyond(side: int) -> dict[str, float]:
    """Measure a product of two square E4M3 matrices: bytes beyond operands and result, and multiply-adds a second."""
    a, b = (fp.encode(np.random.default_rng(i).standard_normal((side, side), np.float32), "e4m3") for i in range(2))
    out = np.zeros((side, side), np.float32)
    fp.matmul(a[:256, :256], b[:256, :256], accumulate="hopper_e4m3_f32", out=np.zeros((256, 256), np.float32))
    out.fill(1)  # so that all of its pages exist
    REFS.write_text("5")  # resets the peak
    before, began = resident("VmRSS"), time.perf_counter()
    fp.matmul(a, b, accumulate="hopper_e4m3_f32", out=out)
    return {"bytes": resident("VmHWM") - before, "rate": side**3 / (time.perf_counter() - began)}


def report() -> dict[str, Any] | None:
    """Measure in a new process, print the line and return the record, or None if the system keeps no peak."""
    if not REFS.exists():
        return None
    done = subprocess.run([sys.executable, "-m", "benchmarks.memory"], stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(done.stdout)
    met = measured["bytes"] <= WANTED
    mark = "met" if met else "MISSED"
    print(f"{NAME:36s} {measured['bytes'] / 1e6:6.1f} MB in addition to operands and result ({mark})", flush=True)
    return {"name": NAME, "bytes": measured["bytes"], "wanted": WANTED, "met": met, "rate": measured["rate"]}


if __name__ == "__main__":
    print(json.dumps(beyond(SIDE)))
