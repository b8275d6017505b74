"""CPU loop of the exact accumulator: every product is added to a long sum, which is rounded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_fields
from fpsim.core.number import unpack_fields
from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.sums.exact_sum import SumLayouts, exact_sum
from fpsim.core.sums.sum_order import Randomness, Rows
from fpsim.runtime.compile import kernel

i64, u64 = np.int64, np.uint64


@cache
def exact_kernel() -> Any:
    """Return the loop over outputs `first .. stop`, in C order.

    `(x, out, first, stop, digits of the sum, their lowest exponent, layouts of a, b, c, target, rules, r)`: operands as
    in `sequence_kernel`, but codes. If the layout of a is all zero, a is all ones.
    """

    def exact(
        x: Rows, out: Any, first: int, stop: int, length: int, lowest: int, la: Any, lb: Any, lc: Any, target: Any,
        rules: Any, r: Randomness,
    ) -> None:  # fmt: skip
        f = SumLayouts(unpack_fields(la), unpack_fields(lb), unpack_fields(lc), encode_fields(target))
        columns, products = out.shape[1], la[0] != u64(0)
        digits = np.zeros(length, np.int64)
        for output in range(first, stop):
            i, j = output // columns, output % columns
            word = u64(random_word(u64(u64(output) + r.first), r.k0, r.k1)) if r.mode == STOCHASTIC else u64(0)
            out[i, j] = exact_sum(x, i, j, products, digits, i64(lowest), f, word, r.mode, rules)

    return kernel(exact)
