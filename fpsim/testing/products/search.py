"""Search for changes of the promised arithmetic that explain a wrong kernel's bits: one, then two, then more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fpsim.formats.named import FP32
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.probe.model import Model
from fpsim.runtime.clock import thread_seconds
from fpsim.schedules.plan import plan_of
from fpsim.schedules.schedule import FLAT
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulators import Accumulator
from fpsim.testing.products.additions import additions, promoted_parts
from fpsim.testing.products.observing import Observation
from fpsim.testing.products.operand_changes import of_operands, of_scales
from fpsim.testing.products.promise import Adding, KernelInputs, Promise
from fpsim.testing.products.result_changes import of_epilogue, of_results
from fpsim.testing.products.sums import JoinedParts
from fpsim.testing.products.term_changes import of_terms
from fpsim.testing.products.variants import PROMISED, Emulator, Variant

SECONDS = 10.0  # processor time of a search, without compiling; after that, the best variant is reported
FIRST = 6  # inputs that rule out most variants
ORDERLESS = (Rule.FUSED, Rule.SCALED)  # rules of units that add all terms of a step at once
USUAL = 120  # additions that are tried together with every change of terms and operands


@dataclass(frozen=True)
class FoundVariant:
    """Result of a search for the variant of a promise that explains a kernel's results.

    Attributes:
      variant: the best variant; PROMISED, which changes nothing, if no other is better.
      differ: number of the kernel's results that the variant does not reproduce.
      conditional: whether the variant fails on inputs for which the kernel keeps its promise.
      others: further variants that explain as much with as few changes.
      tried: number of variants that were compared with results.
      finished: whether the search ended before its time was over.
    """

    variant: Variant
    differ: int
    conditional: bool
    others: tuple[Variant, ...]
    tried: int
    finished: bool


class VariantSearch:
    """A search for the variants of a promise that reproduce a kernel's results.

    A variant is a set of changes of the promised arithmetic, such as another order of additions.

    Args:
      promise: the arithmetic that the kernel claims.
      seen: its results, and the promised ones, for all inputs.
    """

    def __init__(self, promise: Promise, seen: list[Observation]) -> None:
        self.promise, self.seen = promise, seen
        self.emulator = Emulator(promise)
        self.bad = sorted((observation for observation in seen if observation.count), key=_telling)
        self.deadline = thread_seconds() + SECONDS
        self.tried = 0

    def _late(self) -> bool:
        """Return whether the search has used up its processor time."""
        return thread_seconds() > self.deadline

    def family(self) -> list[Variant]:
        """Return all variants with one change of the promised arithmetic, in any attribute of `Variant`."""
        promise = self.promise
        own_format = FP32
        if isinstance(promise.adding, Model):
            own_format = promise.out
        elif not (promise.scaled or promise.bias):
            own_format = promise.adding.own_format
        changes: dict[str, Iterable[Any]] = {
            "addition": additions(promise), "terms": of_terms(), "results": of_results(promise, own_format),
            "operands": of_operands(promise), "scales": of_scales(promise), "epilogue": of_epilogue(promise),
        }  # fmt: skip
        return [Variant(**{axis: change}) for axis, known in changes.items() for change in known]

    def count(self, variant: Variant, seen: Iterable[Observation], limit: float = np.inf) -> int:
        """Return how many of the results in `seen` a variant fails to reproduce; counting ends above `limit`.

        All results of an observation count if the variant cannot be computed for its inputs (see `Emulator.bits`).
        """
        total = 0
        for observation in seen:
            total += int(self.emulator.differing(variant, observation.x, observation.got).sum())
            if total > limit:
                break
        return total

    def explain(self) -> FoundVariant:
        """Return the variant with the fewest changes that reproduces all wrong results, else the closest variant."""
        bad, most = self.bad, sum(observation.count for observation in self.bad)
        family = self.family()
        self.tried = len(family)
        screen = bad[:2]
        worst = sum(observation.count for observation in screen)
        scores: list[tuple[int, int]] = []  # (results on the screen that differ, index in the family)
        for place, variant in enumerate(family):
            score = self.count(variant, screen[:1])
            if score and score >= screen[0].count:  # no closer than the promise: not worth another input
                score += sum(observation.count for observation in screen[1:])
            else:
                score += self.count(variant, screen[1:], worst)
            scores.append((score, place))
            if self._late():
                break
        exact = [family[place] for score, place in scores if score == 0]
        exact = [variant for variant in exact if self.count(variant, bad, 0) == 0]
        if exact:
            return self._chosen(exact)
        ranked = [family[place] for _, place in sorted(scores)]  # half of a pair often explains a part by itself
        best, left = PROMISED, most
        for variant in ranked[:8]:
            total = self.count(variant, bad, left)
            if total < left:
                best, left = variant, total
        twice = self._pairs(ranked)
        if twice:
            return self._chosen(twice)
        best, left = self._descend(best, left, family)
        return FoundVariant(best, left, self._conditional(best), (), self.tried, not self._late())

    def _chosen(self, exact: list[Variant]) -> FoundVariant:
        """Return the result of the search, with the best of `exact`, the variants that reproduce all wrong results.

        The best is the first that also reproduces all results that are as promised; if there is none, the first.
        """
        everywhere = [variant for variant in exact if not self._conditional(variant)]
        kept = everywhere or exact
        return FoundVariant(kept[0], 0, not everywhere, tuple(kept[1:]), self.tried, not self._late())

    def _conditional(self, variant: Variant) -> bool:
        """Return whether a variant has other results than the kernel for inputs with which the kernel is right."""
        return self.count(variant, (observation for observation in self.seen if not observation.count), 0) > 0

    def _pairs(self, family: list[Variant]) -> list[Variant]:
        """Return variants with two changes that reproduce all wrong results; [] if there are none.

        family: variants with one change, likely ones first, from which pairs are made.
        """
        by_axis = {axis: [v for v in family if getattr(v, axis) is not None] for axis in Variant._fields}
        # processors can flush in operands and sums at once
        sums, operands = (
            [v for v in by_axis[axis] if any("subnormals" in clause for clause in v.clauses)]
            for axis in ("addition", "operands")
        )
        matches = [match for x in sums for match in self._matches(x, operands)]
        if matches:
            return matches
        for one, two, most in (
            ("addition", "results", None), ("addition", "epilogue", None), ("addition", "scales", None),
            ("terms", "results", None), ("operands", "results", None), ("scales", "epilogue", None),
            ("scales", "results", None), ("epilogue", "results", None), ("addition", "operands", USUAL),
            ("addition", "terms", USUAL), ("operands", "terms", None), ("terms", "scales", None),
            ("operands", "scales", None),
        ):  # fmt: skip
            for x in by_axis[one][:most]:
                matches = self._matches(x, by_axis[two])
                if matches or self._late():
                    return matches
        return []

    def _matches(self, x: Variant, others: list[Variant]) -> list[Variant]:
        """Merge the changes of the variant x with those of each of `others`.

        Return the merged variants that reproduce all wrong results.
        """
        matches = []
        for y in others:
            variant = _joined(x, y)
            self.tried += 1
            if self.count(variant, self.bad, 0) == 0:
                matches.append(variant)
            if self._late():
                break
        return matches

    def _descend(self, best: Variant, left: int, family: list[Variant]) -> tuple[Variant, int]:
        """Add up to two changes to the variant `best`; return (variant, number of wrong results that it leaves).

        Each added change explains 30 % or more of the unexplained results. left: number of wrong results
        that `best` does not reproduce. family: variants with one change, from which the changes are taken.
        """
        if best == PROMISED:
            return best, left
        for _ in range(2):
            start = best
            for change in family:
                if self._late():
                    return best, left
                if any(p is not None and q is not None for p, q in zip(change, start, strict=True)):
                    continue
                variant = _joined(start, change)
                self.tried += 1
                limit = left * 0.7
                if self.count(variant, self.bad[:2], limit) <= limit:
                    total = self.count(variant, self.bad, limit)
                    if total <= limit:
                        best, left = variant, total
            if best == start:
                break
        return best, left

    # ---- what is excluded

    def certificate(self) -> tuple[int, list[Variant], list[Variant]]:
        """Return which variants of the promise the results of a correct kernel exclude: (number, names, rivals).

        number: how many variants have other results than the kernel for some input. names: the variants that are the
        promised additions by another name. rivals: other variants that change something for the inputs, but have the
        kernel's results for all inputs with which they can run.
        """
        order = sorted(self.seen, key=lambda observation: _power(observation.x))
        excluded = 0
        same: list[Variant] = []
        rivals: list[Variant] = []
        trees = _Trees(self.promise, {observation.x.shape for observation in self.seen})
        for variant in self.family():
            differs, exists = self._differs(variant, order[:FIRST])
            if differs:
                excluded += 1
            elif trees.equal(variant):
                same.append(variant)
            elif self.emulator.changes_nothing(variant, (observation.x for observation in order)):
                continue
            else:
                differs, later = self._differs(variant, order[FIRST:])
                if differs:
                    excluded += 1
                elif exists or later:
                    rivals.append(variant)
        return excluded, same, rivals

    def _differs(self, variant: Variant, some: list[Observation]) -> tuple[bool, bool]:
        """Return (whether a variant's bits differ from the kernel's in any of `some`, whether any could be compared).

        An observation cannot be compared if the variant cannot be computed for its inputs (see `Emulator.bits`).
        """
        exists = False
        for observation in some:
            try:
                result = self.emulator.bits(variant, observation.x)
            except (ValueError, TypeError):
                continue  # the variant does not exist for these inputs; others decide
            exists = True
            if result.shape != observation.got.shape or (result != observation.got).any():
                return True, True
        return False, exists


class _Trees:
    """Tells whether a variant of the promised arithmetic is only another name of it.

    A variant is such a name if, for all given shapes (M, N, K), it adds in the same tree as the promised arithmetic.
    """

    def __init__(self, promise: Promise, shapes: set[tuple[int, int, int]]) -> None:
        self.promise = promise
        self.shapes = sorted({(n, k) for _, n, k in shapes})

    def equal(self, variant: Variant) -> bool:
        """Return whether a variant is only another name of the promised addition, with equal trees for all shapes.

        Return False for variants with more than one change, or with a change of neither addition nor order of terms.
        """
        if variant.size != 1:
            return False
        if variant.terms is not None:
            lengths = {k for _, k in self.shapes}
            moved = any(not np.array_equal(variant.terms.apply(k)[0][:k], np.arange(k)) for k in lengths)
            return moved and all(self._same_steps(variant, k) for k in lengths)
        if not isinstance(self.promise.adding, Adding):
            return False
        if isinstance(variant.addition, JoinedParts):
            return self._same_parts(variant.addition, promoted_parts(self.promise.adding))
        if not isinstance(variant.addition, Adding) or variant.addition.codes:
            return False
        try:
            return all(
                tree_of(self.promise, variant.addition, k, n) == tree_of(self.promise, self.promise.adding, k, n)
                for n, k in self.shapes
            )
        except ValueError:
            return False

    def _same_parts(self, parts: JoinedParts, promised: JoinedParts | None) -> bool:
        """Return whether `parts` describes the promised arithmetic, whose partial sums `promised` describes.

        It does if both cut each K of the shapes at the same terms, add the terms of a part by the same arithmetic, and
        join parts in the same order, format and rounding. False is returned if `promised` is None.
        """
        if promised is None:
            return False
        sized = parts._replace(terms=promised.terms, parts=0, cut=promised.cut, grain=promised.grain)
        if parts.inner == self.promise.adding:  # which promotes once in each of these slices
            sized = sized._replace(inner=promised.inner)
        if sized != promised:
            return False
        return all(parts.cuts(k) == promised.cuts(k) for k in {k for _, k in self.shapes})

    def _same_steps(self, variant: Variant, k: int) -> bool:
        """Return whether a variant changes the order of terms only within steps whose terms the unit adds at once.

        Return False for accumulators, and for units that add the terms of a step one after another. k: number of terms
        of a sum.
        """
        adding, unit = self.promise.adding, self.promise.unit
        assert variant.terms is not None
        if not isinstance(adding, Adding) or unit is None or unit.rule not in ORDERLESS:
            return False
        of_a, of_b = variant.terms.apply(k)
        if of_a.size != k or (of_a != of_b).any() or (np.sort(of_a) != np.arange(k)).any():
            return False
        plan = plan_of(adding.schedule or FLAT, unit, k)
        if plan.run:  # lanes
            return bool((of_a == np.arange(k)).all())
        step, number = np.full(k, -1), 0
        for part in plan.slices:
            places = np.concatenate([np.arange(run.start, run.stop) for run in part.runs] or [np.arange(0)])
            for spans in part.steps(plan.step):
                for span in spans:
                    step[places[span.start : span.stop]] = number
                    number += 1
        return bool((step[of_a] == step).all())


def tree_of(promise: Promise, adding: Adding, k: int, n: int) -> Tree:
    """Return the tree in which `adding` sums the k terms of an element of a product with n columns.

    adding: a matrix unit with its schedule, or an accumulator. promise: the arithmetic that a kernel claims, of which
    only the result format is used.

    Raises:
      ValueError: an accumulator with a schedule, whose tree is not known.
    """
    if adding.schedule is not None and isinstance(adding.how, Accumulator):
        raise ValueError(f"no tree is known of {adding.name}.")
    if adding.schedule is None:
        return tree(adding.how, k, n=n, out_fmt=promise.out)
    return tree(adding.schedule, k, n=n, accumulate=adding.how, out_fmt=promise.out)


POWER = ("masks", "uneven", "cancelling", "seams", "alike", "wide", "ties of the result", "positive", "normal", "ties")


def _power(x: KernelInputs) -> int:
    """Return a sort key of inputs: the index of their kind (x.name) in POWER, or len(POWER) for other kinds.

    POWER lists kinds of inputs, such as "masks". The kinds come first whose results exclude most variants, which are
    the arithmetics that a wrong kernel might have.
    """
    return POWER.index(x.name) if x.name in POWER else len(POWER)


def _telling(observation: Observation) -> tuple[int, int]:
    """Return the sort key of an observation (a kernel's results for some inputs) in a search; small keys come first.

    Observations with at least 8 wrong results, or with only wrong results, come before all others. Among each of these
    two groups, inputs of the kinds that exclude most variants come first, then small products.
    """
    m, n, k = observation.x.shape
    few = observation.count < min(8, observation.got.size)
    return int(few), _power(observation.x) * 64 + m * n * k // 4096


def _joined(x: Variant, y: Variant) -> Variant:
    """Return the variant with the changes of both x and y; where both set the same attribute, x's change is kept."""
    changes: list[Any] = [first if first is not None else second for first, second in zip(x, y, strict=True)]
    return Variant(*changes)
