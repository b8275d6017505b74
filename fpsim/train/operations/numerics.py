"""Softmax, cross-entropy and RMSNorm whose every step is rounded into a format: NumPy in, NumPy out.

Each step (x - max, exp, x * r and so on) is the exact result of its rounded operands, rounded once into the format, as
if a kernel wrote it to memory. Only sums and means have the format of an accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.functions import add, divide, multiply, subtract
from fpsim.arrays import Array, float_array
from fpsim.casts.cast import decode, encode, refuse_unless_held
from fpsim.errors import require_kind, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.lazy import deferred
from fpsim.sums.accumulators import Accumulator, Sequential

kernels = deferred("fpsim.train.operations.kernels")  # imports numba
WIDE = Sequential(FP32)  # adds sums unless another accumulator is passed
PRECISION = 16  # bits to which exp, log and 1 / sqrt in float64 can be rounded correctly
MEANS = ("tokens", "elements")
LEAST, MOST = 2.0**-1000, 2.0**1000  # beyond the range of every format, in place of results that underflow or overflow


def softmax(
    x: npt.ArrayLike, fmt: FormatLike, *, sums: Accumulator | None = None, rounding: str | Rounding = "nearest_even"
) -> Array:
    """Compute exp(x - max) / sum(exp(x - max)) along the last axis, with each step rounded.

    x, x - max, exp(x - max) and the quotient are each rounded into the format; the sum is added by `sums`.

    Args:
      x: array (..., n) of a float dtype.
      fmt: format of each step, by name, dtype or object: signed, with a zero, with up to 16 bits of precision, and
        with values that float32 represents.
      sums: accumulator of the sum, such as fp.Sequential(fp.FP16), whose results float32 represents; None for
        fp.Sequential(fp.FP32).
      rounding: any mode of `fpsim.encode` except "stochastic".

    Returns:
      float32 (..., n), values of the format.

    Raises:
      TypeError: x does not hold floats, or sums is not an accumulator.
      ValueError: x has no axis, its last axis is empty, or fmt, sums or rounding is none of those above.

    Example:
      >>> from fpsim.train.operations.numerics import softmax
      >>> softmax(np.float32([1.0, 2.0, 3.0]), "fp16")
      array([0.09002686, 0.24475098, 0.66503906], dtype=float32)
      >>> x = np.zeros(4096, np.float32)
      >>> softmax(x, "fp16", sums=fp.Sequential("fp16"))[0] * 4096  # the FP16 sum of ones stops at 2048
      np.float32(2.0)
    """
    steps = steps_of(fmt, sums, rounding)
    parts = _powers(steps, x)
    return steps.values(steps.quotient(parts.powers, parts.total))


def log_softmax(
    x: npt.ArrayLike, fmt: FormatLike, *, sums: Accumulator | None = None, rounding: str | Rounding = "nearest_even"
) -> Array:
    """Compute x - max - log(sum(exp(x - max))) along the last axis, with each step rounded.

    x, x - max, exp(x - max), the logarithm and the result are each rounded into `fmt` by `rounding`; the sum is added
    by `sums`. Arguments, results and errors are those of `softmax`.

    Example:
      >>> from fpsim.train.operations.numerics import log_softmax
      >>> log_softmax(np.float32([1.0, 2.0, 300.0]), "bf16")
      array([-300., -298.,    0.], dtype=float32)
    """
    steps = steps_of(fmt, sums, rounding)
    return steps.values(_log_softmax(steps, _powers(steps, x)))


class Loss(NamedTuple):
    """A loss, float32, and the gradient of the logits, float32 of their shape."""

    loss: np.float32
    gradient: Array  # of the logits


def cross_entropy(
    logits: npt.ArrayLike, targets: npt.ArrayLike, fmt: FormatLike, *, sums: Accumulator | None = None,
    mean_over: str = "tokens", scale: float = 1.0, rounding: str | Rounding = "nearest_even",
) -> Loss:  # fmt: skip
    """Compute the mean cross-entropy of logits, and the gradient of `scale` times this loss, with each step rounded.

    The loss is the sum of -log_softmax at the targets, divided by their number and rounded. For the gradient, 1 is
    subtracted from the softmax at the targets and rounded; this is multiplied by the rounded scale / number,
    and the product is rounded.

    Args:
      logits: array (..., classes) of a float dtype.
      targets: integers (...), the class of each token.
      fmt, sums, rounding: the format and rounding of each step, and the accumulator of sums, as for `softmax`.
      mean_over: "tokens" divides by the number of tokens; "elements" by tokens times classes, a mistake that divides
        gradients by the number of classes.
      scale: the factor of the loss whose gradient is returned.

    Returns:
      Loss: float32 loss and gradient (..., classes), values of the format.

    Raises:
      TypeError, ValueError: as for `softmax`, or a target is not the number of a class.

    Example:
      >>> from fpsim.train.operations.numerics import cross_entropy
      >>> loss, gradient = cross_entropy(np.float32([[0, 0], [3, 0]]), [0, 1], "fp16")
      >>> float(loss), gradient
      (1.87109375, array([[-0.25      ,  0.25      ],
             [ 0.47631836, -0.47631836]], dtype=float32))
    """
    require_word("mean_over", mean_over, MEANS)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a number; got {shown(scale)}.")
    steps = steps_of(fmt, sums, rounding)
    array = _last_axis(logits)
    classes = array.shape[-1]
    chosen = _checked_targets(targets, array.shape[:-1], classes)[..., None]
    number = float(chosen.size * (classes if mean_over == "elements" else 1))
    parts = _powers(steps, array)
    log_p = np.take_along_axis(_log_softmax(steps, parts), chosen, -1)  # (..., 1)
    total = steps.wide_values(steps.sum(log_p.reshape(1, -1)))
    loss = steps.encoded((0 - total) / number)
    factor = steps.encoded(np.full(1, scale / number))
    p = steps.quotient(parts.powers, parts.total)
    at_targets = np.take_along_axis(p, chosen, -1)
    np.put_along_axis(p, chosen, steps.minus(at_targets, steps.encoded(np.ones(1))), -1)
    return Loss(steps.values(loss).reshape(-1)[0], steps.values(steps.times(p, factor)))


def rms_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike | None, fmt: FormatLike, *, sums: Accumulator | None = None,
    eps: float = 1e-6, rounding: str | Rounding = "nearest_even",
) -> Array:  # fmt: skip
    """Compute x / sqrt(mean(x^2) + eps) * weight along the last axis, with each step rounded.

    x and weight are rounded into `fmt`. The accumulator `sums` multiplies and adds the squares; the mean and mean + eps
    are rounded into its format. r = 1 / sqrt(mean + eps), x * r and x * r * weight are rounded into `fmt`.

    Args:
      x: array (..., d) of a float dtype.
      weight: (d,), or None for ones.
      eps: added to the mean; rounded into the accumulator's format.
      fmt, sums, rounding: the format and rounding of each step, and the accumulator of the squares, as for `softmax`.

    Returns:
      float32 (..., d), values of the format.

    Raises:
      TypeError, ValueError: as for `softmax`, or a weight of another shape.

    Example:
      >>> from fpsim.train.operations.numerics import rms_norm
      >>> x = np.full((1, 4096), 4.5, np.float32)  # 4096 * 4.5^2 is more than FP16 holds
      >>> float(rms_norm(x, None, "fp16")[0, 0]), float(rms_norm(x, None, "fp16", sums=fp.Sequential("fp16"))[0, 0])
      (1.0, 0.0)
    """
    steps = steps_of(fmt, sums, rounding)
    return steps.values(normalised(steps, x, weight, eps).result)


# ---- steps on codes


@dataclass(frozen=True)
class KernelSteps:
    """The rounded operations of softmax and norms on codes of a format; sums have the format of the accumulator.

    Attributes:
      fmt: the format of all values except sums and means.
      sums: the accumulator that adds.
      rounding: the rounding mode of all other operations.
    """

    fmt: Format
    sums: Accumulator
    rounding: Rounding

    @property
    def wide(self) -> Format:
        """Format of the sums: the result format of the accumulator."""
        return self.sums.result_format

    def encoded(self, x: Array) -> Array:
        """Return codes of the format self.fmt for floats, rounded by self.rounding."""
        return encode(x, self.fmt, rounding=self.rounding)

    def values(self, codes: Array) -> Array:
        """Return codes of the format self.fmt as float32 values."""
        return decode(codes, self.fmt)

    def wide_values(self, codes: Array) -> Array:
        """Return codes of sums, in the format self.wide, as float64 values."""
        return decode(codes, self.wide, np.float64)

    def minus(self, a: Array, b: Array) -> Array:
        """Return codes of a - b, rounded to self.fmt; a and b are codes of that format."""
        return np.asarray(subtract(a, b, fmt=self.fmt, rounding=self.rounding))

    def times(self, a: Array, b: Array) -> Array:
        """Return codes of a * b, rounded to self.fmt; a and b are codes of that format."""
        return np.asarray(multiply(a, b, fmt=self.fmt, rounding=self.rounding))

    def quotient(self, a: Array, b: Array) -> Array:
        """Return codes of a / b, rounded to self.fmt; a has codes of that format, b of self.wide, the sums' format."""
        pair = (self.fmt, self.wide)
        return np.asarray(divide(a, b, fmt=pair, out_fmt=self.fmt, rounding=self.rounding))

    def function(self, name: str, values: Array) -> Array:
        """Return codes, in the format self.fmt, of a function of float64 values; name: "exp", "log" or "rsqrt"."""
        with np.errstate(all="ignore"):
            return self.encoded(FUNCTIONS[name](values))

    def sum(self, terms: Array, factors: Array | None = None) -> Array:
        """Return the sum of terms, or of terms * factors, over the last axis, as codes of self.wide, the sums' format.

        terms, factors: codes of the format self.fmt, (..., n). The result has the shape (..., 1).
        """
        from fpsim.sums.lines import Lines, line_sums

        lines = Lines(factors, terms, (None if factors is None else self.fmt, self.fmt))
        return line_sums(self.sums, lines).reshape(*terms.shape[:-1], 1)

    def mean(self, terms: Array, factors: Array | None = None) -> Array:
        """Return the mean of terms, or of terms * factors, over the last axis, as codes of self.wide, the sums' format.

        terms, factors: codes of the format self.fmt, (..., n). The result has the shape (..., 1). The quotient is
        computed in float64, exactly enough that rounding it gives the right code.
        """
        total = self.wide_values(self.sum(terms, factors))
        return encode(total / terms.shape[-1], self.wide, rounding=self.rounding)


