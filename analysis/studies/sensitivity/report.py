"""The report of a sensitivity study: rows, what they add up to, and how well estimates foretell them."""

from __future__ import annotations

import dataclasses
import html
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.sensitivity.row import RANKED, BatchFigures, SensitivityRow, harm
from fpsim.display.optional import frame
from fpsim.display.wording import plural
from fpsim.errors import require_word
from fpsim.recipes.linear_recipe import LinearRecipe

SHOWN = 12  # rows that print shows


class Additivity(NamedTuple):
    """What single products do together, beside all of them at once.

    Attributes:
      recipe: its name.
      loss_sum, loss_joint: the sum of single changes of the loss, and the change with all products low.
      gradient_sum, gradient_joint: single errors of the gradient as if they were independent, the root of the sum of
        their squares, and the error with all products low.
    """

    recipe: str
    loss_sum: float
    loss_joint: float
    gradient_sum: float
    gradient_joint: float

    def __str__(self) -> str:
        return (
            f"{self.recipe}: single changes of the loss add up to {self.loss_sum:+.3g}, all products at once change it "
            f"by {self.loss_joint:+.3g}; errors of the gradient are {self.gradient_sum:.3g} in quadrature, "
            f"{self.gradient_joint:.3g} at once"
        )


class Agreement(NamedTuple):
    """How well an estimate foretells the measured changes of the loss, over layers, recipes and batches.

    Attributes:
      estimate: "second_order" (first_order + fisher), "first_order" or "fisher".
      rank_correlation: Spearman's, of estimates and measured changes; NaN of fewer than 3 or where all are equal.
      ratio: sum of the sizes of the estimates over that of the measured changes: 1 is right.
      changes: how many were compared.
    """

    estimate: str
    rank_correlation: float
    ratio: float
    changes: int

    def __str__(self) -> str:
        return (
            f"{self.estimate} estimates from one backward pass: rank correlation {self.rank_correlation:.2f} with "
            f"{plural(self.changes, 'measured change')} of the loss, {self.ratio:.2g} times as large"
        )


ESTIMATES = ("second_order", "first_order", "fisher")


