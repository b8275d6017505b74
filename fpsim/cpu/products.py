"""dot_add on this processor: the twin of fp.dot_add that runs the instruction itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.cpu.availability import require
from fpsim.cpu.execution import execute
from fpsim.cpu.inputs import terms_of
from fpsim.cpu.instructions import TileInstruction, of_unit
from fpsim.instructions.integer_operands import integer_operand
from fpsim.instructions.operands import operand
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit


def dot_add(
    a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike | None, unit: str | MatrixUnit | IntegerUnit
) -> npt.NDArray[Any]:
    """Return c + sum of a[n, k] * b[n, k] for every row n, computed by this processor's own instruction.

    Args:
      a, b: (N, K) codes of the unit's elements, or arrays of their dtypes, as `fp.dot_add` takes them. A step takes up
        to `unit.terms` terms; the last one is filled up with +0, and steps chain over ascending k.
      c: (N,) codes of the accumulator or floats of its dtype; None for +0.
      unit: a unit that is an instruction of this processor, or its name.

    Returns:
      (N,) codes of the result, in the accumulator's unsigned dtype: the bits of `fp.dot_add`, except that a NaN has
      the payload that the processor gives it.

    Raises:
      CpuError: this processor does not have the instruction.
      ValueError: the unit is not an instruction of x86, or does not take the operands.

    Source: docs/cpu.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> a, b = fp.cast([[1.5, 2.0, 3.0]], fp.BF16), fp.cast([[1.0, 0.5, 2.0]], fp.BF16)
      >>> if "VDPBF16PS" in fp.cpu.available():
      ...     assert fp.cpu.dot_add(a, b, None, "x86_avx512_bf16_f32").view(np.float32) == 8.5
    """
    unit = any_unit("unit", unit)
    row = of_unit(unit.name)
    require(row)
    left, right = _codes(a, unit.a, unit, "a"), _codes(b, unit.b, unit, "b")
    if left.ndim != 2 or left.shape != right.shape:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    total = np.zeros(len(left), unit.d.dtype) if c is None else _codes(c, unit.d, unit, "c")
    if total.shape != left.shape[:1]:
        raise ValueError(f"c must have the shape {left.shape[:1]} of the rows of a; got {total.shape}.")
    step = terms_of(row)
    rest = 0 if isinstance(row, TileInstruction) else -left.shape[1] % step
    words = [np.pad(x.view(f"u{x.dtype.itemsize}"), ((0, 0), (0, rest))) for x in (left, right)]
    sums: Array = total.view(f"u{total.dtype.itemsize}").copy()
    for k in range(0, words[0].shape[1], step):
        terms = [np.ascontiguousarray(x[:, k : k + step]) for x in words]
        sums = execute(row, (*terms, sums))
    return sums.view(unit.d.dtype)


def _codes(x: npt.ArrayLike, element: Any, unit: MatrixUnit | IntegerUnit, name: str) -> Array:
    """Return an operand in the element's dtype, or raise the error of `fp.dot_add` for it."""
    if isinstance(unit, IntegerUnit):
        return integer_operand(x, element, unit, name)
    return operand(x, element, unit, name)
