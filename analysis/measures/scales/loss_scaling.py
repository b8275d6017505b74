"""What policies of loss scaling would have done to a recorded stream of gradients."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.measures.scales.policies import LossScalingPolicy, Seen, loss_scaling_policy
from fpsim.analysis.measures.several import listed
from fpsim.analysis.tensors.chunks import flat_chunks
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.cast import quantize
from fpsim.display.optional import frame
from fpsim.display.wording import percent, plural
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format

COLUMNS = ("policy", "step", "scale", "skipped", "overflow", "underflow")
TOTALS = (
    "policy",
    "steps",
    "skipped",
    "overflowed",
    "applied_overflows",
    "overflow",
    "underflow",
    "last_scale",
    "faulty",
)
LARGE = 1 << 20  # elements whose norm is added at a time


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One step under one policy.

    Attributes:
      policy, step: which; steps count from 0.
      scale: of the loss in this step.
      overflowed: whether a gradient became Inf or NaN, or was.
      skipped: whether the policy left the step out.
      count: gradients.
      overflows, underflows: finite gradients that became Inf or NaN; gradients other than 0 that became 0.
    """

    policy: str
    step: int
    scale: float
    overflowed: bool
    skipped: bool
    count: int
    overflows: int
    underflows: int

    @property
    def overflow(self) -> float:
        """Share of gradients that became Inf or NaN."""
        return self.overflows / self.count if self.count else math.nan

    @property
    def underflow(self) -> float:
        """Share of gradients that became 0."""
        return self.underflows / self.count if self.count else math.nan


@dataclass(frozen=True)
class LossScalingReport:
    """What each policy would have done, step by step.

    Attributes:
      fmt: the format of the scaled gradients.
      policies: in the order that was asked for.
      steps: a ScalingStep for each policy and step.
    """

    fmt: Format
    policies: tuple[LossScalingPolicy, ...]
    steps: tuple[ScalingStep, ...]

    @property
    def format(self) -> str:
        """The name of the format."""
        return self.fmt.name

    def of(self, name: str | LossScalingPolicy) -> tuple[ScalingStep, ...]:
        """The steps of one policy.

        Raises:
          ValueError: the report has none of it.
        """
        word = name.name if isinstance(name, LossScalingPolicy) else name
        found = tuple(step for step in self.steps if step.policy == word)
        if not found:
            names = ", ".join(each.name for each in self.policies)
            raise ValueError(f"the report has the policies {names}; got {shown(name)}. Take one of these.")
        return found

    def scales(self, name: str | LossScalingPolicy) -> tuple[float, ...]:
        """The scale of every step of a policy."""
        return tuple(step.scale for step in self.of(name))

    @property
    def totals(self) -> tuple[dict[str, Any], ...]:
        """A row for each policy.

        skipped, overflowed, applied_overflows: shares of steps that were left out, that had an Inf or NaN, that had one
        and were applied. overflow, underflow: shares of all gradients. last_scale: of the last step.
        """
        return tuple(_total(each, self.of(each)) for each in self.policies)

    def to_frame(self) -> Any:
        """A pandas DataFrame of a row for each policy and step."""
        return frame([{name: getattr(step, name) for name in COLUMNS} for step in self.steps])

    def plot(self, ax: Any = None) -> Any:
        """Draw the scales over the steps, with the steps that overflowed; returns the matplotlib axes."""
        from fpsim.analysis.measures.scales.figures import loss_scaling_axes

        return loss_scaling_axes(self, ax)

    def __str__(self) -> str:
        """A verdict on each policy.

        Example:
          >>> import fpsim as fp
          >>> stream = [np.float32([1e-6, 2e-8, 1e-9])] * 3
          >>> print(fp.analysis.loss_scaling(stream, policies=["none", "static"]))
          in FP16 over 3 steps: none loses 66.7 % of the gradients and skips 0 % of the steps; static loses 0 % and 0 %
        """
        rows = self.totals
        words = []
        for i, row in enumerate(rows):
            lost, skipped = percent(row["underflow"]), percent(row["skipped"])
            first = f"loses {lost} of the gradients and skips {skipped} of the steps"
            applied = row["applied_overflows"]
            bad = f", and applies overflows in {percent(applied)} of them" if applied else ""
            words.append(f"{row['policy']} {first if i == 0 else f'loses {lost} and {skipped}'}{bad}")
        return f"in {self.format} over {plural(rows[0]['steps'], 'step')}: {'; '.join(words)}"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in TOTALS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(row[name]))}</td>" for name in TOTALS) + "</tr>"
            for row in self.totals
        )
        return f"<p>{html.escape(str(self))}</p><table><tr>{head}</tr>{body}</table>"


