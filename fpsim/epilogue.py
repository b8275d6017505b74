"""The epilogue of a matrix product: scales, alpha, bias, C and the cast to the output, in a library's order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.cast import encode, quantize
from fpsim.formats import FP32, Format
from fpsim.kernels.fma import fma
from fpsim.schedules.schedule import Epilogue

ONE, ZERO = np.float32(1), np.float32(0)


class Finish(NamedTuple):
    """What an epilogue works with: float32 arrays that broadcast to (M, N)."""

    scale_a: Array | None = None  # None for no scales
    scale_b: Array | None = None
    scale_order: str = "product"
    alpha: np.float32 = ONE
    bias: Array | None = None
    c: Array | None = None
    beta: np.float32 = ONE
    out_format: Format = FP32


def finished(y: Array, order: Epilogue, f: Finish) -> Array:
    """y, float32 (M, N), after all that precedes the cast; every operation is rounded once to float32."""
    bias, addend = f.bias, None
    if f.c is not None and order.source == "first":
        addend = f.c if f.beta == ONE else np.multiply(f.c, f.beta)
    elif order.fused_bias and bias is not None:
        addend, bias = bias, None
    y = _scaled(y, f, addend)
    if bias is not None:
        y = np.add(y, bias)
    if f.c is None or order.source == "first":
        return y
    if order.source == "after_cast":
        y = rounded(y, f.out_format)
    return fma(f.c, f.beta, y)


def _scaled(y: Array, f: Finish, addend: Array | None) -> Array:
    """y times scales and alpha, plus an addend in the same operation."""
    zero = ZERO if addend is None else addend
    if f.scale_a is None and f.scale_b is None:
        if f.alpha != ONE:
            return fma(y, f.alpha, zero)
        return y if addend is None else np.add(y, addend)
    of_a, of_b = (ONE if x is None else x for x in (f.scale_a, f.scale_b))
    first, second, third = {
        "product": (of_a, of_b, y), "a_first": (y, of_a, of_b), "b_first": (y, of_b, of_a),
    }[f.scale_order]  # fmt: skip
    scaled = np.multiply(first, second)
    if f.alpha != ONE and f.scale_order == "product":
        scaled = np.multiply(scaled, f.alpha)
    elif f.alpha != ONE:
        third = np.multiply(third, f.alpha)
    return fma(scaled, third, zero)


def rounded(y: Array, fmt: Format) -> Array:
    """float32 numbers rounded to a format, as float32: to nearest even, and FP8 saturates, as NVIDIA's cvt does."""
    return y if fmt == FP32 else quantize(y, fmt, overflow=_overflow(fmt))


def cast_codes(y: Array, fmt: Format) -> Array:
    """The codes of the output."""
    return encode(y, fmt, overflow=_overflow(fmt))


def _overflow(fmt: Format) -> str:
    return "saturate" if fmt.bits <= 8 else "nonfinite"
