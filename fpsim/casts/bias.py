"""Conversion of FP16 to FP8 with a bias in place of a rounding, as by AVX10.2's VCVTBIASPH2BF8 and VCVTBIASPH2HF8."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, float_array, words
from fpsim.errors import require_kind, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import E4M3, E5M2, FP16, Format
from fpsim.formats.named import format as find_format

BIAS_BITS = 8
HIDDEN, FRACTION, INFINITE, SIGN = 1 << FP16.mantissa_bits, (1 << FP16.mantissa_bits) - 1, 0x7C00, 0x8000
QUIET = 2  # the highest mantissa bit of an E5M2 NaN


def encode_with_bias(
    x: npt.ArrayLike, fmt: FormatLike, bias: npt.ArrayLike, *, saturate: bool = False
) -> npt.NDArray[np.uint8]:  # fmt: skip
    """Round float16 values to E4M3 or E5M2 codes: add a bias to the magnitudes, then truncate them.

    The bias has eight bits, in units of 2^-8 of the result's last place: 0 truncates toward zero, random bits round
    stochastically. If fewer than eight bits are dropped, the last bit of the bias is ignored. Subnormals are not
    flushed.

    Args:
      x: float16 array.
      fmt: E4M3 (HF8) or E5M2 (BF8).
      bias: integers 0 .. 255, which broadcast to x's shape.
      saturate: True for the instructions whose names end in S: overflow and infinities become the largest finite value.
        False: they become Inf, which is NaN in E4M3.

    Returns:
      uint8 codes of the broadcast shape of x and bias. A NaN becomes 0x7F with its sign in E4M3; in E5M2, the upper
      byte of the float16 NaN, made quiet.

    Raises:
      ValueError: the format is neither E4M3 nor E5M2, or a bias is out of range.
      TypeError: x is not float16, or bias holds no integers.

    Source: Intel AVX10.2 Architecture Specification, VCVTBIASPH2BF8(S) and VCVTBIASPH2HF8(S); by the specification, not
    measured. docs/casts.md.

    Example:
      >>> import fpsim as fp
      >>> x = np.float16([1.0, 1.03, 448, 480])
      >>> [fp.decode(fp.encode_with_bias(x, fp.E4M3, bias), fp.E4M3).tolist() for bias in (0, 255)]
      [[1.0, 1.0, 448.0, nan], [1.0, 1.125, 448.0, nan]]
    """
    target = find_format(fmt)
    if target not in (E4M3, E5M2):
        raise ValueError(f"fmt must be E4M3 or E5M2, which AVX10.2 converts to; got {target}.")
    require_kind("saturate", saturate, (bool, np.bool_), "True or False")
    values, source = float_array(x, "x")
    if source != FP16:
        raise TypeError(
            f"x must be float16, which AVX10.2 converts; got {values.dtype}. Round it first: x.astype('f2')."
        )
    added = as_array(bias, "bias")
    if added.dtype.kind not in "iu":
        raise TypeError(f"bias must hold integers 0 .. 255; got {added.dtype}.")
    if ((added < 0) | (added > 255)).any():
        raise ValueError(f"bias must hold integers 0 .. 255; got {shown(added[(added < 0) | (added > 255)].flat[0])}.")
    try:
        shape = np.broadcast_shapes(values.shape, added.shape)
    except ValueError:
        raise ValueError(f"bias must broadcast with x of shape {values.shape}; got shape {added.shape}.") from None
    codes, added = np.broadcast_to(words(values), shape).astype(np.int64), np.broadcast_to(added, shape)
    return _cut(codes, added.astype(np.int64), target, saturate).astype(np.uint8)


def _cut(codes: Array, bias: Array, target: Format, saturate: bool) -> Array:
    """Return codes of `target`, E4M3 or E5M2, for FP16 codes, truncated after `bias` was added to their significands.

    All arrays are int64 of one shape. bias: in units of 2^-8 of the result's last place. saturate: True turns overflow
    and Inf into the largest finite value, False into Inf (NaN in E4M3).
    """
    magnitude, negative = codes & (SIGN - 1), (codes & SIGN) != 0
    field = magnitude >> FP16.mantissa_bits
    significand = np.where(field > 0, (magnitude & FRACTION) | HIDDEN, magnitude & FRACTION)
    # the exponent of the result, in which the smallest normal one is 1
    exponent = np.maximum(np.maximum(field, 1) - (FP16.bias - target.bias), 1)
    dropped = FP16.mantissa_bits - target.mantissa_bits + exponent + (FP16.bias - target.bias) - np.maximum(field, 1)
    up, down = np.maximum(dropped - BIAS_BITS, 0), np.maximum(BIAS_BITS - dropped, 0)
    aligned = (bias << up) >> down
    kept = (significand + aligned) >> dropped
    # the hidden bit, or a carry into it, is one step of the exponent field
    result = ((exponent - 1) << target.mantissa_bits) + kept
    largest = target.max_code
    beyond = largest if saturate else largest + 1
    result = np.where((result > largest) | (magnitude == INFINITE), beyond, result)
    nan = target.top_magnitude if target == E4M3 else (magnitude >> 8) | QUIET
    result = np.where(magnitude > INFINITE, nan, result)
    return np.where(negative, result | target.sign_bit, result)
