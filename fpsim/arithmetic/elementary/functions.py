"""Elementary functions of encoded arrays, correctly rounded: the real number of each element, rounded once."""

from __future__ import annotations

from typing import Any, Unpack

import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.keywords import Rounded, rounded


@rounded
def exp(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute e**a, rounded once; +0 for -Inf.

    Example:
      >>> import fpsim as fp
      >>> fp.exp(np.float16([0, 1, 12]), flags=True)
      (array([1.   , 2.719,   inf], dtype=float16), array([0, 1, 5], dtype=uint8))
    """
    return evaluate("exp", (a,), keywords)


@rounded
def exp2(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 2**a, rounded once; exact for integers.

    Example:
      >>> import fpsim as fp
      >>> fp.exp2(np.float16([3, 0.5, -np.inf]))
      array([8.   , 1.414, 0.   ], dtype=float16)
    """
    return evaluate("exp2", (a,), keywords)


@rounded
def expm1(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute e**a - 1, rounded once, without cancellation near 0; -1 for -Inf.

    Example:
      >>> import fpsim as fp
      >>> fp.expm1(np.float16([0.001, -0.0, -20]))
      array([ 0.001001, -0.      , -1.      ], dtype=float16)
    """
    return evaluate("expm1", (a,), keywords)


@rounded
def log(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the natural logarithm, rounded once; -Inf and DIVIDE_BY_ZERO for 0, INVALID below 0.

    Example:
      >>> import fpsim as fp
      >>> fp.log(np.float16([1, 10, 0, -1]), flags=True)
      (array([0.   , 2.303,  -inf,   nan], dtype=float16), array([ 0,  1,  8, 16], dtype=uint8))
    """
    return evaluate("log", (a,), keywords)


@rounded
def log2(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the logarithm to base 2, rounded once; exact for powers of two, else as `fpsim.log`.

    Example:
      >>> import fpsim as fp
      >>> fp.log2(np.float16([8, 10]))
      array([3.   , 3.322], dtype=float16)
    """
    return evaluate("log2", (a,), keywords)


@rounded
def log1p(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute log(1 + a), rounded once, without cancellation near 0; -Inf and DIVIDE_BY_ZERO for -1.

    Example:
      >>> import fpsim as fp
      >>> fp.log1p(np.float16([0.001, -1]))
      array([0.000999,     -inf], dtype=float16)
    """
    return evaluate("log1p", (a,), keywords)


@rounded
def sin(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the sine of an angle in radians, rounded once, for every finite angle; INVALID for Inf.

    Example:
      >>> import fpsim as fp
      >>> fp.sin(np.float16([0.5, 65504, np.inf]))
      array([0.4795, 0.9756,    nan], dtype=float16)
    """
    return evaluate("sin", (a,), keywords)


@rounded
def cos(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the cosine of an angle in radians, rounded once, for every finite angle; INVALID for Inf.

    Example:
      >>> import fpsim as fp
      >>> fp.cos(np.float16([0.5, 65504]))
      array([ 0.8774, -0.2206], dtype=float16)
    """
    return evaluate("cos", (a,), keywords)


@rounded
def tan(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the tangent of an angle in radians, rounded once, for every finite angle; INVALID for Inf.

    Example:
      >>> import fpsim as fp
      >>> fp.tan(np.float16([0.5, 65504]))
      array([ 0.5464, -4.42  ], dtype=float16)
    """
    return evaluate("tan", (a,), keywords)


@rounded
def tanh(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the hyperbolic tangent, rounded once; 1 and -1 for infinities.

    Example:
      >>> import fpsim as fp
      >>> fp.tanh(np.float32([0.5, 20, -np.inf]))
      array([ 0.46211717,  1.        , -1.        ], dtype=float32)
    """
    return evaluate("tanh", (a,), keywords)


@rounded
def sigmoid(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / (1 + e**-a), rounded once.

    Example:
      >>> import fpsim as fp
      >>> fp.sigmoid(np.float16([0, 1, -np.inf]))
      array([0.5  , 0.731, 0.   ], dtype=float16)
    """
    return evaluate("sigmoid", (a,), keywords)


@rounded
def erf(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the error function, 2 / sqrt(pi) times the integral of e**(-t**2) from 0 to a, rounded once.

    Example:
      >>> import fpsim as fp
      >>> fp.erf(np.float16([0.5, -np.inf]))
      array([ 0.5205, -1.    ], dtype=float16)
    """
    return evaluate("erf", (a,), keywords)


@rounded
def erfc(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 - erf(a), rounded once, without cancellation.

    Example:
      >>> import fpsim as fp
      >>> fp.erfc(np.float32([0.5, 9]))
      array([4.7950011e-01, 4.1370317e-37], dtype=float32)
    """
    return evaluate("erfc", (a,), keywords)


@rounded
def rsqrt(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / sqrt(a), rounded once; an infinity of the zero's sign and DIVIDE_BY_ZERO for 0, INVALID below 0.

    Example:
      >>> import fpsim as fp
      >>> fp.rsqrt(np.float16([4, 2, -0.0]), flags=True)
      (array([0.5  , 0.707,  -inf], dtype=float16), array([0, 1, 8], dtype=uint8))
    """
    return evaluate("rsqrt", (a,), keywords)


@rounded
def reciprocal(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute 1 / a, rounded once, as `fpsim.divide` does.

    Example:
      >>> import fpsim as fp
      >>> fp.reciprocal(np.uint8([0x44, 0x00]), fmt="e5m2", rounding="up")
      array([ 52, 124], dtype=uint8)
    """
    return evaluate("reciprocal", (a,), keywords)


@rounded
def cbrt(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the cube root, rounded once; exact for cubes.

    Example:
      >>> import fpsim as fp
      >>> fp.cbrt(np.float16([-27, 10]))
      array([-3.   ,  2.154], dtype=float16)
    """
    return evaluate("cbrt", (a,), keywords)


@rounded
def softplus(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute log(1 + e**a), rounded once.

    Example:
      >>> import fpsim as fp
      >>> fp.softplus(np.float16([0, 30, -30]))
      array([ 0.6934, 30.    ,  0.    ], dtype=float16)
    """
    return evaluate("softplus", (a,), keywords)


@rounded
def gelu(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a times the normal distribution's cumulative probability, a * (1 + erf(a / sqrt(2))) / 2, rounded once.

    This is the exact GELU: its approximation by tanh is another function. -0 for -Inf, the limit.

    Example:
      >>> import fpsim as fp
      >>> fp.gelu(np.float16([1, -1, -np.inf]))
      array([ 0.8413, -0.1587, -0.    ], dtype=float16)
    """
    return evaluate("gelu", (a,), keywords)


@rounded
def silu(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a / (1 + e**-a), rounded once, which is not a product of two rounded numbers; -0 for -Inf, the limit.

    Example:
      >>> import fpsim as fp
      >>> fp.silu(np.float16([1, -1, -np.inf]))
      array([ 0.731, -0.269, -0.   ], dtype=float16)
    """
    return evaluate("silu", (a,), keywords)
