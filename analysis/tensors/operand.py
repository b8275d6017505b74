"""Tensors as operands of products: matrices with a row for each output of the product, whose sums run along rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.arrays import Array

CONVOLUTION = re.compile(r"conv")
WINDOW = 16  # a last axis shorter than this is the window of a convolution, whatever the tensor's name
KERNEL = re.compile(r"(^|[./_])kernel(:\d+)?$")  # name in Flax and Keras, whose last axis is that of the outputs
DEPTHWISE = re.compile(r"depthwise")
BAND = 1 << 24  # elements that are held in memory while a tensor is transposed


def matrix_shape(shape: tuple[int, ...], role: str, name: str = "") -> tuple[int, int]:
    """Return (rows, columns) of a tensor as an operand of a product, whose sums have one term per column.

    Columns are the last axis, or for a convolution all axes except the first. shape: the tensor's shape. role: the
    tensor's role, such as "matrix" for a weight, or "activation". name: the tensor's name, which tells a convolution of
    one dimension from stacked matrices.

    Example:
      >>> from fpsim.analysis.tensors.operand import matrix_shape
      >>> matrix_shape((8, 128, 512), "activation"), matrix_shape((64, 3, 16, 16), "matrix")
      ((1024, 512), (64, 768))
    """
    if len(shape) < 2:
        return 1, math.prod(shape)
    window = len(shape) > 3 or (len(shape) == 3 and (shape[-1] < WINDOW or bool(CONVOLUTION.search(name.lower()))))
    if role == "matrix" and window:
        return shape[0], math.prod(shape[1:])
    return math.prod(shape[:-1]), shape[-1]


def with_rows(tensors: Sequence[Tensor], biases: Mapping[str, Iterable[int]]) -> tuple[Tensor, ...]:
    """Return the tensors, with `outputs_last` of each matrix inferred if it was None.

    Matrices that Flax and Keras call kernels have the outputs last. Other matrices have them along the axis that is as
    long as the bias. A square matrix with a bias has them last if all matrices whose axis is known have them last.

    Args:
      tensors: all tensors of a model.
      biases: name of a tensor -> lengths of the biases of its layer.
    """
    told = {one.name: _outputs_last(one, biases.get(one.name, ())) for one in tensors if one.role == "matrix"}
    all_last = set(told.values()) - {None} == {True}
    result = []
    for one in tensors:
        last = told.get(one.name)
        if last is None:  # a square matrix with a bias
            square = len(one.shape) == 2 and one.shape[0] == one.shape[1]
            last = all_last and square and one.shape[1] in biases.get(one.name, ())
        unknown = one.role == "matrix" and one.outputs_last is None
        result.append(replace(one, outputs_last=last) if unknown else one)
    return tuple(result)


def _outputs_last(one: Tensor, biases: Iterable[int]) -> bool | None:
    """Return whether the last axis of a matrix, and not the first, is that of the layer's outputs; None if unknown.

    A name such as Flax's "kernel" shows it, or the axis that is as long as a bias. one: the matrix. biases: lengths of
    the biases of its layer.
    """
    lower = one.name.lower()
    if len(one.shape) > 1 and KERNEL.search(lower):
        return not DEPTHWISE.search(lower)
    if len(one.shape) != 2 or one.shape[0] == one.shape[1]:
        return None
    ends = {length for length in biases if length in one.shape}
    return ends == {one.shape[1]} if len(ends) == 1 else None


def as_operand(one: Tensor) -> Tensor:
    """Return a tensor, `one`, as a matrix with a row for each output of the product.

    The elements are transposed when they are read, if the outputs are the tensor's last axis.
    """
    if not one.outputs_last or len(one.shape) < 2:
        return replace(one, shape=matrix_shape(one.shape, one.role, one.name))
    columns, rows = math.prod(one.shape[:-1]), one.shape[-1]
    return replace(one, shape=(rows, columns), outputs_last=False, read=by_columns(one.read, columns, rows))


def by_columns(read: Callable[[int], Iterator[Array]], height: int, width: int) -> Callable[[int], Iterator[Array]]:
    """Return a function like `read` that yields the elements of a matrix column by column instead of row by row.

    read: read(size) yields the elements in flat arrays of `size`. height, width: shape of the matrix.
    """
    wide = max(1, BAND // max(height, 1))

    def band(start: int) -> Array:
        pieces = read(max(1, CHUNK // width) * width)
        parts = [np.ascontiguousarray(piece.reshape(-1, width)[:, start : start + wide].T) for piece in pieces]
        return np.concatenate(parts, axis=1).reshape(-1) if parts else np.empty(0)

    return lambda size: pieces_of(map(band, range(0, width, wide)), size)


def pieces_of(parts: Iterable[Array], size: int) -> Iterator[Array]:
    """Yield the elements of the flat arrays `parts`, in order, regrouped into flat arrays of `size` elements.

    The last array may be shorter.
    """
    held: list[Array] = []
    count = 0
    for part in parts:
        held.append(part)
        count += part.size
        if count < size:
            continue
        whole = np.concatenate(held) if len(held) > 1 else part
        for begin in range(0, count - size + 1, size):
            yield whole[begin : begin + size]
        held, count = [whole[count - count % size :]], count % size
    if count:
        yield np.concatenate(held) if len(held) > 1 else held[0]
