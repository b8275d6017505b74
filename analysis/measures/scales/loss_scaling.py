"""`fp.analysis.loss_scaling`: replays recorded gradients under policies of loss scaling."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.iterables import as_list
from fpsim.analysis.tensors.chunks import flat_chunks
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.cast import quantize
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.recipes.loss_scaling import LossScalingPolicy, Seen, loss_scaling_policy

COLUMNS = ("policy", "step", "scale", "skipped", "overflow", "underflow")
TOTALS = (
    "policy", "steps", "skipped", "overflowed", "applied_overflows", "overflow", "underflow", "last_scale", "faulty",
)  # fmt: skip
LARGE = 1 << 20  # elements that are scaled and rounded at a time


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One training step replayed under one loss-scaling policy.

    Attributes:
      policy: name of the policy.
      step: number of the training step, from 0.
      scale: loss scale in this step.
      overflowed: whether a gradient was Inf or NaN before or after scaling.
      skipped: whether the policy skipped the step.
      count: number of gradients (elements).
      overflows: number of finite gradients that became Inf or NaN.
      underflows: number of nonzero gradients that became 0.
      nonfinite: number of gradients that were Inf or NaN before scaling.
    """

    policy: str
    step: int
    scale: float
    overflowed: bool
    skipped: bool
    count: int
    overflows: int
    underflows: int
    nonfinite: int = 0

    @property
    def overflow(self) -> float:
        """Share of the step's gradients that were finite and became Inf or NaN; NaN without gradients."""
        return self.overflows / self.count if self.count else math.nan

    @property
    def underflow(self) -> float:
        """Share of the step's gradients that were not 0 and became 0; NaN without gradients."""
        return self.underflows / self.count if self.count else math.nan


