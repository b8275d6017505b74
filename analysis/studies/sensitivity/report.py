"""The report of a sensitivity: the effect of each product in low precision, alone and together with all others."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.sensitivity.row import RANKED, BatchFigures, SensitivityRow, harm
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import aligned, html_paragraphs, html_table
from fpsim.display.wording import plural
from fpsim.errors import require_word, shown
from fpsim.recipes.linear_recipe import LinearRecipe

SHOWN = 12  # rows that str() shows


class Additivity(NamedTuple):
    """The effects of single low-precision products, added up, compared with the effect of all products at once.

    Attributes:
      recipe: name of the recipe.
      loss_sum: the sum of the loss changes of single products.
      loss_joint: the loss change with all products in low precision.
      gradient_sum: the root of the sum of squares of the relative gradient errors of single products; it would equal
        the joint error if the errors of single products were independent.
      gradient_joint: the relative gradient error with all products in low precision.
    """

    recipe: str
    loss_sum: float
    loss_joint: float
    gradient_sum: float
    gradient_joint: float

    def __str__(self) -> str:
        return (
            f"{self.recipe}: the loss changes of single products add up to {self.loss_sum:+.3g}, and all products at "
            f"once change it by {self.loss_joint:+.3g}; the gradient errors add up to {self.gradient_sum:.3g} in "
            f"quadrature, and the error at once is {self.gradient_joint:.3g}"
        )


class Agreement(NamedTuple):
    """The agreement of an estimate with the measured changes of the loss, over layers, recipes and batches.

    Attributes:
      estimate: "first_order", "fisher", or "second_order" for their sum.
      rank_correlation: Spearman's rank correlation of estimates and measured changes; NaN for fewer than 3 changes, or
        if all are equal.
      ratio: sum of the magnitudes of the estimates, divided by that of the measured changes; ideally 1.
      changes: number of changes that were compared.
    """

    estimate: str
    rank_correlation: float
    ratio: float
    changes: int

    def __str__(self) -> str:
        return (
            f"{self.estimate} estimates from one backward pass: rank correlation {self.rank_correlation:.2f} with "
            f"{plural(self.changes, 'measured change')} of the loss, and {self.ratio:.2g} times their magnitude"
        )


ESTIMATES = ("second_order", "first_order", "fisher")


@dataclass(frozen=True)
class Sensitivity:
    """The effects of each product of each layer, alone in low precision, on the loss, the outputs and the gradients.

    Attributes:
      rows: a SensitivityRow for each layer, product and recipe, in the model's order.
      joint: a SensitivityRow for each recipe, with all products of `rows` in that recipe at once; their layer and
        product are "*".
      layers: layer -> number of elements of its weight.
      recipes: name -> recipe.
      losses: the loss of each batch with exact products; NaN if no loss was given.
      model: name of the model's class.
      identity: a digest of the model's weights, buffers and modes, the batches, the loss, the random draws and the
        recipes.
      notes: sentences on what was not measured, and why.
      convolutions: layer -> number of groups, for layers that are convolutions.
      coverage: a Coverage, the shares of the model's weights and multiplications that the rows cover.
      terms: layer -> number of terms of each sum of its forward product; {} in older files.
    """

    rows: tuple[SensitivityRow, ...]
    joint: tuple[SensitivityRow, ...]
    layers: Mapping[str, int]
    recipes: Mapping[str, LinearRecipe]
    losses: tuple[float, ...]
    model: str
    identity: str
    notes: tuple[str, ...] = ()
    _measurer: Any = dataclasses.field(default=None, repr=False, compare=False)
    convolutions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    coverage: Coverage = dataclasses.field(default=NOTHING, repr=False)
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict, repr=False)

    def __getitem__(self, key: tuple[str, str, str]) -> SensitivityRow:
        """Return the row of (layer, product, recipe); raise a KeyError if there is none."""
        for row in self.rows:
            if (row.layer, row.product, row.recipe) == key:
                return row
        raise KeyError(f"no row of layer, product and recipe {key!r}; there are {plural(len(self.rows), 'row')}")

    @property
    def has_loss(self) -> bool:
        """True if the model was measured with a loss, so that errors of gradients are known."""
        return not all(map(math.isnan, self.losses))

    @property
    def figure(self) -> str:
        """The metric by which products are compared: "gradient_error", or without a loss "output_error"."""
        return "gradient_error" if self.has_loss else "output_error"

    def ranking(self, by: str | None = None, product: str | None = None) -> tuple[SensitivityRow, ...]:
        """Return the rows in order of the magnitude of a metric, the largest first; Inf and NaN come before numbers.

        Args:
          by: "gradient_error" (the default), which depends on all products, or "weight_gradient_error"; "output_error"
            (the default without a loss), "loss_change", "first_order" or "fisher", which are 0 for backward products.
          product: "fprop", "dgrad" or "wgrad" for rows of one product; None for all.
        Raises:
          ValueError: the metric or the product is unknown.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
          >>> x = torch.randn(32, 64)
          >>> report = fp.analysis.sensitivity(model, [x], lambda model, x: model(x).square().mean(), recipes="BF16")
          >>> [row.layer for row in report.ranking("output_error", "fprop")] in (["0", "2"], ["2", "0"])
          True
        """
        by = self.figure if by is None else by
        require_word("by", by, RANKED)
        if product is not None:
            require_word("product", product, ("fprop", "dgrad", "wgrad"))
        rows = [row for row in self.rows if product in (None, row.product)]
        return tuple(sorted(rows, key=lambda row: -harm(row, by)))

    def additivity(self) -> tuple[Additivity, ...]:
        """Return, for each recipe, the added effects of single products and the effect of all products at once.

        The effects are changes of the loss, which are added, and errors of the gradients, whose squares are added. The
        result is empty without a loss.
        """
        sums = []
        for whole in self.joint if self.has_loss else ():
            rows = [row for row in self.rows if row.recipe == whole.recipe]
            quadrature = math.sqrt(sum(row.gradient_error * row.gradient_error for row in rows))
            total = sum(row.loss_change for row in rows)
            sums.append(Additivity(whole.recipe, total, whole.loss_change, quadrature, whole.gradient_error))
        return tuple(sums)

    def agreement(self, estimate: str = "second_order", recipe: str | None = None) -> Agreement:
        """Return how well an estimate from one backward pass agrees with the measured changes of the loss.

        A pair (estimate, measured change) belongs to one layer, recipe and batch. Pairs with Inf or NaN are left out.

        Args:
          estimate: "second_order", "first_order" or "fisher".
          recipe: name of a recipe, for its rows alone; None for all.
        Raises:
          ValueError: the estimate or the recipe is unknown.
        """
        require_word("estimate", estimate, ESTIMATES)
        if recipe is not None:
            require_word("recipe", recipe, tuple(self.recipes))
        cells = [
            figures
            for row in self.rows
            if row.product == "fprop" and recipe in (None, row.recipe)
            for figures in row.batches
        ]
        pairs = [(figures.loss_change, estimated(figures, estimate)) for figures in cells]
        kept = [pair for pair in pairs if all(map(math.isfinite, pair))]
        measured, predicted = np.array(kept, np.float64).reshape(-1, 2).T
        size = float(np.abs(measured).sum())
        ratio = float(np.abs(predicted).sum()) / size if size else math.nan
        return Agreement(estimate, _spearman(measured, predicted), ratio, len(kept))

    @property
    def can_measure(self) -> bool:
        """True if `measure` has a model to run; False for a report read from a file."""
        return self._measurer is not None

    def measure(self, assignment: Mapping[tuple[str, str], str]) -> SensitivityRow:
        """Measure the effect of several products in low precision at once, on the same batches.

        Args:
          assignment: (layer, product) -> name of one of the report's recipes; other products stay exact.
        Returns:
          A row whose layer and product are "*", and whose recipe is the common recipe, "mixed", or "none" for no
          products.
        Raises:
          TypeError, ValueError: a product or recipe is unknown, or the report was loaded from a file and has no model
            to run.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
          >>> x = torch.randn(32, 64)
          >>> report = fp.analysis.sensitivity(model, [x], lambda model, x: model(x).square().mean(), recipes="BF16")
          >>> both = report.measure({("0", "fprop"): "BF16", ("2", "wgrad"): "BF16"})
          >>> both.gradient_error > report["0", "fprop", "BF16"].gradient_error
          True
        """
        if not isinstance(assignment, Mapping):
            raise TypeError(f"assignment must be a dictionary (layer, product) -> recipe; got {shown(assignment)}.")
        measured = {(row.layer, row.product) for row in self.rows}
        for pair, name in assignment.items():
            if pair not in measured:
                raise ValueError(f"assignment must name measured products; got {shown(pair)}, which was not measured.")
            if name not in self.recipes:
                names = ", ".join(self.recipes)
                raise ValueError(f"assignment must name recipes of the report, {names}; got {shown(name)}.")
        if not self.can_measure:
            raise ValueError("measure() runs the model, which a loaded report does not have. Call sensitivity() again.")
        used = set(assignment.values())
        name = used.pop() if len(used) == 1 else "mixed" if used else "none"
        recipes = {pair: self.recipes[recipe] for pair, recipe in assignment.items()}
        row: SensitivityRow = self._measurer.joint(recipes, name)
        return row

    def to_frame(self, by: str = "row") -> DataFrame:
        """Return a pandas DataFrame with a row for each SensitivityRow, or for each of its batches.

        Args:
          by: "row" for the metrics of each SensitivityRow, "batch" for the BatchFigures of each batch.
        Raises:
          ValueError: by is another value.
        """
        require_word("by", by, ("row", "batch"))
        if by == "row":
            return frame([row.to_dict() for row in self.rows])
        return frame([
            {"layer": row.layer, "product": row.product, "recipe": row.recipe, "batch": i, **figures._asdict()}
            for row in self.rows
            for i, figures in enumerate(row.batches)
        ])  # fmt: skip

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative error of the gradients by layer, product and recipe, and return the matplotlib axes.

        Without a loss, the error of the outputs is drawn instead. `ax`: the axes to draw into; None for new ones.
        """
        from fpsim.analysis.studies.sensitivity.figure import sensitivity_axes

        return sensitivity_axes(self.rows, list(self.recipes), self.figure, ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file as JSON; an error leaves no half-written file.

        Raises:
          OSError: the file cannot be written.
        """
        from fpsim.analysis.studies.sensitivity.file import write

        write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sensitivity:
        """Return the report that `save` wrote, bit for bit; it cannot `measure`, since the file contains no model.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or is not a report of `save`.
        """
        from fpsim.analysis.studies.sensitivity.file import read

        return cls(**read(path))

    def __str__(self) -> str:
        """Return the report as text.

        It has the coverage, the 12 rows of the largest effects, the effects of single products added up and compared
        with the joint effect, the agreement of estimates with measured changes of the loss, and the notes.
        """
        ranked = self.ranking()
        size = f"{plural(len(self.layers), 'layer')}, {plural(len(self.losses), 'batch', 'batches')}"
        coverage = self.coverage
        judged = f"mean loss {np.mean(self.losses):.4g}" if self.has_loss else "no loss, outputs alone"
        lines = [*filter(None, [coverage.headline]), f"sensitivity of {self.model}: {size}, {judged}",
                 *coverage.sentences]  # fmt: skip
        metrics: tuple[str, ...] = ("outputs", "+-", "cosine")
        if self.has_loss:
            metrics = ("gradient", "+-", "cosine", "outputs", "loss", "+-")
        rows = (_cells(row, self.has_loss) for row in ranked[:SHOWN])
        lines += aligned([("layer", "product", "recipe", *metrics), *rows], texts=3)
        if len(ranked) > SHOWN:
            lines.append(f"... and {plural(len(ranked) - SHOWN, 'row')} with less")
        lines += map(str, self.additivity())
        agreement = self.agreement()
        if not math.isnan(agreement.rank_correlation):
            lines.append(str(agreement))
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return (
            f"<sensitivity of {self.model}: {plural(len(self.layers), 'layer')}, "
            f"{plural(len(self.recipes), 'recipe')}, {plural(len(self.rows), 'row')}>"
        )

    def _repr_html_(self) -> str:
        """Return the notes and a table of all rows, the largest effects first, as HTML for notebooks."""
        names = [name for name in SensitivityRow.__dataclass_fields__ if name not in ("elements", "batches")]
        table = html_table(names, ([getattr(row, name) for name in names] for row in self.ranking()))
        headline = filter(None, [self.coverage.headline])
        lines = [*headline, repr(self)[1:-1], *self.coverage.sentences, *map(str, self.additivity()), *self.notes]
        text = html_paragraphs(lines)
        return f"{text}{table}"


def estimated(figures: BatchFigures, estimate: str) -> float:
    """Return one of the estimates of a loss change that `figures`, the metrics of one batch, contain.

    `estimate`: "first_order" or "fisher" for that attribute, "second_order" for the sum of both.
    """
    if estimate == "second_order":
        return figures.first_order + figures.fisher
    return float(getattr(figures, estimate))


def _spearman(x: Any, y: Any) -> float:
    """Return Spearman's rank correlation of two 1-d arrays; NaN for fewer than 3 values, or if all of one are equal."""
    if len(x) < 3:
        return math.nan
    first, second = (_ranks(values) - (len(x) + 1) / 2 for values in (x, y))
    size = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / size if size else math.nan


def _ranks(x: Any) -> Any:
    """Return the ranks of the values of a 1-d array, as floats counted from 1; equal values share their mean rank."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def _cells(row: SensitivityRow, has_loss: bool) -> tuple[str, ...]:
    """Return the table cells of a row; `has_loss`: whether they include the errors of gradients and of the loss."""
    names = row.layer or "(model)", row.product, row.recipe
    outputs = ((row.output_error, ".3g"), (row.output_spread, ".1g"), (row.output_cosine, ".5f"))
    gradients = (
        (row.gradient_error, ".3g"), (row.gradient_spread, ".1g"), (row.gradient_cosine, ".5f"), outputs[0],
        (row.loss_change, "+.2g"), (row.loss_spread, ".1g"),
    )  # fmt: skip
    metrics = gradients if has_loss else outputs
    return (*names, *("–" if math.isnan(value) else f"{value:{digits}}" for value, digits in metrics))
