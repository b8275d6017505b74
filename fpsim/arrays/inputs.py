"""Inputs of CPU functions as NumPy arrays: values as floats, codes as integers, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays.libraries import is_torch
from fpsim.arrays.tensors import from_torch
from fpsim.arrays.words import EXACT_INTEGERS, FORMAT_OF, Array, format_of, is_small_integer, words
from fpsim.errors import shown
from fpsim.formats.named import Format, find_by_name
from fpsim.formats.table_format import TableFormat


def as_array(x: Any, name: str = "x") -> Array:
    """Return x as a NumPy array, without a copy if it is in the CPU's memory.

    Accepts arrays of NumPy, ml_dtypes, torch (small floats included), JAX and other array-likes, numbers and lists.
    name: the name of the argument in error messages.

    Raises:
      TypeError: a masked array, or a torch tensor that is not a dense array of elements, or requires a gradient.
      ValueError: NumPy cannot make an array of x, such as nested lists of different lengths.
    """
    if type(x) is np.ndarray:
        return x
    refuse_masked(x, name)
    if is_torch(x):
        return from_torch(x, name)
    try:
        return np.asarray(x)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # NumPy's sentences do not name the argument
        raise ValueError(
            f"{name} must be an array, a number or nested lists of one shape; got {shown(x)}. Pass a NumPy array."
        ) from None


def refuse_masked(x: object, name: str) -> None:
    """Raise a TypeError, which calls x `name`, if x is a masked array, whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be masked; got a masked array. Fill the gaps first: {name}.filled(value).")


def float_array(x: npt.ArrayLike, name: str = "x") -> tuple[Array, Format]:
    """Return x as (an array of floats, the format that its dtype stores).

    Python integers, alone or in lists, are values and become float64. Arrays of integers are refused, as they may be
    codes. name: the name of the argument in error messages.

    Raises:
      TypeError: x is an array of integers, or holds objects or floats of an unknown format.
      ValueError: x holds a Python integer that float64 does not represent.
    """
    if type(x) is np.ndarray and x.dtype in FORMAT_OF:  # the most common input, without further checks
        return x, FORMAT_OF[x.dtype]
    array = as_array(x, name)
    if isinstance(x, (int, list, tuple)) and (array.dtype in (np.int64, np.uint64) or array.dtype == np.float64):
        return _as_floats(x, array, name), FORMAT_OF[np.dtype(np.float64)]
    fmt = format_of(array.dtype)
    if fmt is not None:
        return array, fmt
    expected = f"{name} must be an array of float16, bfloat16, float32, float64 or an ml_dtypes float"
    remedy = f"{name}.astype(np.float64)" if isinstance(x, np.ndarray) else f"np.asarray({name}, dtype=np.float64)"
    if array.dtype.kind in "iub" or is_small_integer(array.dtype):
        raise TypeError(
            f"{expected}; got {array.dtype}. Convert values with {remedy}, or round integers of any size with "
            "fpsim.from_int; to read integers as codes use fpsim.decode."
        )
    refusal = f"{expected}; {describe_refused(x, array, name)}"
    if array.dtype.kind == "f":  # longer than float64
        refusal = f"{refusal} Convert with {remedy} if float64 holds it."
    raise TypeError(refusal)


def describe_refused(x: object, array: Array, name: str) -> str:
    """Return the end of an error message for an argument x without real numbers: what it is, and what to pass.

    array: x as NumPy reads it. name: name of the argument in the message.

    Example:
      >>> from fpsim.arrays import describe_refused
      >>> describe_refused(None, np.asarray(None), "x"), describe_refused(1j, np.asarray(1j), "x")
      ('got None.', 'got complex128. Pass x.real and x.imag, one after the other.')
    """
    kind = array.dtype.kind
    if isinstance(x, Mapping):  # np.load returns a Mapping for .npz
        names = [shown(key) for key in list(x)[:1]]
        return f"got {type(x).__name__} of several. Pass one of its arrays, such as {name}[{''.join(names)}]."
    if kind == "c":
        return f"got {array.dtype}. Pass {name}.real and {name}.imag, one after the other."
    if isinstance(x, Format) or (isinstance(x, str) and find_by_name(x) is not None):
        return f"got {shown(x)}, a format. Values come before the format, as in fpsim.encode(x, 'e4m3')."
    if kind in "US":
        texts = "texts" if array.ndim else shown(x)
        return f"got {texts}. If that is a number, convert it with np.asarray({name}, dtype=np.float64)."
    if array.dtype.type is np.void and array.dtype.names is None:
        return (
            f"got {array.dtype}, bytes without a meaning, as np.load returns arrays of ml_dtypes' floats. View them as "
            f"what was saved, such as {name}.view(ml_dtypes.{'bfloat16' if array.itemsize == 2 else 'float8_e4m3fn'})."
        )
    if kind == "O" and not array.ndim and x is not None and not isinstance(x, Real):
        return f"got {shown(x)}. Pass an array, a number or a list of numbers."
    if kind != "O" or x is None:
        return f"got {array.dtype if hasattr(x, 'dtype') else shown(x)}."
    others = [value for value in array.flat if not isinstance(value, Real)]
    if others:
        return f"got objects, such as {shown(others[0])}. Replace those that are no numbers."
    return f"got objects. Convert with np.asarray({name}, dtype=np.float64) if float64 holds them."


