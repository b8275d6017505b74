"""A slow oracle for the operations of a training step: the formulas of docs/training.md, one number at a time.

A formula takes either kind of number: `Single` is a float32, whose operations are rounded from fractions and mpmath;
`Estimate` is a float64 with a bound of the error that the same formula may have in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import FP32
from tests.oracles import arithmetic as ao
from tests.oracles import elementary

LANES, CHUNK = 32, 4096
UNIT = 2.0**-24  # the largest relative error of a rounding to float32
TINY = 2.0**-150  # the largest absolute one of a subnormal result


class Single:
    """A float32."""

    __slots__ = ("code",)

    def __init__(self, value: float | np.float32) -> None:
        with np.errstate(all="ignore"):
            self.code = int(np.float32(value).view(np.uint32))

    @classmethod
    def of_code(cls, code: int) -> Single:
        """Return the float32 of a pattern of bits."""
        number = cls.__new__(cls)
        number.code = code
        return number

    def _rounded(self, name: str, *others: Single) -> Single:
        codes = [self.code, *(other.code for other in others)]
        return self.of_code(ao.compute(name, codes, [FP32] * len(codes), FP32, ao.PLAIN)[0])

    def __add__(self, other: Single) -> Single:
        return self._rounded("add", other)

    def __sub__(self, other: Single) -> Single:
        return self._rounded("subtract", other)

    def __mul__(self, other: Single) -> Single:
        return self._rounded("multiply", other)

    def __truediv__(self, other: Single) -> Single:
        return self._rounded("divide", other)

    def __float__(self) -> float:
        return float(np.uint32(self.code).view(np.float32))

    def apply(self, name: str) -> Single:
        """Return a function of this number, correctly rounded."""
        if name == "sqrt":
            return self._rounded("sqrt")
        return self.of_code(ao.deliver(elementary.exact(name, ao.read(FP32, self.code)), FP32, ao.PLAIN)[0])

    @classmethod
    def of_sum(cls, terms: Iterable[tuple[Single, Single]]) -> Single:
        """Return the float64 sum of exact products by lanes, rounded once."""
        return cls(lane_sum([float(x) * float(y) for x, y in terms], 0.0))


class Estimate:
    """A float64 number, and a bound of the absolute error that float32 arithmetic has at its place.

    Each operation adds the errors of its operands, as its derivative carries them on, and half an ulp of its result:
    a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 3.3). Terms of second order and
    float64's own errors are below a thousandth of it.
    """

    __slots__ = ("error", "value")

    def __init__(self, value: float, error: float = 0.0) -> None:
        self.value, self.error = float(value), error

    @classmethod
    def rounded(cls, value: float, error: float = 0.0) -> Estimate:
        """Return a number that is rounded to float32, after an error."""
        return cls(value, error + UNIT * (abs(value) + error) + TINY)

    def __add__(self, other: Estimate) -> Estimate:
        return self.rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Estimate) -> Estimate:
        return self.rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Estimate) -> Estimate:
        error = abs(self.value) * other.error + abs(other.value) * self.error + self.error * other.error
        return self.rounded(self.value * other.value, error)

    def __truediv__(self, other: Estimate) -> Estimate:
        value, rest = self.value / other.value, abs(other.value) - other.error
        return self.rounded(value, (self.error + abs(value) * other.error) / rest)

    def __float__(self) -> float:
        return self.value

    def apply(self, name: str) -> Estimate:
        """Return a function of this number."""
        x, error = self.value, self.error
        if name == "exp":
            return self.rounded(math.exp(x), math.exp(x) * math.expm1(error))
        if name == "log":
            return self.rounded(math.log(x), -math.log1p(-error / x))
        if name == "sqrt":
            return self.rounded(math.sqrt(x), error / math.sqrt(x) if x else math.sqrt(error))
        if name == "rsqrt":
            return self.rounded(x**-0.5, error / 2 * (x - error) ** -1.5)
        share = 1 / (1 + math.exp(-x))
        if name == "sigmoid":  # its slope is at most 1/4, that of silu below 1.1
            return self.rounded(share, error / 4)
        assert name == "silu"
        return self.rounded(x * share, error * 1.1)

    @classmethod
    def of_sum(cls, terms: Iterable[tuple[Estimate, Estimate]]) -> Estimate:
        """Return the sum of exact products, rounded once."""
        pairs = list(terms)
        value = math.fsum(x.value * y.value for x, y in pairs)
        error = sum(abs(x.value) * y.error + abs(y.value) * x.error + x.error * y.error for x, y in pairs)
        return cls.rounded(value, error)


Numbers = Sequence[Any]  # of Single or Estimate


def singles(array: npt.ArrayLike) -> list[Single]:
    """Return the numbers of a float32 array, flattened."""
    return [Single.of_code(code) for code in np.asarray(array, np.float32).reshape(-1).view(np.uint32).tolist()]


def estimates(array: npt.ArrayLike) -> list[Estimate]:
    """Return the numbers of an array, flattened, without errors."""
    return [Estimate(x) for x in np.asarray(array, np.float64).reshape(-1).tolist()]


def array_of(numbers: Iterable[Single]) -> npt.NDArray[np.float32]:
    """Return float32 numbers as an array."""
    return np.array([number.code for number in numbers], np.uint32).view(np.float32)


# ---- sums


def lane_sum(terms: Sequence[Any], zero: Any) -> Any:
    """Return a sum by 32 lanes: lane l takes terms l, l + 32, ... from +0; then halves onto halves."""
    lanes = [zero] * LANES
    for i, term in enumerate(terms):
        lanes[i % LANES] = lanes[i % LANES] + term
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[half + i] for i in range(half)]
    return lanes[0]


def sum_of_squares(xs: Sequence[float]) -> float:
    """Return the float64 sum of squares of a whole tensor: by lanes in chunks of 4,096, and then of the chunks."""
    chunks = [xs[start : start + CHUNK] for start in range(0, len(xs), CHUNK)]
    total: float = lane_sum([lane_sum([x * x for x in chunk], 0.0) for chunk in chunks], 0.0)
    return total


# ---- rows


def softmax(xs: Numbers, factor: Any) -> list[Any]:
    """Return the shares of a row."""
    powers, total, _ = _powers([x * factor for x in xs])
    return [power / total for power in powers]


def softmax_slopes(shares: Numbers, slopes: Numbers, factor: Any) -> list[Any]:
    """Return the gradient of a row x of softmax(x * factor)."""
    total = type(factor).of_sum(zip(shares, slopes, strict=True))
    return [(share * (slope - total)) * factor for share, slope in zip(shares, slopes, strict=True)]


def cross_entropy(xs: Numbers, target: int) -> tuple[list[Any], Any]:
    """Return the shares of a row of logits, and its loss."""
    powers, total, largest = _powers(xs)
    return [power / total for power in powers], total.apply("log") - (xs[target] - largest)


def cross_entropy_slopes(shares: Numbers, target: int, factor: Any) -> list[Any]:
    """Return the gradient of a row of logits, given that of its loss."""
    one = type(factor)(1.0)
    return [(share - one if j == target else share) * factor for j, share in enumerate(shares)]


def _powers(xs: Numbers) -> tuple[list[Any], Any, Any]:
    """Return exp(x - m) of each number, their sum, and m, the largest number that is not NaN."""
    numbers = [x for x in xs if not math.isnan(float(x))]
    largest = max(numbers, key=float) if numbers else type(xs[0])(-math.inf)
    powers = [(x - largest).apply("exp") for x in xs]
    return powers, lane_sum(powers, type(largest)(0.0)), largest


def mean(xs: Numbers) -> Any:
    """Return the mean of a row."""
    kind = type(xs[0])
    return lane_sum(xs, kind(0.0)) / kind(len(xs))


def rms_norm(xs: Numbers, weights: Numbers, eps: Any) -> tuple[Any, list[Any]]:
    """Return 1 / rms(x), and the normalised row times the weights."""
    kind = type(eps)
    inverse = (kind.of_sum(zip(xs, xs, strict=True)) / kind(len(xs)) + eps).apply("rsqrt")
    return inverse, [(x * inverse) * weight for x, weight in zip(xs, weights, strict=True)]


def rms_norm_slopes(slopes: Numbers, xs: Numbers, weights: Numbers, inverse: Any) -> tuple[list[Any], list[Any]]:
    """Return the ratios x / rms(x), and the gradient of x."""
    kind = type(inverse)
    ratios = [x * inverse for x in xs]
    weighted = [slope * weight for slope, weight in zip(slopes, weights, strict=True)]
    average = kind.of_sum(zip(weighted, ratios, strict=True)) / kind(len(xs))
    return ratios, [inverse * (h - n * average) for h, n in zip(weighted, ratios, strict=True)]


def swiglu(gates: Numbers, ups: Numbers) -> list[Any]:
    """Return silu(gate) * up."""
    return [gate.apply("silu") * up for gate, up in zip(gates, ups, strict=True)]


def swiglu_slopes(slopes: Numbers, gates: Numbers, ups: Numbers) -> tuple[list[Any], list[Any]]:
    """Return the gradients of gates and ups."""
    one = type(slopes[0])(1.0)
    of_gates = []
    for slope, gate, up in zip(slopes, gates, ups, strict=True):
        share = gate.apply("sigmoid")
        of_gates.append((slope * up) * (share * (one + gate * (one - share))))
    return of_gates, [slope * gate.apply("silu") for slope, gate in zip(slopes, gates, strict=True)]


# ---- the optimizer


def adamw(gradient: Any, first: Any, second: Any, numbers: Numbers) -> tuple[Any, Any, Any]:
    """Return both moments, and the update before decay; numbers: 1 - b1, b2, 1 - b2, sqrt(1 - b2^n), eps, -size."""
    growth, beta2, weight, root, eps, size = numbers
    if float(growth) < 0.5:
        first = first + (gradient - first) * growth
    else:  # from the nearer end, as torch.lerp
        first = gradient - (gradient - first) * (type(growth)(1.0) - growth)
    second = second * beta2 + (gradient * weight) * gradient
    return first, second, (first * size) / (second.apply("sqrt") / root + eps)
