"""Mutation score of a test: which broken quantizers or kernels it catches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fpsim.errors import require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import E4M3
from fpsim.formats.named import format as find_format
from fpsim.testing.mutants.kernels import KERNELS, KernelMutant, checked_promise, with_new_names
from fpsim.testing.mutants.quantizers import QUANTIZERS, Mutant, right

Function = Callable[..., Any]
Test = Callable[..., object]
Trial = tuple[Mutant | KernelMutant, Function, Test]  # a mutant, its broken function, and the test to run on it


@dataclass(frozen=True)
class Verdict:
    """Outcome of a test on one broken function.

    Attributes:
      name, wrong: the mutant's name, and what it does wrong.
      outcome: "caught" (AssertionError), "missed" (no error), or "error" (another exception).
      message: first line of the exception, or "".
    """

    name: str
    wrong: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class MutationReport:
    """Result of `mutation_score`: the faults that a test catches, and those that it misses.

    Attributes:
      verdicts: one `Verdict` for each mutant.
      passes_right: whether the correct function passes the test; if not, the verdicts mean nothing.
      complaint: the test's message if the correct function does not pass, else "".
    """

    verdicts: tuple[Verdict, ...]
    passes_right: bool
    complaint: str = ""

    @property
    def caught(self) -> tuple[str, ...]:
        """Names of the mutants that the test catches."""
        return tuple(verdict.name for verdict in self.verdicts if verdict.outcome == "caught")

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of the mutants that the test does not catch, including those for which it raises another exception."""
        return tuple(verdict.name for verdict in self.verdicts if verdict.outcome != "caught")

    @property
    def score(self) -> float:
        """Share of mutants that the test catches, 0 to 1; 0 if the correct function does not pass the test."""
        return len(self.caught) / len(self.verdicts) if self.passes_right and self.verdicts else 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.caught)} of {len(self.verdicts)} mutants caught."]
        if not self.passes_right:
            lines.insert(0, f"The test fails the right function, so what it catches says nothing: {self.complaint}")
        lines += [
            f"  {x.outcome}: {x.name}, which {x.wrong}{f' ({x.message})' if x.outcome == 'error' else ''}"
            for x in self.verdicts
            if x.outcome != "caught"
        ]
        return "\n".join(lines)


def mutation_score(
    test: Callable[..., object], fmt: FormatLike = E4M3, *, kernel: Mapping[str, Any] | str | None = None
) -> MutationReport:
    """Run a test on broken quantizers or kernels and on a correct one, and report which faults the test misses.

    Args:
      test: a function that takes a function and raises AssertionError if that function is wrong. Without kernel=, it is
        called with a quantizer, from an array of floats to float32 values of its shape; the correct one rounds to
        nearest even with overflow="nonfinite". With kernel=, it is called with a kernel, a function of arrays or torch
        tensors as for `check_kernel`.
      fmt: the format of quantizers; float32 must represent its values. The test runs on each mutant of
        `mutants.QUANTIZERS` whose fault the format can have.
      kernel: None for quantizers; a kernel's promise, as keywords of `check_kernel`: the test runs on each mutant of
        `mutants.KERNELS` that breaks it; or "each": `test(kernel, **promise)` runs on every mutant, with the mutant's
        promise.

    Returns:
      The report, with `.score`, `.caught`, `.missed` and `.passes_right`; its text says what each missed mutant does.

    Raises:
      TypeError: test cannot be called, or kernel is not a promise.
      ValueError: the format is unknown; or a keyword of the promise is unknown or missing.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> def bits_test(quantizer):
      ...     x = fp.testing.points("e4m3")
      ...     np.testing.assert_array_equal(quantizer(x), fp.quantize(x, "e4m3"))
      >>> print(fp.testing.mutation_score(bits_test))  # doctest: +ELLIPSIS
      16 of 20 mutants caught.
        missed: unsigned_zero, which loses the sign of zeros
      ...
      >>> def usual_test(kernel):
      ...     a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(fp.E4M3.dtype)
      ...     np.testing.assert_allclose(kernel(a, b), a.astype(float) @ b.astype(float), rtol=0.01, atol=0.01)
      >>> fp8 = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128}
      >>> print(fp.testing.mutation_score(usual_test, kernel=fp8))  # doctest: +ELLIPSIS
      1 of 8 mutants caught.
        missed: drops_tail, which drops the terms beyond a multiple of 32
      ...
    """
    if not callable(test):
        raise TypeError(
            f"test must be a function of a quantizer or kernel that raises AssertionError; got {shown(test)}."
        )
    target_fmt = find_format(fmt)
    if kernel is None:
        broken = [mutant for mutant in QUANTIZERS.values() if mutant.breaks(target_fmt)]
        quantizers = [(mutant, mutant.make(target_fmt), test) for mutant in broken]
        return _scored(quantizers, [(right(target_fmt), test)])
    if isinstance(kernel, str):
        require_word("kernel", kernel, ("each",))
        tests: list[tuple[KernelMutant, Test]] = [(x, partial(test, **x.promise)) for x in KERNELS.values()]
        trials = [(mutant, mutant.make(), promised) for mutant, promised in tests]
        return _scored(trials, [(mutant.right(), promised) for mutant, promised in tests])
    promise = with_new_names(kernel)
    trials = [(mutant, mutant.make(promise), test) for mutant in breaking(promise)]
    return _scored(trials, [(next(iter(KERNELS.values())).right(promise), test)])


def breaking(promise: object) -> list[KernelMutant]:
    """Return the broken kernels of `mutants.KERNELS` that violate a promise, given as keywords of `check_kernel`.

    Raises:
      TypeError, ValueError: `check_kernel` does not accept the promise.
    """
    checked_promise(promise)
    return [mutant for mutant in KERNELS.values() if mutant.breaks(promise)]  # type: ignore[arg-type]


def _scored(trials: Sequence[Trial], correct: Sequence[tuple[Function, Test]]) -> MutationReport:
    """Run tests on broken and on correct functions, and return the report.

    trials: (mutant, its broken function, the test to run on it). correct: pairs (correct function, its test).
    """
    said = [_run(test, function) for function, test in correct]
    complaints = [complaint for outcome, complaint in said if outcome != "missed"]
    verdicts = tuple(Verdict(mutant.name, mutant.wrong, *_run(test, broken)) for mutant, broken, test in trials)
    return MutationReport(verdicts, not complaints, complaints[0] if complaints else "")


def _run(test: Test, made: Function) -> tuple[str, str]:
    """Return (outcome of a test on the function `made`, first line of the exception or "").

    The outcome is "caught" for an AssertionError, "error" for other exceptions, and "missed" without an exception.
    """
    try:
        test(made)
    except AssertionError as failure:
        return "caught", (str(failure).splitlines() or [""])[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "missed", ""
