"""Arrays and numbers as Python expressions that evaluate to the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fpsim.arrays import Array, format_of, is_small_integer, words


def pasted(x: Array | np.generic) -> str:
    """Return an array or scalar as a Python expression that evaluates to the same bits, such as "np.uint8(0x38)".

    Floats are written as bit patterns, -0 and NaN included; unsigned integers (codes) in hexadecimal; other integers
    and bools in decimal; anything else by `repr`.

    Args:
      x: a NumPy array or scalar, of a NumPy or ml_dtypes dtype.

    Returns:
      An expression that uses the names `np` and, for its dtypes, `ml_dtypes`.

    Example:
      >>> from fpsim.testing.pasted import pasted
      >>> print(pasted(np.float32([[0.1, -0.0]])))
      np.array([[0x3DCCCCCD, 0x80000000]], np.uint32).view(np.float32)
      >>> print(pasted(fp.cast(np.zeros((2, 3)), "bf16")))
      np.full((2, 3), 0x0000, np.uint16).view(ml_dtypes.bfloat16)
      >>> print(pasted(np.float64(1)), pasted(np.arange(3)))
      np.uint64(0x3FF0000000000000).view(np.float64) np.array([0, 1, 2], np.int64)
      >>> print(pasted(np.uint8([[56, 128]])))
      np.array([[0x38, 0x80]], np.uint8)
    """
    array = np.asarray(x)
    if array.dtype.kind in "uib" or is_small_integer(array.dtype):
        dtype = "np.bool_" if array.dtype.kind == "b" else _dtype(array.dtype)
        if not array.size:
            return f"np.zeros({array.shape}, {dtype})"
        numbers = _nested(array) if array.dtype.kind == "u" else repr(array.tolist())
        return f"{dtype}({numbers})" if isinstance(x, np.generic) else f"np.array({numbers}, {dtype})"
    if format_of(array.dtype) is None:
        return repr(x)
    patterns = words(array)
    dtype, of_patterns = _dtype(array.dtype), _dtype(patterns.dtype)
    if isinstance(x, np.generic):
        return f"{of_patterns}({hexadecimal(patterns[()])}).view({dtype})"
    if array.ndim and (not array.size or (array.size > 1 and (patterns == patterns.flat[0]).all())):
        pattern = patterns.flat[0] if array.size else patterns.dtype.type(0)
        return f"np.full({array.shape}, {hexadecimal(pattern)}, {of_patterns}).view({dtype})"
    return f"np.array({_nested(patterns)}, {of_patterns}).view({dtype})"


def _dtype(dtype: np.dtype[Any]) -> str:
    """Return a dtype as a Python expression, such as "np.float32"."""
    if not dtype.isnative:
        return repr(dtype.str)
    return f"{'ml_dtypes' if hasattr(ml_dtypes, dtype.name) else 'np'}.{dtype.name}"


def _nested(patterns: Array) -> str:
    """Return an array of bit patterns as nested lists in hexadecimal."""
    return f"[{', '.join(map(_nested, patterns))}]" if patterns.ndim else hexadecimal(patterns[()])


def hexadecimal(pattern: Any) -> str:
    """Return a bit pattern, a NumPy unsigned integer, in hexadecimal, with all digits of its dtype."""
    return f"0x{int(pattern):0{2 * pattern.dtype.itemsize}X}"
