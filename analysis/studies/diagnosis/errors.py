"""The errors of a recording's forward products in each recipe.

Errors are split by cause (rounding of operands, scales, sums, cast of the result) only for some products: those with an
error above the diagnosis's limit, and those of a recipe's worst layers.
"""

from __future__ import annotations

import dataclasses
import glob
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.arguments import matches
from fpsim.analysis.studies.budget.budget import budget
from fpsim.analysis.studies.budget.errors import ForwardErrors, forward_errors
from fpsim.analysis.studies.budget.layers import kept_layers
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.budget.report import Budget, added
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.analysis.studies.cells import Cells
from fpsim.analysis.studies.diagnosis.recipes import cache_of
from fpsim.analysis.studies.diagnosis.recording import recorded_name
from fpsim.analysis.studies.diagnosis.stages import OwnError, Report, Stages, keep_budget, known_budget, own_verdict
from fpsim.analysis.studies.diagnosis.verdict import KV_CACHE, LINES, Verdict, is_high, lines_of
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.sensitivity.content import recipe_words
from fpsim.recipes.linear_recipe import LinearRecipe

CACHE = "cache of "  # prefix of a recipe's name for its variant with a KV cache


class ProductErrors:
    """The errors of recorded forward products in every recipe, as budgets whose rows may lack the split by cause.

    Args:
      stages: the stages of the diagnosis, with its recipes and layers.
      recording: the model's recording, with operands.
      cells: the file of finished measurements, or None.
    Attributes:
      budgets: recipe -> the errors of linear layers and convolutions.
      refused: (layer, recipe) -> why the layer's product cannot be computed in the recipe.
    """

    def __init__(self, stages: Stages, recording: Recording, cells: Cells | None) -> None:
        self._stages, self._recording, self._cells = stages, recording, cells
        self.budgets = {
            name: Budget((), name, stages.hardware, recording.model, ()) for name in stages.recipes
        }  # fmt: skip
        self.refused: dict[tuple[str, str], str] = {}
        self._others: dict[tuple[str, str], Budget] = {}  # of attention and products by hand
        self._caches: dict[tuple[str, str], Budget] = {}
        self._largest: dict[str, float] = {}

    def measure(self, patterns: str | Sequence[str], report: Report) -> None:
        """Measure the errors of recorded forward products in every recipe; store them in `budgets` and `refused`.

        The products are those of each diagnosed layer, and of other recorded layers whose names match a shell pattern.

        Args:
          patterns: one shell pattern or several.
          report: called with (share of the work done, text).
        """
        recording, stages = self._recording, self._stages
        names = {recorded_name(layer): layer for layer in stages.layers}
        layers = list(dict.fromkeys(layer for _, layer, _ in recording.operands))
        for place, recorded_as in enumerate(layers):
            layer = names.get(recorded_as)
            if layer is None and not matches(recorded_as, patterns):
                continue
            report(place / len(layers), f"{recorded_as} in {', '.join(stages.recipes)}")
            caches = layer is None and (recording.steps[0], recorded_as, "query") in recording.operands
            for name, one in self._of_layer(recorded_as, caches).items():
                if layer is None and name.startswith(CACHE):
                    self._caches[name.removeprefix(CACHE), recorded_as] = one
                elif layer is None:
                    self._others[name, recorded_as] = one
                elif one.rows:
                    self._add(name, layer, one)
                else:
                    self.refused[layer, name] = one.notes[0] if one.notes else "it was not recorded"

    def _of_layer(self, layer: str, caches: bool) -> dict[str, Budget]:
        """Return recipe -> budget of a recorded layer; {} if the layer multiplies nothing.

        `layer`: the layer's name in the recording. `caches`: whether to add keys "cache of RECIPE" for recipes below 16
        bits, with budgets in which only the KV cache is in few bits.
        """
        recipes: dict[str, LinearRecipe] = dict(self._stages.recipes)
        if caches:
            recipes |= {CACHE + name: cache_of(recipe) for name, recipe in recipes.items() if not is_high(recipe)}
        keys = {name: digest(recipe_words(recipe), layer, "error") for name, recipe in recipes.items()}
        done = {name: known_budget(self._cells, key) for name, key in keys.items()}
        missing = {name: recipes[name] for name, one in done.items() if one is None}
        notes = Notes()
        try:
            kept = kept_layers(self._recording, glob.escape(layer), notes) if missing else []
        except ValueError:  # the layer multiplies nothing; a note says so
            return {}
        parts: dict[str, dict[tuple[int, str], list[BudgetRow]]] = {name: {} for name in missing}
        refused: dict[str, str] = {}
        said: dict[str, Notes] = {name: Notes() for name in missing}
        for one in kept:
            errors: ForwardErrors = forward_errors(one, missing)
            self._largest[one.layer] = max(errors.largest, self._largest.get(one.layer, 0.0))
            refused |= errors.refused
            for name, row in errors.rows.items():
                parts[name].setdefault((one.step, one.layer), []).append(row)
                said[name].extend((note, one.layer) for note in errors.notes[name])
        steps = tuple(sorted({one.step for one in kept}))
        for name in missing:
            whole = (reduce(BudgetRow.with_part, rows) for rows in parts[name].values())  # of several groups or heads
            rows = () if name in refused else added(tuple(whole))
            why = (refused[name],) if name in refused else (*notes.sentences, *said[name].sentences)
            why = tuple(note for note in why if not note.startswith("Without dgrad and wgrad"))
            fresh = Budget(rows, name, self._stages.hardware, self._recording.model, steps, why)
            keep_budget(self._cells, keys[name], name, layer, fresh)
            done[name] = fresh
        return {name: one for name, one in done.items() if one is not None}

    def _add(self, name: str, layer: str, one: Budget) -> None:
        """Add the rows and notes of a layer's budget `one` to `budgets[name]`, the budget of the recipe called `name`.

        `layer`: the layer's name, which is written into the added rows.
        """
        mine = self.budgets[name]
        rows = tuple(dataclasses.replace(row, layer=layer) for row in one.rows)
        notes = tuple(dict.fromkeys((*mine.notes, *one.notes)))
        self.budgets[name] = dataclasses.replace(mine, rows=mine.rows + rows, notes=notes, steps=one.steps)

    def inherit(self, name: str, energies: Mapping[str, float]) -> None:
        """Add inherited errors, which are caused by inexact inputs, to the rows of the recipe called `name`.

        `energies`: layer -> the sum of squared errors that its inexact input causes in its exact product.
        """
        rows = tuple(
            dataclasses.replace(row, squares=row.squares._replace(inherited=energies.get(row.layer)))
            for row in self.budgets[name].rows
        )  # fmt: skip
        self.budgets[name] = dataclasses.replace(self.budgets[name], rows=rows)

    def replace(self, name: str, layer: str, one: Budget) -> None:
        """Replace the row of a layer in `budgets[name]` by the first row of `one`, whose error is split by cause.

        The new row keeps the old row's inherited error, which inexact inputs of the layer cause. If `one`, the layer's
        budget in the recipe called `name`, has no rows, nothing changes.
        """
        if not one.rows:  # a note says why
            return
        row = one.rows[0]
        rows = tuple(
            dataclasses.replace(row, layer=layer, squares=row.squares._replace(inherited=old.squares.inherited))
            if old.layer == layer else old for old in self.budgets[name].rows
        )  # fmt: skip
        self.budgets[name] = dataclasses.replace(self.budgets[name], rows=rows)

    def misfits(self, limit: float) -> dict[str, set[str]]:
        """Return recipe -> names of the layers with a product that is too inexact.

        A product is too inexact if its relative error exceeds `limit` or is NaN, or if the relative error of its single
        rows or columns exceeds three times `limit`.
        """
        return {name: {row.layer for row in one.rows if _is_off(row, limit)} for name, one in self.budgets.items()}

    def alone(self, limit: float) -> tuple[Verdict, ...]:
        """Return verdicts on attention and other products that recipes of linear layers do not cover.

        Each verdict judges a product by the product's own error. `limit`: the largest accepted relative error.
        """
        recording, stages = self._recording, self._stages
        verdicts = []
        for (name, layer), one in self._others.items():
            recipe = stages.recipes[name]
            context = OwnError(layer, limit, defaultdict(lambda: math.nan, self._largest))  # NaN if read from a folder
            rows = self._with_causes(one, layer, recipe, limit)
            verdicts += [own_verdict(row, name, recipe, recording, context) for row in rows]
            cache = self._caches.get((name, layer))
            if cache is not None:
                rows, context = (
                    self._with_causes(cache, layer, cache_of(recipe), limit),
                    context._replace(called=KV_CACHE),
                )
                verdicts += [own_verdict(row, name, cache_of(recipe), recording, context) for row in rows]
        return tuple(verdicts)

    def _with_causes(self, one: Budget, layer: str, recipe: LinearRecipe, limit: float) -> tuple[BudgetRow, ...]:
        """Return the budget rows of a layer; if an error exceeds the limit, they are computed again, split by cause.

        `one`: the layer's budget in `recipe`, without causes. `layer`: the layer's name in the recording. `limit`: the
        largest accepted relative error.
        """
        if not any(_is_off(row, limit) for row in one.rows):
            return one.rows
        return budget(self._recording, recipe=recipe, on=None, layers=glob.escape(layer)).rows


def _is_off(row: BudgetRow, limit: float) -> bool:
    """Return whether the product of `row` is too inexact.

    It is if its relative error exceeds `limit` or is NaN, or if the relative error of its single rows or columns
    exceeds three times `limit`.
    """
    return not row.joint <= limit or lines_of(row) > LINES * limit
