"""Whether one product of a layer can follow a recipe as it is, and if not, why: rows of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import cause_of
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.analysis.studies.diagnosis.recording import recorded_name
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of, spread_of
from fpsim.formats.element import element_format
from fpsim.formats.named import NAMED, Format
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.recipes.linear_recipe import LinearRecipe

LINES = 3  # times the limit that single rows or columns may be off: small ones cancel more
WIDE = 100  # times the median from which the largest value of a tensor is named
ALIKE = 0.8  # share of the larger one of two roundings from which both are the cause
LOST = 0.01  # share of a tensor out of the range of a format from which it is named
KV_CACHE = "product with a KV cache"  # keys or values in few bits, read by a product of attention in 16 bits or more
CAST_AS = {
    "output_gradient": "grad", "score_gradient": "grad", "query": "input", "probabilities": "input", "key": "weight",
    "value": "weight",
}  # fmt: skip
FIGURES = {"gradient_error": "gradients", "output_error": "outputs"}  # by which recipes are compared
SIDES = {"rounding_a": 0, "rounding_b": 1}


@dataclass(frozen=True)
class Verdict:
    """One product of a layer in one recipe.

    Attributes:
      layer, product, recipe: names.
      bits: a value that the product reads, scales included.
      values: of both operands in a batch.
      error: of the product itself, relative to the exact one (the `joint` of `fp.analysis.budget`).
      lines: of single rows or columns of it. Those of dgrad are columns alone: its rows are samples, of which the ones
        with small gradients do not count.
      inherited: what exact products of its operands are off by where all layers follow the recipe; NaN where it is not
        known.
      gradient_error, gradient_spread: what the product alone does to the gradients of all parameters, over batches; NaN
        where no loss was given.
      output_error, output_spread: what it alone does to the outputs; NaN where it was not measured alone.
      fits: whether the product can follow the recipe as it is.
      why: why it cannot, as the end of a sentence; "" where it can.
      cause: "rounding_a", "rounding_b", "scales", "sums" or "cast", the largest part of `error`; "" where it is not
        known.
    """

    layer: str
    product: str
    recipe: str
    bits: float
    values: int
    error: float
    lines: float
    inherited: float
    gradient_error: float
    gradient_spread: float
    fits: bool
    why: str
    cause: str
    output_error: float = math.nan
    output_spread: float = math.nan

    @property
    def off(self) -> str:
        """How far the product is off, in words."""
        return relative(self.error)


def relative(value: float) -> str:
    """A relative error in words.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.verdict import relative
      >>> [relative(value) for value in (0.0, 0.00183, 0.0423, 0.5, 1.0, 23.4, float("inf"), float("nan"))]
      ['0 %', '0.18 %', '4.2 %', '50 %', '100 %', '23 times its size', 'overflow', '–']
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "overflow"
    if value >= 10:
        return f"{value:.0f} times its size"
    if value == 0:
        return "0 %"
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"


def lines_of(row: BudgetRow) -> float:
    """The relative error of single rows or columns, where they count."""
    found = row.squares
    columns = math.sqrt(found.columns / found.column_count) if found.column_count else math.nan
    return columns if row.product == "dgrad" else row.lines


def reason(
    row: BudgetRow, effect: SensitivityRow | None, limit: float, recipe: LinearRecipe, recording: Recording, layer: str,
    reaches: float = math.nan, called: str = "",
) -> str:  # fmt: skip
    """Return why a product is too far off, as the end of a sentence; "" where it is not.

    Args:
      effect: what it does to the model; None where that was not measured.
      layer: the layer whose operands the recording has.
      reaches: the largest magnitude of the exact product; NaN where it is not known.
      called: the name of the product, where that is another one than the row's.
    """
    product, lines = called or row.product, lines_of(row)
    if not math.isfinite(row.joint):
        ends = NAMED[row.out_fmt].max if row.out_fmt in NAMED else math.inf
        why = f"it reaches {reaches:.2g} and {row.out_fmt} ends at {ends:,.0f}" if reaches > ends else ""
        return f"its {product} overflows{_since(why or _out_of_range(row, recipe, recording, layer, ('above',)))}"
    if row.joint > limit:
        return f"its {product} is off by {relative(row.joint)}{_since(_cause(row, recipe, recording, layer))}"
    if lines > LINES * limit:
        why = _widest(row, recording, layer) or _cause(row, recipe, recording, layer)
        return f"single rows or columns of its {product} are off by {relative(lines)}{_since(why)}"
    if effect is not None:
        figure = "output_error" if math.isnan(effect.gradient_error) else "gradient_error"
        error, over = figure_of(effect, figure), spread_of(effect, figure)
        if not error <= limit and not (figure == "output_error" and math.isnan(error)):  # which was not measured
            spread = "" if math.isnan(over) else f" (± {relative(over)} over batches)"
            changes = f"changes the model's {FIGURES[figure]} by {relative(error)}{spread}"
            return f"its {product}, off by {relative(row.joint)} itself, {changes}"
    return ""


def _since(why: str) -> str:
    return f", since {why}" if why else ""


