"""The error of one product as sums of squares: the error that each cause produces alone, and the error with all causes.

Reference products are computed in float64: products of two float32 numbers are exact, and the error of a sum of K of
them is at most about K 2^-53 |a| |b| (`Squares.bound` is the square of that for K + 2). Measured errors are far larger.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fpsim.analysis.studies.budget.exact_scales import closed_form, relative_rounding, with_exact_scales
from fpsim.analysis.studies.budget.layers import Kept
from fpsim.analysis.studies.budget.replay import Amaxes, replayed
from fpsim.analysis.studies.budget.row import BudgetRow, Squares
from fpsim.analysis.studies.budget.tiles import OperandSide, WorstTile, worst_of, worst_tiles
from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.as_json import format_from
from fpsim.products.backend import output_overflow
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.torch.hadamard import hadamard
from fpsim.torch.operators import array_of, one_thread
from fpsim.torch.plan import ProductPlan, plan_of
from fpsim.torch.products import multiply
from fpsim.torch.trace import ProductCall

NAMES = {"fprop": ("input", "weight"), "dgrad": ("output_gradient", "weight"), "wgrad": ("output_gradient", "input")}
TURNED = {"fprop": (False, True), "dgrad": (False, False), "wgrad": (True, False)}  # whether operands are transposed
UNIT_ROUNDOFF = 2.0**-53


class Pair(NamedTuple):
    """The operands of a product, a of shape (M, K) and b of shape (K, N), in float64."""

    a: Array
    b: Array

    @property
    def product(self) -> Array:
        """The matrix product a @ b, (M, N) in float64."""
        with one_thread():  # several threads of BLAS would wait for other processes
            # in the same memory layout, so that equal operands have products of the same bits
            a, b = (torch.from_numpy(np.ascontiguousarray(operand)) for operand in self)
            result: Array = (a @ b).numpy()
        return result


def rows_of(
    kept: Kept, recipes: Sequence[LinearRecipe], amaxes: Amaxes, arriving: Kept | None, arriving_amaxes: Amaxes
) -> list[BudgetRow]:
    """Return a BudgetRow for each product of a layer at one step: fprop, and with a recorded gradient dgrad and wgrad.

    Args:
      kept: the operands of the layer that were recorded at the step.
      recipes: the recipes of fprop, dgrad and wgrad.
      amaxes: "input", "weight" or "output_gradient" -> its amaxes at earlier steps, which delayed scales need.
      arriving, arriving_amaxes: the operands and the earlier amaxes of the same layer in a run in low precision, from
        which inherited errors are computed; None and {} without such a run.
    """
    computed = replayed(kept, recipes, amaxes)
    exact = replayed(kept, [with_exact_scales(recipe) for recipe in recipes], {})
    later = {} if arriving is None else replayed(arriving, recipes, arriving_amaxes)
    rows = []
    for product, recipe in zip(PRODUCTS, recipes, strict=True):
        if product in computed:
            pair = pair_of(kept, product)
            arrived = None if arriving is None or product not in later else pair_of(arriving, product)
            total = None if arrived is None else later[product].result.astype(np.float64)
            rows.append(_row(kept, pair, recipe, computed[product], exact[product], arrived, total))
    return rows


def described(
    kept: Kept, product: str, recipe: LinearRecipe, how: ProductPlan, shape: tuple[int, int, int], squares: Squares,
    tiles: Sequence[WorstTile] = (),
) -> BudgetRow:  # fmt: skip
    """Return the BudgetRow of a product ("fprop", "dgrad" or "wgrad"), given its sums of squares and its worst tiles.

    `kept`: the recorded operands, with the names of the layer and of the group or head. `recipe`: gives the operands'
    formats. `how`: gives the matrix unit, the schedule and the format of the result. `shape`: (M, N, K).
    """
    left, right = NAMES[product]
    part = f" of {kept.part}" if kept.part else ""
    named = [tile._replace(operand=kept.called.get(tile.operand, tile.operand) + part) for tile in tiles]
    names = [str(fmt) if fmt is not None else "float32" for fmt in recipe.operands(product)]
    return BudgetRow(
        kept.layer, product, shape, 1, (kept.called.get(left, left), kept.called.get(right, right)),
        (names[0], names[1]), how.unit or how.accumulator or "torch",
        how.schedule or (f"promote={how.promote}" if how.promote else ""), str(_out_fmt(how) or "float32"), squares,
        tuple(named), kept.kind,
    )  # fmt: skip


def pair_of(kept: Kept, product: str) -> Pair:
    """Return the operands of one product a @ b of a layer as exact float64 matrices.

    In the product "fprop", a is the input, (tokens, inputs), and b the transposed weight, (inputs, outputs). In
    "dgrad", a is the gradient of the output, (tokens, outputs), and b the weight. In "wgrad", a is that gradient
    transposed, and b the input. `kept`: the recorded input, weight and gradient; dgrad and wgrad need its gradient.
    """
    x, w, dy = (None if x is None else x.astype(np.float64) for x in (kept.x, kept.weight, kept.gradient))
    assert x is not None
    assert w is not None
    if product == "fprop":
        return Pair(x, w.T)
    assert dy is not None
    return Pair(dy, w) if product == "dgrad" else Pair(dy.T, x)


def _row(
    kept: Kept, pair: Pair, recipe: LinearRecipe, call: ProductCall, exact: ProductCall, arrived: Pair | None,
    total: Array | None,
) -> BudgetRow:  # fmt: skip
    """Return the BudgetRow of one product, with its errors by cause and its worst tiles.

    Args:
      kept: the layer's recorded operands.
      pair: the product's exact operands.
      recipe: the recipe that the product follows.
      call, exact: the product as computed with the recipe's scales, and with unrounded scales.
      arrived: the product's operands in the run in low precision; None if unknown.
      total: the result (M, N) computed from `arrived` with the recipe; None if unknown.
    """
    (m, k), n = pair.a.shape, pair.b.shape[1]
    reference = pair.product
    size = energy(reference)
    mixed = _mixed(pair, recipe) if recipe.hadamard and call.product == "wgrad" else pair
    sides = _sides(mixed, recipe, call)
    unrelated = sum(map(_unrelated, sides, (True, False)))
    tiles = [tile for i in (0, 1) for tile in worst_tiles(sides[i], i == 0, unrelated)]
    fmts, modes = recipe.operands(call.product), _modes(recipe, call.product)
    closed = [closed_form(mixed[i], x.encoded, fmts[i], modes[i]) for i, x in enumerate((exact.a, exact.b))]
    if call.product == "wgrad":  # the layer stored x in a format before it is cast for dw
        fmt = recipe.input_fmt if recipe.requantize_input else recipe.stash_fmt
        stored = relative_rounding(fmt, recipe.rounding if recipe.requantize_input else "nearest_even")
        closed[1] = math.hypot(closed[1], stored)
    error = call.result.astype(np.float64) - reference
    with np.errstate(all="ignore"):
        error_squares = np.asarray(np.nan_to_num(error**2, nan=np.inf))  # beyond float64's range its largest value
    rounded = _rounded(mixed, call)
    pairs = (exact.a, call.a), (exact.b, call.b)
    same_values = all(np.array_equal(one.values, other.values) for one, other in pairs)
    squares = Squares(
        size,
        *(rounded if same_values else _rounded(mixed, exact)), *rounded,
        *_sums(call), _cast(reference, call.how),
        joint=energy(error),
        inherited=None if arrived is None else energy(arrived.product - reference),
        total=None if total is None else energy(total - reference),
        closed_a=_share(closed[0], size), closed_b=_share(closed[1], size),
        closed_cast=_share(relative_rounding(_out_fmt(call.how)), size),
        a=energy(mixed.a), b=energy(mixed.b), a_stored=energy(sides[0].error), b_stored=energy(sides[1].error),
        **lines_of_error(error_squares, line_sizes(reference)),
        rounded=unrelated,
        bound=((k + 2) * UNIT_ROUNDOFF) ** 2 * energy(pair.a) * energy(pair.b),
    )  # fmt: skip
    return described(kept, call.product, recipe, call.how, (m, n, k), squares, worst_of(tiles))


def energy(x: Array) -> float:
    """Return the sum of squares of a float array; Inf if an element is Inf or NaN, or if the sum overflows."""
    with np.errstate(all="ignore"):
        square = float(np.sum(x * x))  # pairwise, and on one thread, where BLAS would wait for others
    return square if np.isfinite(square) else np.inf


def _mixed(pair: Pair, recipe: LinearRecipe) -> Pair:
    """Return both operands of wgrad, as float64, after the recipe's Hadamard transform along K.

    The transform rounds to float32; apart from that, it does not change the product. `pair`: the operands before the
    transform.
    """
    signs = plan_of(recipe, "").signs
    a, b = (hadamard(x.astype(np.float32), recipe.hadamard, signs).astype(np.float64) for x in (pair.a.T, pair.b))
    return Pair(a.T, b)


def _modes(recipe: LinearRecipe, product: str) -> tuple[Any, Any]:
    """Return the rounding modes with which a recipe casts both operands of `product`, "fprop", "dgrad" or "wgrad"."""
    return tuple(recipe.grad_rounding if name == "output_gradient" else recipe.rounding for name in NAMES[product])  # type: ignore[return-value]


def _sides(pair: Pair, recipe: LinearRecipe, call: ProductCall) -> tuple[OperandSide, OperandSide]:
    """Return the operands a and b of a product, each with its cast and the errors of its values.

    `recipe`: the recipe of the product. `pair`: the exact operands, after the Hadamard transform if the recipe has one.
    `call`: the product as computed with the recipe, which has the cast operands.
    """
    factors = [np.sum(pair.b**2, axis=1), np.sum(pair.a**2, axis=0)]  # (K,) each
    sides = []
    for i, operand in enumerate((call.a, call.b)):
        fmt = recipe.operands(call.product)[i]
        with np.errstate(all="ignore"):
            error = operand.values.astype(np.float64) - pair[i]
        scaling = getattr(operand.encoded, "scaling", None)
        overflow = recipe.overflow or (scaling.overflow if scaling is not None else "nonfinite")
        sides.append(OperandSide(
            NAMES[call.product][i], pair[i], error, operand.encoded, TURNED[call.product][i], factors[i], fmt,
            _modes(recipe, call.product)[i], overflow, bool(recipe.hadamard) and call.product == "wgrad",
        ))  # fmt: skip
    return sides[0], sides[1]


def _unrelated(side: OperandSide, first: bool) -> float:
    """Return the expected sum of squared errors of a product if the errors of one operand's elements were independent.

    This is the sum, over the operand's elements, of the element's squared error times the sum of squares of the other
    operand's values at the same index of K; Inf if that is not finite. `side`: the operand, which is a if `first`, else
    b.
    """
    with np.errstate(all="ignore"):
        lost = np.sum(side.error**2, axis=0 if first else 1)  # (K,)
        square = float(lost @ side.factors)
    return square if np.isfinite(square) else np.inf


def _rounded(pair: Pair, call: ProductCall) -> tuple[float, float]:
    """Return the squared errors of the product if only a, and if only b, is rounded, each a sum over all elements.

    `pair`: the exact operands. `call`: the computed product, which has the rounded operands.
    """
    with np.errstate(all="ignore"):
        a, b = call.a.values.astype(np.float64) - pair.a, call.b.values.astype(np.float64) - pair.b
    return _through(a, pair.b), _through(pair.a, b)


def _through(a: Array, b: Array) -> float:
    """Return the sum of the squares of a @ b, both float64 matrices.

    Return 0, without computing the product, if a or b is all zeros; else Inf if an element of the product is not
    finite.
    """
    return energy(Pair(a, b).product) if a.any() and b.any() else 0.0


def _sums(call: ProductCall) -> tuple[float, float]:
    """Return two squared errors of the matrix unit's sums: as one chain of instructions along K, and as in the recipe.

    The recipe may add partial sums to a float32 total every few terms (promotion), or in a library's order (schedule).
    Each number is the sum of squared differences from the exact product of the rounded operands of `call`. Results are
    not rounded to the format of the result.
    """
    values = Pair(call.a.values.astype(np.float64), call.b.values.astype(np.float64))
    wanted = values.product
    scheduled = call.how._replace(out_fmt="")
    chain = scheduled._replace(schedule="", promote=0)
    squares = []
    for how in dict.fromkeys((chain, scheduled)):
        with np.errstate(all="ignore"):
            result = array_of(multiply(call.a, call.b, "", how, None, "emulated")).astype(np.float64)
            squares.append(energy(result - wanted))
    return squares[0], squares[-1]


def _cast(reference: Array, how: ProductPlan) -> float:
    """Return the sum of squared errors of rounding the exact product to the format of the result.

    `reference`: the exact product, float64. `how`: the product's plan, which names the format; without one, return 0.
    """
    fmt = _out_fmt(how)
    if fmt is None:
        return 0.0
    with np.errstate(all="ignore"):
        return energy(quantize(reference, fmt, overflow=output_overflow(fmt)) - reference)


def _out_fmt(how: ProductPlan) -> Any:
    """Return the format to which a product's result is rounded; None without rounding. `how`: the product's plan."""
    return format_from(json.loads(how.out_fmt)) if how.out_fmt else None


def _share(relative: float, size: float) -> float | None:
    """Return relative^2 * size: the sum of squared errors of a result, given its relative error and its sum of squares.

    Return None if `relative` is NaN.
    """
    return None if math.isnan(relative) else relative**2 * size


def line_sizes(reference: Array) -> tuple[Array, Array]:
    """Return the sums of squares of each row, (M,), and of each column, (N,), of an exact product (M, N)."""
    sizes = reference**2
    return sizes.sum(axis=1), sizes.sum(axis=0)


def lines_of_error(squares: Array, sizes: tuple[Array, Array]) -> dict[str, float]:
    """Return the sum of the squared relative errors of a product's rows, and the number of rows; the same for columns.

    The keys are "rows", "row_count", "columns" and "column_count". A squared relative error above 1 counts as 1. Rows
    and columns that are 0 in the exact product are left out.

    Args:
      squares: (M, N), the square of each element of the product's error, without NaN.
      sizes: the sums of squares of each row, (M,), and of each column, (N,), of the exact product.
    """
    sums: dict[str, float] = {}
    with np.errstate(all="ignore"):
        for name, axis, size in (("row", 1, sizes[0]), ("column", 0, sizes[1])):
            shares = squares.sum(axis=axis)[size > 0] / size[size > 0]
            sums |= {f"{name}s": float(np.minimum(shares, 1.0).sum()), f"{name}_count": float(shares.size)}
    return sums
