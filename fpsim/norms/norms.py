"""rms_norm and layer_norm, in which callers choose every intermediate format, rounding and order of sums."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.casts.cast import encode
from fpsim.norms.backend import Values
from fpsim.norms.cpu import CPU
from fpsim.norms.keywords import NormKeywords, with_norm_keywords
from fpsim.norms.steps import Method, checked_eps, read


@with_norm_keywords
def rms_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike | None = None, *, eps: float = 1e-6, **keywords: Unpack[NormKeywords]
) -> Any:
    """Compute x divided by its root mean square along an axis, times weight, with every rounding defined.

    For n elements: q = R(sum of x * x by the accumulator), v = R(R(q / n) + R(eps)), r = R(1 / sqrt(v)), correctly
    rounded. The result is x * r, or with a weight R(x * r) * weight, rounded once to the result format. R rounds to
    nearest even in the intermediate format.

    Args:
      x: array of a float dtype, or unsigned codes with `fmt`.
      weight: (n,) array of a float dtype, or codes, for the n elements along the axis; None for no weight.
      eps: a number >= 0 that is added to the mean square.
      keywords: the axis, the formats, the accumulator and the last rounding; `help(fp.rms_norm)` lists them.

    Example:
      >>> import fpsim as fp
      >>> fp.rms_norm(np.float16([3, 4, 0, 0]), np.float16([1, 1, 1, 2]))
      array([1.2, 1.6, 0. , 0. ], dtype=float16)
    """
    method, (scale,) = read(rms_norm, {"x": x, "weight": weight}, keywords, CPU)
    return normalised(method, method.x, scale, None, eps)


@with_norm_keywords
def layer_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike | None = None, bias: npt.ArrayLike | None = None, *, eps: float = 1e-5,
    **keywords: Unpack[NormKeywords],
) -> Any:  # fmt: skip
    """Compute x minus its mean, divided by its standard deviation along an axis, times weight, plus bias.

    For n elements: u = R(R(sum of x) / n), c = R(x - u), q = R(sum of c * c), both sums by the accumulator, v = R(R(q /
    n) + R(eps)), r = R(1 / sqrt(v)), correctly rounded. The result is rounded once to the result format. It is c * r
    without weight and bias, R(c * r) * weight without bias, R(c * r) + bias without weight, else R(R(c * r) * weight) +
    bias. R rounds to nearest even in the intermediate format.

    Args:
      x: array of a float dtype, or unsigned codes with `fmt`.
      weight, bias: (n,) arrays of a float dtype, or codes, for the n elements along the axis; None for none.
      eps: a number >= 0 that is added to the variance.
      keywords: the axis, the formats, the accumulator and the last rounding; `help(fp.layer_norm)` lists them.

    Example:
      >>> import fpsim as fp
      >>> fp.layer_norm(np.float16([1, 2, 3, 4]), bias=np.float16([0, 0, 0, 1]))
      array([-1.342 , -0.4473,  0.4473,  2.342 ], dtype=float16)
    """
    operands = {"x": x, "weight": weight, "bias": bias}
    method, (scale, shift) = read(layer_norm, operands, keywords, CPU)
    return normalised(method, method.centred(), scale, shift, eps)


def normalised(method: Method, x: Values, scale: Values | None, shift: Values | None, eps: float) -> Any:
    """Return x / sqrt(mean(x * x) + eps) * scale + shift as an array of the caller's library.

    Each operation is rounded to the intermediate format, the last one to that of the result. method: the checked call,
    with its axis, formats and accumulator. x: the operand, for layer_norm minus its mean. scale, shift: the weight and
    the bias, one element for each along the axis; None leaves the multiplication or the addition out. eps: as for
    `rms_norm`.
    """
    following = []
    if scale is not None:
        following.append(("multiply", method.along(scale, "weight")))
    if shift is not None:
        following.append(("add", method.along(shift, "bias")))
    mean, fmt = method.divided_by_count(method.sum(x, squares=True)), method.intermediate
    offset = Values(encode(np.float64(checked_eps(eps)), fmt), fmt)
    inverse = method.step("rsqrt", method.step("add", mean, offset))
    *between, (name, operand) = [("multiply", inverse), *following]
    for operation, second in between:
        x = method.step(operation, x, second)
    return method.last(name, x, operand)
