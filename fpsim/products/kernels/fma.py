"""Fused multiply-adds of float32 arrays, by the processor's own instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.runtime.compile import kernel
from fpsim.runtime.float_steps import fused


@kernel
def _fma(x: Any, y: Any, z: Any, out: Any) -> None:
    """Set out[i] to x[i] * y[i] + z[i], rounded once; all are 1-D float32 arrays of one length."""
    for i in range(out.size):
        out[i] = fused(x[i], y[i], z[i])


def fma(x: Any, y: Any, z: Any, out: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """Return x * y + z rounded once, for float32 arrays that broadcast, in `out` or a new array.

    out: C-contiguous, with the broadcast shape; it may be one of the operands.
    """
    shape = np.broadcast_shapes(*(np.shape(operand) for operand in (x, y, z)))
    result = np.empty(shape, np.float32) if out is None else out
    first, second, third = (
        np.require(np.broadcast_to(operand, shape), np.float32, ["C", "W"]).reshape(-1) for operand in (x, y, z)
    )
    _fma(first, second, third, result.reshape(-1))
    return result
