"""Identification of quantizers to integers with one scale: scale, zero point, rounding and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.rounding import NAMES
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.quantizers.given_scales.calls import GivenScaleCall
from fpsim.testing.quantizers.given_scales.causes import cause_of, differing
from fpsim.testing.quantizers.given_scales.inputs import inputs_of
from fpsim.testing.quantizers.given_scales.promise import GivenScale, given_scale
from fpsim.testing.quantizers.given_scales.search import scales_of
from fpsim.testing.quantizers.report import but
from fpsim.testing.quantizers.rounder import rule_words

POLICIES = tuple(name for name in NAMES if name != "stochastic")


@dataclass(frozen=True)
class IntegerIdentity:
    """The arithmetic of a quantizer to integers with one scale, as far as its results show it.

    Attributes:
      fmt: the format of the results.
      scale: the float32 number by which inputs are divided; 1 for a cast.
      zero_point: the integer that is added.
      lowest: the smallest integer, -127 or -128 for INT8.
      rounding: the rounding, as a keyword of `fpsim.encode`, or the name of another rule, such as "half_added", which
        one of `faults` describes.
      overflow: "saturate" or "wrap".
      faults: what the quantizer does other than this, as clauses ("drops the sign").
      exact: whether the arithmetic that the attributes above describe reproduces every result.
      differ, of: number of results that it does not reproduce, and number of all results.
      excluded: number of other policies and faults that would change at least one result.
    """

    fmt: IntegerFormat
    scale: float
    zero_point: int
    lowest: int
    rounding: str
    overflow: str
    faults: tuple[str, ...]
    exact: bool
    differ: int
    of: int
    excluded: int

    @property
    def is_policy(self) -> bool:
        """True if the quantizer is saturate(round(x / scale) + zero point), without faults."""
        return self.exact and not self.faults

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of `check_quantizer` with which the quantizer passes, unless it has faults."""
        rounding = self.rounding if self.rounding in NAMES else "nearest_even"
        whole = self.lowest == self.fmt.lowest or self.zero_point  # without a zero point it may begin at -highest
        return {"scale": self.scale, "rounding": rounding} | ({"zero_point": self.zero_point} if whole else {})

    def __str__(self) -> str:
        ties = "takes ties away from zero" if self.rounding == "nearest_away" else f"rounds {self.rounding}"
        does = f"{self.fmt}: divides by {self.scale:.9g}, {ties}, adds {self.zero_point}, {self.overflow}s"
        does += f" at {self.lowest}" if self.lowest != self.fmt.lowest else ""
        does += but(self.faults)
        if self.exact:
            return f"{does}. Each of {self.excluded:,} other faults would give another result."
        return f"No cause gives all results. The nearest, {does}, differs in {self.differ:,} of {self.of:,}."


def identify_integers(fn: Callable[..., Any], fmt: IntegerFormat) -> IntegerIdentity:
    """Return the identity of a quantizer to integers with one fixed scale, which returns codes or values.

    fn: the quantizer. fmt: the integer format of its results.

    Raises:
      FunctionMisbehaved: the function raises, returns no codes or values, or is not deterministic.
    """
    cast = {"rounding": "nearest_even", "overflow": None, "subnormals": "keep"}
    box = GivenScaleCall(fn, given_scale(fmt, 1.0, None, cast))
    probe = inputs_of(box.promise, np.dtype(np.float32))
    first = box.call(probe)
    if differing(first, box.call(probe)).any():
        raise FunctionMisbehaved("calls", "fn is not deterministic: the same call gave two results.", probe)
    identities: list[IntegerIdentity] = []
    for model in list(scales_of(box)) or [box.promise]:
        identities.append(_identity(box, model))
        if identities[-1].exact:
            return identities[-1]
    return min(identities, key=lambda identity: identity.differ)


def _identity(box: GivenScaleCall, model: GivenScale) -> IntegerIdentity:
    """Return the rounding, range and faults of a quantizer as an `IntegerIdentity`, with the scale of `model`.

    box: the quantizer. model: a model with the scale and zero point that the quantizer may have.
    """
    x = inputs_of(model, np.dtype(np.float32))
    got = box.call(x)
    fmt = box.promise.fmt
    assert isinstance(fmt, IntegerFormat)
    ranges = (fmt.lowest, -fmt.highest) if fmt.signed else (fmt.lowest,)
    policies = [model._replace(lowest=lowest, rounding=rounding) for lowest in ranges for rounding in POLICIES]
    counts = [int(differing(got, box.wanted(policy, x)).sum()) for policy in policies]
    start = nearest = policies[int(np.argmin(counts))]
    faults: tuple[str, ...] = ()
    excluded, differ = sum(count > 0 for count in counts), min(counts)
    if differ:
        clauses, nearest, others = cause_of(start, box, x, got)
        excluded += others
        if clauses:
            differ = 0
            policy = rule_words(nearest.rounding, start.rounding) if nearest.rounding in POLICIES else ""
            faults = tuple(clause for clause in clauses if clause != policy)
    overflow = "wrap" if nearest.wraps else "saturate"
    return IntegerIdentity(
        fmt, float(nearest.scale), int(nearest.zero_point), nearest.lowest, nearest.rounding, overflow, faults,
        differ == 0, differ, x.size, excluded,
    )  # fmt: skip
