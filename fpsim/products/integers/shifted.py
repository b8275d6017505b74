"""Products of signed integers by units that multiply unsigned by signed ones: 128 is added to one operand."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fpsim.arrays import Array
from fpsim.matrix_units.catalogue import INTEGER_ROWS
from fpsim.products.integers.product import add_integer_product, take_zero_points

SHIFT = 128  # makes -128 .. 127 an unsigned byte


def shifted_product(a: Array, b: Array, unit: str, lengths: tuple[int, ...], side: Literal["a", "b"]) -> Array:
    """Return a @ b by a unit of unsigned by signed bytes, after 128 is added to one operand, (M, N) int32.

    128 times the sums of the other operand over K are subtracted at the end, modulo 2^32. The unit saturates as always:
    in the example, (127 + 128) * 100 + (127 + 128) * 90 becomes 32767, from which 128 * 190 is subtracted.

    Args:
      a, b: (M, K) and (K, N), int8.
      unit: name of a unit that multiplies uint8 by int8, such as "x86_avx2_u8xs8_s32".
      lengths: the number of terms of each segment of K; the unit's steps (instructions) begin anew at each segment.
      side: the operand to which 128 is added.

    Example:
      >>> from fpsim.products.integers.shifted import shifted_product
      >>> a, b = np.int8([[127, 127]]), np.int8([[100], [90]])
      >>> shifted_product(a, b, "x86_avx2_u8xs8_s32", (2,), "a"), a.astype(int) @ b
      (array([[8447]], dtype=int32), array([[24130]]))
    """
    if side == "b":
        return np.ascontiguousarray(shifted_product(b.T, a.T, unit, lengths, "a").T)
    row = INTEGER_ROWS[unit]
    total = np.zeros((len(a), b.shape[1]), np.int32)
    unsigned = a.view(np.uint8) ^ np.uint8(SHIFT)
    start = 0
    for length in lengths:
        terms = slice(start, start + length)
        add_integer_product(total, unsigned[:, terms], b[terms], row)
        start += length
    take_zero_points(total, unsigned, b, np.full((1, 1), SHIFT), None)
    return total
