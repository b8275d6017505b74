"""CPU loop of casts to formats given by a table: each interval of floats has one code.

Floats are ordered by their bit patterns once negative ones are inverted. A plan (casts/tables.py) cuts these patterns
into intervals of one code each, whatever the table, the rounding mode and the overflow policy are, so that one loop
serves them all. The upper bits of a pattern give the first interval that it may be in.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel

u32, u64 = np.uint32, np.uint64


@cache
def table_kernel(width: int) -> Any:
    """Return the loop `(bits, codes, first, last, interval_codes, shift, steps)` for floats of 32 or 64 bits.

    first: interval of the smallest pattern with these upper bits, which are above `shift`; last: the largest pattern
    of each interval, the last of which ends with all patterns; steps: intervals that such patterns may be beyond.
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
