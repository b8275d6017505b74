"""The report of a budget: a row for each product of each layer, as tables and a picture, the worst layer first."""

from __future__ import annotations

import dataclasses
import html
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.studies.arguments import matches
from fpsim.analysis.studies.budget.layers import unknown_layer
from fpsim.analysis.studies.budget.row import CAUSES, BudgetRow
from fpsim.analysis.studies.budget.tiles import WorstTile
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import aligned, html_paragraphs, html_table
from fpsim.display.wording import plural, printable, short
from fpsim.errors import require_kind, require_same, require_word
from fpsim.recipes.linear_recipe import PRODUCTS

HEADINGS = {
    "rounding_a": "rounding a", "rounding_b": "rounding b", "scales": "scales", "accumulator": "accumulator",
    "promotion": "promotion", "cast": "cast", "interplay": "interplay",
}  # fmt: skip
OWN_UNITS = "its own units"  # the hardware of a recipe without on=
LONGEST = 32  # characters of a layer's name in tables
LOST = 0.9  # relative error from which a product counts as lost
STANDS_OUT = 1.5  # the first layer stands out from this multiple of the median layer's severity on


@dataclass(frozen=True)
class WorstProduct:
    """A product of a layer, and the tiles of its operands whose rounding adds most to the product's error.

    `str()` lists the tiles, and explains the casts of the worst values in them.

    Attributes:
      row: the product's errors by cause.
      tiles: at most 3, the worst first.
    """

    row: BudgetRow
    tiles: tuple[WorstTile, ...]

    def __str__(self) -> str:
        row = self.row
        a, b = row.operands
        head = f"{row.layer}, {row.product} of {a} by {b}: relative error {words(row.joint)}{main_cause(row)}"
        return "\n".join([head, *map(str, self.tiles)])

    def _repr_html_(self) -> str:
        """Return `str()` of this product as HTML for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Budget:
    """The error of every product of a model, by cause.

    Attributes:
      rows: a BudgetRow for each layer and product, layers in the order of their first product.
      recipe, on: the recipe of the products and the hardware that adds, as text.
      model: name of the model in the recording.
      steps: the training steps whose operands were recorded.
      notes: sentences on layers that are left out, and on effects that a user might not expect.
      coverage: a Coverage, the shares of the model's weights and multiplications that the rows cover.
    """

    rows: tuple[BudgetRow, ...] = dataclasses.field(repr=False)
    recipe: str
    on: str
    model: str
    steps: tuple[int, ...]
    notes: tuple[str, ...] = ()
    coverage: Coverage = dataclasses.field(default=NOTHING, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that have rows in the budget, in the order of each layer's first product."""
        return tuple(dict.fromkeys(row.layer for row in self.rows))

    @property
    def ranking(self) -> tuple[tuple[str, float], ...]:
        """Pairs (name of a layer, root mean square of the `severity` of its products), the largest first.

        The severity of a product is its relative error, at most 1. Layers with 0.9 or more, whose errors are about as
        large as the results, come first in the order of the model. The first of them may be the reason why the inputs
        of later layers are out of range.
        """
        severities = {}
        for layer in self.layers:
            squares = [row.severity**2 for row in self.rows if row.layer == layer]
            severities[layer] = math.sqrt(math.fsum(squares) / len(squares))
        return tuple(sorted(severities.items(), key=lambda item: -min(item[1], LOST)))

    def pooled(self, product: str, exclude: str | Sequence[str] = ()) -> BudgetRow:
        """Return one row for one product of all layers that have weights, by adding their sums of squares.

        The row's layer is "all".

        Args:
          product: "fprop", "dgrad" or "wgrad".
          exclude: shell patterns of layers to leave out.
        Raises:
          ValueError: no remaining layer has the product.
        """
        require_word("product", product, PRODUCTS)
        rows = [
            row for row in self.rows
            if row.product == product and row.kind != "attention" and not matches(row.layer, exclude)
        ]  # fmt: skip
        if not rows:
            raise ValueError(
                f"pooled needs a layer with {product}; got none. Exclude fewer layers, or record a backward pass."
            )
        return reduce(BudgetRow.merge, rows[1:], dataclasses.replace(rows[0], layer="all"))

    def row(self, layer: str, product: str) -> BudgetRow:
        """Return the row of one product ("fprop", "dgrad" or "wgrad") of a layer.

        Raises:
          ValueError: there is no such layer or product; the message lists the nearest names.
        """
        if layer not in self.layers:
            raise ValueError(unknown_layer(layer, self.layers))
        rows = {row.product: row for row in self.rows if row.layer == layer}
        require_word("product", product, PRODUCTS)
        if product not in rows:
            raise ValueError(f"{layer!r} has only {', '.join(rows)}; got {product!r}. Record a backward pass.")
        return rows[product]

    def worst(self, layer: str | None = None, product: str | None = None) -> WorstProduct:
        """Return a product of a layer with the tiles of its operands whose rounding adds most to its error.

        Each tile lists those of its values whose rounding adds most to the error, at most 3.

        Args:
          layer: name of the layer; None for the first of `ranking`.
          product: "fprop", "dgrad" or "wgrad"; None for the layer's product with the largest `severity`.
        Raises:
          ValueError: there is no such layer or product.
        """
        layer = self.ranking[0][0] if layer is None else layer
        if product is None:
            rows = [self.row(layer, name) for name in PRODUCTS if any(
                (row.layer, row.product) == (layer, name) for row in self.rows
            )] or [self.row(layer, PRODUCTS[0])]  # fmt: skip
            row = max(rows, key=lambda row: row.severity)
        else:
            row = self.row(layer, product)
        return WorstProduct(row, row.tiles)

    def merge(self, other: Budget) -> Budget:
        """Return the budget over the batches of this budget and of `other`.

        The squares of the errors and of the exact products are added.

        Raises:
          TypeError: other is not a Budget.
          ValueError: the two budgets are of different models, recipes or hardware.
        """
        require_kind("other", other, Budget, "a Budget")
        require_same("budgets", self, other, ("model", "recipe", "on"))
        steps = tuple(sorted({*self.steps, *other.steps}))
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        rows, coverage = added((*self.rows, *other.rows)), self.coverage.merge(other.coverage)
        return dataclasses.replace(self, rows=rows, steps=steps, notes=notes, coverage=coverage)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each layer and product, and every metric of BudgetRow."""
        return frame([row.to_dict() for row in self.rows])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a bar for each layer and product, as long as its error and divided by cause, and return the matplotlib
        axes. `ax`: the axes to draw into; None for new ones.
        """
        from fpsim.analysis.studies.budget.figure import budget_axes

        return budget_axes(self.rows, self.layers, self.title, ax)

    def __str__(self) -> str:
        """Return `answer`, a table of all products, the worst layers first, and sentences on coverage and notes."""
        return "\n".join([self.answer, "", *aligned(self._table(), texts=3), *self.coverage.sentences, *self.notes])

    @property
    def answer(self) -> str:
        """The result in a sentence or two: the layer that contributes most to the error, its error and the cause.

        If the report covers less than half of the model, the first sentence says so.
        """
        size = f"{plural(len(self.layers), 'layer')}, {plural(len(self.rows), 'product')}, {self.title}"
        if all(row.joint == 0 for row in self.rows):
            return " ".join(filter(None, [self.coverage.headline, f"No product has an error ({size})."]))
        layer, severity = self.ranking[0]
        row = self.worst().row
        alike = len(self.layers) > 2 and severity < STANDS_OUT * statistics.median(value for _, value in self.ranking)
        most = "contributes most, though no layer stands out" if alike else "contributes most"
        error = "overflows" if math.isinf(row.joint) else f"has a relative error of {words(row.joint)}"
        lines = ""
        if not math.isnan(row.lines) and row.lines > 2 * row.joint:
            lines = f"; that of single rows or columns is {words(row.lines)}"
        answer = f"{printable(layer)} {most}: its {row.product} {error}{main_cause(row)}{lines} ({size})."
        return " ".join(filter(None, [self.coverage.headline, answer]))

    @property
    def title(self) -> str:
        """Recipe (or the formats of its operands, if it has no name) and hardware, such as "MXFP8 on B200"."""
        named = "(" not in self.recipe
        return f"{self.recipe if named else ' x '.join(self.rows[0].formats)} on {self.on}"

    def _table(self) -> list[list[str]]:
        """Return the cells of the table: a row of headings, then a row for each product, the worst layers first."""
        more = ("inherited", "total") if any(not math.isnan(row.inherited) for row in self.rows) else ()
        table = [["layer", "product", "M x N x K", "joint", *HEADINGS.values(), *more]]
        for row in (row for layer, _ in self.ranking for row in self.rows if row.layer == layer):
            figures = [words(getattr(row, name)) for name in ("joint", *CAUSES, *more)]
            table.append([short(row.layer, LONGEST), row.product, " x ".join(map(str, row.shape)), *figures])
        return table

    def _repr_html_(self) -> str:
        """Return the answer, the table and the notes as HTML for notebooks."""
        head, *body = self._table()
        notes = html_paragraphs((*self.coverage.sentences, *self.notes))
        return f"<p>{html.escape(self.answer)}</p>{html_table(head, body)}{notes}"


