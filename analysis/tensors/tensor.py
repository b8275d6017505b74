"""A tensor that is read in chunks, and the error of a file without tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.arrays import Array

CODES = ("uint8", "int8", "int32", "uint32", "int64")  # dtypes of codes, zero points, shapes and group indices


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes dtype of that name."""
    return np.dtype(getattr(ml_dtypes, name, name))


class TensorFileError(ValueError):
    """The error that files cannot be studied; the message is one line that starts with the path of the first file.

    Attributes:
      problems: a line for each file.
    """

    def __init__(self, *problems: str) -> None:
        more = f"; {len(problems) - 1} more files cannot be studied" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


@dataclass(frozen=True)
class Tensor:
    """A named tensor whose elements are read in chunks, any number of times.

    Attributes:
      name: name of the tensor in tables and figures.
      shape, dtype: shape and dtype of the stored tensor.
      read: read(size) yields its elements as 1-d arrays of `size` elements; the last may be shorter.
      source: the file, or "".
      layer, role, step: for a recorded tensor the layer's name; "input", "weight" or "output gradient"; and the step.
      outputs_last: whether the last axis of a matrix is that of the product's outputs, as in x @ w, and not that of the
        terms of its sums; None where that is unknown.
      bits: bits of a stored element, its share of the scales included; None for those of the dtype.
      left_out: the line that says why the tensor is not studied unless it is part of a quantised weight; "" for floats.
      layout: name of the layout of a quantised weight, such as "gptq_v2"; "" for other tensors.
      exchanged: whether the model has the last two axes in the other order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[int], Iterator[Array]] = field(repr=False, compare=False)
    source: str = ""
    layer: str = ""
    role: str = ""
    step: int | None = None
    outputs_last: bool | None = None
    bits: float | None = None
    left_out: str = ""
    layout: str = ""
    exchanged: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stored_bits(self) -> float:
        """Bits of a stored element, its share of the scales included."""
        return 8.0 * dtype_of(self.dtype).itemsize if self.bits is None else self.bits

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        """Return an iterator over the elements, in the order of the file and in native byte order.

        Raises:
          TensorFileError: the file ends early, or changed since it was opened.
        """
        return self.read(size)
