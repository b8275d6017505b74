"""Reports of checks of stochastic rounding: which properties hold, which are broken, and the causes."""

from __future__ import annotations

from dataclasses import dataclass, field

from fpsim.formats.float_format import Format
from fpsim.testing.coverage import InputCoverage
from fpsim.testing.quantizers.report import Broken
from fpsim.testing.quantizers.stochastic.chance import POWER

AVERAGED = (1, 4, 16, 64)


@dataclass(frozen=True)
class StochasticReport:
    """Result of `check_stochastic`; true if all properties hold.

    Attributes:
      ok: whether all properties hold.
      held: names of the properties that hold.
      broken: the properties that do not hold.
      driven: source of the randomness: "bits", "uniform", "seed", "generator" or "own".
      means: fraction of the spacing -> share of results that were rounded away from zero.
      bits: correct bits, -1/2 log2 of the relative squared error, of means of 1, 4, 16 and 64 calls.
      detects: the smallest bias that is detected with a probability of 99 %, as a fraction of the spacing; if the check
        had an array x, the smallest distance of a mean from x. It is 0 if shares are exact.
      detects_in_binades: the same for the shares of single binades, which have fewer draws.
      false_alarm: an upper limit of the probability that a correct function fails.
      covered: shapes, dtypes and magnitudes of the inputs that were rounded.
      notes: remarks on what is no fault.
      causes: what the function does wrong, as clauses ("is not random"); empty if no known fault explains the results.
      random_bits: number of bits of the dropped fraction that affect results; None if the check had an array x.
      more_bits: whether there may be more random bits, because small fractions are too rare to be measured.
      name, fmt: name of the function, and the format.
    """

    name: str
    fmt: Format
    held: tuple[str, ...]
    broken: tuple[Broken, ...]
    driven: str
    means: dict[float, float] = field(repr=False)
    bits: tuple[float, ...]
    detects: float
    false_alarm: float
    detects_in_binades: float = 0.0
    covered: InputCoverage = field(default_factory=InputCoverage)
    notes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    random_bits: int | None = None
    more_bits: bool = False

    @property
    def ok(self) -> bool:
        """True if all properties hold."""
        return not self.broken

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        how = "exactly, by its random bits"
        if self.driven not in ("bits", "uniform"):
            how = f"by tests that detect a bias of {self.detects:.2g} units with a probability of {POWER:.0%}"
            if self.detects_in_binades:
                how = f"{how} ({self.detects_in_binades:.2g} in a single binade)"
            how = f"{how} and fail a right function with at most {self.false_alarm:.0e}"
        does = "rounds" if self.ok else "does not round"
        lines = [f"{self.name} {does} stochastically to {self.fmt}; checked {how}."]
        if self.causes:
            lines.append(f"It {'; it '.join(self.causes)}.")
        if self.random_bits is not None:
            least = "at least " if self.more_bits else ""
            lines.append(f"  random bits that decide results: {least}{self.random_bits}")
        lines += [f"  {line}" for broken in self.broken for line in str(broken).splitlines()]
        if self.bits:
            shown_bits = ", ".join(f"{bits:.2f}" for bits in self.bits)
            counts = ", ".join(map(str, AVERAGED[: len(self.bits)]))
            lines.append(f"  correct bits of means of {counts} calls: {shown_bits}")
        lines.append(f"  held: {', '.join(self.held) or 'nothing'}")
        lines += [f"  covered: {self.covered}"] if self.covered.calls else []
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass
class StochasticMeasurements:
    """Measurements of a check, which its steps fill in; the attributes are those of `StochasticReport`."""

    means: dict[float, float] = field(default_factory=dict)
    bits: tuple[float, ...] = ()
    detects: float = 0.0
    detects_in_binades: float = 0.0
    notes: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    random_bits: int | None = None
    more_bits: bool = False