def _cause(row: BudgetRow, recipe: LinearRecipe, recording: Recording, layer: str) -> str:
    """The largest part of an error, with what makes it large."""
    cause = cause_of(row)
    if cause == "scales":
        return _out_of_range(row, recipe, recording, layer) or f"scales are rounded to {_scale_formats(recipe)}"
    if cause == "sums":
        unit = UNITS.get(row.unit)
        kept = f", which keeps {unit.fraction_bits} fraction bits" if unit is not None and unit.fraction_bits else ""
        return f"sums are those of {row.unit}{kept}"
    if cause == "cast":
        return f"results are rounded to {row.out_fmt}"
    side, parts = SIDES[cause], (row.rounding_a, row.rounding_b)
    if min(parts) >= ALIKE * max(parts):
        said = " and ".join(map(_said, row.operands))
        to = " and ".join(dict.fromkeys(row.formats))
        side = max((0, 1), key=lambda each: _ratio(recording, layer, row.operands[each]))
        wide = _wide(row, side, recording, layer, f"the {_said(row.operands[side])}'s")
        return f"its {said} are rounded to {to}{wide}"
    return f"its {_said(row.operands[side])} is rounded to {row.formats[side]}{_wide(row, side, recording, layer)}"


def _scale_formats(recipe: LinearRecipe) -> str:
    scalings = (recipe.input_scaling, recipe.weight_scaling, recipe.grad_scaling)
    return " and ".join(dict.fromkeys(str(each.scale_format) for each in scalings if each is not None)) or "nothing"


def _said(operand: str) -> str:
    return operand.replace("_", " ")


def _wide(row: BudgetRow, side: int, recording: Recording, layer: str, whose: str = "its") -> str:
    """How far the largest value of an operand stands out, where it does."""
    ratio = _ratio(recording, layer, row.operands[side])
    return f" while {whose} largest value is {ratio:,.0f} times the median" if ratio >= WIDE else ""


def _widest(row: BudgetRow, recording: Recording, layer: str) -> str:
    """The operand whose values are farthest apart, which is what single rows or columns are lost by; "" for none."""
    found = [(_ratio(recording, layer, operand), side) for side, operand in enumerate(row.operands)]
    ratio, side = max(found)
    if ratio < WIDE or row.formats[side] == "float32":
        return ""
    return f"its {_said(row.operands[side])} is rounded to {row.formats[side]}{_wide(row, side, recording, layer)}"


def _ratio(recording: Recording, layer: str, which: str) -> float:
    """The largest value of a tensor over the median; 0 where that is not known."""
    found = _range(recording, layer, which)
    median = math.nan if found is None else found.magnitude(0.5)
    return found.amax / median if found is not None and median > 0 else 0.0


def _out_of_range(
    row: BudgetRow, recipe: LinearRecipe, recording: Recording, layer: str,
    sides: Sequence[str] = ("below", "above", "subnormal"),
) -> str:  # fmt: skip
    """Say which operand is out of the range of its format; "" where none is, or where it has scales.

    Args:
      sides: "below", "above" and "subnormal"; what is above counts alone from the first value, others from a share.
    """
    found = []
    for side, operand in enumerate(row.operands):
        fmt = recipe.operands(row.product)[side]
        spread = _range(recording, layer, operand)
        if fmt is None or spread is None or _scaled(recipe, operand) or not isinstance(element_format(fmt), Format):
            continue
        shares = spread.shares(element_format(fmt))
        found += [
            (shares[word], f"{relative(shares[word])} of its {_said(operand)} {place} {row.formats[side]}")
            for word, place in (("below", "is below the smallest number of"), ("above", "is above the largest one of"),
                                ("subnormal", "is among the subnormal numbers of")) if word in sides
        ]  # fmt: skip
    share, words = max(found, default=(0.0, ""))
    return f"without scales {words}" if share > (0.0 if sides == ("above",) else LOST) else ""


def _scaled(recipe: LinearRecipe, operand: str) -> bool:
    return recipe.delayed is not None or getattr(recipe, f"{CAST_AS.get(operand, operand)}_scaling") is not None


def _range(recording: Recording, layer: str, which: str) -> Any:
    """The range of a tensor at the first step; None without one."""
    rows = [row for row in recording if (row.layer, row.tensor) == (recorded_name(layer), which)]
    return rows[0].range if rows else None


def is_high(recipe: LinearRecipe) -> bool:
    """Whether no operand has fewer than 16 bits.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.verdict import is_high
      >>> [is_high(fp.torch.RECIPES[name]) for name in ("FP32", "BF16", "FP8_TENSOR")]
      [True, True, False]
    """
    fmts = (recipe.input_fmt, recipe.weight_fmt, recipe.grad_fmt)
    return all(fmt is None or element_format(fmt).bits >= 16 for fmt in fmts)


def by_layer(verdicts: Mapping[tuple[str, str, str], Verdict], recipe: str) -> dict[str, list[Verdict]]:
    """The verdicts of one recipe, by layer in the model's order."""
    found: dict[str, list[Verdict]] = {}
    for one in verdicts.values():
        if one.recipe == recipe:
            found.setdefault(one.layer, []).append(one)
    return found
