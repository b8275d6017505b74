"""The stages of a diagnosis, one after the other; measurements that the diagnosis's folder holds are not repeated."""

from __future__ import annotations

import dataclasses
import glob
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.models.compiled import judged_eagerly
from fpsim.analysis.models.coverage import EVERY
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.arguments import matches
from fpsim.analysis.studies.budget.budget import budget
from fpsim.analysis.studies.budget.causes import NAMES
from fpsim.analysis.studies.budget.layers import kept_layers, left_out, operands_of, sizes_of
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.budget.report import OWN_UNITS, Budget, cause_of
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.analysis.studies.cells import Cells, SweepCell, stored
from fpsim.analysis.studies.diagnosis.budget_text import from_text, to_text
from fpsim.analysis.studies.diagnosis.choosing import Chosen, chosen
from fpsim.analysis.studies.diagnosis.recipes import cache_of, recipes_on
from fpsim.analysis.studies.diagnosis.recording import (
    left_out_notes,
    recorded,
    recorded_layers,
    recorded_low,
    recorded_name,
    unrecorded,
)
from fpsim.analysis.studies.diagnosis.report import Diagnosis
from fpsim.analysis.studies.diagnosis.verdict import KV_CACHE, Verdict, is_high, lines_of, reason
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.planning.evidence import Evidence, evidence_of
from fpsim.analysis.studies.planning.prices import product_bits
from fpsim.analysis.studies.sensitivity.content import recipe_words, run_content
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.request import LEFT_OUT, left_out_layers
from fpsim.analysis.studies.sensitivity.sensitivity import sensitivity
from fpsim.formats.element import element_format
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe

BUDGETED = 2  # batches whose products are recorded and budgeted; the sensitivity takes all
RANGE = "BF16"  # the recipe of 16 bits that has the range of float32
PROMOTED = 128  # terms after which sums move to float32, where that is tried as a remedy
Report = Callable[[float, str], None]
ENDS = {"recording": 0.05, "budgets": 0.65, "sensitivity": 0.92}  # share of the work done after each stage


class OwnError(NamedTuple):
    """The context in which a product is judged by its own error.

    Attributes:
      layer: name of the layer in the recording.
      limit: the largest accepted relative error.
      largest: layer -> the largest magnitude in the exact result of its forward product.
      called: "product with a KV cache" if the product reads one; else ""."""

    layer: str
    limit: float
    largest: Mapping[str, float]
    called: str = ""


