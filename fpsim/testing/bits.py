"""Bitwise comparison of arrays, with a message that says where and by how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def assert_bits_equal(got: npt.ArrayLike, want: npt.ArrayLike) -> None:
    """Fail unless two arrays hold the same bits: -0.0 differs from 0.0, and NaN equals NaN whatever its payload.

    Args:
      got: what the code under test returned: an array of floats (NumPy or ml_dtypes) or of integers.
      want: what it should be, of the same dtype and shape.

    Raises:
      AssertionError: dtype, shape or a bit differs; the message names the first place.

    Example:
      >>> from fpsim.testing import assert_bits_equal
      >>> assert_bits_equal(np.float32([0.0, np.nan]), np.float32([0.0, np.nan]))
      >>> assert_bits_equal(np.float32([1.0, 0.0]), np.float32([1.0, -0.0]))
      Traceback (most recent call last):
          ...
      AssertionError: 1 of 2 elements differ, first at index (1,): got 0x00000000 (0.0), want 0x80000000 (-0.0).
    """
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype != b.dtype:
        raise AssertionError(f"dtypes differ: got {a.dtype}, want {b.dtype}.")
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ: got {a.shape}, want {b.shape}.")
    a_bits, b_bits = _bits(a), _bits(b)
    differ = a_bits != b_bits
    if a.dtype.kind not in "iub":
        differ &= ~(_is_nan(a) & _is_nan(b))
    if not differ.any():
        return
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    digits = 2 * a.dtype.itemsize
    shown = [f"0x{int(bits[index]):0{digits}X} ({array[index]})" for bits, array in ((a_bits, a), (b_bits, b))]
    raise AssertionError(
        f"{int(differ.sum())} of {a.size} elements differ, first at index {index}: got {shown[0]}, want {shown[1]}."
    )


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


def _is_nan(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        return np.asarray(np.isnan(array.astype(np.float64)))
