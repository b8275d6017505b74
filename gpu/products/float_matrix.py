"""Matrices of float32 on the GPU, as bit patterns, and operations on them, rounded once by functions of fpsim/core."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core import exact_arithmetic
from fpsim.core.encode import encode_fields
from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.number import unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.formats.cast_options import cast_options
from fpsim.formats.named import FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.gpu.casts.cast import fill_codes, widened_codes
from fpsim.gpu.device.copies import apart
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import gpu_kernel, launch, scratch, stream_of, uploaded
from fpsim.gpu.device.transfer import fill_kernel

u32, u64 = np.uint32, np.uint64

TO_FLOAT = pack_plan(FP32, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32, "after").layout
OF_FLOAT = unpack_layout(FP32, "keep")


@cache
def operation_kernel(name: str) -> Any:
    """Return the GPU kernel (x, y, z, steps, out, columns, of_float, to_float) -> None of one operation.

    name: "add", "multiply" or "fma". x, y, z: 1-D uint32 bits of float32 matrices; z is read for fma only. out:
    receives the result, rounded to nearest even. steps: six integers, the distance from one row to the next and from
    one column to the next in x, y and z. columns: number of columns of `out`. of_float, to_float: constants that decode
    and encode float32, an UnpackLayout and an EncodeLayout as integers.
    """
    is_fma, is_add = name == "fma", name == "add"

    def compute(x: Any, y: Any, z: Any, steps: Any, out: Any, columns: Any, of_float: Any, to_float: Any) -> None:
        f, to = unpack_fields(of_float), encode_fields(to_float)
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            r, c = i // columns, i % columns
            p = unpack(u64(x[r * steps[0] + c * steps[1]]), f)
            q = unpack(u64(y[r * steps[2] + c * steps[3]]), f)
            if is_fma:
                exact, _ = exact_arithmetic.fma(p, q, unpack(u64(z[r * steps[4] + c * steps[5]]), f), NEAREST_EVEN)
            elif is_add:
                exact, _ = exact_arithmetic.add(p, q, NEAREST_EVEN)
            else:
                exact, _ = exact_arithmetic.multiply(p, q)
            code, _ = pack(exact, NO_FLAG, u64(0), to, NEAREST_EVEN, u64(0))
            out[i] = code

    return gpu_kernel(compute)


@cache
def copy_kernel() -> Any:
    """Return the GPU kernel (source, out) -> None that copies a 1-D array of bit patterns."""

    def copy(source: Any, out: Any) -> None:
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[i] = source[i]

    return gpu_kernel(copy)


@cache
def nan_kernel() -> Any:
    """Return the GPU kernel (words, infinity, sign, nan) -> None that replaces every NaN by the pattern `nan`.

    words: 1-D unsigned float bits. infinity: the bits of +Inf. sign: mask of the sign bit.
    """

    def replace(words: Any, infinity: Any, sign: Any, nan: Any) -> None:
        for i in range(cuda.grid(1), words.size, cuda.gridsize(1)):
            if (words[i] & ~sign) > infinity:
                words[i] = nan

    return gpu_kernel(replace)


@cache
def nan_code_kernel() -> Any:
    """Return the GPU kernel (total, codes, nan) -> None that sets codes[i] to `nan` where total[i] is NaN.

    total: 1-D uint32 patterns of float32. codes: 1-D codes of another format.
    """

    def replace(total: Any, codes: Any, nan: Any) -> None:
        for i in range(cuda.grid(1), total.size, cuda.gridsize(1)):
            if u32(total[i]) & u32(0x7FFFFFFF) > u32(0x7F800000):
                codes[i] = nan

    return gpu_kernel(replace)


class FloatMatrices:
    """Operations on matrices of float bit patterns in GPU memory, on the stream of the library of the array `like`.

    `FloatOperations` in fpsim/products/backend.py describes add, multiply and fma. Their operands are float32 matrices
    on the GPU (as uint32 bits), or NumPy numbers and arrays, which are converted to float32 and copied there. Results
    are such bits.
    """

    def __init__(self, like: Any) -> None:
        self.like = like

    def _operand(self, x: Any) -> tuple[Any, tuple[int, int]]:
        """Return (float32 bits of x as a 1-D array on the GPU, shape of x as a matrix); NumPy numbers are copied."""
        if not getattr(x, "__cuda_ndarray__", False):
            host = np.atleast_2d(np.asarray(x, np.float32)).view(u32)
            return self.sent(host.reshape(-1)), host.shape
        return x.reshape(math.prod(x.shape)), x.shape

    def sent(self, host: Any) -> Any:
        """Return a copy of a NumPy array on the GPU, of the same shape and dtype, queued on the stream in use."""
        return cuda.to_device(np.ascontiguousarray(host), stream=stream_of(self.like))

    def add(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._run("add", (x, y), out)

    def multiply(self, x: Any, y: Any, out: Any = None) -> Any:
        return self._run("multiply", (x, y), out)

    def fma(self, x: Any, y: Any, z: Any, out: Any = None) -> Any:
        return self._run("fma", (x, y, z), out)

    def _run(self, name: str, arguments: tuple[Any, ...], out: Any) -> Any:
        """Return the result of the operation `name`, "add", "multiply" or "fma", as float32 bits.

        arguments: two or three operands that broadcast. out: the matrix for the result, or None for a new one.
        """
        operands = [self._operand(x) for x in arguments]
        shape = np.broadcast_shapes(*(of_operand for _, of_operand in operands))
        result = scratch(shape, u32) if out is None else out
        operands += operands[:1] * (3 - len(operands))
        steps = np.array(
            [(columns if rows > 1 else 0, 1 if columns > 1 else 0) for _, (rows, columns) in operands], np.int64
        ).reshape(-1)
        size = math.prod(shape)
        launch(
            operation_kernel(name), self.like, size, *(words for words, _ in operands), uploaded(steps),
            result.reshape(size), shape[1], uploaded(OF_FLOAT), uploaded(TO_FLOAT),
        )  # fmt: skip
        return result

    def _flat(self, x: Any, fmt: Format = FP32) -> GpuArray:
        """Return the matrix x of codes of `fmt` (by default float32 bits) as a 1-D GpuArray of the same memory."""
        size = math.prod(x.shape)
        return GpuArray(x.reshape(size), (size,), fmt, self.like)

    def codes_of(self, x: Any, fmt: Format) -> Any:
        """Return the GPU matrix x of float32 bits as codes of the format `fmt`, rounded to nearest even.

        The caller ensures that the format holds all values of x.
        """
        codes = scratch(x.shape, fmt.storage)
        fill_codes(self._flat(x), self._flat(codes).words, cast_options(fmt))
        return codes

    def widened(self, codes: Any, fmt: Format, out: Any) -> None:
        """Write the values of `codes`, a GPU matrix of the format `fmt`, to the matrix `out` as float32 bits.

        float32 must hold all values of the format.
        """
        self.copied(widened_codes(self._flat(codes, fmt), fmt, FP32).words.reshape(*out.shape), out)

    def filled(self, shape: tuple[int, int], word: Any, out: Any = None) -> Any:
        """Return a GPU matrix of the given shape filled with one bit pattern.

        word: the pattern, a NumPy unsigned integer, whose dtype a new matrix has. out: the matrix to fill; None for a
        new one.
        """
        result = scratch(shape, word.dtype) if out is None else out
        size = math.prod(shape)
        launch(fill_kernel(), self.like, size, result.reshape(size), word)
        return result

    def copied(self, source: Any, out: Any = None) -> Any:
        """Return a copy of a GPU matrix of bit patterns.

        out: the matrix to copy to, which may overlap the source; None for a new one.
        """
        result = scratch(source.shape, source.dtype) if out is None else out
        size = math.prod(source.shape)
        words = result.reshape(size)
        launch(copy_kernel(), self.like, size, apart(source.reshape(size), words, self.like), words)
        return result

    def with_one_nan(self, words: Any, infinity: int, sign: int, nan: int) -> None:
        """Replace every NaN in `words`, 1-D unsigned float bits, by the pattern `nan`, in place.

        infinity: the bits of +Inf. sign: mask of the sign bit.
        """
        infinity_word, sign_word, nan_word = (words.dtype.type(code) for code in (infinity, sign, nan))
        launch(nan_kernel(), self.like, words.size, words, infinity_word, sign_word, nan_word)
