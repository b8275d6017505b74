"""Short arrays of codes as float32 in one loop, which is found once for all calls. Loaded with numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.pipelines import decoding
from fpsim.formats.named import FP32, Format

Decoder = Callable[[Array], Array]


@lru_cache(maxsize=1024)
def brief_decoder(fmt: Format) -> Decoder | None:
    """The function from a short array, of a format's storage dtype or its own, to bits of float32 in C order.

    None where float32 does not hold the format, or codes become floats in several steps.
    """
    if fmt == FP32:
        return _as_they_are
    stages = decoding(fmt, FP32, fmt.storage) if FP32.holds(fmt) else ()
    if len(stages) != 1:
        return None
    run = stages[0].run

    def decoded(codes: Array) -> Array:
        bits = np.empty(codes.shape, np.uint32)
        run(words(codes).ravel(), bits.reshape(-1), 0)
        return bits

    return decoded


def _as_they_are(codes: Array) -> Array:
    """Floats as bits, in an array that can be written: loops would be compiled once more for others."""
    bits = np.ascontiguousarray(words(codes))
    return bits if bits.flags.writeable else bits.copy()