@dataclass(frozen=True)
class LossScalingReport:
    """A replay of training steps under several policies of loss scaling.

    Attributes:
      fmt: the format of the scaled gradients.
      policies: the policies in the requested order.
      steps: a ScalingStep for each policy and training step, policy by policy.
    """

    fmt: Format
    policies: tuple[LossScalingPolicy, ...]
    steps: tuple[ScalingStep, ...]

    @property
    def format(self) -> str:
        """Name of the format of the scaled gradients."""
        return self.fmt.name

    def of(self, name: str | LossScalingPolicy) -> tuple[ScalingStep, ...]:
        """Return the steps replayed under one policy, given by name or as an object.

        Raises:
          ValueError: the report has no such policy.
        """
        word = name.name if isinstance(name, LossScalingPolicy) else name
        steps = tuple(step for step in self.steps if step.policy == word)
        if not steps:
            names = ", ".join(policy.name for policy in self.policies)
            raise ValueError(f"the report has the policies {names}; got {shown(name)}. Take one of these.")
        return steps

    def scales(self, name: str | LossScalingPolicy) -> tuple[float, ...]:
        """Return the loss scale of every training step under a policy, given by name or as an object."""
        return tuple(step.scale for step in self.of(name))

    @property
    def totals(self) -> tuple[dict[str, Any], ...]:
        """Totals over all training steps, a dict for each policy.

        policy: its name. steps: number of steps. skipped, overflowed, applied_overflows: shares of steps that were
        skipped, that had an Inf or NaN, and that had one and were not skipped. overflow, underflow: shares of all
        gradients, as in ScalingStep. last_scale: the scale of the last step. faulty: the policy's known faults, "" for
        none.
        """
        totals = []
        for policy in self.policies:
            steps = self.of(policy)
            count, number = sum(step.count for step in steps), len(steps)
            row = (
                policy.name, number,
                sum(step.skipped for step in steps) / number, sum(step.overflowed for step in steps) / number,
                sum(step.overflowed and not step.skipped for step in steps) / number,
                sum(step.overflows for step in steps) / count, sum(step.underflows for step in steps) / count,
                steps[-1].scale, policy.faulty,
            )  # fmt: skip
            totals.append(dict(zip(TOTALS, row, strict=True)))
        return tuple(totals)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each policy and training step.

        Columns: policy, step, scale, skipped, overflow, underflow.
        """
        return frame([{name: getattr(step, name) for name in COLUMNS} for step in self.steps])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each policy's scale against the step, with marks for overflows; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.measures.scales.figures import loss_scaling_axes

        return loss_scaling_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence: for each policy the shares of lost gradients, skipped steps and applied overflows.

        A further sentence counts the steps in which gradients were Inf or NaN before scaling.

        Example:
          >>> import fpsim as fp
          >>> stream = [np.float32([1e-6, 2e-8, 1e-9])] * 3
          >>> print(fp.analysis.loss_scaling(stream, policies=["none", "static"]))
          in FP16 over 3 steps: none loses 66.7 % of the gradients and skips 0 % of the steps; static loses 0 % of the
          gradients and skips 0 % of the steps
        """
        rows = self.totals
        words = []
        for row in rows:
            lost, skipped = percent(row["underflow"]), percent(row["skipped"])
            applied = row["applied_overflows"]
            bad = f", and applies overflows in {percent(applied)} of them" if applied else ""
            words.append(f"{row['policy']} loses {lost} of the gradients and skips {skipped} of the steps{bad}")
        text = f"in {self.format} over {plural(rows[0]['steps'], 'step')}: {'; '.join(words)}"
        stuck = sum(step.nonfinite > 0 for step in self.of(self.policies[0]))
        return f"{text}. In {plural(stuck, 'step')} gradients are Inf or NaN with any scale" if stuck else text

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of the totals."""
        rows = ([row[name] for name in TOTALS] for row in self.totals)
        return f"<p>{html.escape(str(self))}</p>{html_table(TOTALS, rows)}"


def loss_scaling(
    stream: Iterable[Any],
    policies: Iterable[str | LossScalingPolicy] | str | LossScalingPolicy = ("none", "static", "dynamic", "ema"),
    *,
    fmt: FormatLike = "fp16",
) -> LossScalingReport:
    """Replay a stream of gradients under policies of loss scaling: scales, skipped steps, overflow and underflow.

    In each training step the gradients are multiplied by the policy's scale in float32 and rounded to the format, to
    nearest even. The policy chooses the next scale from these results. Effects of the scale inside the backward pass,
    on tensors other than these gradients, are not simulated.

    Args:
      stream: an iterable, which may be a generator, over training steps: each the unscaled gradients as an array of
        floats, or as a dict, list or tuple of arrays.
      policies: names or LossScalingPolicy objects: "none", "static" (2**15), "dynamic" (torch.amp.GradScaler), "ema",
        and the faulty "eager", "inverted" and "norm_driven". Make other policies as in
        `fp.analysis.loss_scaling_policy("static").replace(name="2**7", scale=2.0**7)`.
      fmt: the format of the scaled gradients. Float32 must hold its values, and it must have an Inf or NaN, by which
        policies recognise overflows.

    Returns:
      A LossScalingReport, with a ScalingStep for each policy and step.

    Raises:
      ValueError: an unknown policy, two policies with one name, a stream without steps, a step without gradients, or a
        format with neither Inf nor NaN, or with values that float32 cannot hold.
      TypeError: a stream that is not iterable, or steps that are not arrays of floats.

    Source: docs/loss-scaling.md.

    Example:
      >>> import fpsim as fp
      >>> stream = [np.float32([2.0**-26, 1.0, x]) for x in (1.0, 8.0, 1.0)]
      >>> report = fp.analysis.loss_scaling(stream, policies=["none", "dynamic"])
      >>> report.scales("dynamic"), [step.skipped for step in report.of("dynamic")]
      ((65536.0, 32768.0, 16384.0), [True, True, False])
      >>> report.of("none")[0].underflow
      0.3333333333333333
    """
    chosen = _checked_policies(policies)
    target = find_format(fmt)
    if not target.has_infinity and not target.has_nan:
        raise ValueError(f"fmt must have an Inf or NaN, which shows overflows to policies; got {target}. Take FP16.")
    if not FP32.holds(target):
        raise ValueError(f"fmt must be a format whose values float32 holds; got {target}. Take FP16.")
    alone = isinstance(stream, (str, bytes, Mapping)) or getattr(stream, "ndim", 2) < 2  # one step, not several
    if alone or not isinstance(stream, Iterable):
        raise TypeError(f"stream must yield the gradients of each step, such as a list of arrays; got {shown(stream)}.")
    states = [policy.start() for policy in chosen]
    steps: list[list[ScalingStep]] = [[] for _ in chosen]
    for number, element in enumerate(stream):
        gradients = _gradients(element, number)
        seen: dict[float, _ScaledGradients] = {}
        for i, policy in enumerate(chosen):
            scale = states[i].scale
            if scale not in seen:
                seen[scale] = _cast(gradients, scale, target)
            cast = seen[scale]
            skipped = cast.seen.overflowed and policy.skips
            counts = cast.size, cast.overflows, cast.underflows, cast.nonfinite
            steps[i].append(ScalingStep(policy.name, number, scale, cast.seen.overflowed, skipped, *counts))
            states[i] = policy.after(states[i], cast.seen)
    if not steps[0]:
        raise ValueError("stream must yield the gradients of at least one step; got none.")
    return LossScalingReport(target, tuple(chosen), tuple(step for of_policy in steps for step in of_policy))


class _ScaledGradients(NamedTuple):
    """Counts and norms of the gradients of a training step after scaling and rounding.

    Attributes:
      seen: a `Seen` of fpsim/recipes/loss_scaling.py, from which a policy chooses the next scale: whether a gradient
        overflowed, the largest magnitude, the norm, and the format's largest value.
      size: number of gradients (elements).
      overflows: number of finite gradients that became Inf or NaN.
      underflows: number of nonzero gradients that became 0.
      nonfinite: number of gradients that were Inf or NaN before.
    """

    seen: Seen
    size: int
    overflows: int
    underflows: int
    nonfinite: int


def _cast(gradients: Sequence[Array], scale: float, fmt: Format) -> _ScaledGradients:
    """Multiply the gradients of one training step by a scale, round them to a format, and count what they lose.

    gradients: float arrays. The result also has what a policy needs to choose the next scale.
    """
    count = overflows = underflows = nonfinite = 0
    amax, squares = 0.0, 0.0
    for part in gradients:
        for x in flat_chunks(part, LARGE):
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                rounded = np.asarray(quantize(x.astype(np.float32) * np.float32(scale), fmt), np.float64)
                finite = np.isfinite(rounded)
                squares += float(np.sum(rounded * rounded))
                before = int(np.count_nonzero(~np.isfinite(x)))
            lost = int(np.count_nonzero(~finite))
            count += x.size
            nonfinite += before
            overflows += lost - before
            underflows += int(np.count_nonzero((rounded == 0) & (x != 0)))
            amax = max(amax, float(np.max(np.abs(rounded), initial=0.0, where=finite)))
    overflowed = overflows + nonfinite > 0
    seen = Seen(overflowed, math.inf if overflowed else amax, math.sqrt(squares) if squares >= 0 else math.nan, fmt.max)
    return _ScaledGradients(seen, count, overflows, underflows, nonfinite)


def _gradients(element: Any, number: int) -> list[Array]:
    """Return the gradients of one training step of a stream as a list of arrays of floats.

    element: the item of the stream. number: its index, for error messages.

    Raises:
      TypeError: the element is not an array of floats, or a dict, list or tuple of them.
      ValueError: the step has no gradients.
    """
    parts: Iterator[tuple[str, Any]]
    if isinstance(element, Mapping):
        parts = ((f"stream[{number}][{key!r}]", x) for key, x in element.items())
    elif isinstance(element, (list, tuple)) and any(hasattr(x, "dtype") for x in element):
        parts = ((f"stream[{number}][{i}]", x) for i, x in enumerate(element))
    else:
        parts = iter([(f"stream[{number}]", element)])
    arrays = [float_array(without_gradient(x), name)[0] for name, x in parts]
    if not sum(array.size for array in arrays):
        raise ValueError(f"each step of stream must have gradients; step {number} has none.")
    return arrays


def _checked_policies(policies: Any) -> list[LossScalingPolicy]:
    """Return loss-scaling policies, given as one name or object or an iterable of them, as a list of policy objects.

    Raises:
      TypeError, ValueError: an unknown policy, no policy, or two with one name.
    """
    if isinstance(policies, (str, LossScalingPolicy)):
        policies = [policies]
    words = as_list(policies)
    if words is None:
        raise TypeError(f"policies must be names or LossScalingPolicy objects; got {shown(policies)}.")
    chosen = [loss_scaling_policy(word) for word in words]
    if not chosen:
        raise ValueError("policies must name at least one, such as 'dynamic'; got none.")
    names = [policy.name for policy in chosen]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"policies must have different names; got {twice!r} twice. Use .replace(name=...).")
    return chosen
