"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: the calls that the GPU benchmark times.

Results go to the file that is named, beside those of the same calls on the CPU; `tests.gpu.test_bench` compares them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.gpu.hardware.timing import NumbaArrays, call_of
from fpsim.gpu.lab.bench_rows import WORKS, BenchWork

ELEMENTS, SIDE = 256, 4
CALLED = [work for work in WORKS if work.function == "copy" or hasattr(fp.gpu, work.function)]


def size_of(work: BenchWork) -> int:
    """Of a row that is simulated."""
    return SIDE if work.is_product else ELEMENTS


def words(result: Any) -> npt.NDArray[Any]:
    """A result's codes, of the GPU or the CPU."""
    codes = getattr(result, "codes", result)
    array = np.asarray(codes.copy_to_host() if hasattr(codes, "copy_to_host") else codes)
    return array.view(f"u{array.dtype.itemsize}")


class HostArrays(NumbaArrays):
    """The same operands on the CPU."""

    def _sent(self, x: Any) -> Any:
        return x


def called() -> dict[str, npt.NDArray[Any]]:
    """What every row's call gives on the GPU and the CPU, and how many bytes an element of its arrays has."""
    found = {}
    for work in CALLED:
        size, arrays = size_of(work), HostArrays()
        found[f"gpu {work.name}"] = words(call_of(work, size, NumbaArrays())())
        if work.function == "copy":
            continue
        found[f"cpu {work.name}"] = words(call_of(work, size, arrays, fp)())
        operands = [arrays.floats(kind, (1,)) if kind in ("float32", "bfloat16") else arrays.codes(kind, (1,))
                    for kind in work.operands]  # fmt: skip
        found[f"bytes {work.name}"] = np.array(sum(x.itemsize for x in operands) + found[f"cpu {work.name}"].itemsize)
    return found


def main(file: str) -> None:
    """Write every result to a file."""
    np.savez(file, **called())  # type: ignore[arg-type]
