"""CPU loop of casts to formats given by a table: each interval of floats has one code."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel

u32, u64 = np.uint32, np.uint64


@cache
def table_kernel(width: int) -> Any:
    """Return the kernel (bits, codes, first, last, interval_codes, shift, steps) -> None that rounds floats to codes.

    bits: 1-D bits of floats of `width` bits, 32 or 64. codes: 1-D results.

    The other arguments are fields of a TablePlan (casts/tables.py), which divides ordered float bits into intervals of
    one code. interval_codes, last: the code and the largest ordered bits of each interval. first: for each value of
    ordered bits >> shift, the interval of the smallest float with that value. steps: how many intervals after that one
    have to be checked at most.
    """
    word: Any = u32 if width == 32 else u64
    sign, ones, zero = word(1 << (width - 1)), word((1 << width) - 1), word(0)

    def encode(bits: Any, codes: Any, first: Any, last: Any, interval_codes: Any, shift: Any, steps: int) -> None:
        down = word(shift)
        for i in range(bits.size):
            pattern = word(bits[i])
            ordered = word(pattern ^ (sign if word(pattern & sign) == zero else ones))
            interval = np.int64(first[word(ordered >> down)])
            for _ in range(steps):
                interval += np.int64(1 if ordered > last[interval] else 0)
            codes[i] = interval_codes[interval]

    return kernel(encode)
