"""The stages of a diagnosis without a loss, which measure only forward products and outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.cells import Cells, SweepCell, stored
from fpsim.analysis.studies.diagnosis.arrivals import Arrivals
from fpsim.analysis.studies.diagnosis.choosing import high_of
from fpsim.analysis.studies.diagnosis.errors import ProductErrors
from fpsim.analysis.studies.diagnosis.stages import BUDGETED, Report, Stages, keep_budget, known_budget
from fpsim.analysis.studies.diagnosis.verdict import Verdict, is_high
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.planning.evidence import evidence_of
from fpsim.analysis.studies.sensitivity.content import recipe_words, run_content
from fpsim.analysis.studies.sensitivity.measuring import sensitivity_of
from fpsim.analysis.studies.sensitivity.outputs import OutputMeasurer
from fpsim.analysis.studies.sensitivity.report import Sensitivity
from fpsim.analysis.studies.sensitivity.row import SensitivityRow
from fpsim.analysis.studies.sensitivity.twin import Twin

SPLIT = 6  # the worst layers of each recipe, whose errors are split by cause even if they fit
NO_LOSS = (
    "No loss was given: gradients were not measured, and errors were split by cause only for products that do not fit, "
    f"and for the {SPLIT} worst layers of each recipe below 16 bits."
)
# share of the work done after each stage
ENDS = {"recording": 0.05, "errors": 0.4, "together": 0.8, "causes": 0.9, "alone": 0.98}


class OutputStages(Stages):
    """The stages of a diagnosis without a loss, which measure a model's forward products and outputs.

    They are made like `Stages`, with None as the loss: from the model, batches, layers (name -> number of elements of
    the weight), recipes, hardware and seed as `fp.analysis.diagnose` accepts them, and a folder that stores each
    measurement, or None.
    """

    STANDING = (NO_LOSS,)
    PRODUCTS = ("fprop",)

    def _measured(
        self, recording: Recording, limit: float, layers: str | Sequence[str], report: Report
    ) -> tuple[dict[str, Budget], Sensitivity]:  # fmt: skip
        with self._cells(self.batches[:BUDGETED]) as cells:
            errors = self._errors = ProductErrors(self, recording, cells)
            start, end = ENDS["recording"], ENDS["errors"]
            errors.measure(layers, lambda share, text: report(start + (end - start) * share, text))
            measurer = self._measurer(errors)
            report(ENDS["errors"], "outputs")
            unsteady = measurer.prepare()
            arrivals = Arrivals(recording)
            joint = self._together(measurer, errors, arrivals, cells, report)
            misfits = errors.misfits(limit)
            self._split(recording, errors, misfits, cells, report)
            effects = sensitivity_of(measurer, self.model, layers, self.layers, measurer.measured(unsteady), joint)
            for refusal in evidence_of(self._offered(effects), effects.figure).refusals:  # such as sizes of blocks
                misfits[refusal.recipe].add(refusal.layer)
            self._alone_where_needed(measurer, errors, misfits, limit, report)
        single = measurer.measured(unsteady)
        report(ENDS["alone"], "plan")
        return dict(errors.budgets), sensitivity_of(measurer, self.model, layers, self.layers, single, joint)

    def _offered(self, effects: Sensitivity) -> Sensitivity:
        """Return the sensitivity with every output error set to 0, so that a plan refuses no product for a NaN error.

        Products that were not measured alone have NaN errors.
        """
        rows = tuple(dataclasses.replace(row, output_error=0.0) for row in effects.rows)
        return dataclasses.replace(effects, rows=rows)

    def _alone(self, recording: Recording, limit: float, patterns: str | Sequence[str]) -> tuple[Verdict, ...]:
        return self._errors.alone(limit)

    # ---- stages

    def _measurer(self, errors: ProductErrors) -> OutputMeasurer:
        """Return the object that measures how forward products in a recipe change the model's outputs.

        `errors`: the products' own errors; products in `errors.refused` cannot follow the recipe and are not measured.
        Measurements are stored in the folder "sensitivity" of `self.out`, or nowhere if that is None.
        """
        twin = Twin(self.model, list(self.layers), None, self.seed, "emulated")
        content = run_content(self.model, list(self.batches), None, self.seed, "emulated")
        folder = None if self.out is None else self.out / "sensitivity"
        measurer = OutputMeasurer(twin, self.batches, self.recipes, self.PRODUCTS, content, folder)
        for (layer, name), why in errors.refused.items():
            measurer.refused[layer, "fprop", name] = why
        return measurer

    def _together(
        self, measurer: OutputMeasurer, errors: ProductErrors, arrivals: Arrivals, cells: Cells | None, report: Report
    ) -> tuple[SensitivityRow, ...]:  # fmt: skip
        """Run the model once for each recipe, with all products in that recipe; return each run's output error as a
        row.

        The inherited error of every layer (the one that its inexact input causes) is added to `errors`.

        Args:
          measurer: runs the model.
          errors: the errors of the products.
          arrivals: compares the inputs of layers with exact ones.
          cells: the file of finished measurements, or None.
          report: called with (share of the work done, text).
        """
        rows = []
        start, end = ENDS["errors"], ENDS["together"]
        for place, name in enumerate(self.recipes):
            report(start + (end - start) * place / len(self.recipes), f"all products in {name}")
            low = {
                (layer, "fprop"): self.recipes[name]
                for layer, product in measurer.elements if (layer, product, name) not in measurer.refused
            }  # fmt: skip
            key = digest(recipe_words(self.recipes[name]), "inherited", *sorted(layer for layer, _ in low))
            known = stored(cells, key)
            if known is None:
                arrivals.listen(measurer.twin, name)
            rows.append(measurer.joint(low, name))
            if known is None:
                arrivals.complete(measurer, low, name)
                known = arrivals.energies[name]
                if cells is not None:
                    cells.add(SweepCell(key, {"recipe": name, "layer": "*"}, dict(known)))
            errors.inherit(name, known)
        return tuple(rows)

    def _split(
        self, recording: Recording, errors: ProductErrors, misfits: Mapping[str, set[str]], cells: Cells | None,
        report: Report,
    ) -> None:  # fmt: skip
        """Split errors by cause for layers that do not fit a recipe, and for the 6 worst layers of each low recipe.

        Low recipes are those below 16 bits, or all recipes if none is below. In `errors`, the rows of the split layers
        are replaced.

        Args:
          recording: the recorded operands.
          errors: the errors of the products.
          misfits: recipe -> layers with products that do not fit.
          cells: the file of finished measurements, or None.
          report: called with (share of the work done, text).
        """
        lows = [name for name, recipe in self.recipes.items() if not is_high(recipe)] or list(self.recipes)
        for name in self.recipes:
            mine = errors.budgets[name]
            worst = [layer for layer, _ in mine.ranking[:SPLIT]] if name in lows and mine.rows else []
            for layer in dict.fromkeys([*worst, *sorted(misfits[name])]):
                report(ENDS["together"], f"causes of {layer or 'the model'} in {name}")
                key = digest(recipe_words(self.recipes[name]), layer)
                one = known_budget(cells, key)
                if one is None:
                    one = self._budget(recording, None, name, layer)
                    keep_budget(cells, key, name, layer, one)
                errors.replace(name, layer, one)

    def _alone_where_needed(
        self, measurer: OutputMeasurer, errors: ProductErrors, misfits: Mapping[str, set[str]], limit: float,
        report: Report,
    ) -> None:  # fmt: skip
        """Measure products one at a time in the recipes below 16 bits that change the outputs by more than the limit.

        To find these recipes, the model runs once for each recipe below 16 bits: all products that fit this recipe
        follow it, and the others follow the 16-bit recipe. If any recipe exceeds the limit, products are also measured
        one at a time in the 16-bit recipe.

        Args:
          measurer: runs the model.
          errors: the errors of the products.
          misfits: recipe -> layers whose product does not fit, or that a plan doesn't offer, which are not measured
            alone.
          limit: the largest relative error of the outputs.
          report: called with (share of the work done, text).
        """
        overflows = [name for name, one in errors.budgets.items() for row in one.rows if math.isinf(row.joint)]
        high = high_of(self.recipes, overflows)
        start, end = ENDS["causes"], ENDS["alone"]
        wanted: list[tuple[str, str, str]] = []
        for name, recipe in self.recipes.items():
            slots = [
                slot for slot in measurer.elements
                if (*slot, name) not in measurer.refused and slot[0] not in misfits[name]
            ]  # fmt: skip
            low = dict.fromkeys(slots, recipe)
            rest = {
                slot: self.recipes[high] for slot in measurer.elements
                if slot not in low and (*slot, high) not in measurer.refused
            }  # fmt: skip
            if not is_high(recipe) and low and not measurer.joint({**rest, **low}, name).output_error <= limit:
                wanted += [(*slot, name) for slot in slots]
        if wanted:
            wanted += [(*slot, high) for slot in measurer.elements if (*slot, high) not in measurer.refused]
            measurer.measure(wanted, lambda share, text: report(start + (end - start) * share, text))
