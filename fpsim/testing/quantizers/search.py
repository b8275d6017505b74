"""Search for the model, with as few faults as possible, that reproduces a quantizer's results."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fpsim.formats.float_format import Format
from fpsim.testing.quantizers.family import Deviation, deviations, plain_models, sentence
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.observed import observed
from fpsim.testing.quantizers.restricted import Restricted, region_of
from fpsim.testing.quantizers.rounder import SplitInputs, Words, evenly_spread

PART = 800  # number of inputs with wrong results, and with right ones, in the part that candidates are tried on first
EVERY, FIRST = 13, 250  # rivals are tried first on every 13th input, or on 250 inputs: one difference excludes them
TELLING = 32  # wrong results among these inputs from which a further fault must explain some of them
KEPT = 2000  # models whose results for these inputs are cached
FAR = frozenset(
    {"scale", "code_shift", "through", "fmt", "clamp", "factor", "added", "input_ulps", "unrounded"}
)  # parameters whose faults seldom affect only a part of the inputs
BEAM = (20, 8)  # the number of best models to which a second and a third fault are added
Scored = tuple[tuple[Deviation, ...], int]  # faults, and the number of results in the part that they do not explain


@dataclass(frozen=True)
class FoundModel:
    """Result of a search for the model of a quantizer.

    Attributes:
      model: the model nearest to the results: the promised model, with `faults` added.
      faults: these faults; () if the promised model is nearest.
      differ: number of results that the model does not reproduce.
      tried: number of models compared with the results.
      excluded: number of other models that differ in at least one result.
      rivals: clauses on other models that reproduce all results.
    """

    model: QuantizerModel | Restricted
    faults: tuple[Deviation, ...]
    differ: int
    tried: int
    excluded: int
    rivals: tuple[str, ...]


class KnownModels:
    """Cache of models' results for some inputs, shared by checks of different quantizers.

    Attributes:
      certificates: {(start of a search, model found): (number of excluded rival models, clauses on the others)}.
      first: slice that selects every n-th input; rivals are tried on these first.
      inputs: the inputs that `first` selects.
    """

    def __init__(self, inputs: SplitInputs) -> None:
        self.certificates: dict[tuple[QuantizerModel, QuantizerModel], tuple[int, tuple[str, ...]]] = {}
        size = inputs.negative.size
        self.first = slice(None, None, max(EVERY, size // FIRST))
        self.inputs = inputs.part(self.first).with_steps()
        self._words: dict[QuantizerModel, Words] = {}

    def first_of(self, model: QuantizerModel) -> Words:
        """Return the results of `model` for `self.inputs`, as bit patterns of float64; cached."""
        words = self._words.get(model)
        if words is None:
            if len(self._words) >= KEPT:
                self._words.clear()  # which another thread may do at any time
            self._words[model] = words = model.run(self.inputs)
        return words


class ModelSearch:
    """Search for a model of a quantizer from its results for some inputs.

    Args:
      inputs: the inputs, split into signs and magnitudes.
      got: the quantizer's results for them, as bit patterns of float64.
      source: the format of the inputs.
      codes: whether the quantizer returns codes.
      known: cache of models' results for the same inputs, or None.
    """

    def __init__(
        self, inputs: SplitInputs, got: Words, source: Format, codes: bool, known: KnownModels | None = None
    ) -> None:
        self.inputs = inputs.with_steps() if got.size <= 3 * PART else inputs  # limits memory
        self.got, self.source, self.codes = got, source, codes
        self.known = KnownModels(inputs) if known is None else known
        self.tried = 0
        self._part, self._of_part = self.inputs, got
        self._singles: dict[QuantizerModel, Words] = {}  # models with one fault -> their results for the part
        self._of_first = got[self.known.first]

    def differing(self, model: QuantizerModel | Restricted) -> npt.NDArray[np.bool_]:
        """Return a bool mask of the inputs for which a model's result differs from the quantizer's."""
        return np.asarray(model.run(self.inputs) != self.got)

    def count(self, model: QuantizerModel) -> int:
        """Return the number of inputs for which a model's result differs from the quantizer's."""
        return int(np.count_nonzero(self.differing(model)))

    def rearranged(self, places: npt.NDArray[np.intp]) -> ModelSearch:
        """Return a search for the same results in another order: result i is moved to index places[i]."""
        got = np.empty_like(self.got)
        got[places] = self.got
        return ModelSearch(self.inputs, got, self.source, self.codes, self.known)

    def explain(self, start: QuantizerModel, elsewhere: Callable[[], bool] = lambda: False) -> FoundModel:
        """Return the model nearest to the results: `start`, the promised model, with the fewest faults (up to 3).

        elsewhere: function that returns whether a fault that no `QuantizerModel` can describe, such as a wrong order,
        explains the results. It is called if no single fault does; if it returns True, combinations are not tried.
        """
        differ = self.differing(start)
        self._take_part(differ)
        if not differ.any():
            return self._result(start, (), 0, [])
        best: list[Scored] = []
        with np.errstate(all="ignore"):  # of values at the ends of float64's range
            told = [fault for fault in observed(start, self.inputs, self.got) if fault.apply(start) != start]
        singles = (*deviations(start, self.source, self.codes), *told)
        level: list[Scored] = [((fault,), self._wrong_in_part(fault.apply(start))) for fault in singles]
        for width in (*BEAM, 0):
            best = sorted([*best, *level], key=lambda pair: (pair[1] > 0, pair[1] + 2 * len(pair[0]), len(pair[0])))
            exact = [faults for faults, few in level if few == 0 and self.count(_with(start, faults)) == 0]
            if exact:
                return self._result(start, exact[0], 0, exact[1:])
            if len(level[0][0] if level else ()) == 1:
                restricted = self._restricted(start, level)
                if restricted is not None:
                    return restricted
                if elsewhere():
                    break
            level = self._extended(start, sorted(level, key=lambda pair: pair[1])[:width], singles)
        ranked = sorted([((), 0), *best[:24]], key=lambda pair: self.count(_with(start, pair[0])) + 2 * len(pair[0]))
        faults = ranked[0][0]
        return self._result(start, faults, self.count(_with(start, faults)), [])

    def _restricted(self, start: QuantizerModel, level: list[Scored]) -> FoundModel | None:
        """Return the model that has one fault in a region of the inputs only and reproduces all results, or None.

        start: the promised model. level: the faults to try, as pairs ((fault,), count), of which count is not used.
        """
        right = start.run(self._part)
        fits: list[tuple[Deviation, Restricted]] = []
        for faults, _ in level:
            faulty = _with(start, faults)
            region = region_of(self._part, right, self._singles[faulty], self._of_part)
            model = None if region is None else Restricted(start, faulty, region)
            if model is not None and not self.differing(model).any():
                fits.append((replace(faults[0], words=f"{faults[0].words} {region}"), model))
        if not fits:
            return None
        fits.sort(key=lambda fit: (fit[1].region.ends, bool(fit[0].slots() & FAR), fit[0].rare))
        fault, model = fits[0]
        excluded, rivals = self.certificate(start, start)
        others = tuple(f"it {other.words}" for other, _ in fits[1:] if not other.rare)
        return FoundModel(model, (fault,), 0, self.tried, excluded, (*others, *rivals))

    def _extended(self, start: QuantizerModel, level: list[Scored], singles: tuple[Deviation, ...]) -> list[Scored]:
        """Return sets of faults, a set of `level` plus one of `singles` each, that explain more results than that set.

        A set is a pair (faults, the number of results in the selected part of the inputs that they do not explain). Two
        faults in a set never change the same parameter of the model. start: the promised model, which the faults
        change.
        """
        extended, seen = [], set()
        for faults, few in level:
            taken, faulty = frozenset().union(*(fault.slots() for fault in faults)), _with(start, faults)
            of_first = self._wrong_of_first(faulty)
            for single in singles:
                key = frozenset((*faults, single))
                if taken & single.slots() or key in seen:  # two faults do not change the same parameter
                    continue
                seen.add(key)
                model = single.apply(faulty)
                self.tried += 1
                if of_first >= TELLING and self._wrong_of_first(model) >= of_first:
                    continue
                left = int(np.count_nonzero(model.run(self._part) != self._of_part))
                if left < few:  # a fault that explains nothing is none
                    extended.append(((*faults, single), left))
        return extended

    def _result(
        self, start: QuantizerModel, faults: tuple[Deviation, ...], differ: int, others: list[tuple[Deviation, ...]]
    ) -> FoundModel:
        """Return the result of a search: the model `start` with `faults`, and the other models that are excluded.

        differ: number of results not reproduced; unless it is 0, other models are not compared. others: sets of faults
        that reproduce all results as well.
        """
        model = _with(start, faults)
        excluded, rivals = self.certificate(start, model, cached=True) if differ == 0 else (0, ())
        plain = [other for other in others if len(other) > 1 and not any(fault.rare for fault in other)]
        words = [f"it {sentence(other)}" for other in plain if _with(start, other) != model]
        return FoundModel(model, faults, differ, self.tried, excluded, tuple(dict.fromkeys([*words, *rivals])))

    def certificate(
        self, start: QuantizerModel, model: QuantizerModel, cached: bool = False
    ) -> tuple[int, tuple[str, ...]]:
        """Return how many rival models the quantizer's results exclude, and a clause on each rival that they do not.

        Rivals are other arithmetics: each policy of `fpsim.encode`, and `start` with one fault; a rival that equals
        `model` does not count. A clause is such as "it rounds to BF16 first".

        start: the promised model. model: the model found. cached: True if `model` reproduces all results; then the
        answer is the same for all quantizers with these two models, and comes from a cache.
        """
        certificates, key = self.known.certificates, (start, model)
        if cached and key in certificates:
            self.tried += certificates[key][0] + len(certificates[key][1])
            return certificates[key]
        others = {words: other for words, other in rival_models(start, self.source).items() if other != model}
        rivals = [words for words, other in others.items() if self.gives_all(other)]
        result = len(others) - len(rivals), tuple(rivals)
        if cached:
            certificates[key] = result
        return result

    def _wrong_in_part(self, model: QuantizerModel) -> int:
        """Return the number of results that a model does not reproduce, in the part that `_take_part` selected.

        The model's results are cached.
        """
        self.tried += 1
        if model not in self._singles:
            self._singles[model] = model.run(self._part)
        return int(np.count_nonzero(self._singles[model] != self._of_part))

    def _wrong_of_first(self, model: QuantizerModel) -> int:
        """Return how many results `model` does not reproduce, counting only every n-th input (`KnownModels.first`)."""
        return int(np.count_nonzero(model.run(self.known.inputs) != self._of_first))

    def gives_all(self, model: QuantizerModel) -> bool:
        """Return whether a model reproduces all results; it is tried on a few inputs first."""
        self.tried += 1
        if (self.known.first_of(model) != self._of_first).any():
            return False
        return not (model.run(self._part) != self._of_part).any() and self.count(model) == 0

    def _take_part(self, differ: npt.NDArray[np.bool_]) -> None:
        """Select the part of the inputs that candidates are tried on first; differ: mask of the wrong results.

        The part has at most PART inputs with wrong and PART with right results, evenly spread, and all zeros, Inf and
        NaN. If there are at most 3 * PART inputs, the part has all of them.
        """
        if self.got.size <= 3 * PART:
            return
        chosen = np.union1d(*(evenly_spread(np.flatnonzero(members), PART) for members in (differ, ~differ)))
        special = np.flatnonzero(~self.inputs.finite | (self.inputs.magnitude == 0))
        chosen = np.union1d(chosen, special)
        self._part, self._of_part = self.inputs.part(chosen).with_steps(), self.got[chosen]


@lru_cache(maxsize=16)
def rival_models(model: QuantizerModel, source: Format) -> dict[str, QuantizerModel]:
    """Return the other arithmetics (rivals) that a check tries to exclude: clause that describes a rival -> its model.

    They are the model of each policy of `fpsim.encode`, alone and after a rounding to FP16, BF16 or TF32, and `model`
    with one fault, for every fault that affects more than a few inputs. source: the format of the inputs.
    """
    faults = deviations(model, source, codes=False)
    named = {f"rounds to {name} first" for name in ("FP16", "BF16", "TF32")}
    first = [fault for fault in faults if fault.words in named]
    rivals: dict[QuantizerModel, str] = {}
    for (plain, words), before in itertools.product(
        plain_models(model.fmt, model.source_normal).items(), [None, *first]
    ):
        name = f"it has {', '.join(f'{word}={value!r}' for word, value in words.items())}"
        other, name = (plain, name) if before is None else (before.apply(plain), f"{name} and {before.words}")
        rivals.setdefault(other, name)
    for fault in faults:
        if not fault.rare:
            rivals.setdefault(fault.apply(model), f"it {fault.words}")
    return {words: other for other, words in rivals.items()}


def _with(start: QuantizerModel, faults: tuple[Deviation, ...]) -> QuantizerModel:
    """Return the model `start` with some faults added."""
    for fault in faults:
        start = fault.apply(start)
    return start