@dataclass(frozen=True)
class Sensitivity:
    """What each product of each layer does when it alone is in low precision, everything else exact.

    Attributes:
      rows: a SensitivityRow for each layer, product and recipe, in the model's order.
      joint: a SensitivityRow for each recipe, with all products of `rows` low at once; layer and product are "*".
      layers: layer -> elements of its weight.
      recipes: name -> the recipe.
      losses: of each batch, in exact products; NaN where no loss was given, and outputs alone were measured.
      model: the model's class.
      identity: a digest of the model's weights, buffers and modes, of the batches, the loss, the draws and the recipes.
      notes: a sentence for each thing that was not measured.
      convolutions: layer -> its groups, of those that are convolutions.
      coverage: how much of the model has rows.
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

    def __getitem__(self, key: tuple[str, str, str]) -> SensitivityRow:
        """The row of (layer, product, recipe)."""
        for row in self.rows:
            if (row.layer, row.product, row.recipe) == key:
                return row
        raise KeyError(f"no row of layer, product and recipe {key!r}; there are {plural(len(self.rows), 'row')}")

    @property
    def has_loss(self) -> bool:
        """True where a loss was given, so that there are gradients."""
        return not all(map(math.isnan, self.losses))

    @property
    def figure(self) -> str:
        """The figure by which products are compared: "gradient_error", or without a loss "output_error"."""
        return "gradient_error" if self.has_loss else "output_error"

    def ranking(self, by: str | None = None, product: str | None = None) -> tuple[SensitivityRow, ...]:
        """The rows from the most harmful one down: by the size of a figure, what is no number first.

        Args:
          by: a figure of SensitivityRow. The default is what all products have, "gradient_error", or without a loss
            "output_error"; "loss_change" and "output_error" compare forward products, and are 0 for the others.
          product: of one product only.
        Raises:
          ValueError: another word.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
          >>> x = torch.randn(32, 64)
          >>> found = fp.analysis.sensitivity(model, [x], lambda model, x: model(x).square().mean(), recipes="BF16")
          >>> [row.layer for row in found.ranking("output_error", "fprop")] in (["0", "2"], ["2", "0"])
          True
        """
        by = self.figure if by is None else by
        require_word("by", by, RANKED)
        if product is not None:
            require_word("product", product, ("fprop", "dgrad", "wgrad"))
        rows = [row for row in self.rows if product in (None, row.product)]
        return tuple(sorted(rows, key=lambda row: -harm(row, by)))

    def additivity(self) -> tuple[Additivity, ...]:
        """For each recipe, what single products add up to, beside all at once; nothing without a loss."""
        found = []
        for whole in self.joint if self.has_loss else ():
            rows = [row for row in self.rows if row.recipe == whole.recipe]
            quadrature = math.sqrt(sum(row.gradient_error**2 for row in rows))
            total = sum(row.loss_change for row in rows)
            found.append(Additivity(whole.recipe, total, whole.loss_change, quadrature, whole.gradient_error))
        return tuple(found)

    def agreement(self, estimate: str = "second_order", recipe: str | None = None) -> Agreement:
        """How well an estimate from one backward pass foretells the changes of the loss, over layers and batches.

        Changes and estimates that are no finite number are left out.

        Args:
          estimate: "second_order", "first_order" or "fisher".
          recipe: of one recipe only.
        Raises:
          ValueError: another word.
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
        measured, foretold = np.array(kept, np.float64).reshape(-1, 2).T
        size = float(np.abs(measured).sum())
        ratio = float(np.abs(foretold).sum()) / size if size else math.nan
        return Agreement(estimate, _spearman(measured, foretold), ratio, len(kept))

    @property
    def can_measure(self) -> bool:
        """Whether `measure` has a model to run; a report that was loaded has none."""
        return self._measurer is not None

    def measure(self, assignment: Mapping[tuple[str, str], str]) -> SensitivityRow:
        """The row of several products in low precision at once, measured on the same batches.

        Args:
          assignment: (layer, product) -> name of one of the report's recipes; other products stay exact.
        Returns:
          A row whose layer and product are "*", and whose recipe is the name of all of them, or "mixed".
        Raises:
          TypeError, ValueError: no such product or recipe, or a report that was loaded, which has no model.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
          >>> x = torch.randn(32, 64)
          >>> found = fp.analysis.sensitivity(model, [x], lambda model, x: model(x).square().mean(), recipes="BF16")
          >>> both = found.measure({("0", "fprop"): "BF16", ("2", "wgrad"): "BF16"})
          >>> both.gradient_error > found["0", "fprop", "BF16"].gradient_error
          True
        """
        from fpsim.analysis.studies.sensitivity.measuring import checked_assignment

        names = checked_assignment(assignment, self.recipes, self.rows)
        if not self.can_measure:
            raise ValueError("measure() runs the model, which a loaded report does not have. Call sensitivity() again.")
        used = set(names.values())
        name = used.pop() if len(used) == 1 else "mixed" if used else "none"
        found: SensitivityRow = self._measurer.joint({pair: self.recipes[of] for pair, of in names.items()}, name)
        return found

    def to_frame(self, by: str = "row") -> Any:
        """A pandas DataFrame of the rows, or of their batches.

        Args:
          by: "row", with the figures of SensitivityRow, or "batch", with a line for each batch and its BatchFigures.
        Raises:
          ValueError: another word.
        """
        require_word("by", by, ("row", "batch"))
        if by == "row":
            return frame([row.to_dict() for row in self.rows])
        return frame([
            {"layer": row.layer, "product": row.product, "recipe": row.recipe, "batch": i, **figures._asdict()}
            for row in self.rows
            for i, figures in enumerate(row.batches)
        ])  # fmt: skip

    def plot(self, ax: Any = None) -> Any:
        """Draw the error of the gradient by layer, product and recipe; returns the matplotlib axes."""
        from fpsim.analysis.studies.sensitivity.figure import sensitivity_axes

        return sensitivity_axes(self, ax)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, whole or not at all.

        Raises:
          OSError: the file cannot be written.
          ImportError: cattrs is not installed, which writes recipes.
        """
        from fpsim.analysis.studies.sensitivity.file import write

        write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sensitivity:
        """What `save` wrote, bit for bit; it cannot `measure`, having no model.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: it is damaged, or holds something else.
        """
        from fpsim.analysis.studies.sensitivity.file import read

        return cls(**read(path))

    def __str__(self) -> str:
        """The most harmful rows, what they add up to, and how well they were foretold."""
        ranked = self.ranking()
        size = f"{plural(len(self.layers), 'layer')}, {plural(len(self.losses), 'batch', 'batches')}"
        coverage = self.coverage
        judged = f"mean loss {np.mean(self.losses):.4g}" if self.has_loss else "no loss, outputs alone"
        lines = [*filter(None, [coverage.headline]), f"sensitivity of {self.model}: {size}, {judged}",
                 *coverage.sentences]  # fmt: skip
        head = ("layer", "product", "recipe", "gradient", "+-", "cosine", "outputs", "loss", "+-")
        table = [head, *(_cells(row) for row in ranked[:SHOWN])]
        if not self.has_loss:
            outputs = [_cells_of_outputs(row) for row in ranked[:SHOWN]]
            table = [("layer", "product", "recipe", "outputs", "+-", "cosine"), *outputs]
        lines += _table(table[0], table[1:])
        if len(ranked) > SHOWN:
            lines.append(f"... and {plural(len(ranked) - SHOWN, 'row')} with less")
        lines += [str(each) for each in self.additivity()]
        agreement = self.agreement()
        if agreement.changes > 2:
            lines.append(str(agreement))
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return (
            f"<sensitivity of {self.model}: {plural(len(self.layers), 'layer')}, "
            f"{plural(len(self.recipes), 'recipe')}, {plural(len(self.rows), 'row')}>"
        )

    def _repr_html_(self) -> str:
        names = [name for name in SensitivityRow.__dataclass_fields__ if name not in ("elements", "batches")]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_text(getattr(row, name)))}</td>" for name in names) + "</tr>"
            for row in self.ranking()
        )
        told = [repr(self)[1:-1], *self.coverage.sentences, *map(str, self.additivity()), *self.notes]
        said = "".join(f"<p>{html.escape(line)}</p>" for line in (*filter(None, [self.coverage.headline]), *told))
        return f"{said}<table><tr>{head}</tr>{body}</table>"


def estimated(figures: BatchFigures, estimate: str) -> float:
    """The estimate of a loss change by its name."""
    if estimate == "second_order":
        return figures.first_order + figures.fisher
    return float(getattr(figures, estimate))


def _spearman(x: Any, y: Any) -> float:
    """The rank correlation; NaN where there is none."""
    if len(x) < 3:
        return math.nan
    first, second = (_ranks(each) - (len(x) + 1) / 2 for each in (x, y))
    size = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / size if size else math.nan


def _ranks(x: Any) -> Any:
    """Places in ascending order from 1, the mean of theirs for equal ones; to import SciPy's takes a second."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


def _cells(row: SensitivityRow) -> tuple[str, ...]:
    return (
        row.layer or "(model)", row.product, row.recipe, f"{row.gradient_error:.3g}", f"{row.gradient_spread:.1g}",
        f"{row.gradient_cosine:.5f}", f"{row.output_error:.3g}", f"{row.loss_change:+.2g}", f"{row.loss_spread:.1g}",
    )  # fmt: skip


def _cells_of_outputs(row: SensitivityRow) -> tuple[str, ...]:
    figures = f"{row.output_error:.3g}", f"{row.output_spread:.1g}", f"{row.output_cosine:.5f}"
    return (row.layer or "(model)", row.product, row.recipe, *figures)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of columns, texts to the left and numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(text.ljust(width) if i < 3 else text.rjust(width) for i, (text, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in (head, *rows)
    ]  # fmt: skip


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
