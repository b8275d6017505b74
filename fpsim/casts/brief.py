"""Short arrays of codes as float32 in one loop, which is found once for all calls. Loaded with numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.loops import decode_kernel
from fpsim.core.layouts import decode_plan
from fpsim.formats.named import FP32, Format

Decoder = Callable[[Array], Array]
WORD = np.dtype(np.uint32)


@lru_cache(maxsize=4096)
def brief_decoder(fmt: Format, dtype: np.dtype[Any]) -> Decoder | None:
    """The function from a short array of codes to the bits of their float32, in C order.

    dtype: that of the codes of a format, or the format's own. None for formats whose codes take a table.
    """
    plan, storage = decode_plan(fmt, 32), fmt.storage
    if plan is None:
        return None
    decode, layout = decode_kernel(32, None, False), plan.layout

    def from_codes(codes: Array) -> Array:
        bits = np.empty(codes.shape, WORD)
        decode(codes.ravel(), bits.reshape(-1), layout)
        return bits

    def from_floats(values: Array) -> Array:
        return from_codes(values.view(storage))

    if fmt == FP32:
        return _as_they_are
    return from_codes if dtype == storage else from_floats


def _as_they_are(floats: Array) -> Array:
    """Float32 as bits, in an array that can be written: loops would be compiled once more for others."""
    bits = np.ascontiguousarray(floats).view(WORD)
    return bits if bits.flags.writeable else bits.copy()