class Stages:
    """The stages of a diagnosis, which measure a model on some batches.

    The arguments are those of `fp.analysis.diagnose`, except `layers`: name of a linear layer or convolution -> number
    of elements of its weight; `hardware`: its argument `on`; and `out`: a folder that stores each measurement, or None.
    `STANDING`: the notes of every diagnosis by these stages. `PRODUCTS`: the products that they measure.
    Raise a ValueError or TypeError if a recipe or the hardware is unknown."""

    STANDING: tuple[str, ...] = ()  # notes of every diagnosis by these stages
    PRODUCTS: tuple[str, ...] = PRODUCTS  # the products that these stages measure

    def __init__(
        self, model: Any, batches: Sequence[Any], loss: Callable[[Any, Any], Any] | None, layers: Mapping[str, int],
        recipes: Any, hardware: Any, seed: int, out: Path | None,
    ) -> None:  # fmt: skip
        self.model, self.batches, self.loss, self.layers, self.seed, self.out = model, batches, loss, layers, seed, out
        self.hardware = OWN_UNITS if hardware is None else str(getattr(hardware, "name", hardware))
        self.recipes, self.notes = recipes_on(recipes, hardware, self.PRODUCTS)
        self._hardware = hardware

    def run(self, bits: float | None, limit: float, layers: str | Sequence[str], report: Report) -> Diagnosis:
        """Run all stages, and return the diagnosis.

        `bits`, `limit`, `layers`: as in `fp.analysis.diagnose`. `report`: called with (share done, text)."""
        report(0.0, "recording")
        recording = recorded(self.model, self.batches[:BUDGETED], self.loss, self.seed)
        self._add_range(recording)
        if bits is not None:
            self._require_bits(recording, bits)
        budgets, effects = self._measured(recording, limit, layers, report)
        for name, one in budgets.items():
            names = {recorded_name(layer) for layer in one.layers}
            budgets[name] = dataclasses.replace(one, coverage=recording.coverage.of(names, layers not in EVERY))
        verdicts = self._verdicts(recording, budgets, effects, limit)
        # other recipes make another plan, though their measurements are shared
        out = None if self.out is None else self.out / "plan" / effects.identity[:16]
        choice = chosen(effects, verdicts, limit, bits, out)
        report(1.0, "done")
        alone = self._alone(recording, limit, layers)
        return self._diagnosis(recording, budgets, effects, verdicts, choice, limit, alone)

    def _measured(
        self, recording: Recording, limit: float, layers: str | Sequence[str], report: Report
    ) -> tuple[dict[str, Budget], Sensitivity]:  # fmt: skip
        """Return recipe -> budget of the recorded products, and the sensitivity of the model on all batches.

        `recording`: gives the operands. `limit`: the largest accepted relative error. `layers`: shell patterns of
        layers to measure. `report`: called with (share of the work done, text)."""
        budgets = self._budgets(recording, self.batches[:BUDGETED], report)
        start, end = ENDS["budgets"], ENDS["sensitivity"]
        effects = sensitivity(
            self.model, self.batches, self.loss, recipes=self.recipes, layers=layers, seed=self.seed,
            out=None if self.out is None else self.out / "sensitivity",
            progress=lambda share, text: report(start + (end - start) * share, text),
        )  # fmt: skip
        report(end, "plan")
        return budgets, effects

    def _diagnosis(
        self, recording: Recording, budgets: dict[str, Budget], effects: Sensitivity, verdicts: Sequence[Verdict],
        choice: Chosen, limit: float, alone: tuple[Verdict, ...],
    ) -> Diagnosis:  # fmt: skip
        """Return the diagnosis of finished measurements, with all its notes.

        `budgets`: recipe -> errors by cause. `effects`: the sensitivity. `choice`: the plan and its recipes. `limit`:
        the largest accepted relative error. `alone`: verdicts on attention and weights multiplied outside layers."""
        judged = list(dict.fromkeys(verdict.layer for verdict in verdicts))
        unseen = unrecorded(self.model, recording.layers)
        exact = {recorded_name(layer): why for layer, why in left_out_layers(self.model).items()}
        same = judged_eagerly(self.model, effects.coverage)
        notes = [
            *self.notes,
            *(note for note in effects.notes if not note.startswith(LEFT_OUT) and note not in same),
            *left_out_notes(recording, judged, list(self.layers), unseen, exact, self.loss is not None),
            *recording.notes, *choice.plan.notes, *judged_eagerly(self.model, recording.coverage),
            *self.STANDING,
            *of_layers([note for budget in budgets.values() for note in budget.notes], set(recording.layers)),
        ]  # fmt: skip
        kept = tuple(dict.fromkeys((*choice.plan.kept, *recorded_layers(alone, recording))))
        made = dataclasses.replace(choice.plan, kept=kept)
        return Diagnosis(
            recording, budgets, effects, made, tuple(verdicts), choice.low, choice.high, choice.joint, choice.missed,
            choice.pays, self._promoted(recording, verdicts), limit, self.hardware, len(self.batches[:BUDGETED]),
            tuple(dict.fromkeys(notes)), tuple(unseen), alone,
        )  # fmt: skip

    def _add_range(self, recording: Recording) -> None:
        """Add BF16 to the diagnosed recipes if a recorded value overflows in every recipe of 16 bits or more."""
        judged = {recorded_name(layer) for layer in self.layers}
        largest = max((row.range.amax for row in recording if row.layer in judged), default=0.0)
        highs = {name: ends_at(recipe) for name, recipe in self.recipes.items() if is_high(recipe)}
        if largest > max(highs.values()) and RANGE not in self.recipes:
            self.recipes |= recipes_on(RANGE, self._hardware, self.PRODUCTS).recipes
            self.notes += (f"{RANGE} was added, since values of up to {largest:.2g} are beyond {', '.join(highs)}.",)

    def _require_bits(self, recording: Recording, bits: float) -> None:
        """Raise a ValueError if `bits` per operand value are too few even with the smallest recipe for each product."""
        least = total = 0.0
        for layer in self.layers:
            values = _values(recording, layer)
            for product, pair in values.items():
                bits_of = [float(product_bits(recipe, product, pair)) for recipe in self.recipes.values()]
                least, total = least + min(bits_of), total + sum(pair)
        if total and bits < least / total * (1 - 2.0**-30):
            raise ValueError(
                f"bits must be at least {math.ceil(1000 * least / total) / 1000:g}, which all products take in the "
                f"smallest of the recipes {', '.join(self.recipes)}; got {bits:g}. Add a smaller recipe, such as "
                "'NVFP4' on B200."
            )

    def _budgets(self, recording: Recording, batches: Sequence[Any], report: Report) -> dict[str, Budget]:
        """Return recipe -> budget of all diagnosed layers; each layer's budget is stored as soon as it is computed.
        `batches`: the recorded batches. `report`: called with (share of the work done, text)."""
        names = {layer for _, layer, which in recording.operands if which == "input"}
        layers = [layer for layer in self.layers if recorded_name(layer) in names]
        steps = [(name, layer) for name in self.recipes for layer in layers]
        budgets: dict[str, Budget] = {}
        low: dict[str, Recording | None] = {}
        start, end = ENDS["recording"], ENDS["budgets"]
        with self._cells(batches) as cells:
            for done, (name, layer) in enumerate(steps):
                report(start + (end - start) * done / len(steps), f"{layer} in {name}")
                key = digest(recipe_words(self.recipes[name]), layer)
                one = known_budget(cells, key)
                if one is None:
                    if name not in low:
                        try:
                            low[name] = recorded_low(
                                self.model, batches, self.loss, self.seed, self.recipes[name], list(self.layers)
                            )
                        except ValueError:  # a product cannot be computed in the recipe; its budget says which
                            low[name] = None
                    one = self._budget(recording, low[name], name, layer)
                    keep_budget(cells, key, name, layer, one)
                rows = tuple(dataclasses.replace(row, layer=layer) for row in one.rows)
                before = budgets.get(name)
                budgets[name] = dataclasses.replace(
                    one, rows=((() if before is None else before.rows) + rows), recipe=name, on=self.hardware,
                    notes=tuple(dict.fromkeys((() if before is None else before.notes) + one.notes)),
                    steps=one.steps or (() if before is None else before.steps),
                )  # fmt: skip
        return budgets

    def _cells(self, batches: Sequence[Any]) -> Any:
        """Return a context manager whose value is the file of these batches' error budgets in the folder `self.out`, or
        None if `self.out` is None. `batches`: the recorded batches."""
        if self.out is None:
            return nullcontext(None)
        content = run_content(self.model, list(batches), self.loss, self.seed)
        return Cells(
            self.out / "budgets", "fpsim.analysis.diagnose", content, ["recipe", "layer"], kind="diagnosis",
            changed="with other weights, settings, batches, draws or code",
        )  # fmt: skip

    def _budget(self, recording: Recording, low: Recording | None, name: str, layer: str) -> Budget:
        """Return the errors, by cause, of one layer's products in the recipe called `name`.

        `recording`: the exact run. `low`: the recording of a run in this recipe, from which inherited errors follow, or
        None. If the products cannot be computed in the recipe, the budget has a note instead of rows."""
        pattern, recipe = glob.escape(recorded_name(layer)), self.recipes[name]
        try:
            if low is not None:
                return budget(recording, recipe=recipe, on=None, arriving=low, layers=pattern)
        except ValueError:  # an input is Inf or NaN in low precision, or was not kept
            pass
        try:
            return budget(recording, recipe=recipe, on=None, layers=pattern)
        except ValueError as why:
            note = f"{name} has no budget of {layer or 'the model'}: {why}"
            return Budget((), name, self.hardware, recording.model, (), (note,))

    def _offered(self, effects: Sensitivity) -> Sensitivity:
        """Return `effects` unchanged: a plan may choose any recipe whose error for the product is in `effects`."""
        return effects

    def _verdicts(
        self, recording: Recording, budgets: Mapping[str, Budget], effects: Sensitivity, limit: float
    ) -> list[Verdict]:  # fmt: skip
        """Return the verdict on each product in each recipe, from `budgets` and the sensitivity `effects`.

        `budgets`: recipe -> error budget. `recording`: has operands' ranges. `limit`: the largest error that fits.
        """
        evidence = evidence_of(self._offered(effects), effects.figure)
        rows = {(row.layer, row.product, name): row for name, budget in budgets.items() for row in budget.rows}
        names = {recorded_name(layer): layer for layer in self.layers}
        largest: dict[str, float] = {}  # the largest magnitude of each layer's output
        for recorded_row in recording:
            if recorded_row.tensor == "output" and recorded_row.layer in names:
                layer = names[recorded_row.layer]
                largest[layer] = max(recorded_row.range.amax, largest.get(layer, 0.0))
        verdicts = []
        for row in effects.rows:
            key = row.layer, row.product, row.recipe
            recipe = self.recipes[row.recipe]
            bits = float(product_bits(recipe, row.product, row.elements) / sum(row.elements))
            mine = rows.get(key)
            if mine is None:
                why, figures = f"its {row.product} was not recorded", (math.nan,) * 3
            else:
                reaches = largest.get(row.layer, math.nan) if row.product == "fprop" else math.nan
                why = reason(mine, row, limit, recipe, recording, row.layer, reaches)
                figures = mine.joint, lines_of(mine), mine.inherited
            if mine is None or math.isfinite(mine.joint):  # a product that overflows has infinite harm for that reason
                why = _not_offered(evidence, key) or why
            verdicts.append(Verdict(
                *key, bits, sum(row.elements), *figures, row.gradient_error, row.gradient_spread, not why, why,
                "" if mine is None else cause_of(mine), row.output_error, row.output_spread,
            ))  # fmt: skip
        return verdicts

    def _alone(self, recording: Recording, limit: float, patterns: str | Sequence[str]) -> tuple[Verdict, ...]:
        """Return verdicts on products of attention and of weights multiplied outside of layers, by their own errors.
        `recording`: gives the operands. `limit`: the largest accepted relative error. `patterns`: layers to include."""
        judged = {recorded_name(layer) for layer in self.layers}
        verdicts = []
        for layer in dict.fromkeys(layer for _, layer, _ in recording.operands):
            if layer in judged or not matches(layer, patterns):
                continue
            try:
                kept = kept_layers(recording, glob.escape(layer), Notes())
            except ValueError:  # the layer multiplies nothing; a note says so
                continue
            largest = {
                name: max(float(np.abs(one.x @ one.weight.T).max(initial=0.0)) for one in kept if one.layer == name)
                for name in dict.fromkeys(one.layer for one in kept)
            }
            for name, recipe in self.recipes.items():
                rows = self._budget(recording, None, name, layer).rows
                context = OwnError(layer, limit, largest)
                verdicts += [own_verdict(row, name, recipe, recording, context) for row in rows]
                if kept[0].kind == "attention" and not is_high(recipe):
                    cache, context = cache_of(recipe), context._replace(called=KV_CACHE)
                    rows = budget(recording, recipe=cache, on=None, layers=glob.escape(layer)).rows
                    verdicts += [
                        own_verdict(row, name, cache, recording, context) for row in rows if row.product == "fprop"
                    ]
        return tuple(verdicts)

    def _promoted(self, recording: Recording, verdicts: Sequence[Verdict]) -> dict[tuple[str, str, str], float]:
        """Return (layer, product, recipe) -> relative error if sums are added to a float32 total every 128 terms. Only
        products that do not fit because of their sums, as `verdicts` say, are included. `recording`: gives operands."""
        errors = {}
        for verdict in verdicts:
            if verdict.fits or verdict.cause != "sums":
                continue
            recipe = self.recipes[verdict.recipe]
            how = getattr(recipe, verdict.product)
            if how.accumulate is None:
                continue
            other = recipe.replace(**{verdict.product: how.replace(promote=PROMOTED, schedule=None)})
            row = budget(recording, recipe=other, on=None, layers=glob.escape(recorded_name(verdict.layer)))
            errors[verdict.layer, verdict.product, verdict.recipe] = row.row(
                recorded_name(verdict.layer), verdict.product
            ).joint
        return errors


