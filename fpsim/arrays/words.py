"""The dtypes of arrays: the format that each stores, and the same memory as unsigned integers."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.formats.named import DTYPES, Format

Array = npt.NDArray[Any]
EXACT_INTEGERS = 2**53  # up to here float64 holds every integer
FORMAT_OF = {dtype: fmt for fmt, dtype in DTYPES.items()}


@cache
def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the unsigned integer dtype with the size and byte order of `dtype`."""
    return np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)


def words(array: Array) -> Array:
    """Return a view of the array's memory as unsigned integers of the elements' size."""
    return array if array.dtype.kind == "u" else array.view(_unsigned(array.dtype))


def distinct(integers: Array) -> Array:
    """Return the distinct elements in ascending order, as np.unique does in five times the time."""
    ordered = np.sort(integers, axis=None)
    return np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])


@cache
def format_of(dtype: np.dtype[Any]) -> Format | None:
    """Return the format that a dtype of either byte order stores, or None."""
    return FORMAT_OF.get(dtype) or FORMAT_OF.get(dtype.newbyteorder("="))


@cache
def is_small_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is one of ml_dtypes' integers of up to 4 bits."""
    return dtype in {np.dtype(getattr(ml_dtypes, f"{sign}int{bits}")) for sign in ("", "u") for bits in (1, 2, 4)}
