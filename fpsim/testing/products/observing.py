"""Calls of a kernel with all inputs and memory layouts, and phrases on which inputs or elements have wrong results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.products import envelope as envelopes
from fpsim.testing.products.black_box import CalledKernel, two_results
from fpsim.testing.products.inputs import BEYOND
from fpsim.testing.products.layouts import LAYOUTS, OperandLayout
from fpsim.testing.products.promise import KernelInputs, Promise, values_of
from fpsim.testing.products.report import ProductCoverage


@dataclass(frozen=True, eq=False)
class Observation:
    """The results of a tested kernel for one product, with the results that its promised arithmetic gives.

    The promise is the arithmetic that the user claims for the kernel. In a check of error bounds, `want` has the
    kernel's own result where that is within its bound, and the promised result elsewhere, so that only results outside
    the bounds count as different.

    Attributes:
      x: the operands, and the scales and bias that the promise includes.
      got, want: codes of the kernel's results and of the promised ones, (M, N), with one code for all NaNs; of a kernel
        of integers, the results themselves.
    """

    x: KernelInputs
    got: Array
    want: Array

    @cached_property
    def differ(self) -> Array:
        """Mask of the results that differ from the promised ones, bool (M, N)."""
        return np.asarray(self.got != self.want)

    @cached_property
    def count(self) -> int:
        """Number of results that differ from the promised ones."""
        return int(self.differ.sum())


class Promised(Protocol):
    """An arithmetic that a kernel claims; `bits` returns the results that it promises for inputs, as codes (M, N)."""

    def bits(self, x: KernelInputs, /) -> Array: ...


def observe(kernel: CalledKernel, promise: Promised, inputs: Iterable[KernelInputs], seen: list[Observation]) -> None:
    """Call a kernel with each of `inputs`, and append an Observation (results and promised results) to `seen` for each.

    The second and the last call repeat the first inputs. promise: the arithmetic that the kernel claims.

    Raises:
      FunctionMisbehaved: the kernel raised an exception, wrote into an operand, returned other bits for the first
        inputs in a later call, or overwrote its first result.
    """
    for x in inputs:
        got = kernel.call(x) if seen else kernel.settle(x)
        seen.append(Observation(x, got, promise.bits(x)))
    kernel.require_kept(seen[0].x, seen[0].got)
    again = kernel.call(seen[0].x)
    if (again != seen[0].got).any():
        raise FunctionMisbehaved("calls", f"fn gives other bits for {seen[0].x} after calls with other operands.")


class ComparedLayouts(NamedTuple):
    """Result of calls with other memory layouts.

    Attributes:
      taken: names of layouts with the right results.
      notes: a remark on each error that the kernel raises for layouts.
      broken: a sentence on the first layout with wrong results, as a tuple of one or none.
    """

    taken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def in_layouts(kernel: CalledKernel, seen: list[Observation], bounded: Promise | None = None) -> ComparedLayouts:
    """Call a kernel with the operands of two products in other memory layouts, and compare the results.

    The products are those of the first observation, and of the first one in which M and N differ and both exceed 1. The
    first layout with wrong results ends the comparison. JAX arrays have only one layout, so none is compared.

    Args:
      kernel: the kernel.
      seen: the kernel's results for operands in C order.
      bounded: the promise (claimed arithmetic) whose error bounds results must be within; None compares bits.
    """
    if kernel.takes == "jax":
        return ComparedLayouts(notes=("JAX's arrays have one memory layout",))
    oblong = (
        observation
        for observation in seen
        if 1 < observation.x.shape[0] != observation.x.shape[1] > 1 and max(observation.x.shape[:2]) <= BEYOND
    )
    compared = list({id(observation): observation for observation in (seen[0], next(oblong, seen[0]))}.values())
    taken: list[str] = []
    refused: dict[str, list[str]] = {}
    broken: tuple[str, ...] = ()
    for layout in LAYOUTS:
        if broken or (not layout.torch and kernel.takes != "numpy"):
            continue
        try:
            for observation in compared:
                _compare_layout(observation, kernel.call(observation.x, layout), layout, bounded)
            taken.append(layout.name)
        except FunctionMisbehaved as refusal:
            if refusal.rule == "runs":
                refused.setdefault(refusal.sentence, []).append(layout.name)
            else:
                broken = (refusal.sentence,)
    notes = tuple(f"it refuses operands {', '.join(names)}: {said}" for said, names in refused.items())
    return ComparedLayouts(tuple(taken), notes, broken)


def _compare_layout(observation: Observation, got: Any, layout: OperandLayout, bounded: Promise | None) -> None:
    """Raise an error if the results `got` for operands in another layout do not match the observation in C order.

    got: codes (M, N). bounded: the promise (claimed arithmetic) whose error bounds results must be within; None
    compares bits.

    Raises:
      FunctionMisbehaved: the bits differ, or, with `bounded`, a result is outside the error bounds although all results
        in C order are within them.
    """
    if bounded is None and (got != observation.got).any():
        said = f"{observation.x}, {layout.name} in memory, than in C order: {two_results(observation.got, got)}"
        raise FunctionMisbehaved("layout", f"fn gives other bits for {said}.")
    if bounded is None or observation.count:
        return
    if envelopes.outside(values_of(got, bounded.out), envelopes.envelope_of(bounded, observation.x)).any():
        said = f"{observation.x}, {layout.name} in memory, where those in C order lie within"
        raise FunctionMisbehaved("layout", f"fn leaves the envelope for {said}.")


def coverage_of(seen: list[Observation], layouts: ComparedLayouts) -> ProductCoverage:
    """Return a summary of the compared inputs: shapes, kinds, dtypes and magnitudes of `seen`, and memory layouts."""
    record = CoverageRecord()
    for observation in seen:
        record.note(observation.x.a)
        record.note(observation.x.b)
    shapes = tuple(dict.fromkeys(observation.x.shape for observation in seen))
    kinds = tuple(dict.fromkeys(observation.x.name for observation in seen))
    of = record.coverage
    return ProductCoverage(shapes, kinds, of.dtypes, of.smallest, of.largest, of.specials, layouts.taken)


def where(seen: list[Observation]) -> str:
    """Return a phrase on the inputs, sizes, rows or columns to which differences are limited, or "" if not limited.

    seen: the kernel's results for all inputs.
    """
    bad = [observation for observation in seen if observation.count]
    good = [observation for observation in seen if not observation.count]
    words = []
    kinds = list(dict.fromkeys(observation.x.name for observation in bad))
    these = [observation for observation in seen if observation.x.name in kinds]
    few = len(kinds) <= 3 and len(kinds) < len({observation.x.name for observation in seen})
    if few and len(bad) >= len(these) / 2:
        words.append(f"only with {' and '.join(repr(kind) for kind in kinds)} inputs")
    alike = [observation for observation in good if observation.x.name in kinds]
    sizes = [_of_sizes(bad, alike, place, name) for place, name in ((0, "M"), (1, "N"), (2, "K"))]
    words += [text for text, _ in sorted(sizes, key=lambda size: not size[1]) if text][:1]
    words += [text for text in (_lines(bad, 0), _lines(bad, 1)) if text]
    return "; ".join(words)


def _of_sizes(bad: list[Observation], good: list[Observation], place: int, name: str) -> tuple[str, bool]:
    """Return (phrase, selective) on the sizes along one axis of products with wrong results.

    The phrase is such as "only where K is above 128", or "" if the sizes follow no known rule. The bool `selective` is
    True if at most as many right products as wrong ones have such a size.

    bad, good: observations (a kernel's results for some inputs) with and without differences from the promised results.
    place, name: index of the axis in (M, N, K), and its letter.
    """
    sizes, others = ({observation.x.shape[place] for observation in some} for some in (bad, good))
    if not others - sizes:
        return "", False
    if len(sizes) == 1:
        right = sum(observation.x.shape[place] in sizes for observation in good)
        return f"only where {name} is {next(iter(sizes))}", right <= len(bad)
    if min(sizes) > max(others):
        return f"only where {name} is above {max(others)}", True
    if max(sizes) < min(others):
        return f"only where {name} is below {min(others)}", True
    for grain in (128, 64, 32, 16, 8, 4, 2):
        if all(size % grain for size in sizes) and all(size % grain == 0 for size in others):
            return f"only where {name} is no multiple of {grain}", True
    return "", False


def _lines(bad: list[Observation], axis: int) -> str:
    """Return a phrase on the rows (axis 0) or columns (axis 1) to which differences are limited, or "" if not limited.

    bad: observations, that is, a kernel's results for some inputs, all with differences from the promised results.
    """
    name = ("row", "column")[axis]
    lines = [np.flatnonzero(observation.differ.any(axis=1 - axis)) for observation in bad]
    sizes = [observation.got.shape[axis] for observation in bad]
    if all(size == 1 for size in sizes):
        return ""
    if all(wrong.size == 1 and wrong[0] == size - 1 for wrong, size in zip(lines, sizes, strict=True)):
        return f"only in the last {name}"
    if all(wrong.size == 1 and wrong[0] == 0 for wrong in lines):
        return f"only in the first {name}"
    if all(wrong.size == 1 and wrong[0] == lines[0][0] for wrong in lines):
        return f"only in {name} {lines[0][0]}"
    fitting: list[tuple[int, bool, int, str]] = []  # (number of lines in the phrase, order of phrases of as many)
    for grain in (1024, 512, 256, 128, 64, 32, 16, 8, 4):
        whole = [size // grain * grain for size in sizes]
        tail = grain <= 128 and any(whole)
        if tail and all((wrong >= start).all() for wrong, start in zip(lines, whole, strict=True)):
            fitting.append((sum(sizes) - sum(whole), True, -grain, f"beyond a multiple of {grain}"))
        if min(sizes) > grain and all((wrong >= grain).all() for wrong in lines):
            fitting.append((sum(sizes) - grain * len(sizes), grain < 256, -grain, f"from {grain} on"))
    return f"only in {name}s {min(fitting)[-1]}" if fitting else ""
