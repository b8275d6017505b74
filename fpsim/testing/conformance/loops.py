"""Compiled loop for stochastic casts whose random numbers are given."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_bits_32, encode_bits_64, encode_fields
from fpsim.runtime.compile import kernel


@cache
def drawn_kernel(width: int) -> Any:
    """Return the compiled loop that encodes floats of `width` (32 or 64) bits, each with a given random number.

    Its arguments are (x, random, codes, layout, mode, kind). x: bit patterns of the floats, random: the random numbers,
    codes: overwritten with the results; all are unsigned integers of `width` bits. layout, mode, kind: the layout,
    rounding mode and kind of encoder in the `EncodePlan` of the cast.
    """
    word: Any = np.uint32 if width == 32 else np.uint64
    encode_bits = encode_bits_32 if width == 32 else encode_bits_64

    def cast(x: Any, random: Any, codes: Any, layout: Any, mode: int, kind: int) -> None:
        f = encode_fields(layout)
        for i in range(x.size):
            codes[i] = word(encode_bits(x[i], random[i], f, mode, kind))

    return kernel(cast)
