"""Runs a test on broken code, and reports which faults the test does not catch."""

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
    """The verdict of a test on a broken function: "caught", "missed", or "error" where it raised something else."""

    name: str
    wrong: str
    outcome: str
    message: str = ""


@dataclass(frozen=True)
class MutationReport:
    """The faults that a test catches, and those that it misses.

    Attributes:
      verdicts: one for each mutant.
      passes_right: whether the test passes the right function; a test that does not shows nothing.
      complaint: the message of the test for the right function if it does not pass.
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
        """Names of the mutants that the test misses, or for which it raises another error than AssertionError."""
        return tuple(one.name for one in self.verdicts if one.outcome != "caught")

    @property
    def score(self) -> float:
        """Share of mutants that the test catches; 0 if it fails the right function."""
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
    """Return the message of an error in round brackets."""
    return f" ({one.message})" if one.outcome == "error" else ""


def mutation_score(
    test: Callable[..., object], fmt: FormatLike = E4M3, *, kernel: Mapping[str, Any] | str | None = None
) -> MutationReport:
    """Run a test on broken quantizers or kernels and on the right one, and report which faults it misses.

    Args:
      test: a function that takes a function and raises AssertionError if that is wrong. It gets a quantizer (an array
        of floats to float32 values of its shape, nearest even, overflow="nonfinite"), or with kernel= a kernel as
        `check_kernel` takes it (arrays or torch tensors).
      fmt: the format of quantizers, which float32 holds.
      kernel: what the kernel promises, as keywords of `check_kernel`: the test runs on each row of `mutants.KERNELS`
        that breaks this promise. "each" runs `test(kernel, **promise)` on every row with its own promise.

    Returns:
      A report: `.score`, `.caught`, `.missed`, `.passes_right`, and a text that says what each missed mutant does.

    Raises:
      TypeError: test cannot be called, or kernel is not a promise.
      ValueError: the format is unknown, or a keyword of the promise is.

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
    """Return the rows of `mutants.KERNELS` that break a promise.

    Raises:
      TypeError, ValueError: `check_kernel` does not take the promise.
    """
    checked_promise(promise)
    return [mutant for mutant in KERNELS.values() if mutant.breaks(promise)]  # type: ignore[arg-type]


def _with_promise(test: Callable[..., object], promise: Mapping[str, Any], kernel: Callable[..., Any]) -> None:
    """Run a test of kernels with a promise."""
    test(kernel, **promise)


class _Trial(NamedTuple):
    """A mutant, the broken function that it makes, the right one, and the test that runs on both."""

    mutant: Mutant | KernelMutant
    broken: Callable[..., Any]
    right: Callable[..., Any]
    test: Callable[..., object]


def _scored(trials: Sequence[_Trial], correct: Sequence[_Trial]) -> MutationReport:
    """Test the broken functions of `trials` and the right functions of `correct`, and return the report."""
    said = [_run(trial.test, trial.right) for trial in correct]
    complaints = [complaint for outcome, complaint in said if outcome != "missed"]
    verdicts = tuple(
        Verdict(trial.mutant.name, trial.mutant.wrong, *_run(trial.test, trial.broken)) for trial in trials
    )
    return MutationReport(verdicts, not complaints, complaints[0] if complaints else "")


def _run(test: Callable[..., object], made: Callable[..., Any]) -> tuple[str, str]:
    """Return the outcome of a test on a function, and the first line of what it raised."""
    try:
        test(made)
    except AssertionError as failure:
        return "caught", (str(failure).splitlines() or [""])[0]
    except Exception as error:
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "missed", ""
