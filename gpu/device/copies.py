"""Copies on the GPU to contiguous words in C order, of arrays with gaps, in another order, or broadcast."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda

from fpsim.gpu.device.device import is_simulated
from fpsim.gpu.device.gpu_array import WORDS, GpuArray
from fpsim.gpu.device.launch import gpu_kernel, launch, scratch, uploaded


@cache
def gather_kernel() -> Any:
    """Return the compiled GPU kernel (source, target, origin, lengths, steps), which copies an array with any strides.

    Taken in C order, the elements are copied from the flat array `source` to the flat array `target` of the same dtype.
    origin: index in `source` of the first element, an int64. lengths, steps: flat int64 arrays with the length of each
    axis and the stride along it, in elements.
    """

    def gather(source: Any, target: Any, origin: Any, lengths: Any, steps: Any) -> None:
        for i in range(cuda.grid(1), target.size, cuda.gridsize(1)):
            place, rest = origin, i
            for axis in range(lengths.size - 1, -1, -1):
                above = rest // lengths[axis]
                place += (rest - above * lengths[axis]) * steps[axis]
                rest = above
            target[i] = source[place]

    return gpu_kernel(gather)


def address_of(words: Any) -> int:
    """Return the address of a numba array's first element."""
    return int(words.ctypes.data if is_simulated() else words.__cuda_array_interface__["data"][0])


def share(x: Any, y: Any) -> bool:
    """Return whether the memory of the contiguous numba arrays x and y overlaps."""
    start, other = address_of(x), address_of(y)
    size, length = (array.size * array.dtype.itemsize for array in (x, y))
    return bool(size and length and start < other + length and other < start + size)


def refuse_overlap(out: Any, *operands: Any, noun: str = "the input") -> None:
    """Raise a ValueError if `out` shares memory with one of the operands; all are contiguous numba arrays.

    noun: what the message calls the operands.
    """
    if any(share(out, x) for x in operands):
        raise ValueError(f"out must not share memory with {noun}; got overlapping arrays. Pass a separate array.")


def _memory(array: Any, low: int, size: int, dtype: np.dtype[Any]) -> Any:
    """Return `size` elements of `dtype` in a numba array's memory, from its lowest address on, as a flat array.

    low: distance in bytes from the array's first element to its lowest address: 0, or negative where strides are
    negative.
    """
    address = address_of(array) + low
    if is_simulated():
        held: Any = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
        return type(array)(np.frombuffer(held, dtype))
    interface = {"shape": (size,), "strides": None, "typestr": dtype.str, "data": (address, False), "version": 3}
    memory = SimpleNamespace(__cuda_array_interface__=interface, owner=array)  # keeps the array alive
    return cuda.as_cuda_array(memory, sync=False)


def gathered(array: Any, like: Any) -> Any:
    """Return a copy of a numba array of any strides as a flat array in C order.

    like: the caller's array, on whose library's stream the copy runs.
    """
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)
    size = math.prod(shape)
    words = np.dtype(WORDS[dtype.itemsize])
    target = scratch(size, words)
    if size:
        strides = tuple(array.strides)
        low = sum(min((length - 1) * stride, 0) for length, stride in zip(shape, strides, strict=True))
        high = sum(max((length - 1) * stride, 0) for length, stride in zip(shape, strides, strict=True))
        source = _memory(array, low, (high - low) // words.itemsize + 1, words)
        steps = tuple(stride // words.itemsize for stride in strides)
        _gather(source, target, -low // words.itemsize, shape, steps, like)
    return target.view(dtype)


def broadcast(x: GpuArray, shape: tuple[int, ...]) -> GpuArray:
    """Return `x` broadcast to `shape` by NumPy's rule: a new contiguous copy, or `x` itself if it has that shape.

    shape: a shape to which `x.shape` can be broadcast; this is not checked.
    """
    if x.shape == shape:
        return x
    padded = (1,) * (len(shape) - len(x.shape)) + x.shape
    steps, step = [0] * len(shape), 1
    for axis in range(len(shape) - 1, -1, -1):
        steps[axis] = step if padded[axis] > 1 else 0
        step *= padded[axis]
    target = scratch(math.prod(shape), x.words.dtype)
    if target.size:
        _gather(x.words, target, 0, shape, tuple(steps), x.like)
    return x._replace(words=target, shape=shape)


def axis_last(x: GpuArray, axis: int) -> GpuArray:
    """Return a copy of `x` with one axis moved to the end; `x` itself if that axis is the last.

    The other axes stay in their order. axis: the axis to move, counted from 0; it must not be negative.
    """
    if axis == len(x.shape) - 1:
        return x
    count, behind = x.shape[axis], math.prod(x.shape[axis + 1 :])
    target = scratch(x.size, x.words.dtype)
    if target.size:
        _gather(x.words, target, 0, (x.size // (count * behind), behind, count), (count * behind, 1, behind), x.like)
    return x._replace(words=target, shape=(*x.shape[:axis], *x.shape[axis + 1 :], count))


def _gather(source: Any, target: Any, origin: int, shape: tuple[int, ...], steps: tuple[int, ...], like: Any) -> None:
    """Copy elements of the flat array `source` to the flat array `target` in C order of `shape`, on the GPU.

    origin: index in `source` of the first element. steps: the stride in `source` along each axis of `shape`, in
    elements; 0 repeats an element. like: the caller's array, on whose library's stream the kernel runs.
    """
    lengths, strides = (uploaded(np.array(axis or (1,), np.int64)) for axis in (shape, steps))
    launch(gather_kernel(), like, target.size, source, target, np.int64(origin), lengths, strides)


def apart(x: Any, out: Any, like: Any) -> Any:
    """Return the flat array `x`, or a copy of it if a kernel that writes `out` could overwrite `x` too early.

    x, out: flat numba arrays. `x` itself is returned if the two share no memory, or if they have the same first
    address, number of elements and element size. like: the caller's array, on whose library's stream the copy runs.
    """
    same = address_of(x) == address_of(out) and x.size == out.size and x.dtype.itemsize == out.dtype.itemsize
    return x if same or not share(x, out) else gathered(x, like)
