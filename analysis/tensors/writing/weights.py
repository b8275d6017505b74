"""Weights to be written: their rows as float32, some at a time, and the stored tensors that a layout makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fpsim.analysis.tensors.layouts.parts import whole
from fpsim.analysis.tensors.layouts.unpacking import rounded_like, values_of
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.analysis.tensors.writing.loops import largest_of_blocks
from fpsim.arrays import Array

ArrayOrNumber = TypeVar("ArrayOrNumber", Array, np.float32)

BAND = 1 << 18  # elements of some rows that are processed at once: 1 MiB of float32, which stays in the L2 cache
HALVES = ("bfloat16", "float16")  # dtypes of models in which libraries compute scales and quotients


Stored = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # end of a tensor's name -> dtype, shape


class ScaleRangeError(ArithmeticError):
    """A scale of a weight, or a factor computed from it, is 0 or Inf although the weight is neither."""


class WeightToWrite(NamedTuple):
    """A matrix to be written, with one row per output; or several such matrices.

    Attributes:
      name: the weight's name in the model.
      shape: (..., N, K).
      dtype: the dtype in the model: "float32", "bfloat16" or "float16".
      bands: bands(multiple) yields bands of rows, (rows, K) float32; rows is a multiple of `multiple` except at the end
        of a matrix.
      amax: function that returns the largest magnitude in this weight and in all weights that must have the same
        tensor scale as it.
      input_amax: the largest magnitude of the layer's inputs; None if it was not measured.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bands: Callable[[int], Iterator[Array]]
    amax: Callable[[], float]
    input_amax: float | None = None

    @property
    def half(self) -> Any:
        """Dtype of the weight in the model if that has 16 bits, else None."""
        return dtype_of(self.dtype) if self.dtype in HALVES else None

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """Dtype of stored scales in libraries that store scales in the model's dtype."""
        return np.dtype(np.float32) if self.half is None else self.half


class LayoutOptions(NamedTuple):
    """The options of a layout that is written.

    Attributes:
      group_size: number of values that share a scale; None for the layout's default.
      bits: bits of a code.
      symmetric: whether codes are symmetric about zero.
    """

    group_size: int | None = None
    bits: int = 4
    symmetric: bool = True


class WrittenWeight(NamedTuple):
    """A weight in a layout: the names, dtypes and shapes of the tensors that store it, and their elements.

    Attributes:
      tensors: end of a tensor's name, such as "weight_scale" -> (dtype, shape).
      pieces: pieces() yields pairs (end of a tensor's name, array). The arrays of one tensor are its elements, some at
        a time and in order; those of different tensors may alternate.
      metadata: the file's metadata on the weight, as JSON; "" for none.
    """

    tensors: Stored
    pieces: Callable[[], Iterator[tuple[str, Array]]]
    metadata: str = ""


def bands_of(tensor: Tensor, turned: bool) -> Callable[[int], Iterator[Array]]:
    """Return a function bands(multiple) that yields a tensor's rows in float32 arrays of several rows each.

    The number of rows of an array is a multiple of `multiple`, except at the end of a matrix. turned: True to yield
    the rows of the transposed matrix instead.
    """
    shape = tensor.shape
    rows, columns = (shape[-1], shape[-2]) if turned else (shape[-2], shape[-1])

    def straight(multiple: int) -> Iterator[Array]:
        at_once = max(BAND // max(columns, 1) // multiple, 1) * multiple
        if len(shape) > 2 or at_once >= rows:  # bands end where matrices end
            at_once = min(at_once, rows)
            while rows % at_once:
                at_once -= multiple if at_once > multiple else 1
        for piece in tensor.chunks(at_once * columns):
            yield values_of(np.ascontiguousarray(piece.reshape(-1, columns)))

    def exchanged(multiple: int) -> Iterator[Array]:
        if len(shape) == 2:
            matrices: Iterator[Array] = iter([whole(tensor)])
        else:
            matrices = (piece.reshape(columns, rows) for piece in tensor.chunks(rows * columns))
        at_once = max(BAND // max(columns, 1) // multiple, 1) * multiple
        for matrix in matrices:
            for first in range(0, rows, at_once):
                yield values_of(np.ascontiguousarray(matrix[:, first : first + at_once].T))

    return exchanged if turned else straight


def amax_of(tensor: Tensor) -> float:
    """Return the largest magnitude of a tensor; NaN if it contains a NaN, 0 if it is empty."""
    largest = [largest_of(values_of(piece)) for piece in tensor.chunks(BAND)]
    return math.nan if any(math.isnan(one) for one in largest) else max(largest, default=0.0)


def largest_of(values: Array) -> float:
    """Return the largest magnitude of float32 values; NaN if one is NaN, 0 if there are none.

    Example:
      >>> largest_of(np.float32([[1, -3], [2, 0]]))
      3.0
    """
    largest = np.zeros(1, np.uint32)
    largest_of_blocks(np.ascontiguousarray(values).view(np.uint32).reshape(-1), values.size, largest)
    return float(largest.view(np.float32)[0])


def in_range(scales: ArrayOrNumber) -> ArrayOrNumber:
    """Return scales, or factors computed from them, unchanged if they are positive and finite.

    Raises:
      ScaleRangeError: one is 0, Inf or NaN.
    """
    if not np.all((scales > 0) & np.isfinite(scales)):
        raise ScaleRangeError
    return scales


def filled(values: Array, rows: int, columns: int) -> Array:
    """Return a matrix, `values`, padded with zeros at the end of both axes to multiples of `rows` and `columns`.

    The matrix itself is returned if nothing is to be added.

    Example:
      >>> filled(np.ones((3, 5), np.float32), 2, 4).shape
      (4, 8)
    """
    n, k = values.shape
    wanted = -(-n // rows) * rows, -(-k // columns) * columns
    if wanted == (n, k):
        return values
    padded = np.zeros(wanted, values.dtype)
    padded[:n, :k] = values
    return padded


def like_model(values: Array, half: Any) -> Array:
    """Return float32 values, rounded to the model's dtype of 16 bits, `half`; unchanged if that is None."""
    return values if half is None else rounded_like(values, half)
