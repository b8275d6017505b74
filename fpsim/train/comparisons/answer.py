"""Sentences that sum up a comparison of recipes, and the means with 95 % intervals from which they follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fpsim.arrays import Array
from fpsim.display.wording import listed, plural

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and half the width of its 95 % confidence interval; `half` is NaN for fewer than two values."""

    mean: float
    half: float

    @property
    def low(self) -> float:
        """Lower end of the confidence interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the confidence interval."""
        return self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values and its 95 % confidence interval by Student's t; NaN for no values.

    Example:
      >>> from fpsim.train.comparisons.answer import interval
      >>> loss = interval([2.0, 2.1, 2.3])
      >>> round(loss.mean, 3), round(loss.half, 3)
      (2.133, 0.379)
    """
    mean, half = intervals(np.array(values, np.float64)[:, None])
    return Interval(float(mean[0]), float(half[0]))


def intervals(values: Array) -> tuple[Array, Array]:
    """Return two arrays (n,) for values (seeds, n): each column's mean, and half the width of its 95 % interval.

    Means are NaN for no seeds, and widths for fewer than two.
    """
    count = len(values)
    if not count:
        return np.full(values.shape[1:], math.nan), np.full(values.shape[1:], math.nan)
    mean = values.mean(0)
    if count < 2:
        return mean, np.full_like(mean, math.nan)
    quantile = float(special.stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return mean, quantile * values.std(0, ddof=1) / math.sqrt(count)


def answer(comparison: Any) -> str:
    """Return a text that names the recipes whose loss equals the baseline's within noise, exceeds it or is below it.

    comparison: a `Comparison` of training runs. The text also names runs that failed. With fewer than 3 seeds it says
    only that more are needed, and names failed runs. For a single recipe it states the final loss.
    """
    others = [name for name in comparison.recipes if name != comparison.baseline]
    seeds = plural(comparison.seeds, "seed")
    if not others:
        loss = comparison.final_loss(comparison.baseline)
        if math.isnan(loss.mean):
            return _stopped(comparison)
        return f"{comparison.baseline} ends at {nats(loss)} nats, mean of {seeds}. {_stopped(comparison)}".strip()
    stopped = _stopped(comparison)
    if comparison.seeds < 3:
        few = f"{seeds} cannot tell recipes apart, because runs of one recipe differ too: take 3 or more."
        return f"{few} {stopped}".strip()
    groups: dict[str, list[str]] = {}
    for name in others:
        groups.setdefault(comparison.verdict(name), []).append(name)
    parts = []
    for verdict in ("higher", "lower"):
        ends = sorted(groups.get(verdict, []), key=lambda name: -abs(comparison.difference(name).mean))
        if ends:
            parts.append(f"{listed([_by(comparison.difference(name), name) for name in ends])} {verdict}")
    undecided = [_open(comparison.difference(name), name) for name in groups.get("open", [])]
    rest = " ".join(part for part in (*undecided, stopped) if part)
    same = groups.get("same", [])
    told = ""
    if same:
        widest = max(max(abs(run.low), abs(run.high)) for run in map(comparison.difference, same))
        steps = plural(max(len(run.losses) for run in comparison.runs), "step")
        told = f"After {steps} and {seeds}, {listed(same)} cannot be told from {comparison.baseline}"
        digit = 10.0 ** (math.floor(math.log10(widest)) - 1) if widest else 1.0  # the bound is rounded up to two digits
        bound = f"differ by less than {math.ceil(widest / digit) * digit:.2g} nats with 95 % confidence"
        told += f": the final losses {bound if widest else 'are equal'}"
    if not parts:
        return f"{told}. {rest}".strip() if told else rest or f"No recipe can be compared with {comparison.baseline}."
    elsewhere = listed(parts)
    text = f"{told}; {elsewhere}" if told else f"After {seeds}, {elsewhere} than {comparison.baseline}"
    return f"{text}. {rest}".strip()


def _by(difference: Interval, name: str) -> str:
    """Return "NAME ends X nats (LOW to HIGH)": how far a recipe's loss is from the baseline's, without a sign.

    difference: X, the mean difference, with its 95 % interval from LOW to HIGH. name: the recipe's name.
    """
    size, low, high = abs(difference.mean), *sorted((abs(difference.low), abs(difference.high)))
    return f"{name} ends {size:#.2g} nats ({low:#.2g} to {high:#.2g})"


def _open(difference: Interval, name: str) -> str:
    """Return a sentence saying that a recipe's losses vary too much between seeds to tell it from the baseline.

    difference: its mean difference from the baseline's loss, with its 95 % interval. name: the recipe's name.
    """
    mean, side = abs(difference.mean), "above" if difference.mean > 0 else "below"
    between = f"{difference.low:#.2g} to {difference.high:#.2g}".replace("-", "−")
    return f"{name} ends {mean:#.2g} nats {side}, but its seeds differ too much to rule out chance ({between})."


def _stopped(comparison: Any) -> str:
    """Return sentences that say how many runs of which recipes ended early or diverged; "" if none did.

    comparison: a `Comparison`, which holds the runs. For diverged runs, the sentences also state the highest finite
    loss in nats.
    """
    ended, diverged = [], []
    for name, runs in comparison.by_recipe.items():
        count = sum(bool(run.stopped) for run in runs)
        if count:
            ended.append(f"{name} in {count} of {comparison.seeds}")
        highest = [run.highest_loss for run in runs if run.diverged]
        if highest:
            diverged.append(f"{name} in {len(highest)} of {comparison.seeds} (up to {max(highest):.2g} nats)")
    sentences = [f"Ended early by Inf or NaN in the loss or in gradients: {listed(ended)}."] if ended else []
    return " ".join([*sentences, *([f"Diverged: {listed(diverged)}."] if diverged else [])])


def nats(loss: Interval) -> str:
    """Return a mean loss as text, followed by half the width of its interval if there is one; "–" for NaN.

    Example:
      >>> from fpsim.train.comparisons.answer import Interval, nats
      >>> nats(Interval(2.5214, 0.0123)), nats(Interval(2.5, float("nan")))
      ('2.521 ± 0.012', '2.500')
    """
    if math.isnan(loss.mean):
        return "–"
    digits = 4 if loss.half < 0.01 else 3
    return f"{loss.mean:.{digits}f}" + ("" if math.isnan(loss.half) else f" ± {loss.half:.{digits}f}")


def signed(difference: Interval) -> str:
    """Return a difference of losses as text with its sign and, if there is an interval, half its width."""
    return (
        nats(difference)
        if math.isnan(difference.mean)
        else f"{'+' if difference.mean >= 0 else '−'}{nats(Interval(abs(difference.mean), difference.half))}"
    )
