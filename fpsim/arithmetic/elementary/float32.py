"""Elementary functions of float32 arrays: loops in float64 arithmetic, with flags."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arithmetic.kernels import elementary
from fpsim.arithmetic.operation import Operation
from fpsim.arrays import Array
from fpsim.runtime.pipeline import PIECE
from fpsim.runtime.processor import ieee_arithmetic

u32 = np.uint32


@lru_cache(maxsize=64)
def loop(operation: Operation) -> Callable[[tuple[Array, ...], tuple[Array, ...], int], None]:
    """Return the loop (sources, targets, first, seed=None) -> None that computes `operation` on float32 arrays; cached.

    operation: an elementary function, such as exp.
    sources: (bits of x,), 1-D uint32. targets: (bits of the results,), or (bits, uint8 flags), which it fills; the
    results may be in the memory of x. first and seed are not used.
    """
    name, before = operation.name, u32(operation.tininess == "before")

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int, seed: Any = None) -> None:
        with ieee_arithmetic():
            if len(targets) == 1:
                elementary.float32_kernel(name)(sources[0], targets[0])
                return
            for start in range(0, targets[0].size, PIECE):
                piece = slice(start, start + PIECE)
                x = sources[0][piece].copy()  # the results may be in the same memory
                elementary.float32_kernel(name)(x, targets[0][piece])
                elementary.float32_flags_kernel(name)(x, targets[0][piece], targets[1][piece], before)

    return run
