"""The metrics of one layer, product and recipe: for each batch, and their means and standard deviations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

JOINT = "*"  # layer and product of a row with several low products


class BatchFigures(NamedTuple):
    """The effect of products in low precision on one batch; an error is infinite if low precision leads to Inf or NaN.

    Attributes:
      loss_change: the loss minus the loss with exact products.
      output_error, output_cosine: |o - o0| / |o0| and the cosine of o and o0, where o is all that the model returns,
        and o0 the same with exact products.
      gradient_error, gradient_cosine: the same for the gradients of all parameters together.
      weight_gradient_error: the relative error of the gradient of the layer's own weight.
      first_order: <g, d>, where d is the error of the layer's output and g the loss's gradient with respect to this
        output.
      fisher: n / 2 times the sum of <g, d>^2 over the n terms whose mean is the loss: an estimate of the second-order
        term, with the Fisher information instead of the Hessian.
    """

    loss_change: float
    output_error: float
    output_cosine: float
    gradient_error: float
    gradient_cosine: float
    weight_gradient_error: float
    first_order: float = 0.0
    fisher: float = 0.0

    @classmethod
    def of(cls, *values: float, **named: float) -> BatchFigures:
        """Return BatchFigures in which every NaN is the same object, so that equal figures compare as equal.

        `values`, `named`: the attributes of BatchFigures, by position and by name.
        """
        figures = cls(*values, **named)
        return cls(*(math.nan if value != value else value for value in figures))


UNCHANGED = BatchFigures(0.0, 0.0, 1.0, 0.0, 1.0, 0.0)
RANKED = ("gradient_error", "loss_change", "output_error", "weight_gradient_error", "fisher", "first_order")


@dataclass(frozen=True)
class SensitivityRow:
    """The effect on a model of one product of one layer in one recipe, with all other products exact.

    Metrics are means over the batches, spreads their standard deviations (NaN for one batch). Errors are relative: 0.02
    is 2 %; infinity means that low precision led to Inf or NaN, or changed a tensor of zeros.

    Attributes:
      layer, product, recipe: the layer's name, "fprop", "dgrad" or "wgrad", and the recipe's name; the first two are
        "*" if several products are in low precision at once.
      loss_change, loss_spread: change of the loss, in its own unit; exactly 0 for dgrad and wgrad.
      output_error, output_spread, output_cosine: error of the model's outputs, its spread, and the cosine with the
        exact outputs; exactly 0, 0 and 1 for dgrad and wgrad. NaN if the loss does not call the model itself.
      gradient_error, gradient_spread, gradient_cosine, cosine_spread: error of the gradients of all parameters, its
        spread, the cosine with the exact gradients, and the spread of that cosine; NaN without a loss.
      weight_gradient_error: error of the gradient of the layer's weight alone; NaN for joint rows.
      first_order, fisher: two estimates of the loss change from one backward pass, of first and second order in the
        error of the layer's output (formulas: `BatchFigures`); 0 for dgrad and wgrad, on which the loss does not
        depend, NaN for joint rows.
      elements: number of values of the left and the right operand in the first batch that has the product.
      batches: the BatchFigures of each batch.
    """

    layer: str
    product: str
    recipe: str
    loss_change: float
    loss_spread: float
    output_error: float
    output_spread: float
    output_cosine: float
    gradient_error: float
    gradient_spread: float
    gradient_cosine: float
    cosine_spread: float
    weight_gradient_error: float
    first_order: float
    fisher: float
    elements: tuple[int, int]
    batches: tuple[BatchFigures, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def of(
        cls, layer: str, product: str, recipe: str, elements: tuple[int, int], batches: Sequence[BatchFigures]
    ) -> SensitivityRow:
        """Return the row whose metrics are the means and standard deviations over batches.

        `layer`, `recipe`: names of the layer and of the recipe. `product`: "fprop", "dgrad" or "wgrad". `elements`:
        number of values of the left and the right operand. `batches`: the metrics of each batch.

        Example:
          >>> from fpsim.analysis.studies.sensitivity.row import BatchFigures, SensitivityRow
          >>> batches = [BatchFigures(change, 0.1, 0.99, 0.2, 0.98, 0.3) for change in (0.25, 0.75)]
          >>> row = SensitivityRow.of("head", "fprop", "FP8", (64, 32), batches)
          >>> row.loss_change, round(row.loss_spread, 3), row.gradient_error
          (0.5, 0.354, 0.2)
        """
        means = {name: _mean([getattr(one, name) for one in batches]) for name in BatchFigures._fields}
        spreads = {**SPREADS, "gradient_cosine": "cosine_spread"}
        over = {name: _spread([getattr(one, figure) for one in batches]) for figure, name in spreads.items()}
        return cls(layer, product, recipe, **means, **over, elements=elements, batches=tuple(batches))

    def to_dict(self) -> dict[str, Any]:
        """Return the names and metrics as a dictionary, for a row of a table, without the metrics of single batches."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("elements", "batches")]
        left, right = self.elements
        return {name: getattr(self, name) for name in names} | {"left_elements": left, "right_elements": right}


SPREADS = {"gradient_error": "gradient_spread", "output_error": "output_spread", "loss_change": "loss_spread"}


def figure_of(row: SensitivityRow, figure: str) -> float:
    """Return the metric called `figure`, such as "gradient_error", of a row."""
    return float(getattr(row, figure))


def spread_of(row: SensitivityRow, figure: str) -> float:
    """Return the standard deviation over batches of a row's metric; NaN for one batch.

    `figure`: "gradient_error", "output_error" or "loss_change".
    """
    return float(getattr(row, SPREADS[figure]))


def _mean(values: Sequence[float]) -> float:
    """Return the mean of `values`; NaN if one of them is NaN, else infinity if one is infinite."""
    if all(map(math.isfinite, values)):
        return math.fsum(values) / len(values)
    return math.nan if any(map(math.isnan, values)) else math.inf


def _spread(values: Sequence[float]) -> float:
    """Return the sample standard deviation of `values`; NaN for a single value, or if one of them is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def harm(row: SensitivityRow, by: str) -> float:
    """Return the magnitude of a row's metric, by which rows are ranked; Inf if the metric is NaN.

    `by`: name of the metric, such as "gradient_error".
    """
    size = abs(float(getattr(row, by)))
    return math.inf if math.isnan(size) else size