def _exp(x: Array) -> Array:
    """Return float64 exp(x), accurate enough to round to formats of up to 16 bits in every direction.

    A result that is only close to 1, 0 or Inf is moved off that value, so that directed rounding treats it as inexact.
    """
    y = np.where(np.isfinite(x), kernels().wide_exp(x), np.exp(x))
    y = np.where((y == 1) & (x != 0), np.nextafter(1.0, 1 + np.sign(x)), y)
    return np.where(np.isfinite(x), np.clip(y, LEAST, MOST), y)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": _exp, "log": lambda x: kernels().wide_log(x), "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


def steps_of(fmt: FormatLike, sums: Accumulator | None, rounding: str | Rounding) -> KernelSteps:
    """Return the operations for a format, an accumulator and a rounding mode, after checking all three.

    Raises:
      TypeError, ValueError: there is no such format, accumulator or rounding; the format is unsigned, has no zero or
        is too wide; float32 doesn't hold the accumulator's results; or the rounding is stochastic.
    """
    chosen, mode = find_format(fmt), rounding_mode(rounding)
    refuse_unless_held(chosen, FP32, "take one of up to 16 bits")
    if chosen.precision > PRECISION or not chosen.has_zero or not chosen.signed:
        raise ValueError(
            f"fmt must be a signed format with a zero and up to {PRECISION} bits of precision; got {chosen}."
        )
    if mode is Rounding.STOCHASTIC:
        raise ValueError("rounding must be a mode that draws nothing; got 'stochastic'. Use 'nearest_even', say.")
    if sums is None:
        return KernelSteps(chosen, WIDE, mode)
    require_kind("sums", sums, Accumulator, "an accumulator such as fp.Sequential(fp.FP16), or None for float32")
    refuse_unless_held(sums.result_format, FP32, "take an accumulator in FP32")
    return KernelSteps(chosen, sums, mode)


