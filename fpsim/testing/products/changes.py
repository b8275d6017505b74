"""A fault of a kernel (words and function), and whether promised results can be -0, overflow or be subnormal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, TF32
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.testing.products.promise import Promise

GRAINS = (2, 4, 8, 16, 32, 64, 128, 256)
MANY = 1 << 12  # number of terms, more than any product of a check has
ALIGNING = (Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES)  # docs/matrix-units.md
THROUGH = (BF16, FP16, TF32, E5M2, E4M3)  # formats that values may be rounded to on their way


class KernelChange(NamedTuple):
    """A fault of a kernel, in words and as a function.

    Attributes:
      words: clause without subject, such as "doubles a".
      apply: function that applies the fault. Its signature depends on what the fault changes. Operands: (float64
        values, `ProbedOperand`) -> values. Scales and bias: KernelInputs -> KernelInputs. Terms: K -> (indices of a's
        terms, indices of b's terms). Order of scales, bias and cast: (promise, inputs, float32 sums) -> codes. Results:
        (float64 values before the cast, result format) -> codes. Integer kernels: (a, b) -> results.
    """

    words: str
    apply: Callable[..., Any]


def with_last(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Return a function that appends the values `last` to its arguments and calls `function` with them."""
    return lambda *arguments: function(*arguments, *last)


def rounded(values: Array, fmt: Format, rounding: str = "nearest_even") -> Array:
    """Return float64 values rounded to `fmt`, of up to 32 bits, as float64; rounding: as for `fpsim.encode`."""
    with np.errstate(all="ignore"):
        return decode(encode(np.asarray(values, np.float64), fmt, rounding=rounding), fmt, np.float64)


def flushed(values: Array, fmt: Format) -> Array:
    """Return float64 values with those that are subnormal in `fmt` replaced by zeros of their sign."""
    return np.where(np.abs(values) < fmt.smallest_normal, np.copysign(0.0, values), values)


def has_signed_zeros(promise: Promise) -> bool:
    """Return whether a kernel with this promise can return -0 for sums that are zero.

    promise: the arithmetic that it claims. Units that align their terms return +0.
    """
    return promise.unit is None or promise.unit.rule not in ALIGNING


def can_overflow(promise: Promise) -> bool:
    """Return whether results of a kernel with this promise may exceed their format.

    It is always true with scales or a bias, or if operands may be Inf. promise: the arithmetic that the kernel claims.
    """
    a, b = promise.a.fmt, promise.b.fmt
    if a.has_infinity or b.has_infinity or promise.scaled or promise.bias:
        return True
    return float(a.max) * float(b.max) * MANY >= promise.out.max


def can_underflow(promise: Promise) -> bool:
    """Return whether results of a kernel with this promise can be subnormal; always true with scales."""
    smallest = [fmt.smallest_subnormal or fmt.smallest_normal for fmt in (promise.a.fmt, promise.b.fmt)]
    return promise.scaled or smallest[0] * smallest[1] < promise.out.smallest_normal
