"""Inputs that hold floats or integers of any size, alone, in lists or in arrays: read as arrays without rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arrays.inputs import as_array, float_array
from fpsim.arrays.words import EXACT_INTEGERS, Array, is_small_integer


def number_array(values: Any) -> Array:
    """Return values as an array of integers, or of floats in a dtype for which fpsim has a format.

    Booleans and integer dtypes of up to 4 bits become int8. Python integers become dtype object if one needs more than
    64 bits.

    Raises:
      ValueError: a list of floats and integers holds an integer that float64 does not represent.
      TypeError: values are neither floats nor integers.
    """
    array = as_array(values, "values")
    if array.dtype.kind == "b" or is_small_integer(array.dtype):
        return array.astype(np.int8)
    listed = not hasattr(values, "dtype")
    if array.dtype.kind == "O" or (listed and array.dtype.kind == "f" and (np.abs(array) >= EXACT_INTEGERS).any()):
        objects = np.asarray(values, dtype=object)
        integers = [int(value) if isinstance(value, (int, np.integer)) else None for value in objects.flat]
        if None not in integers:
            packed = np.array(integers).reshape(objects.shape)
            return packed if packed.dtype.kind in "iu" else np.array(integers, dtype=object).reshape(objects.shape)
        for value, rounded in zip(integers, array.ravel().tolist(), strict=True):
            if value is not None and value != rounded:
                raise ValueError(
                    f"integers beside floats must lie within 2**53, or NumPy rounds them first; got {value}. "
                    "Make an array of the integers alone."
                )
    return array if array.dtype.kind in "iu" else float_array(array, "values")[0]


def sticky_float(integer: int) -> float:
    """Return an integer, truncated to 53 significant bits, as a float64 whose last bit marks dropped bits.

    That bit is set if a dropped bit was 1. So rounding the result to a narrower format gives the same value as rounding
    the integer. Magnitudes are limited to 2**1024 - 1.
    """
    magnitude = min(abs(integer), 2**1024 - 1)  # beyond every format
    lost = max(magnitude.bit_length() - 53, 0)
    kept = magnitude >> lost
    value = math.ldexp(kept | int(kept << lost != magnitude), lost)
    return -value if integer < 0 else value


def exact_numbers(numbers: Array) -> Array:
    """Return an array of numbers as float64, or as Python integers (dtype object) if float64 would round one.

    Arrays of dtype object are returned unchanged.
    """
    if numbers.dtype.kind == "O":
        return numbers
    floats = numbers.astype(np.float64)
    inexact = numbers.dtype.kind in "iu" and (np.abs(floats) >= EXACT_INTEGERS).any()
    return numbers.astype(object) if inexact else floats
