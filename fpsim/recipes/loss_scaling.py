"""Policies of loss scaling as data, which keep small gradients in a format's range, and known faulty ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fpsim.errors import integer_fields, require_kind, shown, unknown
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.reload import reloadable

LOWEST, HIGHEST = 2.0**-24, 2.0**24  # bounds of policies whose scale would grow or shrink without limit
LARGEST = float(np.finfo(np.float32).max)  # as losses are multiplied in float32


class State(NamedTuple):
    """The state of a loss-scaling policy between two steps.

    Attributes:
      scale: the loss scale of the next step.
      clean: number of steps without an overflow since the last change of the scale.
      average: running average of log2 of the largest unscaled gradient; NaN before the first.
    """

    scale: float  # scale of the next step
    clean: int = 0  # steps without an overflow since the last change
    average: float = math.nan  # average of log2 of the largest gradient


class Seen(NamedTuple):
    """Statistics of a step's scaled gradients, from which a policy computes the next loss scale.

    Attributes:
      overflowed: whether a gradient is Inf or NaN.
      amax: largest magnitude; Inf if a gradient overflowed.
      norm: norm of all gradients, Inf or NaN if one overflowed; NaN if the policy does not use it.
      largest: the largest value of the gradients' format.
    """

    overflowed: bool  # whether a gradient is Inf or NaN
    amax: float  # largest magnitude; NaN without any, Inf where a gradient overflowed
    norm: float  # norm of all gradients, Inf or NaN where one overflowed; NaN where the policy does not follow it
    largest: float  # the largest value of the format


Rule = Callable[["LossScalingPolicy", State, Seen], State]


@reloadable
@dataclass(frozen=True)
class LossScalingPolicy:
    """A rule for how a loss scale changes from step to step, with its parameters.

    Attributes:
      name: name of the policy.
      rule: how the next scale is computed: "fixed", "grow_and_back_off", "average" or "by_norm".
      scale: scale of the first step.
      growth, backoff: factors by which the scale grows and shrinks.
      interval: number of steps without overflow before the scale grows.
      decay: for "average", weight of the old value in the running average; for "by_norm", base of the factor.
      margin: for "average", the powers of two between the average largest gradient and the format's largest value.
      threshold: for "by_norm", the gradient norm at which the scale stays unchanged.
      lowest, highest: bounds of the scale, `scale` included; it never exceeds the largest float32 number.
      skips: whether a step that overflowed is skipped, as it must be.
      clamps: whether gradients are clamped to the format's largest value, in steps that are not skipped.
      unscales: whether gradients are divided by the scale before the update, as they must be.
      faulty: the known faults of the policy; "" if there is none.
      source: the paper or library that the policy comes from.

    Raises:
      TypeError, ValueError: a field has the wrong type or value.

    Example:
      >>> from fpsim.recipes.loss_scaling import loss_scaling_policy
      >>> dynamic = loss_scaling_policy("dynamic")
      >>> dynamic.scale, dynamic.interval, dynamic.faulty
      (65536.0, 2000, '')
    """

    name: str
    rule: str = "fixed"
    scale: float = 1.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    decay: float = 0.98
    margin: int = 4
    threshold: float = 1.0
    lowest: float = 0.0
    highest: float = math.inf
    skips: bool = True
    clamps: bool = False
    unscales: bool = True
    faulty: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for text in ("name", "rule", "faulty", "source"):
            require_kind(text, getattr(self, text), str, "a text")
        for word in ("skips", "clamps", "unscales"):
            require_kind(word, getattr(self, word), bool, "True or False")
        if self.rule not in RULES:
            raise unknown("rule", self.rule, list(RULES))
        for number in ("scale", "growth", "backoff", "threshold"):
            require_number(number, getattr(self, number), positive=True)
        with np.errstate(over="ignore"):
            if not 0 < np.float32(self.scale) < np.inf:
                raise ValueError(f"scale must be positive and finite in float32; got {shown(self.scale)}.")
        require_number("lowest", self.lowest)
        if self.highest != math.inf:
            require_number("highest", self.highest)
        if self.lowest > self.highest:
            raise ValueError(f"lowest must be at most highest; got {self.lowest} and {self.highest}.")
        if not self.lowest <= self.scale <= self.highest:
            raise ValueError(
                f"scale must be in lowest .. highest, which are {self.lowest} and {self.highest}; got {self.scale}."
            )
        if isinstance(self.decay, bool) or not isinstance(self.decay, float) or not 0 < self.decay < 1:
            raise ValueError(f"decay must be a number between 0 and 1; got {shown(self.decay)}.")
        integer_fields(self, "interval", lowest=1)
        integer_fields(self, "margin", lowest=0)

    def replace(self, **fields: object) -> LossScalingPolicy:
        """Return a copy of the policy with other values of some fields.

        Example:
          >>> from fpsim.recipes.loss_scaling import loss_scaling_policy
          >>> loss_scaling_policy("static").replace(scale=128.0).scale
          128.0
        """
        names = [field.name for field in dataclasses.fields(self)]
        wrong = next((name for name in fields if name not in names), None)
        if wrong is not None:
            raise unknown("a field of a policy", wrong, names)
        return dataclasses.replace(self, **fields)  # type: ignore[arg-type]

    def start(self) -> State:
        """Return the state before the first step."""
        return State(float(self.scale))

    def after(self, state: State, seen: Seen) -> State:
        """Return the state after a step; state: before the step; seen: statistics of the step's scaled gradients."""
        state_after = RULES[self.rule](self, state, seen)
        return state_after._replace(scale=min(max(state_after.scale, self.lowest), self.highest, LARGEST))


