"""`fp.analysis.attention_underflow`: the share of attention weights that a format rounds to 0, and a formula for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from statistics import NormalDist

import numpy as np

from fpsim.analysis.systems.attention.heads import checked_scale
from fpsim.analysis.systems.attention.results import WeightUnderflow, WeightUnderflowRow
from fpsim.casts.cast import quantize
from fpsim.errors import require_integer, require_kind, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import format as find_format


@np.errstate(all="ignore")  # weights that underflow are what is measured
def attention_underflow(
    fmt: FormatLike = "e4m3", *, spreads: Sequence[float] = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0), keys: int = 1024,
    scale: float = 1.0, sink: float | None = None, normalised: bool = False, trials: int = 256, seed: int = 0,
) -> WeightUnderflow:  # fmt: skip
    """Measure the share of attention weights that a format rounds to 0, for several standard deviations of the scores.

    Scores are drawn from N(0, spread**2). Weights are `scale` times exp(score - maximum), as in flash attention, or
    `scale` times probabilities if `normalised`.

    Let t be half the format's smallest positive value, and Phi the standard normal distribution function. A formula
    predicts the share of weights below t: Phi(m - ln(scale / t) / spread). Here m = Phi^-1((keys - 3/8) / (keys + 1/4))
    is about the largest of `keys` standard normal numbers; if sink / spread is larger, m is that. For probabilities the
    formula is Phi((L - ln(scale / t)) / spread), where L = ln(keys exp(spread**2 / 2) + exp(sink)) is about the
    logarithm of the sum of exp(score). In E4M3 t is 2**-10 and ln t = -6.93 nats: with spread 1, a sink D and a scale S
    the formula is Phi(D - 6.93 - ln(S)).

    Args:
      fmt: the format of the weights.
      spreads: standard deviations of the scores, in nats.
      keys: number of scores of a row.
      scale: factor by which weights are multiplied before they are rounded, such as 256.
      sink: the score of one more key, in nats above the mean of the others; None for no such key.
      normalised: whether weights are divided by their sum before they are multiplied by `scale` and rounded.
      trials: number of rows of scores that are drawn.
      seed: seed of the random scores.

    Returns:
      A WeightUnderflow, one row for each of `spreads`.

    Raises:
      ValueError: a number is out of range, or the format is unknown.

    Source: docs/attention.md; the threshold of 6.93 nats is from arXiv 2606.06521.

    Example:
      >>> import fpsim as fp
      >>> for row in fp.analysis.attention_underflow("e4m3", spreads=(1, 2, 4)).rows:
      ...     print(row.spread, f"{row.below:.3f} {row.law:.3f} {row.lost_mass:.4f}")
      1.0 0.000 0.000 0.0000
      2.0 0.421 0.408 0.0172
      4.0 0.926 0.933 0.0166
    """
    element = find_format(fmt)
    for name, value, lowest in (("keys", keys, 1), ("trials", trials, 1), ("seed", seed, 0)):
        require_integer(name, value, lowest)
    factor = checked_scale(scale)
    if not element.has_zero:
        raise ValueError(f"fmt must be a format with a zero; got {element}. Take E4M3, for example.")
    require_kind("normalised", normalised, bool, "True or False")
    try:
        widths = [float(spread) for spread in spreads]
    except (TypeError, ValueError):
        widths = []
    if not widths or not all(0 < width < math.inf for width in widths):
        raise ValueError(f"spreads must be positive numbers of nats; got {shown(spreads)}.")
    smallest = element.smallest_subnormal if element.subnormals else element.smallest_normal
    threshold, nats = smallest / 2 / factor, math.log(2) + math.log(factor) - math.log(smallest)
    normal = NormalDist()
    top = normal.inv_cdf((keys - 0.375) / (keys + 0.25)) if keys > 1 else 0.0
    if sink is not None and (isinstance(sink, bool) or not isinstance(sink, Real) or not math.isfinite(sink)):
        raise ValueError(f"sink must be a number of nats, or None; got {shown(sink)}.")
    sink = None if sink is None else float(sink)
    draws = np.random.default_rng(seed).standard_normal((trials, keys))
    rows = []
    for width in widths:
        scores = width * draws
        if sink is not None:
            scores = np.concatenate([scores, np.full((trials, 1), sink)], axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        sums = weights.sum(axis=1, keepdims=True)
        weights = weights / sums if normalised else weights
        kept = np.asarray(quantize(weights * factor, element, overflow="saturate"))
        zeroed = (kept == 0) & (weights > 0)
        mass = np.where(zeroed, weights, 0.0).sum(axis=1) / (1.0 if normalised else sums[:, 0])
        highest = top if sink is None else max(top, sink / width)
        total = np.logaddexp(math.log(keys) + width * width / 2, -math.inf if sink is None else sink)
        at = float(total - nats) / width if normalised else highest - nats / width
        below = float((weights < threshold).mean())
        rows.append(WeightUnderflowRow(width, below, normal.cdf(at), float(zeroed.mean()), float(mass.mean())))
    return WeightUnderflow(
        tuple(rows), element.name, factor, int(keys), int(trials), bool(normalised), int(seed), threshold, sink,
    )  # fmt: skip