def own_verdict(row: BudgetRow, name: str, recipe: LinearRecipe, recording: Recording, context: OwnError) -> Verdict:
    """Return the verdict on a product in the recipe called `name`, judged by the error of its result alone. The
    verdict's errors of gradients and outputs are NaN. `row`: the error of the result by cause. `recording`: gives the
    operands' ranges, which explain the error. `context`: the layer, the limit and the largest exact results."""
    (m, n, k), largest = row.shape, context.largest[row.layer] if row.product == "fprop" else math.nan
    sizes = (0, n * k) if context.called else (m * k, n * k)  # for a cache only the operand that it holds
    why = reason(row, None, context.limit, recipe, recording, context.layer, largest, context.called)
    return Verdict(
        row.layer, context.called or row.product, name, float(product_bits(recipe, row.product, sizes) / sum(sizes)),
        sum(sizes), row.joint, lines_of(row), math.nan, math.nan, math.nan, not why, why, cause_of(row),
    )  # fmt: skip


def ends_at(recipe: LinearRecipe) -> float:
    """Return the least of the largest values of a recipe's input, weight and output formats; Inf if nothing is cast.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.stages import ends_at
      >>> [ends_at(fp.torch.RECIPES[name]) for name in ("FP16", "FP32")]
      [65504.0, inf]
    """
    fmts = (recipe.input_fmt, recipe.weight_fmt, recipe.fprop.out_fmt)
    return min(
        (float(getattr(element_format(fmt), "max", math.inf)) for fmt in fmts if fmt is not None), default=math.inf
    )


