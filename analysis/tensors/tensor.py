"""A tensor that a study reads, and the error of a file that holds none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.arrays import Array

CODES = ("uint8", "int8", "int32", "uint32", "int64")  # dtypes of codes, zero points, shapes and groups


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype of NumPy or ml_dtypes by its name."""
    return np.dtype(getattr(ml_dtypes, name, name))


class TensorFileError(ValueError):
    """Files that cannot be studied: the message is one line that starts with the first one's path.

    Attributes:
      problems: such a line for each file.
    """

    def __init__(self, *problems: str) -> None:
        more = f"; nor can {len(problems) - 1} more be studied" if len(problems) > 1 else ""
        super().__init__(f"{problems[0]}{more}")
        self.problems = problems


@dataclass(frozen=True)
class Tensor:
    """A named tensor whose elements come in chunks, as often as they are asked for.

    Attributes:
      name: what tables and pictures call it.
      shape, dtype: of the tensor as stored.
      read: read(size) yields its elements as 1-d arrays of `size` elements (the last: the rest).
      source: the file, or "".
      layer, role, step: of a captured tensor: the layer's name; "input", "weight" or "output gradient"; the step.
      outputs_last: whether the last axis of a matrix are the outputs of its products, as where x @ w is computed, and
        not the terms of their sums; None where that is not known.
      bits: of an element as stored, with its share of scales; None for those of the dtype.
      left_out: why the tensor is not studied unless it is part of a quantised weight, as a line; "" for floats.
      layout: of a quantised weight: the name of its checkpoint's layout, such as "gptq_v2"; "" for other tensors.
      exchanged: whether the model has the last two axes the other way round.
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
        """Bits of an element as stored, with its share of scales."""
        return 8.0 * dtype_of(self.dtype).itemsize if self.bits is None else self.bits

    def chunks(self, size: int = CHUNK) -> Iterator[Array]:
        """The elements in the order of the file, in native byte order.

        Raises:
          TensorFileError: the file ends early, or changed since it was opened.
        """
        return self.read(size)
