"""Named tuples of numbers, which are passed to kernels as arrays and kept in registers there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fpsim.runtime.compile import scalar

Words = npt.NDArray[Any]
Record = TypeVar("Record", bound=tuple[Any, ...])


def as_rows(*arrays: Words) -> Words:
    """Return 1-D arrays of one dtype as rows of a new matrix, padded with zeros to the longest.

    Calling a kernel with one matrix takes less time than with several arrays.
    """
    rows = np.zeros((len(arrays), max(array.size for array in arrays)), arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: array.size] = array
    return rows


def fields_of(kind: type[Record], word: type | None = None) -> Callable[[Any], Record]:
    """Return the compiled function that makes a named tuple of class `kind` from the first elements of a 1-D array.

    Kernels call it on the CPU and on CUDA. word: NumPy type to which the fields are converted; None: the array's dtype.
    """
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    place = "word(p[{}])" if word else "p[{}]"
    # numba builds no tuple from an array, so the expression is written out, as namedtuple itself writes its __new__
    read = eval(f"lambda kind, word: lambda p: kind({', '.join(map(place.format, range(len(names))))})")(kind, word)
    read.__qualname__ = f"fields_of.{kind.__name__}" + (f".{word.__name__}" if word else "")
    reader: Callable[[Any], Record] = scalar(read)
    return reader
