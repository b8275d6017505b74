"""CPU loop of the exact accumulator: every product is added to a sum of many digits, which is rounded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.philox import random_word
from fpsim.core.rounding import STOCHASTIC
from fpsim.core.sums.exact_sum import exact_sum, sum_layouts
from fpsim.core.sums.sum_order import Randomness, Rows
from fpsim.runtime.compile import kernel

i64, u64 = np.int64, np.uint64


@cache
def exact_kernel() -> Any:
    """Return the kernel (x, out, first, stop, plan, r) -> None that computes exact sums, each rounded once.

    The kernel writes the sums first .. stop - 1, counted in C order, to `out`, (M, N) uint64 codes. x: a Rows with the
    operands' codes. plan: an ExactPlan, which says how sums are held and rounded. If the layout of a in `plan` is all
    zero, a is all ones, and the terms are the elements of b. r: a Randomness, rounding mode and seed.
    """

    def exact(x: Rows, out: Any, first: int, stop: int, plan: Any, r: Randomness) -> None:
        f = sum_layouts(plan.layouts, r.mode, plan.rules)
        columns, products = out.shape[1], plan.layouts[0][0] != u64(0)
        digits = np.zeros(plan.digits, np.int64)
        for output in range(first, stop):
            i, j = output // columns, output % columns
            word = u64(random_word(u64(u64(output) + r.first), r.k0, r.k1)) if r.mode == STOCHASTIC else u64(0)
            out[i, j] = exact_sum(x, i, j, products, digits, i64(plan.lowest), f, word)

    return kernel(exact)
