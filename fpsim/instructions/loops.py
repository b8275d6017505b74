"""Reference kernels of the matrix units: one for each Rule, which says how an instruction aligns, adds and rounds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.units.integers import integer_step
from fpsim.core.units.nvidia import layouts_in, unit_fields
from fpsim.core.units.step_by_rule import steps_by_rule
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.runtime.compile import kernel

i64, u64 = np.int64, np.uint64

STEPS = steps_by_rule()


@cache
def dot_add_kernel(rule: Rule) -> Any:
    """Return the compiled kernel of the units that add by `rule`, which writes one sum per row of operands to `out`.

    Arguments: `(a, b, c, scale_a, scale_b, out, layouts, facts, digits)`. a, b: (rows, K), c, out: (rows,), scale_a,
    scale_b: (rows, blocks), all uint64 codes. layouts: uint64 constants by which codes are read and written, the fields
    of Layouts. facts: int64 properties of the unit, the fields of UnitLayout. digits: int64 scratch array for an exact
    sum.
    """
    one_step = STEPS[rule]

    def dot_add(
        a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, out: Any, layouts: Any, facts: Any, digits: Any
    ) -> None:
        f, u = layouts_in(layouts), unit_fields(facts)
        for row in range(a.shape[0]):
            total = u64(c[row])
            for start in range(0, a.shape[1], u.step):
                total = one_step(a[row], b[row], scale_a[row], scale_b[row], i64(start), total, digits, f, u)
            out[row] = total

    return kernel(dot_add)


@cache
def integer_rows() -> Any:
    """Return the compiled kernel (a, b, totals, facts) -> None of integer units; facts: an IntegerFacts.

    It adds the products of each row of a and b, (rows, K) int64, to `totals`, (rows,) int64, in place.
    """

    def integer_rows(a: Any, b: Any, totals: Any, u: Any) -> None:
        for row in range(a.shape[0]):
            total = i64(totals[row])
            for start in range(0, a.shape[1], u.terms):
                total = integer_step(a[row], b[row], i64(start), total, u)
            totals[row] = total

    return kernel(integer_rows)
