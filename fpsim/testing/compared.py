"""Failed comparisons of floats as text, in hexadecimal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arrays import format_of


def in_hexadecimal(op: str, left: Any, right: Any) -> str:
    """Return a comparison of two floats as text with hexadecimal floats; "" if `left` and `right` are anything else.

    Of two sequences, the first pair of floats that differ is shown, with its index; "" if there is no such pair.

    Args:
      op: the operator of the comparison, such as "==".
      left, right: Python, NumPy or ml_dtypes floats, or lists or tuples of them.

    Example:
      >>> from fpsim.testing.compared import in_hexadecimal
      >>> in_hexadecimal("==", 0.1 + 0.2, 0.3)
      '0x1.3333333333334p-2 == 0x1.3333333333333p-2'
      >>> in_hexadecimal("==", [1.0, np.float32(0.1)], [1.0, 0.1])
      'at index 1: 0x1.99999a0000000p-4 == 0x1.999999999999ap-4'
      >>> in_hexadecimal("==", 1, 2)
      ''
    """
    if _is_float(left) and _is_float(right):
        return f"{_hex(left)} {op} {_hex(right)}"
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        for index, (one, other) in enumerate(zip(left, right, strict=False)):
            if _is_float(one) and _is_float(other) and _hex(one) != _hex(other):
                return f"at index {index}: {_hex(one)} {op} {_hex(other)}"
    return ""


def _is_float(x: Any) -> bool:
    """Return whether an object is a float of Python, NumPy or ml_dtypes."""
    return isinstance(x, float) or (isinstance(x, np.generic) and format_of(x.dtype) is not None)


def _hex(x: Any) -> str:
    """Return a float as Python's hexadecimal text; "nan" or "-nan" for NaN."""
    number = float(x)
    return f"{'-' if math.copysign(1, number) < 0 else ''}nan" if math.isnan(number) else number.hex()
