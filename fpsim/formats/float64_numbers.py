"""Exact float64 numbers, computed with integers, so that a processor that flushes subnormals does not change them."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from fpsim.errors import shown

MAGNITUDE, MANTISSA = 0x7FFFFFFFFFFFFFFF, 0x000FFFFFFFFFFFFF  # of a float64's pattern
LOWEST_EXPONENT = -1074  # of the smallest float64


def exact_float(integer: int, exponent: int) -> float:
    """Return integer * 2**exponent as a float, exactly, even if the processor flushes subnormals.

    float64 must hold the product; this is not checked.
    """
    if integer.bit_length() + exponent > -1022:
        return math.ldexp(integer, exponent)
    pattern: float = struct.unpack("<d", struct.pack("<Q", integer << (exponent - LOWEST_EXPONENT)))[0]
    return pattern


def magnitude_values(
    codes: npt.NDArray[np.int64], mantissa_bits: int, bias: int, subnormals: bool
) -> npt.NDArray[np.float64]:
    """Return the float64 values of finite codes without sign bits; float64 must hold them as normal numbers or 0.

    mantissa_bits, bias: the format's mantissa width and exponent bias. subnormals: True if exponent field 0 holds
    subnormals, False if it is an ordinary binade.
    """
    fields, mantissas = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    subnormal = (fields == 0) & subnormals
    significands = np.where(subnormal, mantissas, mantissas | 1 << mantissa_bits)
    exponents = np.where(subnormal, 1, fields) - bias - mantissa_bits
    values: npt.NDArray[np.float64] = np.ldexp(significands.astype(np.float64), exponents)
    return values


def real_numbers(name: str, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Convert a number or an array of real numbers to a float64 array; raise a TypeError for anything else.

    name: the argument's name, for the error.
    """
    try:
        array = np.asarray(x)
        objects = array.flat if array.dtype.kind == "O" else ()
        # NumPy would read texts, dates and records as numbers, None as NaN, and drop imaginary parts and masks
        lossy = isinstance(x, np.ma.MaskedArray) or array.dtype.names is not None or array.dtype.kind in "SUTcmM"
        if lossy or any(isinstance(y, (str, type(None))) for y in objects):
            raise TypeError
        return np.asarray(array, np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(f"{name} must be a number or an array of real numbers; got {shown(x)}.") from None


def spacing_at(
    values: npt.NDArray[np.float64], min_exponent: int, max_exponent: int, mantissa_bits: int
) -> npt.NDArray[np.float64]:
    """Return the distance between neighbouring values of a format at each of the float64 `values`; NaN at NaN and Inf.

    min_exponent, max_exponent: exponents of the format's smallest normal and of its largest value. Below and above them
    the distance is that of the first and of the last binade. mantissa_bits: width of the format's mantissa.
    """
    bits = values.view(np.int64) & MAGNITUDE
    fields, mantissas = bits >> 52, bits & MANTISSA
    subnormal_exponents = np.frexp(mantissas.astype(np.float64))[1] - 1 + LOWEST_EXPONENT
    exponents = np.where(fields > 0, fields - 1023, subnormal_exponents)
    exponents = np.where(bits == 0, min_exponent, exponents)
    places = np.clip(exponents, min_exponent, max_exponent) - mantissa_bits
    normal, subnormal = np.maximum(places + 1023, 0) << 52, 1 << np.clip(places - LOWEST_EXPONENT, 0, 52)
    spacing = np.where(places >= -1022, normal, subnormal).view(np.float64)
    return np.where(fields == 2047, np.nan, spacing)