def known_budget(cells: Cells | None, key: str) -> Budget | None:
    """Return the budget of a key in `cells`, the file of finished results; None if `cells` is None or lacks the key."""
    result = stored(cells, key)
    return None if result is None else from_text(result["budget"])


def keep_budget(cells: Cells | None, key: str, recipe: str, layer: str, budget: Budget) -> None:
    """Store a layer's error budget under a key in `cells`, the file of finished results; None stores nothing.
    `recipe`, `layer`: names that the file stores with it."""
    if cells is not None:
        cells.add(SweepCell(key, {"recipe": recipe, "layer": layer}, {"budget": to_text(budget)}))


def of_layers(notes: Sequence[str], layers: set[str]) -> tuple[str, ...]:
    """Merge notes "REASON: LAYER." of equal reason into one that names all layers; return all notes.
    Other notes come first, unchanged. `layers`: the names that count as a layer."""
    reasons, others = Notes(), []
    for note in dict.fromkeys(notes):
        reason, _, layer = note.removesuffix(".").rpartition(": ")
        if layer in layers:
            reasons.add(reason, layer)
        else:
            others.append(note)
    return (*others, *reasons.sentences)


def _not_offered(evidence: Evidence, key: tuple[str, str, str]) -> str:
    """Return why a plan cannot use the recipe of `key` (layer, product, recipe), as the end of a sentence; else "".
    `evidence`: the measured errors from which the plan is made, and the recipes that it does not consider."""
    if key in evidence.measured:
        return ""
    reason = next((refusal.reason for refusal in evidence.refusals if refusal.key == key), "it was not measured")
    return f"its {key[1]} cannot be planned, since {reason}"


def _values(recording: Recording, layer: str) -> dict[str, tuple[int, int]]:
    """Return product -> numbers of values of both operands, at a layer's first recorded step; {} if unknown."""
    name = recorded_name(layer)
    steps = [step for step, recorded_as, _ in recording.operands if recorded_as == name]
    if not steps:
        return {}
    operands = operands_of(recording, steps[0], name)
    if left_out(operands, "", recording.settings(steps[0], name)):
        return {}
    sizes = sizes_of(operands, recording.settings(steps[0], name))
    return {product: (sizes[a], sizes[b]) for product, (a, b) in NAMES.items() if a in sizes and b in sizes}
