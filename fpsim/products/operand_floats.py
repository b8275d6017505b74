"""Operands in the form that kernels read: float32 patterns or codes in C order, with their base exponents.

A kernel stores an exponent minus the operand's base exponent, so that it fits a byte.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import refuse_unless_held
from fpsim.casts.pipelines import decoding
from fpsim.formats.named import FP32, Format
from fpsim.products.fast_units import BASES, is_centred
from fpsim.products.kernels.lane_dots import transposition
from fpsim.products.kernels.panel import HIGHEST, largest_exponent
from fpsim.products.kernels.transpose import SIDE
from fpsim.runtime.pipeline import run_stages

i32, f32 = np.int32, np.float32

SQUARE = 64  # rows and columns that are copied at a time


def floats(codes: Array, fmt: Format) -> Array:
    """Return the values of codes (M, N) of the format `fmt` as float32 (float64 for FP64), in C order and writable.

    The result may share memory with codes of 32 or 64 bits.

    Raises:
      ValueError: float32 does not hold all values of `fmt`, and `fmt` is not FP64.
    """
    if fmt.bits >= 32:
        codes = _in_c_order(codes)
        # kernels would be compiled once more for arrays that cannot be written
        return (codes if codes.flags.writeable else codes.copy()).view(f"f{codes.itemsize}")
    if codes.strides[0] == codes.itemsize and min(codes.shape) >= SIDE:
        # floats are transposed in registers, in a fraction of the time that bytes take
        values = np.empty(codes.shape, f32)
        transposition()(floats(codes.T, fmt), values)
        return values
    codes = _in_c_order(codes)
    words = np.empty(codes.shape, np.uint32)
    run_stages(_to_floats(fmt, codes.dtype), codes, words)
    return words.view(f32)


def _in_c_order(x: Array) -> Array:
    """Return the matrix x in C order: x itself if it is in C order, else a copy.

    Large transposed matrices are copied in blocks, faster than by NumPy.
    """
    if x.strides[-1] == x.itemsize or x.size <= SQUARE**2:
        return np.ascontiguousarray(x)
    copy = np.empty(x.shape, x.dtype)
    for m in range(0, x.shape[0], SQUARE):
        for n in range(0, x.shape[1], SQUARE):
            copy[m : m + SQUARE, n : n + SQUARE] = x[m : m + SQUARE, n : n + SQUARE]
    return copy


@lru_cache(maxsize=1024)
def _to_floats(fmt: Format, dtype: np.dtype[Any]) -> Any:
    """Return the stages of a conversion of codes to float32 patterns: loops that `run_stages` runs one after the other.

    fmt: format of the codes. dtype: dtype of their array.

    Raises:
      ValueError: float32 does not hold all values of the format.
    """
    refuse_unless_held(fmt, FP32, "encode the operands in another format")
    return decoding(fmt, FP32, dtype)


def is_fortran_order(codes: Array) -> bool:
    """Return whether the matrix `codes` is in Fortran order: elements of a column are adjacent, those of a row not."""
    return codes.strides[0] == codes.itemsize != codes.strides[1]


def in_stored_order(codes: Array) -> tuple[Array, bool]:
    """Return (codes in C order, False), or (transposed codes in C order, True) if they are in Fortran order.

    codes: a matrix, or a stack of matrices (P, rows, columns), of any dtype. They are copied only if the result would
    otherwise be read-only or have gaps.
    """
    turned = codes.strides[-2] == codes.itemsize != codes.strides[-1]
    codes = codes.swapaxes(-2, -1) if turned else codes
    # kernels would be compiled once more for arrays that cannot be written
    return (codes if codes.flags.c_contiguous and codes.flags.writeable else codes.copy("C")), turned


def bases_of(operands: tuple[Array, Array], formats: tuple[Format, Format]) -> tuple[int, int]:
    """Return for each operand the base exponent that kernels subtract from exponents, so that they fit a byte.

    operands: float32 patterns as int32, or codes of BF16. formats: their formats. Both bases are 0 if both formats
    are centred (exponents within -20 .. 20). The sum of the bases is limited to -BASES .. BASES (60). Values whose
    exponents then do not fit a byte take a slower path, with the same bits.
    """
    if is_centred(formats[0]) and is_centred(formats[1]):
        return 0, 0
    left, right = (_base(x, fmt) for x, fmt in zip(operands, formats, strict=True))
    excess = left + right - max(-BASES, min(left + right, BASES))
    return left - excess, right


def _base(patterns: Array, fmt: Format) -> int:
    """Return an operand's base exponent, which kernels subtract from exponents to store them as bytes.

    It is 0 if the format `fmt` is centred (exponents within -20 .. 20), else the exponent of the operand's largest
    finite magnitude minus HIGHEST (20). patterns: float32 bits as int32, or BF16 codes.
    """
    if is_centred(fmt):
        return 0
    held = FP32 if patterns.itemsize == 4 else fmt
    return int(largest_exponent()(patterns, i32(held.max_code + 1), i32(held.mantissa_bits))) - HIGHEST
