"""Elementary functions of encoded arrays, elementwise and correctly rounded: the exact result, rounded once."""

from __future__ import annotations

from typing import Any, Unpack

import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.keywords import Rounded, rounded


@rounded
def exp(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute e**a elementwise, rounded once; +0 for -Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.exp)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.exp(np.float16([0, 1, 12]), flags=True)
      (array([1.   , 2.719,   inf], dtype=float16), array([0, 1, 5], dtype=uint8))
    """
    return evaluate("exp", (a,), keywords)


@rounded
def exp2(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 2**a elementwise, rounded once; exact where a is an integer and 2**a a value of the result's format.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.exp2)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.exp2(np.float16([3, 0.5, -np.inf]))
      array([8.   , 1.414, 0.   ], dtype=float16)
    """
    return evaluate("exp2", (a,), keywords)


@rounded
def expm1(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute e**a - 1 elementwise, rounded once, without cancellation near 0; -1 for -Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.expm1)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.expm1(np.float16([0.001, -0.0, -20]))
      array([ 0.001001, -0.      , -1.      ], dtype=float16)
    """
    return evaluate("expm1", (a,), keywords)


@rounded
def log(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the natural logarithm elementwise, rounded once.

    log(0) is -Inf with the flag DIVIDE_BY_ZERO; negative numbers become NaN with the flag INVALID.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.log)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.log(np.float16([1, 10, 0, -1]), flags=True)
      (array([0.   , 2.303,  -inf,   nan], dtype=float16), array([ 0,  1,  8, 16], dtype=uint8))
    """
    return evaluate("log", (a,), keywords)


@rounded
def log2(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the logarithm to base 2 elementwise, rounded once; 0 and negative numbers are treated as by `fpsim.log`.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.log2)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.log2(np.float16([8, 10]))
      array([3.   , 3.322], dtype=float16)
    """
    return evaluate("log2", (a,), keywords)


@rounded
def log1p(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute log(1 + a) elementwise, rounded once, without cancellation near 0.

    log1p(-1) is -Inf with the flag DIVIDE_BY_ZERO; numbers below -1 become NaN with the flag INVALID.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.log1p)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.log1p(np.float16([0.001, -1]))
      array([0.000999,     -inf], dtype=float16)
    """
    return evaluate("log1p", (a,), keywords)


@rounded
def sin(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the sine of angles in radians, rounded once, however large the angle; NaN and the flag INVALID for Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.sin)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.sin(np.float16([0.5, 65504, np.inf]))
      array([0.4795, 0.9756,    nan], dtype=float16)
    """
    return evaluate("sin", (a,), keywords)


@rounded
def cos(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the cosine of angles in radians, rounded once, however large the angle; NaN and the flag INVALID for Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.cos)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.cos(np.float16([0.5, 65504]))
      array([ 0.8774, -0.2206], dtype=float16)
    """
    return evaluate("cos", (a,), keywords)


@rounded
def tan(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the tangent of angles in radians, rounded once, however large the angle.

    The result for Inf is NaN, with the flag INVALID.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.tan)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.tan(np.float16([0.5, 65504]))
      array([ 0.5464, -4.42  ], dtype=float16)
    """
    return evaluate("tan", (a,), keywords)


@rounded
def tanh(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the hyperbolic tangent elementwise, rounded once; 1 for +Inf, -1 for -Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.tanh)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.tanh(np.float32([0.5, 20, -np.inf]))
      array([ 0.46211717,  1.        , -1.        ], dtype=float32)
    """
    return evaluate("tanh", (a,), keywords)


@rounded
def sigmoid(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / (1 + e**-a) elementwise, rounded once.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.sigmoid)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.sigmoid(np.float16([0, 1, -np.inf]))
      array([0.5  , 0.731, 0.   ], dtype=float16)
    """
    return evaluate("sigmoid", (a,), keywords)


@rounded
def erf(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the error function elementwise, rounded once: 2 / sqrt(pi) times the integral of e**(-t**2) from 0 to a.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.erf)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.erf(np.float16([0.5, -np.inf]))
      array([ 0.5205, -1.    ], dtype=float16)
    """
    return evaluate("erf", (a,), keywords)


@rounded
def erfc(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 - erf(a) elementwise, rounded once, without cancellation.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.erfc)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.erfc(np.float32([0.5, 9]))
      array([4.7950011e-01, 4.1370317e-37], dtype=float32)
    """
    return evaluate("erfc", (a,), keywords)


@rounded
def rsqrt(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / sqrt(a) elementwise, rounded once.

    A zero becomes Inf of its sign, with the flag DIVIDE_BY_ZERO; negative numbers become NaN, with the flag INVALID.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.rsqrt)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.rsqrt(np.float16([4, 2, -0.0]), flags=True)
      (array([0.5  , 0.707,  -inf], dtype=float16), array([0, 1, 8], dtype=uint8))
    """
    return evaluate("rsqrt", (a,), keywords)


@rounded
def reciprocal(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / a elementwise, rounded once; results and flags are those of `fpsim.divide`.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.reciprocal)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.reciprocal(np.uint8([0x44, 0x00]), fmt="e5m2", rounding="up")
      array([ 52, 124], dtype=uint8)
    """
    return evaluate("reciprocal", (a,), keywords)


@rounded
def cbrt(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the cube root elementwise, rounded once; negative numbers have negative roots.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.cbrt)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.cbrt(np.float16([-27, 10]))
      array([-3.   ,  2.154], dtype=float16)
    """
    return evaluate("cbrt", (a,), keywords)


@rounded
def softplus(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute log(1 + e**a) elementwise, rounded once.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.softplus)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.softplus(np.float16([0, 30, -30]))
      array([ 0.6934, 30.    ,  0.    ], dtype=float16)
    """
    return evaluate("softplus", (a,), keywords)


@rounded
def gelu(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the exact GELU, a * (1 + erf(a / sqrt(2))) / 2, elementwise, rounded once; -0, the limit, for -Inf.

    This is not the approximation by tanh.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.gelu)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.gelu(np.float16([1, -1, -np.inf]))
      array([ 0.8413, -0.1587, -0.    ], dtype=float16)
    """
    return evaluate("gelu", (a,), keywords)


@rounded
def silu(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a / (1 + e**-a) elementwise, rounded once (a * sigmoid(a) rounds twice); -0, the limit, for -Inf.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype. For FP32 input, the result is FP32, rounded to nearest even; options for
    another format, rounding, overflow or treatment of subnormals are then refused.

    Args:
      a: array of float32 or of a float dtype of up to 16 bits, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.silu)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.silu(np.float16([1, -1, -np.inf]))
      array([ 0.731, -0.269, -0.   ], dtype=float16)
    """
    return evaluate("silu", (a,), keywords)
