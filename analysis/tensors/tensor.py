"""A tensor that is read in chunks, and the error raised if files of tensors cannot be read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.arrays import Array
from fpsim.display.wording import plural

CODES = ("uint8", "int8", "int32", "uint32", "int64")  # dtypes of codes, zero points, shapes and group indices


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes dtype with this name."""
    return np.dtype(getattr(ml_dtypes, name, name))


class TensorFileError(ValueError):
    """The error raised if files cannot be read; its message is one line that begins with the path of the first such
    file.

    Attributes:
      problems: a line for each file that cannot be read.
    """

    def __init__(self, *problems: str) -> None:
        more = f"; {plural(len(problems) - 1, 'more file')} cannot be studied" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


@dataclass(frozen=True)
class Tensor:
    """A named tensor whose elements are read in chunks, any number of times.

    Attributes:
      name: name of the tensor in tables and figures.
      shape, dtype: shape, and name of the dtype; for a quantised weight, the weight's shape and a text on its format
        and scales.
      read: read(size) yields the elements as 1-d arrays of `size` elements; the last may be shorter.
      source: path of the file; "" for an array in memory.
      role: role of the tensor, such as "matrix", "bias" or "gradient" (see `role_of`); "" if not known yet.
      layer, step: for a recorded tensor, the layer's name and the training step.
      outputs_last: whether the last axis of a matrix is that of the product's outputs, as for w in x @ w, and not that
        of the terms of its sums; None if unknown.
      bits: bits per stored element, its share of the scales included; None for the bits of the dtype.
      left_out: the note to give if the tensor is not part of a quantised weight, which says why it is left out; "" for
        floats.
      layout: name of the layout of a quantised weight, such as "gptq_v2"; "" for other tensors.
      exchanged: whether the unquantised model has the last two axes in the other order.
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
        """Bits per stored element, its share of the scales included."""
        return 8.0 * dtype_of(self.dtype).itemsize if self.bits is None else self.bits

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        """Return an iterator over the elements as 1-d arrays of `size` elements, in the order of the file and in native
        byte order.

        Raises:
          TensorFileError: the file ends early, or changed since it was opened.
        """
        return self.read(size)
