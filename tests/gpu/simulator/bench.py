"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: the calls that the GPU benchmark times.

Results go to the file that is named, beside those of the same calls on the CPU; `tests.gpu.test_bench` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.gpu.hardware.timing import call_of
from fpsim.gpu.lab.bench_rows import WORKS, BenchWork

ELEMENTS, SIDE = 256, 4
CALLED = [work for work in WORKS if work.function == "copy" or hasattr(fp.gpu, work.function)]


def size_of(work: BenchWork) -> int:
    """Return the size of a row that is simulated."""
    return SIDE if work.is_product else ELEMENTS


def words(result: Any) -> npt.NDArray[Any]:
    """Return a result's codes, of the GPU or the CPU."""
    codes = getattr(result, "codes", result)
    array = np.asarray(codes.copy_to_host() if hasattr(codes, "copy_to_host") else codes)
    return array.view(f"u{array.dtype.itemsize}")


class NumbaArrays:
    """Makes operands as numba arrays, also where the GPU is simulated."""

    def floats(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Return normally distributed values; float16 stands for bfloat16, which numba does not have."""
        drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return self._sent(drawn if kind == "float32" else drawn.astype(np.float16))

    def codes(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Return random codes of a format, of the smallest unsigned dtype."""
        known = fp.format(fmt)
        return self._sent(np.random.default_rng(1).integers(0, 1 << known.bits, shape).astype(known.storage))

    def values(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Return codes of normally distributed values."""
        return self._sent(fp.encode(np.random.default_rng(2).standard_normal(shape), fmt))

    def copied(self, source: Any) -> Callable[[], Any]:
        """Return a call that copies an array to another place on the GPU."""
        from numba import cuda

        target = cuda.device_array_like(source)

        def again() -> Any:
            target.copy_to_device(source)
            return target

        return again

    def _sent(self, x: Any) -> Any:
        from numba import cuda

        return cuda.to_device(x)


class HostArrays(NumbaArrays):
    """The same operands on the CPU."""

    def _sent(self, x: Any) -> Any:
        return x


def called() -> dict[str, npt.NDArray[Any]]:
    """Return the results of every row's call on GPU and CPU, and how many bytes an element of its arrays has."""
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
