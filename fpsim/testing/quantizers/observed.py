"""Faults whose parameter follows from the results: a limit, a factor, a summand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fpsim.testing.quantizers.family import Deviation, deviation
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.rounder import Doubles, SplitInputs, Words, grid_of, magnitudes_of, round_to_codes

SLACK = 2.0**-22  # relative, because a float32 product or sum is rounded
MANY = 8  # number of floats of an interval that are tried
ADDED = tuple(sign * 10.0**power for power in range(-12, -2) for sign in (1, -1))


def observed(model: QuantizerModel, inputs: SplitInputs, got: Words) -> Iterator[Deviation]:
    """Yield the faults that a quantizer's results suggest, such as a limit at its largest result.

    Args:
      model: the model to which a fault is added, usually that of the promised cast.
      inputs: the inputs of the quantizer.
      got: its results, as bit patterns of float64.
    """
    values = got.view(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return
    largest = float(np.abs(values[finite]).max())
    if 0 < largest < model.fmt.max:
        if not np.isinf(values).any():
            yield deviation(f"limits results to +-{largest:g}", limit=largest)
        code = int(round_to_codes(np.array([largest]), np.array([False]), grid_of(model.fmt), "toward_zero")[0])
        yield deviation(
            f"takes {largest:g} for the largest value, not {model.fmt.max:g}", top=code - model.fmt.max_code
        )
    kept = finite & inputs.finite & (np.abs(values) < largest)
    x = np.where(inputs.negative, -inputs.magnitude, inputs.magnitude)[kept]
    low, high = _between(values[kept], model)
    for factor in _factors(x, low, high):
        yield deviation(f"multiplies the input by {factor!r} first", factor=factor)
    error = 2.0**-23 * np.abs(x)  # of a float32 sum
    start = float((low - x - error).max(initial=-np.inf))
    stop = float((high - x + error).min(initial=np.inf)) if x.size else -np.inf  # no result shows a summand
    for summand in (added for added in ADDED if start <= added <= stop):
        yield deviation(f"adds {summand!r} to the input first", added=summand)
    yield from (deviation(words, input_ulps=count) for count, words in _ULPS.items())
    yield deviation("gives zeros", only="zero")
    yield deviation("gives +0", only="positive_zero")


_ULPS = {
    1: "takes the next larger float for the input",
    -1: "takes the next smaller float for the input",
    2: "takes a float two larger for the input",
    -2: "takes a float two smaller for the input",
}


def _between(values: Doubles, model: QuantizerModel) -> tuple[Doubles, Doubles]:
    """Return (lower ends, upper ends) of the intervals of numbers that rounding to nearest takes to each of `values`.

    values: float64 values of the format of `model`.
    """
    grid = grid_of(model.fmt)
    magnitude = np.abs(values)
    codes = round_to_codes(magnitude, np.signbit(values), grid, "toward_zero")
    below = np.where(codes > 0, (magnitudes_of(np.maximum(codes - 1, 0), grid) + magnitude) / 2, 0.0)
    above = (magnitudes_of(codes + 1, grid) + magnitude) / 2
    below = np.where((codes == 0) & model.fmt.has_zero, -above, below)
    negative = np.signbit(values)
    return np.where(negative, -above, below), np.where(negative, -below, above)


def _factors(x: Doubles, low: Doubles, high: Doubles) -> Iterator[float]:
    """Yield factors by which a quantizer may multiply its inputs before it rounds them, as its results suggest.

    The first ten are 1 plus or minus a small number. Then come up to MANY float32 numbers f with low[i] <= x[i] * f <=
    high[i] for all i with x[i] != 0, up to a relative SLACK. They are spread evenly over the range of such factors, and
    those near its middle come first. None follow if that range is empty, reaches 0 or Inf, or includes 1.

    x: the inputs. low, high: the ends of the interval of numbers that round to each result.
    """
    yield from (1 + sign * step for step in (2.0**-23, 2.0**-22, 1e-7, 2e-7, 1e-6) for sign in (1, -1))
    some = x != 0
    with np.errstate(all="ignore"):
        ends = np.sort(np.stack([low[some] / x[some], high[some] / x[some]]), 0)
    start, stop = float(ends[0].max(initial=-np.inf)), float(ends[1].min(initial=np.inf))
    if 0 < start <= stop * (1 + SLACK) and stop < np.inf and not start * (1 - SLACK) <= 1 <= stop * (1 + SLACK):
        factors = np.unique(np.linspace(start * (1 - SLACK), stop * (1 + SLACK), MANY).astype(np.float32))
        yield from sorted(map(float, factors), key=lambda factor: abs(factor - (start + stop) / 2))
