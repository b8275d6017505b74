"""Errors of forward products, not split by cause: emulated products of several recipes compared with exact ones."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from fpsim.analysis.studies.budget.causes import UNIT_ROUNDOFF, described, energy, line_sizes, lines_of_error, pair_of
from fpsim.analysis.studies.budget.layers import Kept
from fpsim.analysis.studies.budget.replay import product_name
from fpsim.analysis.studies.budget.row import BudgetRow, Squares
from fpsim.arrays import Array
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.torch.operators import array_of, tensor_of
from fpsim.torch.plan import plan_of

UNKNOWN = Squares(*(math.nan,) * len(Squares._fields))._replace(
    inherited=None, total=None, closed_a=None, closed_b=None, closed_cast=None
)


class ForwardErrors(NamedTuple):
    """The errors of one forward product, computed with each of several recipes.

    Attributes:
      rows: name of the recipe -> a BudgetRow, in which the errors of single causes are NaN.
      refused: name of the recipe -> why the product cannot be computed with it.
      largest: the largest magnitude of the exact product.
      notes: name of the recipe -> texts of the warnings that computing the product raised.
    """

    rows: dict[str, BudgetRow]
    refused: dict[str, str]
    largest: float
    notes: dict[str, tuple[str, ...]]


def forward_errors(kept: Kept, recipes: Mapping[str, LinearRecipe]) -> ForwardErrors:
    """Measure the error of the forward product of a layer, group or head at one step with each of several recipes.

    `kept`: the recorded operands. `recipes`: name -> recipe. `joint`, `lines` and `reference_bound` of the rows are bit
    for bit those of `fp.analysis.budget`.

    Example:
      >>> from fpsim.analysis.studies.budget.errors import forward_errors
      >>> from fpsim.analysis.studies.budget.layers import Kept
      >>> rng = np.random.default_rng(0)
      >>> x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (32, 128)))
      >>> row = forward_errors(Kept(1, "up", x, weight, None), {"FP8": fp.torch.RECIPES["FP8_TENSOR"]}).rows["FP8"]
      >>> 0.03 < row.joint < 0.05, row.rounding_a
      (True, nan)
    """
    pair = pair_of(kept, "fprop")
    (m, k), n = pair.a.shape, pair.b.shape[1]
    reference = pair.product
    size, bound = energy(reference), ((k + 2) * UNIT_ROUNDOFF) ** 2 * energy(pair.a) * energy(pair.b)
    sizes = line_sizes(reference)
    rows, refused, notes = {}, {}, {}
    for name, recipe in recipes.items():
        plan = plan_of(recipe, product_name(kept))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                y = _product(kept, plan.text, plan.draws)
            except ValueError as reason:
                refused[name] = f"{kept.layer}, fprop: {reason}"
                continue
        notes[name] = tuple(str(warning.message).removesuffix(".") for warning in caught)
        squares, joint = _squares(y, reference)
        lines = lines_of_error(squares, sizes)
        errors = UNKNOWN._replace(reference=size, joint=joint, bound=bound, **lines)
        rows[name] = described(kept, "fprop", recipe, plan.fprop, (m, n, k), errors)
    return ForwardErrors(rows, refused, float(np.abs(reference).max(initial=0.0)), notes)


def _squares(y: Array, reference: Array) -> tuple[Array, float]:
    """Return the square of each element of y - reference, in float64, and the sum of all squares.

    If the sum would be Inf or NaN, Inf is returned for it. In the squares, NaN is then replaced by Inf, and Inf by
    float64's largest value.
    """
    with np.errstate(all="ignore"):
        error = y.astype(np.float64) - reference
        squares = np.multiply(error, error, out=error)
        total = float(np.sum(squares))
    if math.isfinite(total):
        return squares, total
    return np.nan_to_num(squares, nan=np.inf, copy=False), math.inf


def _product(kept: Kept, plan: str, draws: bool) -> Array:
    """Return the layer's output without bias, as `fp.torch.QuantLinear` computes it with a plan (JSON text).

    `kept`: the recorded operands. `draws`: whether the plan rounds stochastically; then the step is part of the seed.
    """
    step = torch.tensor(kept.step - 1) if draws else None
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        x, weight = tensor_of(kept.x), tensor_of(kept.weight)
        return array_of(torch.ops.fpsim.linear(x, weight, None, step, None, None, plan)[0])