def _last_axis(x: npt.ArrayLike) -> Array:
    """Return x as an array of floats; raise a ValueError if it has no axis or its last axis is empty."""
    array, _ = float_array(x)
    if not array.shape or not array.shape[-1]:
        raise ValueError(f"x must have a last axis of at least one element; got shape {array.shape}.")
    return array


class _Powers(NamedTuple):
    """The intermediate results of a softmax, as codes.

    Attributes:
      shifted: x - max.
      powers: exp(x - max).
      total: the sum of powers in the accumulator's format, (..., 1).
    """

    shifted: Array
    powers: Array
    total: Array


def _powers(steps: KernelSteps, x: npt.ArrayLike) -> _Powers:
    """Return the codes of x - max, of exp(x - max) and of their sum, along the last axis of x.

    steps: the rounded operations. x: floats (..., n).
    """
    codes = steps.encoded(_last_axis(x))
    largest = steps.encoded(steps.values(codes).max(-1, keepdims=True))  # exact
    shifted = steps.minus(codes, largest)
    powers = steps.function("exp", decode(shifted, steps.fmt, np.float64))
    return _Powers(shifted, powers, steps.sum(powers))


def _log_softmax(steps: KernelSteps, parts: _Powers) -> Array:
    """Return the codes of the log-softmax, (..., n), in the format steps.fmt.

    steps: the rounded operations. parts: the codes of x - max, of exp(x - max) and of their sum, as `_powers` returns
    them.
    """
    return steps.minus(parts.shifted, steps.function("log", steps.wide_values(parts.total)))