def added(rows: tuple[BudgetRow, ...]) -> tuple[BudgetRow, ...]:
    """Return the rows with all rows of the same layer and product merged into one, by adding their sums of squares.

    Layers are in the order of their first row, products in the order fprop, dgrad, wgrad.
    """
    merged: dict[tuple[str, str], BudgetRow] = {}
    for row in rows:
        key = row.layer, row.product
        merged[key] = merged[key].merge(row) if key in merged else row
    layers = list(dict.fromkeys(layer for layer, _ in merged))
    return tuple(sorted(merged.values(), key=lambda row: (layers.index(row.layer), PRODUCTS.index(row.product))))


def cause_of(row: BudgetRow) -> str:
    """Return the cause that contributes most to a product's error; "" if none was measured, or none adds to the error.

    The cause is "rounding_a", "rounding_b", "scales", "sums" or "cast".
    """
    figures = {name: getattr(row, name) for name in ("rounding_a", "rounding_b", "scales", "sums", "cast")}
    return max((name for name in figures if figures[name] > 0), key=figures.__getitem__, default="")


def main_cause(row: BudgetRow) -> str:
    """Return the main cause of a product's error as a clause, such as ", mostly from the scales"; "" without one."""
    a, b = row.operands
    cause = cause_of(row)
    phrases = {
        "rounding_a": f"the rounding of the {a.replace('_', ' ')} to {row.formats[0]}",
        "rounding_b": f"the rounding of the {b.replace('_', ' ')} to {row.formats[1]}",
        "scales": "the scales", "sums": f"sums by {row.unit}", "cast": f"the cast to {row.out_fmt}",
    }  # fmt: skip
    return f", mostly from {phrases[cause]}" if cause else ""


def words(value: float) -> str:
    """Return a relative error as text for tables: "–" for NaN, "overflow" for infinity.

    Example:
      >>> from fpsim.analysis.studies.budget.report import words
      >>> [words(value) for value in (0.0265, -1.2e-5, 0.0, 1.0, float("nan"), float("inf"))]
      ['2.65e-02', '-1.20e-05', '0', '1.00e+00', '–', 'overflow']
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "overflow"
    return f"{value:.2e}" if value else "0"