def _as_floats(x: Any, array: Array, name: str) -> Array:
    """Return Python numbers as a float64 array, after checking that float64 represents every integer among them.

    x: the numbers, alone or in nested lists. array: x as a NumPy array of int64, uint64 or float64. name: the name of
    the argument in error messages.

    Raises:
      ValueError: float64 does not represent an integer among them.
    """
    floats = array.astype(np.float64, copy=False)
    if (np.abs(floats) >= EXACT_INTEGERS).any():
        for value, rounded in zip(np.asarray(x, dtype=object).flat, floats.flat, strict=True):
            if isinstance(value, (int, np.integer)) and value != int(rounded):
                raise ValueError(
                    f"{name} must hold integers that float64 holds; got {value}, which it rounds to {rounded:.17g}. "
                    "Use fpsim.from_int, which rounds integers once."
                )
    return floats


def code_array(codes: npt.ArrayLike, fmt: Format | TableFormat, name: str = "codes") -> Array:
    """Return codes of a format as an integer array after checking that all are in range.

    The result keeps the integer dtype of the input, with three exceptions. An array in the format's own dtype, such as
    ml_dtypes' float8_e4m3fn, becomes unsigned integers of that size; so does an array of signed integers with as many
    bits as the format, such as int8 for E4M3, whose numbers are bit patterns. An empty list becomes an array of
    fmt.storage. fmt: the format. name: the name of the argument in error messages.

    Raises:
      TypeError: codes are neither integers nor an array of the format's dtype.
      ValueError: a code is outside the format's range.
    """
    array = as_array(codes, name)
    if array.size == 0 and not hasattr(codes, "dtype"):
        return np.zeros(array.shape, fmt.storage)  # NumPy reads [] as float64
    stored_fmt = format_of(array.dtype)
    if hasattr(codes, "codes") and hasattr(codes, "decode"):
        raise TypeError(
            f"{name} must be codes of {fmt}; got {type(codes).__name__}, which knows its format. Its .decode() "
            "returns the values."
        )
    if stored_fmt is not None:
        if stored_fmt == fmt:
            return words(array)
        raise TypeError(
            f"{name} must be codes of {fmt}, unsigned integers; got an array of {array.dtype}, which stores "
            f"{stored_fmt}. fpsim.encode turns its values into codes; fmt={stored_fmt} reads it as it is."
        )
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be unsigned integers (codes of {fmt} in {fmt.storage}); "
            f"{describe_refused(codes, array, name)} fpsim.encode turns values into codes."
        )
    if array.dtype.kind == "i" and fmt.bits == 8 * array.dtype.itemsize and hasattr(codes, "dtype"):
        return words(array)  # torch users hold patterns of 8 and 16 bits in signed integers
    if array.size and (array.dtype.kind == "i" or fmt.bits < 8 * array.dtype.itemsize):
        lowest, highest = int(array.min()), int(array.max())
        if lowest < 0 or highest >= 1 << fmt.bits:
            raise code_outside(name, fmt, lowest if lowest < 0 else highest)
    return array


def code_outside(name: str, fmt: Format | TableFormat, code: int) -> ValueError:
    """Return the ValueError for an integer `code` that is not a code of the format; name: the argument in the error."""
    return ValueError(
        f"{name} must lie in 0 .. {(1 << fmt.bits) - 1:#x}, the codes of {fmt}; got {code:#x}. Mask or shift packed "
        "codes apart first."
    )
