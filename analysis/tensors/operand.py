"""Tensors as operands of products: matrices with a row for each output, along which the product sums."""

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
WINDOW = 16  # a last axis that is shorter is the window of a convolution, whatever the tensor's name
KERNEL = re.compile(r"(^|[./_])kernel(:\d+)?$")  # of Flax and Keras, whose last axis are the outputs
DEPTHWISE = re.compile(r"depthwise")
BAND = 1 << 24  # elements that are held where a tensor is turned


def matrix_shape(shape: tuple[int, ...], role: str, name: str = "") -> tuple[int, int]:
    """Rows and columns of a tensor as an operand: the sum is along the last axis, for a convolution all but the first.

    Args:
      shape: of the tensor.
      role: of it, such as "matrix" or "activation".
      name: tells a convolution of one dimension from matrices that are stacked.

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
    """The same tensors, matrices with whether their outputs are the last axis, where nobody has said it.

    It is what Flax and Keras call kernels, and what is added to it tells: a bias has a value for each output. Of square
    ones it tells nothing, so these are taken for what all others of the file are.

    Args:
      biases: lengths of the biases that lie beside a tensor, by its name.
    """
    told = {one.name: _told(one, biases.get(one.name, ())) for one in tensors if one.role == "matrix"}
    all_last = set(told.values()) - {None} == {True}
    found = []
    for one in tensors:
        last = told.get(one.name)
        if last is None:
            last = all_last and _is_square(one, biases)
        unknown = one.role == "matrix" and one.outputs_last is None
        found.append(replace(one, outputs_last=last) if unknown else one)
    return tuple(found)


def _told(one: Tensor, biases: Iterable[int]) -> bool | None:
    """Whether the outputs are the last axis; None where nothing tells."""
    lower = one.name.lower()
    if len(one.shape) > 1 and KERNEL.search(lower):
        return not DEPTHWISE.search(lower)
    if len(one.shape) != 2 or one.shape[0] == one.shape[1]:
        return None
    ends = {length for length in biases if length in one.shape}
    return ends == {one.shape[1]} if len(ends) == 1 else None


def _is_square(one: Tensor, biases: Mapping[str, Iterable[int]]) -> bool:
    """Whether it is a square matrix with a bias."""
    return len(one.shape) == 2 and one.shape[0] == one.shape[1] and one.shape[1] in biases.get(one.name, ())


def as_operand(one: Tensor) -> Tensor:
    """The tensor as a matrix (rows, columns), a row for each output: turned where these are its last axis."""
    if not one.outputs_last or len(one.shape) < 2:
        return replace(one, shape=matrix_shape(one.shape, one.role, one.name))
    columns, rows = math.prod(one.shape[:-1]), one.shape[-1]
    return replace(one, shape=(rows, columns), outputs_last=False, read=_turned(one.read, columns, rows))


def _turned(read: Callable[[int], Iterator[Array]], height: int, width: int) -> Callable[[int], Iterator[Array]]:
    """What reads the columns of a matrix (height, width) one after the other, a band of them at a time."""

    def columns(size: int) -> Iterator[Array]:
        wide = max(1, BAND // max(height, 1))
        return pieces_of((_band(read, width, start, start + wide) for start in range(0, width, wide)), size)

    return columns


def _band(read: Callable[[int], Iterator[Array]], width: int, start: int, stop: int) -> Array:
    """Some columns of a matrix as rows, flat."""
    rows = max(1, CHUNK // width)
    found: list[Array] = []
    for part in read(rows * width):
        found.append(np.ascontiguousarray(part.reshape(-1, width)[:, start:stop].T))
    return np.concatenate(found, axis=1).reshape(-1) if found else np.empty(0)


def pieces_of(parts: Iterable[Array], size: int) -> Iterator[Array]:
    """Flat arrays one behind the other, in pieces of `size` elements; the last: the rest."""
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
