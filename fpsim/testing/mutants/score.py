"""Mutation score of a test: which broken quantizers or kernels it catches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fpsim.errors import require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import E4M3
from fpsim.formats.named import format as find_format
from fpsim.testing.mutants.kernels import KERNELS, KernelMutant, checked_promise, with_new_names
from fpsim.testing.mutants.quantizers import QUANTIZERS, Mutant, right


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
        return tuple(one.name for one in self.verdicts if one.outcome == "caught")

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of the mutants that the test does not catch, including those for which it raises another exception."""
        return tuple(one.name for one in self.verdicts if one.outcome != "caught")

    @property
    def score(self) -> float:
        """Share of mutants that the test catches, 0 to 1; 0 if the correct function does not pass the test."""
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
    """Return the exception's message in round brackets, to follow a verdict, if the outcome is "error"; else ""."""
    return f" ({one.message})" if one.outcome == "error" else ""


def mutation_score(
    test: Callable[..., object], fmt: FormatLike = E4M3, *, kernel: Mapping[str, Any] | str | None = None
) -> MutationReport:
    """Run a test on broken quantizers or kernels and on a correct one, and report which faults the test misses.

    Args:
      test: a function that takes a function and raises AssertionError if that function is wrong. Without kernel=, it is
        called with a quantizer, from an array of floats to float32 values of its shape; the correct one rounds to
        nearest even with overflow="nonfinite". With kernel=, it is called with a kernel, a function of arrays or torch
        tensors as for `check_kernel`.
      fmt: the format of quantizers; float32 must represent its values.
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
        quantizers = [
            _Trial(mutant, mutant.make(target_fmt), right(target_fmt), test) for mutant in QUANTIZERS.values()
        ]
        return _scored(quantizers, quantizers[:1])
    if isinstance(kernel, str):
        require_word("kernel", kernel, ("each",))
        kernels = [
            _Trial(mutant, mutant.make(), mutant.right(), partial(_with_promise, test, mutant.promise))
            for mutant in KERNELS.values()
        ]
        return _scored(kernels, kernels)
    promise = with_new_names(kernel)
    kernels = [_Trial(mutant, mutant.make(promise), mutant.right(promise), test) for mutant in breaking(promise)]
    return _scored(kernels, kernels[:1])


def breaking(promise: object) -> list[KernelMutant]:
    """Return the mutants of `mutants.KERNELS` that break a promise, given as keywords of `check_kernel`.

    Raises:
      TypeError, ValueError: `check_kernel` does not accept the promise.
    """
    checked_promise(promise)
    return [mutant for mutant in KERNELS.values() if mutant.breaks(promise)]  # type: ignore[arg-type]


def _with_promise(test: Callable[..., object], promise: Mapping[str, Any], kernel: Callable[..., Any]) -> None:
    """Call test(kernel, **promise)."""
    test(kernel, **promise)


class _Trial(NamedTuple):
    """A mutant, its broken function, the correct function, and the test to run on both."""

    mutant: Mutant | KernelMutant
    broken: Callable[..., Any]
    right: Callable[..., Any]
    test: Callable[..., object]


def _scored(trials: Sequence[_Trial], correct: Sequence[_Trial]) -> MutationReport:
    """Run the tests on the broken functions of `trials` and the correct functions of `correct`; return the report."""
    said = [_run(trial.test, trial.right) for trial in correct]
    complaints = [complaint for outcome, complaint in said if outcome != "missed"]
    verdicts = tuple(
        Verdict(trial.mutant.name, trial.mutant.wrong, *_run(trial.test, trial.broken)) for trial in trials
    )
    return MutationReport(verdicts, not complaints, complaints[0] if complaints else "")


def _run(test: Callable[..., object], made: Callable[..., Any]) -> tuple[str, str]:
    """Return a test's outcome on the function `made`, "caught", "missed" or "error", and the exception's first line."""
    try:
        test(made)
    except AssertionError as failure:
        return "caught", (str(failure).splitlines() or [""])[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "missed", ""
