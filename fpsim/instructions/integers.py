"""One instruction of an integer unit for each row of operands; `fp.dot_add` is the public function."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.core.units.integers import IntegerFacts
from fpsim.instructions.integer_operands import integer_operand, refuse_scales
from fpsim.instructions.loops import integer_rows
from fpsim.instructions.operands import row_operands
from fpsim.matrix_units.integer_unit import IntegerUnit


@cache
def facts_of(unit: IntegerUnit) -> IntegerFacts:
    """Return the properties of an integer unit that its compiled loops read, as a record of int64 numbers."""
    pair = (0, 0) if unit.pair is None else (unit.pair.lowest, unit.pair.highest)
    facts = unit.terms, unit.d.lowest, unit.d.highest, unit.saturates, *pair
    return IntegerFacts(*(np.int64(x) for x in facts))


def integer_dot_add(a: Any, b: Any, c: Any, unit: IntegerUnit, scale_a: Any, scale_b: Any) -> Array:
    """Return c + sum of a[n, k] * b[n, k] for every row n in the unit's accumulator dtype; see `fp.dot_add`.

    a, b: (N, K) arrays of integers. c: (N,) integers, or None for 0. scale_a, scale_b: must be None.

    Raises:
      ValueError: shapes do not match, scales are passed, or integers are out of range or of the other signedness.
      TypeError: an operand does not hold integers.
    """
    refuse_scales(unit, scale_a, scale_b)
    left, right, start = row_operands(a, b, c, unit, integer_operand)
    out = np.array(start.reshape(-1), np.int64)
    rows = (np.ascontiguousarray(x.reshape(start.size, x.shape[-1]), np.int64) for x in (left, right))
    integer_rows()(*rows, out, facts_of(unit))
    return out.reshape(start.shape).astype(unit.d.dtype)
