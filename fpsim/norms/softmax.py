"""softmax and log_softmax, in which callers choose every intermediate format, rounding and order of sums."""

from __future__ import annotations

from typing import Any, Unpack

import numpy.typing as npt

from fpsim.norms.backend import Values
from fpsim.norms.cpu import CPU
from fpsim.norms.keywords import NormKeywords, with_norm_keywords
from fpsim.norms.steps import Method, read


@with_norm_keywords
def softmax(x: npt.ArrayLike, **keywords: Unpack[NormKeywords]) -> Any:
    """Compute exp(x) divided by its sum along an axis, with every rounding defined.

    With m the largest element: d = R(x - m), e = R(exp(d)), s = R(sum of e by the accumulator). The result is e / s,
    rounded once to the result format. R rounds to nearest even in the intermediate format.

    Args:
      x: array of a float dtype, or unsigned codes with `fmt`.
      keywords: the axis, the formats, the accumulator and the last rounding; `help(fp.softmax)` lists them.

    Example:
      >>> import fpsim as fp
      >>> fp.softmax(np.float16([1, 2, 3]))
      array([0.09  , 0.2448, 0.665 ], dtype=float16)
      >>> fp.softmax(np.float16([1, 2, 3]), intermediate="bf16", accumulate=fp.Sequential("bf16"))
      array([0.0905, 0.2448, 0.6665], dtype=float16)
    """
    method, _ = read(softmax, {"x": x}, keywords, CPU)
    return softmax_steps(method)


@with_norm_keywords
def log_softmax(x: npt.ArrayLike, **keywords: Unpack[NormKeywords]) -> Any:
    """Compute the logarithm of softmax along an axis, with every rounding defined.

    With m the largest element: d = R(x - m), s = R(sum of R(exp(d)) by the accumulator), l = R(log(s)). The result is d
    - l, rounded once to the result format. R rounds to nearest even in the intermediate format.

    Args:
      x: array of a float dtype, or unsigned codes with `fmt`.
      keywords: the axis, the formats, the accumulator and the last rounding; `help(fp.log_softmax)` lists them.

    Example:
      >>> import fpsim as fp
      >>> fp.log_softmax(np.float16([1, 2, 3]))
      array([-2.408 , -1.407 , -0.4077], dtype=float16)
    """
    method, _ = read(log_softmax, {"x": x}, keywords, CPU)
    return log_softmax_steps(method)


def softmax_steps(method: Method) -> Any:
    """Return softmax of `method.x` with the settings in `method`, as an array of the caller's library.

    method: the checked call: operand, axis, formats and accumulator.
    """
    powers = method.step("exp", _distances(method))
    return method.last("divide", powers, method.sum(powers))


def log_softmax_steps(method: Method) -> Any:
    """Return log_softmax of `method.x` with the settings in `method`, as an array of the caller's library.

    method: the checked call: operand, axis, formats and accumulator.
    """
    distances = _distances(method)
    total = method.sum(method.step("exp", distances))
    return method.last("subtract", distances, method.step("log", total))


def _distances(method: Method) -> Values:
    """Return `method.x` minus its largest element along the axis, rounded to the intermediate format."""
    return method.step("subtract", method.x, method.backend.largest(method.x, method.axis))
