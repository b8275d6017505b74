"""Dtypes of arrays: the format that each stores, and views of arrays as unsigned integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import DTYPES, Format

Array = npt.NDArray[Any]
EXACT_INTEGERS = 2**53  # up to here float64 holds every integer
FORMAT_OF = {dtype: fmt for fmt, dtype in DTYPES.items()}
SMALL_INTEGERS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")  # of ml_dtypes; older versions lack some


@cache
def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned integer dtype with the size and byte order of `dtype`."""
    return np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)


def words(array: Array) -> Array:
    """Return a view of an array as unsigned integers of the elements' size; an unsigned array is returned unchanged."""
    return array if array.dtype.kind == "u" else array.view(_unsigned(array.dtype))


def differing(x: Array, y: Array) -> Any:
    """Return a mask of the elements whose bits differ in two arrays of floats of one shape; NaN equals NaN.

    Arrays of different dtypes are compared as float64.

    Example:
      >>> from fpsim.arrays import differing
      >>> differing(np.float32([0.0, 1.0, np.nan]), np.float32([-0.0, 1.0, -np.nan])).tolist()
      [True, False, False]
    """
    if x.dtype != y.dtype:
        x, y = x.astype(np.float64), y.astype(np.float64)
    unequal = words(x) != words(y)
    if unequal.any():
        unequal &= ~(np.isnan(x) & np.isnan(y))
    return unequal


def same_bits(x: Array, y: Array) -> bool:
    """Return whether two arrays of floats have the same shape and bits; NaN equals NaN."""
    return x.shape == y.shape and not differing(x, y).any()


def distinct(integers: Array) -> Array:
    """Return the distinct elements of an integer array in ascending order, as np.unique does, five times as fast."""
    ordered = np.sort(integers, axis=None)
    return np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])


@cache
def format_of(dtype: np.dtype[Any]) -> Format | None:
    """Return the format that a dtype of either byte order stores, or None if it stores none."""
    return FORMAT_OF.get(dtype) or FORMAT_OF.get(dtype.newbyteorder("="))


def is_small_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of ml_dtypes' integers of 1, 2 or 4 bits."""
    return dtype.name in SMALL_INTEGERS
