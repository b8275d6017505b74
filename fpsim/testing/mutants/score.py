"""Runs somebody's test on broken code, and tells which faults it does not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import E4M3
from fpsim.formats.named import format as find_format
from fpsim.testing.mutants.quantizers import QUANTIZERS, right


@dataclass(frozen=True)
class Verdict:
    """What a test said about a broken function: "caught", "missed", or "error" where it raised something else."""

    name: str
    wrong: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class MutationReport:
    """How many faults a test sees.

    Attributes:
      verdicts: one for each mutant.
      passes_right: whether it passes the right function; a test that does not proves nothing.
      complaint: what it says about the right one otherwise.
    """

    verdicts: tuple[Verdict, ...]
    passes_right: bool
    complaint: str = ""

    @property
    def caught(self) -> tuple[str, ...]:
        """Names of the mutants that the test sees."""
        return tuple(one.name for one in self.verdicts if one.outcome == "caught")

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of those that it does not see."""
        return tuple(one.name for one in self.verdicts if one.outcome != "caught")

    @property
    def score(self) -> float:
        """Share of mutants that it sees; 0 where it fails the right function."""
        return len(self.caught) / len(self.verdicts) if self.passes_right and self.verdicts else 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.caught)} of {len(self.verdicts)} mutants caught."]
        if not self.passes_right:
            lines.insert(0, f"The test fails the right function, so what it catches says nothing: {self.complaint}")
        lines += [
            f"  {one.outcome}: {one.name}, which {one.wrong}{_because(one)}"
            for one in self.verdicts
            if one.outcome != "caught"
        ]
        return "\n".join(lines)


def _because(one: Verdict) -> str:
    return f" ({one.message})" if one.outcome == "error" else ""


def mutation_score(test: Callable[[Callable[..., Any]], object], fmt: FormatLike = E4M3) -> MutationReport:
    """Run a test on twenty broken quantizers and the right one, and say which faults it does not see.

    Args:
      test: takes a quantizer (an array of floats to float32 values of its shape, nearest even, overflow="nonfinite")
        and raises AssertionError where it sees a fault; a test that returns has seen none.
      fmt: the format, which float32 holds.

    Returns:
      A report: `.score`, `.caught`, `.missed`, `.passes_right`, and a text with what each missed one does wrong.

    Raises:
      TypeError: test cannot be called.
      ValueError: an unknown format.

    Example:
      >>> import fpsim as fp
      >>> from functools import partial
      >>> print(fp.testing.mutation_score(partial(fp.testing.check_quantizer, fmt="e4m3")))
      20 of 20 mutants caught.
    """
    if not callable(test):
        raise TypeError(f"test must be a function of a quantizer that raises AssertionError; got {shown(test)}.")
    target_fmt = find_format(fmt)
    outcome, complaint = _run(test, right(target_fmt))
    verdicts = []
    for mutant in QUANTIZERS.values():
        verdicts.append(Verdict(mutant.name, mutant.wrong, *_run(test, mutant.make(target_fmt))))
    return MutationReport(tuple(verdicts), outcome == "missed", complaint)


def _run(test: Callable[[Callable[..., Any]], object], quantizer: Callable[..., Any]) -> tuple[str, str]:
    try:
        test(quantizer)
    except AssertionError as failure:
        return "caught", (str(failure).splitlines() or [""])[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "missed", ""
