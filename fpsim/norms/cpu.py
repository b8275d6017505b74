"""The CPU as a backend of softmax and norms: operations on NumPy arrays of codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.operands import read_operand
from fpsim.casts.cast import decode, encode
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.lazy import deferred
from fpsim.norms.backend import NormBackend, Values
from fpsim.norms.lane_sum import LaneSum
from fpsim.products.reduce import dot
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Accumulator

processor = deferred("fpsim.runtime.processor")  # imports numba


class CpuNorms(NormBackend):
    """The CPU as a backend of softmax and norms; `NormBackend` describes the methods."""

    def read(self, x: Any, fmt: Format | None, name: str) -> tuple[Values, bool]:
        codes, of_codes, typed = read_operand(x, fmt, name)
        return Values(codes, of_codes), typed

    def reshaped(self, x: Values, shape: tuple[int, ...]) -> Values:
        return x._replace(codes=x.codes.reshape(shape))

    def step(self, name: str, operands: tuple[Values, ...], fmt: Format) -> Values:
        return Values(_evaluated(name, operands, {"out_fmt": fmt}), fmt)

    def last(self, name: str, operands: tuple[Values, ...], options: CastOptions, typed: bool) -> Any:
        keywords = options.keywords()
        fmt = keywords.pop("fmt")
        codes = _evaluated(name, operands, {"out_fmt": fmt, **keywords})
        return codes.view(DTYPES[fmt]) if typed and fmt in DTYPES else codes

    def rounded(self, x: Values, fmt: Format) -> Values:
        return Values(encode(decode(x.codes, x.fmt, np.float64), fmt), fmt)

    def largest(self, x: Values, axis: int) -> Values:
        values = decode(x.codes, x.fmt, np.float32 if FP32.holds(x.fmt) else np.float64)
        with processor().ieee_arithmetic():
            largest = values.max(axis=axis, keepdims=True)
            if (largest == 0).any():  # NumPy may return either of +0 and -0
                is_positive = ((values == 0) & ~np.signbit(values)).any(axis=axis, keepdims=True)
                largest = np.where((largest == 0) & is_positive, np.zeros_like(largest), largest)
        return Values(encode(largest, x.fmt), x.fmt)

    def lane_sums(self, accumulate: LaneSum, x: Values, axis: int, squares: bool) -> Values:
        values = np.moveaxis(decode(x.codes, x.fmt), axis, -1)
        rows = values.reshape(-1, values.shape[-1])
        sums = accumulate.sum_of_squares(rows) if squares else accumulate.sum(rows)
        return Values(sums.view(np.uint32).reshape(values.shape[:-1]), FP32)

    def sums(self, accumulate: Accumulator, x: Values, axis: int, squares: bool) -> Values:
        if squares:
            rows = np.moveaxis(x.codes, axis, -1)
            sums = dot(rows, rows, accumulate=accumulate, fmt=x.fmt)
        else:
            sums = sum_of(x.codes, accumulate=accumulate, fmt=x.fmt, axis=axis)
        fmt = accumulate.result_format
        return Values(np.asarray(sums).view(fmt.storage), fmt)


def _evaluated(name: str, operands: tuple[Values, ...], keywords: dict[str, Any]) -> Any:
    """Return the codes of the result of the operation `name`, such as "divide"; operands broadcast.

    operands: codes with their formats. keywords: out_fmt, the format of the result, and options of a cast, such as
    rounding.
    """
    formats = tuple(operand.fmt for operand in operands)
    return evaluate(name, tuple(operand.codes for operand in operands), {"fmt": formats, **keywords})


CPU = CpuNorms()