def loss_scaling(
    stream: Iterable[Any],
    policies: Iterable[str | LossScalingPolicy] | str | LossScalingPolicy = ("none", "static", "dynamic", "ema"),
    *,
    fmt: FormatLike = "fp16",
) -> LossScalingReport:
    """Replay a stream of gradients under policies of loss scaling: their scales, skipped steps, over- and underflow.

    In each step the gradients are multiplied by the policy's scale in float32 and rounded to the format, to nearest
    even; a policy sees the results. What a scale does inside the backward pass, before the last gradients, is not part
    of it.

    Args:
      stream: yields the gradients of a step, as they are without a scale: an array of floats, or a dict, list or tuple
        of arrays. It is read once, so a generator will do.
      policies: names or LossScalingPolicy objects: "none", "static" (2**15), "dynamic" (torch.amp.GradScaler), "ema",
        and the faulty "eager", "inverted" and "norm_driven"; others are made by
        `fp.analysis.loss_scaling_policy("static").replace(name="2**7", scale=2.0**7)`.
      fmt: the format of the scaled gradients, one with an Inf or NaN, by which overflows are seen.

    Returns:
      A LossScalingReport.

    Raises:
      ValueError: an unknown policy, two of one name, a stream without steps or a step without gradients, or a format
        that has neither Inf nor NaN.
      TypeError: steps that are not arrays of floats.

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
    found = find_format(fmt)
    if not found.has_infinity and not found.has_nan:
        raise ValueError(f"fmt must have an Inf or NaN, by which a policy sees overflows; got {found}. Take FP16.")
    alone = isinstance(stream, (str, bytes, Mapping)) or getattr(stream, "ndim", 2) < 2  # one step, not several
    if alone or not isinstance(stream, Iterable):
        raise TypeError(f"stream must yield the gradients of each step, such as a list of arrays; got {shown(stream)}.")
    states = [each.start() for each in chosen]
    steps: list[list[ScalingStep]] = [[] for _ in chosen]
    for number, element in enumerate(stream):
        gradients = _gradients(element, number)
        seen: dict[float, _ScaledGradients] = {}
        for i, each in enumerate(chosen):
            scale = states[i].scale
            if scale not in seen:
                seen[scale] = _cast(gradients, scale, found)
            cast = seen[scale]
            skipped = cast.seen.overflowed and each.skips
            steps[i].append(
                ScalingStep(
                    each.name, number, scale, cast.seen.overflowed, skipped, cast.size, cast.overflows, cast.underflows
                )
            )
            states[i] = each.after(states[i], cast.seen)
    if not steps[0]:
        raise ValueError("stream must yield the gradients of at least one step; got none.")
    return LossScalingReport(found, tuple(chosen), tuple(step for each in steps for step in each))


class _ScaledGradients(NamedTuple):
    """The gradients of a step under one scale."""

    seen: Seen
    size: int
    overflows: int
    underflows: int


def _cast(gradients: Sequence[Array], scale: float, fmt: Format) -> _ScaledGradients:
    """Scale and round all gradients of a step, and count."""
    count = overflows = underflows = strange = 0
    amax, squares = 0.0, 0.0
    for part in gradients:
        for x in flat_chunks(part, LARGE):
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                values = x.astype(np.float32)
                rounded = np.asarray(quantize(values * np.float32(scale), fmt), np.float64)
                finite = np.isfinite(rounded)
                squares += float(np.sum(rounded * rounded))
            lost = int(np.count_nonzero(~finite))
            were = int(np.count_nonzero(~np.isfinite(values)))
            count += x.size
            strange += were
            overflows += lost - were
            underflows += int(np.count_nonzero((rounded == 0) & (x != 0)))
            amax = max(amax, float(np.max(np.abs(rounded), initial=0.0, where=finite)))
    overflowed = overflows + strange > 0
    seen = Seen(overflowed, math.inf if overflowed else amax, math.sqrt(squares) if squares >= 0 else math.nan, fmt.max)
    return _ScaledGradients(seen, count, overflows, underflows)


def _gradients(element: Any, number: int) -> list[Array]:
    """The arrays of one step.

    Raises:
      TypeError, ValueError: something else, or no gradients.
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
    """Policies, each name once."""
    if isinstance(policies, (str, LossScalingPolicy)):
        policies = [policies]
    words = listed(policies)
    if words is None:
        raise TypeError(f"policies must be names or LossScalingPolicy objects; got {shown(policies)}.")
    found = [loss_scaling_policy(each) for each in words]
    if not found:
        raise ValueError("policies must name at least one, such as 'dynamic'; got none.")
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"policies must have names of their own; got {twice!r} twice. Use .replace(name=...).")
    return found


def _total(each: LossScalingPolicy, steps: Sequence[ScalingStep]) -> dict[str, Any]:
    """All steps of a policy together."""
    count, number = sum(step.count for step in steps), len(steps)
    row = (
        each.name, number,
        sum(step.skipped for step in steps) / number, sum(step.overflowed for step in steps) / number,
        sum(step.overflowed and not step.skipped for step in steps) / number,
        sum(step.overflows for step in steps) / count, sum(step.underflows for step in steps) / count, steps[-1].scale,
        each.faulty,
    )  # fmt: skip
    return dict(zip(TOTALS, row, strict=True))


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
