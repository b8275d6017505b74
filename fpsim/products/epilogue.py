"""The epilogue of a matrix product: scales, alpha, bias and C, applied to the sums in a library's order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32, Format
from fpsim.products.backend import Backend, Matrix
from fpsim.schedules.schedule import Epilogue

ONE, ZERO = np.float32(1), np.float32(0)


class Finish(NamedTuple):
    """The operands of an epilogue: float32 arrays that broadcast to (M, N), and C, a matrix in the backend's memory.

    Attributes:
      scale_a, scale_b: decode scales; None for 1.
      scale_order: "product" for (scale_a * scale_b) * y, "a_first" for (y * scale_a) * scale_b, "b_first" for
        (y * scale_b) * scale_a, where y is a sum.
      alpha, beta: float32 factors of the sums and of c.
      bias: (N,) or (1, N); None for no bias.
      c: matrix (M, N); None for no C.
      out_fmt: format of the result, to which an epilogue may round before it adds C.
    """

    scale_a: Array | None = None
    scale_b: Array | None = None
    scale_order: str = "product"
    alpha: np.float32 = ONE
    bias: Array | None = None
    c: Matrix | None = None
    beta: np.float32 = ONE
    out_fmt: Format = FP32


def finished(y: Matrix, order: Epilogue, f: Finish, backend: Backend) -> Matrix:
    """Return float32 sums y (M, N) after an epilogue without its final cast; every operation rounds once to float32.

    order: the order of the epilogue's operations: whether C or the bias is added first, in one fused operation with the
    last scale, or after a rounding to out_fmt. f: the operands. backend: the operations of the CPU or a GPU.
    """
    bias, addend = f.bias, None
    if f.c is not None and order.source == "first":
        addend = f.c if f.beta == ONE else backend.multiply(f.c, f.beta)
    elif order.fused_bias and bias is not None:
        addend, bias = bias, None
    y = _scaled(y, f, addend, backend)
    if bias is not None:
        y = backend.add(y, bias)
    if f.c is None or order.source == "first":
        return y
    if order.source == "after_cast":
        y = backend.rounded(y, f.out_fmt)
    return backend.fma(f.c, f.beta, y)


def _scaled(y: Matrix, f: Finish, addend: Matrix | None, backend: Backend) -> Matrix:
    """Return y times the scales and alpha, plus `addend`, (M, N) float32.

    y: the sums. f: the operands. addend: a bias or beta * C; None for nothing. backend: the operations of the CPU or a
    GPU. The last multiplication and the addition are one fused multiply-add. Alpha multiplies scale_a * scale_b if
    f.scale_order is "product", else the scale that is applied last.
    """
    zero = ZERO if addend is None else addend
    if f.scale_a is None and f.scale_b is None:
        if f.alpha != ONE:
            return backend.fma(y, f.alpha, zero)
        return y if addend is None else backend.add(y, addend)
    of_a, of_b = (ONE if x is None else x for x in (f.scale_a, f.scale_b))
    first, second, third = {
        "product": (of_a, of_b, y), "a_first": (y, of_a, of_b), "b_first": (y, of_b, of_a),
    }[f.scale_order]  # fmt: skip
    scaled = backend.multiply(first, second)
    if f.alpha != ONE and f.scale_order == "product":
        scaled = backend.multiply(scaled, f.alpha)
    elif f.alpha != ONE:
        third = np.multiply(third, f.alpha)
    return backend.fma(scaled, third, zero)
