"""Stacks of matrix products on the GPU, which broadcast as `numpy.matmul` does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import lies_on_gpu
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.copies import apart, refuse_overlap
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.device.transfer import host_array
from fpsim.gpu.products.backend import Gpu, codes_of
from fpsim.gpu.scaling.scaled import Scaled
from fpsim.products.backend import Shape
from fpsim.products.pipeline import multiplied
from fpsim.products.request import Request
from fpsim.products.stacks.batched import stack_shape

Axes = tuple[int, ...]


class StackedResult(Gpu):
    """The GPU as a backend that writes the products of a stack of matrices into one array, (*stack, M, N).

    Before each product, the caller sets the attribute `number` to the product's index in the stack. owner: the array
    whose library the result has. stack: the leading axes of the stack. out: the caller's array for all results, or
    None. read: operands that the result must not overlap.
    """

    def __init__(self, owner: GpuArray, stack: Axes, out: Any, read: tuple[GpuArray, ...]) -> None:
        super().__init__(owner)
        self.stack, self.out, self.read, self.number = stack, out, read, 0
        self.array: Any = None
        self.words: Any = None

    def result(self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Any, *others: Any) -> tuple[Any, Any]:
        """Return (array of all results, memory of the current product's result as a matrix of unsigned integers).

        The first call allocates the array of shape (*stack, *shape), or checks the caller's. shape, dtype: shape (M, N)
        and dtype of one result. out, a, others: ignored, as the constructor was passed those of the stack.
        """
        if self.array is None:
            self.array, self.words = result_like(self.owner, (*self.stack, *shape), dtype, self.out)
            if self.out is not None:
                refuse_overlap(self.words, *(x.words for x in self.read), noun="a, b or their scales")
        size = math.prod(shape)
        if math.prod(self.stack) == 0:
            return self.array, scratch(shape, self.words.dtype)
        return self.array, self.words[self.number * size : (self.number + 1) * size].reshape(*shape)


def stacked(a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any) -> Any:
    """Return the products of two stacks of matrices, (..., M, N), each computed as by `fpsim.gpu.matmul`.

    a, b, c, accumulate, fmt, out: as for `fpsim.gpu.matmul`. request: the other keyword arguments of
    `fpsim.gpu.matmul`.

    Raises:
      ValueError, TypeError: as for `fpsim.gpu.matmul`; also for leading axes that do not broadcast, Scaled operands,
        and scales of more than two axes.
    """
    for x, name in ((a, "a"), (b, "b")):
        if isinstance(x, Scaled):
            raise TypeError(f"a stack of products on the GPU takes no fp.gpu.Scaled operands; got {name}. Multiply "
                            "matrix by matrix.")  # fmt: skip
    for x, name in ((request.scale_a, "scale_a"), (request.scale_b, "scale_b")):
        if x is not None and len(getattr(x, "shape", ())) > 2:
            raise ValueError(f"{name} must have two axes at most on the GPU, shared by all products of a stack; got "
                             f"shape {tuple(x.shape)}.")  # fmt: skip
    left, right = codes_of(a, "a"), codes_of(b, "b")
    stack = stack_shape(left, right)
    whole = (*stack, left.shape[-2], right.shape[-1])
    start = None if c is None else gpu_array(c, "c")
    if start is not None and start.shape != whole:
        raise ValueError(f"c must have the result's shape {whole}; got {start.shape}.")
    block_scales: list[GpuArray] = []
    if out is not None:  # what products read is copied before one of them overwrites it, or must not overlap
        if start is not None:
            start = start._replace(words=apart(start.words, gpu_array(out, "out").words, start.like))
        shared = {name: getattr(request, name) for name in ("bias", "scale_a", "scale_b")}
        on_gpu = {name: gpu_array(x, name) for name, x in shared.items() if lies_on_gpu(x)}
        block_scales = [x for x in on_gpu.values() if x.words.dtype.itemsize == 1]
        read: dict[str, Any] = {
            name: x if x.words.dtype.itemsize == 1 else host_array(shared[name], name) for name, x in on_gpu.items()
        }
        request = request._replace(**read)
    backend = StackedResult(left, stack, out, (left, right, *block_scales))
    for number, at in enumerate(np.ndindex(stack or (1,))):
        backend.number = number
        x, y = _matrix(left, stack, at), _matrix(right, stack, at)
        z = None if start is None else _matrix(start, stack, at)
        multiplied(x, y, z, accumulate, request, fmt, None, backend)
    if math.prod(stack) == 0:  # a product of zeros tells the dtype, and refuses what every product would
        z = None if start is None else _zeros(start)
        multiplied(_zeros(left), _zeros(right), z, accumulate, request, fmt, None, backend)
    return backend.array


def _matrix(x: GpuArray, stack: Axes, at: tuple[int, ...]) -> GpuArray:
    """Return the matrix of the stack x for the product at the index `at` of the broadcast stack, as a view.

    stack: lengths of the broadcast leading axes; axes of x of length 1, or missing ones, are repeated along them.
    """
    lead, size = x.shape[:-2], math.prod(x.shape[-2:])
    place = tuple(i if axis > 1 else 0 for axis, i in zip(lead, at[len(stack) - len(lead) :], strict=True))
    first = int(np.ravel_multi_index(place, lead)) * size if lead else 0
    return GpuArray(x.words[first : first + size], x.shape[-2:], x.fmt, x.like)


def _zeros(x: GpuArray) -> GpuArray:
    """Return a new matrix of zero codes with the dtype and the last two axes of x."""
    shape = x.shape[-2:]
    words = scratch(math.prod(shape), x.words.dtype)
    if words.size:
        words[:] = 0
    return GpuArray(words, shape, x.fmt, x.like)