def _checked_targets(targets: npt.ArrayLike, shape: tuple[int, ...], classes: int) -> Array:
    """Return targets as int64, after checking that they have `shape`, are not empty and are in 0 to classes - 1."""
    array = np.asarray(targets)
    if array.dtype.kind not in "iu":
        raise TypeError(f"targets must be integers; got {shown(targets)}.")
    if array.shape != shape or not array.size:
        raise ValueError(f"targets must have the shape {shape} of the logits' tokens, one at least; got {array.shape}.")
    if int(array.min()) < 0 or int(array.max()) >= classes:
        raise ValueError(f"targets must be classes in 0 .. {classes - 1}; got {array.min()} .. {array.max()}.")
    return array.astype(np.int64)


class Normalised(NamedTuple):
    """The result of an RMSNorm of x, and the intermediate results that its gradient needs, all as codes of a format.

    Attributes:
      result: x * r * weight.
      ratios: x * r.
      inverse: r = 1 / sqrt(mean(x * x) + eps), (..., 1).
      weight: the weight; None for ones.
    """

    result: Array
    ratios: Array
    inverse: Array
    weight: Array | None


def normalised(steps: KernelSteps, x: npt.ArrayLike, weight: npt.ArrayLike | None, eps: float) -> Normalised:
    """Return an RMSNorm of x along the last axis, with the intermediate results that its gradient needs, as codes.

    steps: the rounded operations. x: floats (..., d). weight: floats (d,), or None for ones. eps: added to the mean of
    squares, after rounding to the sums' format.
    """
    codes = steps.encoded(_last_axis(x))
    square = steps.mean(codes, codes)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1:
        raise ValueError(f"eps must be a number >= 0 and < 1; got {shown(eps)}.")
    small = encode(np.full(1, float(eps)), steps.wide, rounding=steps.rounding)
    under = np.asarray(add(square, small, fmt=steps.wide, rounding=steps.rounding))
    inverse = steps.function("rsqrt", steps.wide_values(under))
    ratios = result = steps.times(codes, inverse)
    gain = None
    if weight is not None:
        factors, _ = float_array(weight, "weight")
        if factors.shape != codes.shape[-1:]:
            raise ValueError(f"weight must have shape {codes.shape[-1:]}, the last axis of x; got {factors.shape}.")
        gain = steps.encoded(factors)
        result = steps.times(result, gain)
    return Normalised(result, ratios, inverse, gain)
