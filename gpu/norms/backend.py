"""The GPU as a backend of softmax and norms: operations on arrays in its memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import DTYPES, FP32, FP64, Format
from fpsim.gpu.arithmetic.evaluate import evaluate
from fpsim.gpu.arithmetic.operands import code_operand, result_dtype
from fpsim.gpu.casts.cast import decode, encode
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.copies import axis_last
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import launch, scratch
from fpsim.gpu.norms.kernels import join_kernel, lanes_kernel, largest_kernel
from fpsim.gpu.products.reduce import around, dot
from fpsim.gpu.products.reduce import sum as sum_of
from fpsim.norms.backend import NormBackend, Values
from fpsim.norms.lane_sum import LaneSum
from fpsim.sums.accumulators import Accumulator


class GpuNorms(NormBackend):
    """The GPU as a backend of softmax and norms; `NormBackend` describes the methods. Codes are a `GpuArray`."""

    def read(self, x: Any, fmt: Format | None, name: str) -> tuple[Values, bool]:
        array, of_codes = code_operand(x, fmt, name)
        return Values(array._replace(fmt=of_codes), of_codes), array.fmt is not None

    def reshaped(self, x: Values, shape: tuple[int, ...]) -> Values:
        return x._replace(codes=x.codes._replace(shape=shape))

    def step(self, name: str, operands: tuple[Values, ...], fmt: Format) -> Values:
        if fmt == FP32:  # float32 arithmetic computes operations whose operands and results are all FP32
            operands = tuple(_as_float32(operand) for operand in operands)
        return _held(_evaluated(name, operands, {"out_fmt": fmt}), fmt)

    def last(self, name: str, operands: tuple[Values, ...], options: CastOptions, typed: bool) -> Any:
        keywords = options.keywords()
        fmt = keywords.pop("fmt")
        x = operands[0].codes
        result, _ = result_like(x, x.shape, result_dtype(fmt) if typed else fmt.storage)
        return _evaluated(name, operands, {"out_fmt": fmt, "out": result, **keywords})

    def rounded(self, x: Values, fmt: Format) -> Values:
        return _held(evaluate("convert", (x.codes,), {}, fmt), fmt)

    def largest(self, x: Values, axis: int) -> Values:
        real = FP32 if FP32.holds(x.fmt) else FP64
        before, count, behind = around(x.codes, axis)
        words = _floats(x, real)
        for parts in (math.isqrt(count), 1):  # so that each thread of both passes reads about sqrt(count) elements
            largest = scratch(before * parts * behind, real.storage)
            launch(largest_kernel(real.bits), x.codes.like, largest.size, words, largest, count, parts, behind)
            words, count = largest, parts
        shape = list(x.shape)
        shape[axis] = 1
        array = GpuArray(words, tuple(shape), real, x.codes.like)
        return Values(array, real) if x.fmt == real else _held(encode(array, x.fmt), x.fmt)

    def lane_sums(self, accumulate: LaneSum, x: Values, axis: int, squares: bool) -> Values:
        before, count, behind = around(x.codes, axis)
        like, lanes = x.codes.like, accumulate.lanes
        totals = scratch(before * lanes * behind, np.float64 if squares else np.float32)
        launch(lanes_kernel(squares), like, totals.size, _floats(x, FP32), totals, count, lanes, behind)
        sums = scratch(before * behind, np.uint32)
        launch(join_kernel(), like, sums.size, totals, sums, lanes, behind)
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        return Values(GpuArray(sums, shape, FP32, like), FP32)

    def sums(self, accumulate: Accumulator, x: Values, axis: int, squares: bool) -> Values:
        if squares:
            rows = axis_last(x.codes, axis)
            sums = dot(rows, rows, accumulate=accumulate)
        else:
            sums = sum_of(x.codes, accumulate=accumulate, axis=axis)
        return _held(sums, accumulate.result_format)


def _held(array: Any, fmt: Format) -> Values:
    """Return `array`, codes of the format `fmt` on the GPU, as an operand: the codes with their format."""
    return Values(gpu_array(array, "a result")._replace(fmt=fmt), fmt)


def _evaluated(name: str, operands: tuple[Values, ...], keywords: dict[str, Any]) -> Any:
    """Return the result of the elementwise operation `name`, such as "divide", on the GPU.

    operands: codes with their formats. keywords: out_fmt (format of the result), out, and options of its rounding.
    """
    formats = tuple(operand.fmt for operand in operands)
    return evaluate(name, tuple(operand.codes for operand in operands), {"fmt": formats, **keywords})


def _as_float32(x: Values) -> Values:
    """Return an operand converted to FP32, but unchanged if it is a NumPy scalar or FP32 cannot hold its format."""
    if x.fmt == FP32 or not isinstance(x.codes, GpuArray) or not FP32.holds(x.fmt):
        return x
    return _held(decode(x.codes, x.fmt), FP32)


def _floats(x: Values, real: Format) -> Any:
    """Return the values of an operand as a flat GPU array of bit patterns of `real`, FP32 or FP64."""
    if x.fmt == real:
        return x.codes.words
    return gpu_array(decode(x.codes, x.fmt, DTYPES[real]), "values").words


GPU = GpuNorms()
