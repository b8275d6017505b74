"""Arrays for results: checks of `out=`, and of whether two arrays share memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays.words import Array


def output(
    out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], source: Array, whose: str = "the input's"
) -> Array:
    """Return the array for a result: `out` if it fits, or a new one, not initialised, if `out` is None.

    shape, dtype: those that the result has. source: the input, which must not share memory with `out`. whose: words for
    the owner of `shape` in error messages, such as "the input's".

    Raises:
      ValueError: out has another dtype or shape, is a masked array or an np.matrix, cannot be written, or shares memory
        with the input or between its own elements.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not is_plain(out):
        raise ValueError(f"out must be a NumPy array of {dtype} and shape {shape}; got {type(out).__name__}.")
    if out.dtype != dtype:
        raise ValueError(f"out must have dtype {dtype}; got {out.dtype}. Leave it out to get a new array.")
    if out.shape != shape:
        raise ValueError(f"out must have {whose} shape {shape}; got {out.shape}.")
    if not out.flags.writeable:
        raise ValueError("out must be writeable; got a read-only array. Pass a copy.")
    refuse_shared_elements(out)
    refuse_shared_memory(out, source)
    return out


def is_plain(out: object) -> bool:
    """Return whether `out` is a NumPy array, but neither masked nor an np.matrix, which has two axes in any shape."""
    return isinstance(out, np.ndarray) and not isinstance(out, (np.matrix, np.ma.MaskedArray))


def refuse_shared_memory(out: Array, *read: Array | None) -> None:
    """Raise a ValueError if `out` shares memory with one of the arrays in `read`; entries that are None are skipped."""
    if any(array is not None and overlaps(array, out) for array in read):
        raise ValueError("out must not share memory with the input; got overlapping arrays. Pass a separate array.")


def refuse_shared_elements(out: Array, name: str = "out") -> None:
    """Raise a ValueError if elements of `out` share bytes, as in broadcast arrays, or if that cannot be ruled out.

    name: what the error message calls `out`.
    """
    if out.flags.c_contiguous or out.flags.f_contiguous:
        return
    reach = out.itemsize  # bytes that the axes of shorter strides span
    for stride, length in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1):
        if stride < reach:
            raise ValueError(
                f"{name} must have separate bytes for every element; got shape {out.shape} in strides {out.strides}, "
                "as of a broadcast array. Pass a copy."
            )
        reach += stride * (length - 1)


def overlaps(a: Array, b: Array) -> bool:
    """Return whether two arrays share a byte of memory; True also if that would take too long to determine."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]  # any count will do
    except np.exceptions.TooHardError:
        return True
