"""Operands and results of arithmetic on the GPU: validation, formats, broadcasting, and allocation."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.arithmetic.operands import NAMES, Formats, broadcast_shape, read_operand
from fpsim.arrays import library_of
from fpsim.formats.named import DTYPES, Format
from fpsim.formats.named import format as find_format
from fpsim.gpu.casts.cast import refuse_outside
from fpsim.gpu.device.array import dtype_name, gpu_array, result_like
from fpsim.gpu.device.copies import apart, broadcast
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import uploaded


class GpuOperands(NamedTuple):
    """The operands of an operation on the GPU, and the shape of its result.

    Attributes:
      words: each operand as a 1-D array of unsigned integers.
      steps: for each operand, the distance from one element to the next: 1, or 0 for a single element.
      formats: the format of each operand; empty for integers.
      shape: the broadcast shape, which the result has.
      owner: the first operand that is on the GPU; the result has its library.
      typed: whether all operands have float dtypes.
    """

    words: tuple[Any, ...]
    steps: tuple[int, ...]
    formats: tuple[Format, ...]
    shape: tuple[int, ...]
    owner: GpuArray
    typed: bool

    @property
    def size(self) -> int:
        """Number of elements of the result."""
        return math.prod(self.shape)

    @property
    def like(self) -> Any:
        """The array of the caller whose library and stream the result has."""
        return self.owner.like


def operands(name: str, values: tuple[Any, ...], fmt: Formats) -> GpuOperands:
    """Return the validated operands of the operation `name`.

    values: arrays on the GPU, and numbers, which are copied there. fmt: the format of codes, or a sequence of one
    format for each operand; None for arrays of float dtypes. Raises a ValueError for codes without a format or outside
    it, and for shapes that do not broadcast; a TypeError if no operand is on the GPU, or one has another format.
    """
    wanted = fmt if isinstance(fmt, (tuple, list)) else (fmt,) * len(values)
    if len(wanted) != len(values):
        raise ValueError(f"fmt must name one format, or {len(values)} for {name}; got {len(wanted)}: {fmt!r}.")
    numbers = [
        isinstance(value, (int, float, np.generic)) or (isinstance(value, np.ndarray) and value.ndim == 0)
        for value in values
    ]
    if all(numbers):
        numbers[0] = False  # which raises a TypeError, since no operand is on the GPU
    arrays = [
        _number(value, want, label) if number else gpu_array(value, label)
        for value, want, label, number in zip(values, wanted, NAMES, numbers, strict=False)
    ]
    formats = tuple(format_of_codes(x, want, label) for x, want, label in zip(arrays, wanted, NAMES, strict=False))
    shape = broadcast_shape(name, [x.shape for x in arrays])
    libraries = {library_of(x.like) for x, number in zip(arrays, numbers, strict=True) if not number}
    if len(libraries) > 1:
        cuda.synchronize()  # wait for the other library's stream
    owner = arrays[numbers.index(False)]
    spread = [x if x.size == 1 else broadcast(x, shape) for x in arrays]
    single = math.prod(shape) == 1
    return GpuOperands(
        tuple(x.words for x in spread), tuple(int(x.size > 1 or single) for x in spread), formats, shape, owner,
        all(x.fmt is not None for x in arrays),
    )  # fmt: skip


def integers(n: Any) -> tuple[GpuOperands, np.dtype[Any]]:
    """Return (n as the operand of from_int, int64 if n's dtype is signed, else uint64).

    n: an array of integers on the GPU; anything else raises a TypeError.
    """
    source = gpu_array(n, "n")
    if source.fmt is not None:
        raise TypeError(f"n must be an array of integers on the GPU; got {n.dtype}. fpsim.gpu.encode rounds floats.")
    signed = not dtype_name(n).startswith("u")
    return GpuOperands((source.words,), (1,), (), source.shape, source, False), np.dtype("i8" if signed else "u8")


def _number(value: Any, wanted: Any, label: str) -> GpuArray:
    """Return a number on the CPU as a GPU operand of one element, validated as by the CPU's functions.

    value: a NumPy float, or a code as a Python or NumPy integer. wanted: the format if it is a code; None for a float.
    label: the operand's name in errors.
    """
    code, fmt, typed = read_operand(value, None if wanted is None else find_format(wanted), label)
    words = uploaded(np.asarray(code).reshape(1).view(fmt.storage))
    return GpuArray(words, (), fmt if typed else None, value)


def format_of_codes(x: GpuArray, wanted: Any, label: str) -> Format:
    """Return the format of the operand x: that of its dtype, or `wanted` for unsigned integers.

    wanted: a format by name or object, or None. label: the operand's name in errors. A ValueError is raised if there is
    no format, or if the elements cannot be codes of the format; a TypeError if dtype and `wanted` differ.
    """
    wanted_fmt = None if wanted is None else find_format(wanted)
    if x.fmt is None and wanted_fmt is None:
        raise ValueError(
            f"{label} holds integers: say which format they are codes of, as in fmt='e4m3', or pass values in a float "
            "dtype."
        )
    if x.fmt is not None and wanted_fmt not in (None, x.fmt):
        raise TypeError(
            f"{label} is an array of {x.dtype}, which stores {x.fmt}, but fmt says codes of {wanted_fmt}. Leave fmt "
            f"out, or round it to {wanted_fmt} first with fpsim.gpu.encode."
        )
    fmt = x.fmt or wanted_fmt
    assert fmt is not None
    if x.words.dtype.itemsize != fmt.storage.itemsize:
        raise ValueError(f"{label} must hold codes of {fmt} as {fmt.storage}; got {dtype_name(x.like)}.")
    refuse_outside(x, fmt, label)
    return fmt


def result_for(inputs: GpuOperands, fmt: Format, out: Any) -> tuple[Any, Any, GpuOperands]:
    """Return (array for codes of `fmt`, its memory as 1-D unsigned integers, inputs that do not overlap it).

    inputs: the operands; those that overlap `out` are replaced by copies. out: the caller's array, or None for a new
    one, which has the format's dtype if all operands have float dtypes, else the unsigned dtype of codes.
    """
    dtype = result_dtype(fmt)
    taken = dtype_name(out) if hasattr(out, "dtype") else None
    typed = inputs.typed if taken not in (dtype.name, fmt.storage.name) else taken == dtype.name
    return result_of(inputs, dtype if typed else fmt.storage, out)


def result_of(inputs: GpuOperands, dtype: np.dtype[Any], out: Any) -> tuple[Any, Any, GpuOperands]:
    """Return (array for results of `dtype`, its memory as 1-D unsigned integers, inputs that do not overlap it).

    inputs: the operands; those that overlap `out` are replaced by copies. out: the caller's array, or None for a new
    one.
    """
    result, words = result_like(inputs.owner, inputs.shape, dtype, out)
    if out is None or words.size == 0:
        return result, words, inputs
    return result, words, inputs._replace(words=tuple(apart(x, words, inputs.like) for x in inputs.words))


def code_operand(x: Any, wanted: Format | None, name: str) -> tuple[GpuArray, Format]:
    """Return (x as a GPU array, the format of its elements).

    x: array on the GPU of codes or of floats. wanted: the format of codes; None if x has a float dtype. name: the
    argument that errors name.

    Raises:
      ValueError: the codes have no format, or are outside it.
      TypeError: x is not on the GPU, or has another format than wanted.
    """
    array = gpu_array(x, name)
    if array.fmt is not None and wanted not in (None, array.fmt):
        raise TypeError(
            f"{name} is an array of {x.dtype}, which stores {array.fmt}; but codes of {wanted} are needed. Round it to "
            f"{wanted} first with fpsim.gpu.encode."
        )
    return array, format_of_codes(array, wanted, name)


def result_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the NumPy or ml_dtypes dtype of the format `fmt`, or the unsigned dtype of its codes if it has none."""
    return DTYPES.get(fmt, fmt.storage)