def _grow_and_back_off(policy: LossScalingPolicy, state: State, seen: Seen) -> State:
    """Return the state after a step, with the rule of torch.amp.GradScaler; scales are float32 numbers.

    After an overflow the scale is multiplied by policy.backoff. After policy.interval steps in a row without overflow
    it is multiplied by policy.growth, unless that gives Inf. state: before the step. seen: statistics of the step's
    gradients.
    """
    if seen.overflowed:
        return state._replace(scale=_times(state.scale, policy.backoff), clean=0)
    clean = state.clean + 1
    if clean < policy.interval:
        return state._replace(clean=clean)
    grown = _times(state.scale, policy.growth)
    return state._replace(scale=grown if math.isfinite(grown) else state.scale, clean=0)


def _times(scale: float, factor: float) -> float:
    """Return a float32 scale times a float64 factor, rounded to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(float(np.float32(scale)) * factor))


def _average(policy: LossScalingPolicy, state: State, seen: Seen) -> State:
    """Return the state after a step, with the largest power of two <= 2**(log2(max) - margin - average) as scale.

    max: seen.largest, the gradient format's largest value. margin: policy.margin. average: the running average of
    log2(amax), amax being the largest magnitude of a step's unscaled gradients; the old average has the weight
    policy.decay. After an overflow the scale is only multiplied by policy.backoff. If all gradients are 0, the state is
    returned unchanged. state: before the step. seen: statistics of the step's gradients.
    """
    if seen.overflowed:  # its magnitude is unknown
        return state._replace(scale=max(state.scale * policy.backoff, 2.0**-149))  # float32's least: not 0
    if not seen.amax > 0:
        return state
    size = math.log2(seen.amax) - math.log2(state.scale)
    average = size if math.isnan(state.average) else policy.decay * state.average + (1 - policy.decay) * size
    return State(2.0 ** math.floor(math.log2(seen.largest) - policy.margin - average), 0, average)


def _by_norm(policy: LossScalingPolicy, state: State, seen: Seen) -> State:
    """Return the state with the scale multiplied by decay ** (1 - norm / threshold), a faulty rule found in articles.

    Its faults: no average is computed, and small gradients shrink the scale. decay, threshold: fields of `policy`.
    norm: seen.norm, the norm of the step's gradients; if it is NaN, the state is returned unchanged. The factor is
    limited to 2**-200 .. 2**200. state: before the step.
    """
    if math.isnan(seen.norm):
        return state
    power = 1 - seen.norm / policy.threshold
    exponent = power * math.log2(policy.decay)
    return state._replace(scale=state.scale * 2.0 ** min(max(exponent, -200.0), 200.0))


RULES: dict[str, Rule] = {
    "fixed": lambda policy, state, seen: state,
    "grow_and_back_off": _grow_and_back_off,
    "average": _average,
    "by_norm": _by_norm,
}

POLICIES: dict[str, LossScalingPolicy] = {
    row.name: row
    for row in (
        LossScalingPolicy("none", source="gradients without a scale"),
        LossScalingPolicy("static", scale=2.0**15, source="Micikevicius et al., arXiv 1710.03740: 8 to 32K"),
        LossScalingPolicy("dynamic", "grow_and_back_off", scale=2.0**16, source="torch.amp.GradScaler, by default"),
        LossScalingPolicy(
            "ema", "average", scale=2.0**16, lowest=2.0**-126, highest=2.0**126,
            source="fpsim: an average of the largest exponents, kept below the format's own",
        ),
        LossScalingPolicy(
            "eager", "grow_and_back_off", scale=2.0**16, interval=1, lowest=1.0, highest=2.0**16, skips=False,
            clamps=True, unscales=False, source="tutorials in circulation",
            faulty="grows after every step, applies the steps that overflowed, clamped to the largest value, and "
            "gradients stay scaled",
        ),
        LossScalingPolicy(
            "inverted", "grow_and_back_off", scale=2.0**16, growth=0.5, backoff=2.0, interval=1, lowest=LOWEST,
            highest=HIGHEST, faulty="grows after an overflow and shrinks while all is well",
            source="articles in circulation",
        ),
        LossScalingPolicy(
            "norm_driven", "by_norm", scale=2.0**15, lowest=LOWEST, highest=HIGHEST, skips=False, unscales=False,
            faulty="is called an EMA and averages nothing; small gradients shrink the scale, and gradients stay scaled",
            source="articles in circulation",
        ),
    )
}  # fmt: skip


def loss_scaling_policy(word: str | LossScalingPolicy) -> LossScalingPolicy:
    """Return the loss-scaling policy of a name, such as "dynamic"; return a policy object unchanged.

    Raises:
      ValueError: no policy has that name; the message lists them and the nearest match.

    Example:
      >>> from fpsim.recipes.loss_scaling import loss_scaling_policy
      >>> loss_scaling_policy("inverted").faulty
      'grows after an overflow and shrinks while all is well'
    """
    if isinstance(word, LossScalingPolicy):
        return word
    if not isinstance(word, str) or word not in POLICIES:
        raise unknown("policies", word, list(POLICIES), others="or a LossScalingPolicy")
    return POLICIES[word]
