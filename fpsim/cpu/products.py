"""`fp.cpu.dot_add`: computes what `fp.dot_add` emulates by the instruction itself, on this processor."""

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
    """Return c + sum over k of a[n, k] * b[n, k] for every row n, computed by this processor's own instruction.

    Args:
      a, b: (N, K) codes of the unit's elements, or arrays of their dtypes, as for `fp.dot_add`. An instruction adds up
        to `unit.terms` products; instructions follow each other in ascending k, each starting from the sum of the one
        before, and the last one is filled up with +0.
      c: (N,) codes of the accumulator or floats of its dtype; None for +0.
      unit: a matrix unit that is an instruction of this processor, or its name.

    Returns:
      (N,) codes of the result, in the accumulator's unsigned dtype: the bits of `fp.dot_add`, except that NaNs keep the
      processor's payload.

    Raises:
      CpuError: this processor does not have the instruction.
      ValueError: the unit is not an instruction of x86, or operands have other shapes or formats than those above.
      TypeError: operands are neither codes nor floats of the unit.

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
    read: Any = integer_operand if isinstance(unit, IntegerUnit) else operand
    left, right = read(a, unit.a, unit, "a"), read(b, unit.b, unit, "b")
    if left.ndim != 2 or left.shape != right.shape:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    total = np.zeros(len(left), unit.d.dtype) if c is None else read(c, unit.d, unit, "c")
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
