"""How much memory a product takes beside its operands and its result: `python -m benchmarks.memory`.

In a process of its own, whose peak of resident memory starts anew before the product (Linux only).
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
    """Bytes of "VmRSS", the memory that lies in RAM now, or "VmHWM", its peak."""
    found = next(text for text in STATUS.read_text().splitlines() if text.startswith(line))
    return 1024 * int(found.split()[1])


def beyond(side: int) -> dict[str, float]:
    """Bytes beside operands and result of a product of two square matrices of E4M3, and its multiply-adds a second."""
    a, b = (fp.encode(np.random.default_rng(i).standard_normal((side, side), np.float32), "e4m3") for i in range(2))
    out = np.zeros((side, side), np.float32)
    fp.matmul(a[:256, :256], b[:256, :256], accumulate="hopper_e4m3_f32", out=np.zeros((256, 256), np.float32))
    out.fill(1)  # every page of it is there
    REFS.write_text("5")  # the peak is that from now on
    before, began = resident("VmRSS"), time.perf_counter()
    fp.matmul(a, b, accumulate="hopper_e4m3_f32", out=out)
    return {"bytes": resident("VmHWM") - before, "rate": side**3 / (time.perf_counter() - began)}


def report() -> dict[str, Any] | None:
    """Run it in a new process, print its line and return its record; None where the system does not tell the peak."""
    if not REFS.exists():
        return None
    done = subprocess.run([sys.executable, "-m", "benchmarks.memory"], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    met = found["bytes"] <= WANTED
    mark = "met" if met else "MISSED"
    print(f"{NAME:36s} {found['bytes'] / 1e6:6.1f} MB beside operands and result ({mark})", flush=True)
    return {"name": NAME, "bytes": found["bytes"], "wanted": WANTED, "met": met, "rate": found["rate"]}


if __name__ == "__main__":
    print(json.dumps(beyond(SIDE)))
