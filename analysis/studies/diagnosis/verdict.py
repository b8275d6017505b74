"""The verdict on one product of a layer: whether it can follow a recipe without changes, and if not, why."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.measures.magnitude_loops import BINS_PER_BINADE
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.report import cause_of
from fpsim.analysis.studies.budget.row import BudgetRow
from fpsim.analysis.studies.diagnosis.recording import recorded_name
from fpsim.analysis.studies.sensitivity.row import SensitivityRow, figure_of, spread_of
from fpsim.formats.element import element_format
from fpsim.formats.named import FP32, NAMED, Format
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.recipes.linear_recipe import LinearRecipe

LINES = 3  # the limit for single rows or columns is this multiple of the product's, since small sums cancel more
WIDE = 100  # a reason names the largest value of a tensor from this multiple of the median on
ALIKE = 0.8  # the roundings of both operands are the cause if the smaller error is at least this share of the larger
LOST = 0.01  # a reason names values out of a format's range from this relative error of the tensor on
KV_CACHE = "product with a KV cache"  # keys or values in few bits, read by a product of attention in 16 bits or more
CAST_AS = {
    "output_gradient": "grad", "score_gradient": "grad", "query": "input", "probabilities": "input", "key": "weight",
    "value": "weight",
}  # fmt: skip
FIGURES = {"gradient_error": "gradients", "output_error": "outputs"}  # metrics that compare recipes, in words
SIDES = {"rounding_a": 0, "rounding_b": 1}
OUT_OF_RANGE = {
    "below": "is below the smallest number of", "above": "is above the largest number of",
    "subnormal": "is among the subnormal numbers of",
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The verdict on one product of a layer in one recipe.

    Attributes:
      layer, recipe: names of the layer and of the recipe.
      product: "fprop", "dgrad", "wgrad" or "product with a KV cache".
      bits: mean bits per value of the operands that the product reads, scales included.
      values: number of values of both operands in a batch.
      error: relative error of the product compared with the exact one (the `joint` of `fp.analysis.budget`).
      lines: root mean square of the relative errors of the result's single rows, or of its columns if larger. For
        dgrad, only columns count, since samples (rows) with small gradients matter little.
      inherited: relative error that the exact product has if its operands come from layers that all follow the recipe;
        NaN if unknown.
      gradient_error, gradient_spread: relative error of the gradients of all parameters when this product alone follows
        the recipe, and its standard deviation over batches; NaN without a loss.
      output_error, output_spread: the same for the model's outputs; NaN if the product was not measured alone.
      fits: whether a plan can use the recipe for the product, and three errors are small enough: `error` is at most the
        diagnosis's limit, `lines` at most three times that, and `gradient_error` at most the limit. Without a loss,
        `output_error` counts in place of the last, if it was measured.
      why: why the product does not fit, as the end of a sentence; "" if it fits.
      cause: "rounding_a", "rounding_b", "scales", "sums" or "cast", the largest part of `error`; "" if unknown.
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
        """Relative error of the product as text, such as "4.2 %"."""
        return relative(self.error)


def relative(value: float) -> str:
    """Return a relative error as text: in percent if it is below 10, else as a multiple of the exact value's size.

    Inf is "overflow", and NaN is "–".

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


def relative_above(value: float, limit: float) -> str:
    """Return a relative error as text in percent, with just enough digits to show that it exceeds a limit.

    value, limit: fractions, value > limit; 0.1 is 10 %.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.verdict import relative_above
      >>> [relative_above(value, 0.1) for value in (0.13, 0.1026, 0.1003)]
      ['13 %', '10.3 %', '10.03 %']
    """
    if relative(value) != relative(limit) or not value > limit:
        return relative(value)
    texts = (f"{100 * value:.{digits}g} %" for digits in range(3, 18))
    return next((text for text in texts if float(text[:-2]) > 100 * limit), relative(value))


def mean_bits(verdicts: Collection[Verdict]) -> float:
    """Return the mean number of bits per operand value over some verdicts; 0 if there are none.

    A verdict is about one product in one recipe. The mean of their `bits` is weighted by `values`, the number of values
    of both operands.
    """
    bits = math.fsum(verdict.bits * verdict.values for verdict in verdicts)
    return bits / max(sum(verdict.values for verdict in verdicts), 1)


def lines_of(row: BudgetRow) -> float:
    """Return the root mean square of the relative errors of a product's rows, or of its columns if larger.

    For dgrad, only columns count. NaN if all of them are 0 in the exact product.
    """
    squares = row.squares
    columns = math.sqrt(squares.columns / squares.column_count) if squares.column_count else math.nan
    return columns if row.product == "dgrad" else row.lines


def reason(
    row: BudgetRow, effect: SensitivityRow | None, limit: float, recipe: LinearRecipe, recording: Recording, layer: str,
    reaches: float = math.nan, called: str = "",
) -> str:  # fmt: skip
    """Return why a product does not fit, as the end of a sentence; "" if it fits.

    A product fits if its relative error is at most `limit`, and that of its rows and columns at most three times
    `limit`. Moreover, the error that the product causes in the gradients (without a loss, in the outputs) must be at
    most `limit`.

    Args:
      row: the errors of the product.
      effect: the errors that the product causes in gradients and outputs; None if they were not measured.
      limit: the largest accepted relative error.
      recipe: the recipe of the product.
      recording: the recording that has the ranges of the operands.
      layer: the layer of the operands in the recording.
      reaches: the largest magnitude in the exact product; NaN if unknown.
      called: name of the product in the text; "" for the row's.
    """
    product, lines = called or row.product, lines_of(row)
    if not math.isfinite(row.joint):
        ends = NAMED[row.out_fmt].max if row.out_fmt in NAMED else math.inf
        end = f"{ends:,.0f}" if ends < 1e6 else f"{ends:.2g}"
        why = f"it reaches {reaches:.2g} and {row.out_fmt} ends at {end}" if reaches > ends else ""
        return f"its {product} overflows{_since(why or _out_of_range(row, recipe, recording, layer, ('above',)))}"
    if row.joint > limit:
        why = _cause(row, recipe, recording, layer)
        return f"its {product} is off by {relative_above(row.joint, limit)}{_since(why)}"
    if lines > LINES * limit:
        why = _widest(row, recording, layer) or _cause(row, recipe, recording, layer)
        return f"single rows or columns of its {product} are off by {relative_above(lines, LINES * limit)}{_since(why)}"
    if effect is not None:
        figure = "output_error" if math.isnan(effect.gradient_error) else "gradient_error"
        error, over = figure_of(effect, figure), spread_of(effect, figure)
        if not error <= limit and not (figure == "output_error" and math.isnan(error)):  # NaN: not measured
            spread = "" if math.isnan(over) else f" (± {relative(over)} over batches)"
            changes = f"changes the model's {FIGURES[figure]} by {relative_above(error, limit)}{spread}"
            return f"its {product}, off by {relative(row.joint)} itself, {changes}"
    return ""


def _since(why: str) -> str:
    """Return ", since " followed by the reason `why`; "" if that is ""."""
    return f", since {why}" if why else ""


def _cause(row: BudgetRow, recipe: LinearRecipe, recording: Recording, layer: str) -> str:
    """Return, as the end of a sentence, the largest cause of a product's error, with facts that explain its size.

    If the cause is the rounding of an operand, the facts are the operand's format and range; both operands are named if
    their errors are of similar size. For other causes, the fact is the format of the scales, the number of fraction
    bits that the matrix unit keeps in sums, the format of the result, or that results are below a normal range. `row`:
    the errors of the product in `recipe`. `recording`: gives the ranges of operands. `layer`: the layer's name in the
    recording.
    """
    cause = cause_of(row)
    if cause == "scales":
        scalings = (recipe.input_scaling, recipe.weight_scaling, recipe.grad_scaling)
        scale_formats = " and ".join(dict.fromkeys(str(x.scale_format) for x in scalings if x is not None)) or "nothing"
        return _out_of_range(row, recipe, recording, layer) or f"its scales are rounded to {scale_formats}"
    if cause in ("sums", "cast"):
        size, fmt = _size(row), FP32 if cause == "sums" else NAMED.get(row.out_fmt, FP32)
        if size < fmt.smallest_normal:
            return f"its results, of about {size:.1g}, are below the normal range of {fmt.name}"
    if cause == "sums":
        unit = UNITS.get(row.unit)
        kept = f", which keeps {unit.fraction_bits} fraction bits" if unit is not None and unit.fraction_bits else ""
        return f"it is summed by {row.unit}{kept}"
    if cause == "cast":
        return f"its result is rounded to {row.out_fmt}"
    if not cause:
        return ""
    side, parts = SIDES[cause], (row.rounding_a, row.rounding_b)
    if min(parts) >= ALIKE * max(parts):
        operands = " and ".join(map(_spoken, row.operands))
        formats = " and ".join(dict.fromkeys(row.formats))
        side = max((0, 1), key=lambda side: _ratio(recording, layer, row.operands[side]))
        wide = _wide(row, side, recording, layer, f"the {_spoken(row.operands[side])}'s")
        return f"its {operands} are rounded to {formats}{wide}"
    return f"its {_spoken(row.operands[side])} is rounded to {row.formats[side]}{_wide(row, side, recording, layer)}"


def _size(row: BudgetRow) -> float:
    """Return the root mean square of the elements of the exact product of `row`."""
    rows, columns, _ = row.shape
    return math.sqrt(row.squares.reference / (rows * columns * row.parts * row.batches))


def _spoken(operand: str) -> str:
    """Return the name of an operand with spaces in place of underscores."""
    return operand.replace("_", " ")


def _wide(row: BudgetRow, side: int, recording: Recording, layer: str, whose: str = "its") -> str:
    """Return a clause saying by which factor an operand's largest value exceeds the median; "" for factors below 100.

    `row`: the errors of the product. `side`: 0 for operand a, 1 for b. `recording`, `layer`: the recording of the
    operand, and the layer's name in it. `whose`: the possessive in the clause, such as "its" or "the weight's".
    """
    ratio = _ratio(recording, layer, row.operands[side])
    return f" while {whose} largest value is {ratio:,.0f} times the median" if ratio >= WIDE else ""


def _widest(row: BudgetRow, recording: Recording, layer: str) -> str:
    """Return a clause on the operand with the larger ratio of its largest to its median magnitude.

    An operand of large ratio makes single rows inexact. Return "" for a ratio below 100, or an operand not rounded.
    `row`: the product's errors. `recording`, `layer`: the recording of the operands, and the layer's name in it.
    """
    ratios = [(_ratio(recording, layer, operand), side) for side, operand in enumerate(row.operands)]
    ratio, side = max(ratios)
    if ratio < WIDE or row.formats[side] == "float32":
        return ""
    return f"its {_spoken(row.operands[side])} is rounded to {row.formats[side]}{_wide(row, side, recording, layer)}"


def _ratio(recording: Recording, layer: str, which: str) -> float:
    """Return the largest magnitude of a layer's tensor divided by the median magnitude; 0 if unknown.

    `recording`, `layer`: the recording of the tensor, and the layer's name in it. `which`: the tensor, such as "input".
    """
    spread = _range(recording, layer, which)
    median = math.nan if spread is None else spread.magnitude(0.5)
    return spread.amax / median if spread is not None and median > 0 else 0.0


def _out_of_range(
    row: BudgetRow, recipe: LinearRecipe, recording: Recording, layer: str,
    sides: Sequence[str] = ("below", "above", "subnormal"),
) -> str:  # fmt: skip
    """Return a clause on an operand's values outside its format's range, if they make the operand inexact; else "".

    Of several groups of values (see `sides`), the clause names the one that causes the largest relative error of its
    operand. Only operands cast without scales count.

    Args:
      row: the product's errors, with the names of its operands.
      recipe: the product's recipe.
      recording, layer: the recording with the ranges of the operands, and the layer's name in it.
      sides: which values count: those "below", "above", or among the "subnormal" numbers of the format. With "above"
        alone a single value suffices, else the relative error must exceed 1 %.
    """
    clauses = []
    for side, operand in enumerate(row.operands):
        fmt = recipe.operands(row.product)[side]
        spread = _range(recording, layer, operand)
        scaled = recipe.delayed is not None or getattr(recipe, f"{CAST_AS.get(operand, operand)}_scaling") is not None
        element = None if fmt is None else element_format(fmt)
        if spread is None or scaled or not isinstance(element, Format):
            continue
        shares = _shares_out_of_range(spread, element)
        clauses += [
            (error, f"{relative(share)} of its {_spoken(operand)} {OUT_OF_RANGE[word]} {row.formats[side]}")
            for word, (share, error) in shares.items() if word in sides
        ]  # fmt: skip
    error, words = max(clauses, default=(0.0, ""))
    return f"without scales {words}" if error > (0.0 if sides == ("above",) else LOST) else ""


def _shares_out_of_range(spread: RangeReport, fmt: Format) -> dict[str, tuple[float, float]]:
    """Return "below", "above" and "subnormal" -> (share, error), for a tensor's values that a format cannot represent
    well.

    The keys are the values below the format's smallest subnormal, above its largest value, and among its subnormals.
    `share`: their share of all values. `error`: the tensor's relative error if only these are rounded to the format
    `fmt`, estimated from the counts in `spread`, the tensor's range.
    """
    numbers, squares = dict.fromkeys(OUT_OF_RANGE, 0), dict.fromkeys(OUT_OF_RANGE, 0.0)
    step, total = fmt.smallest_subnormal, 0.0
    for place, number in spread.bins:
        exponent, part = divmod(place, BINS_PER_BINADE)
        low, x = (math.ldexp(1 + (part + half) / BINS_PER_BINADE, exponent) for half in (0.0, 0.5))
        total += number * (x / spread.amax) ** 2
        word, error = "", 0.0
        if low > fmt.max:
            word, error = "above", x - fmt.max
        elif x < step:
            word, error = "below", min(x, step - x)
        elif exponent < fmt.min_exponent:
            word, error = "subnormal", step / math.sqrt(12)  # of a number drawn uniformly between two neighbours
        if word:
            numbers[word] += number
            squares[word] += number * (error / spread.amax) ** 2
    return {
        word: (number / max(spread.count, 1), math.sqrt(squares[word] / (total or 1.0)))
        for word, number in numbers.items()
    }


def _range(recording: Recording, layer: str, which: str) -> Any:
    """Return the RangeReport of a layer's tensor at its first recorded step; None if it was not recorded.

    `layer`: the layer's name in the recording. `which`: the tensor, such as "input".
    """
    rows = [row for row in recording if (row.layer, row.tensor) == (recorded_name(layer), which)]
    return rows[0].range if rows else None


def is_high(recipe: LinearRecipe) -> bool:
    """Return whether a recipe casts no operand to a format of fewer than 16 bits.

    Example:
      >>> from fpsim.analysis.studies.diagnosis.verdict import is_high
      >>> [is_high(fp.torch.RECIPES[name]) for name in ("FP32", "BF16", "FP8_TENSOR")]
      [True, True, False]
    """
    fmts = (recipe.input_fmt, recipe.weight_fmt, recipe.grad_fmt)
    return all(fmt is None or element_format(fmt).bits >= 16 for fmt in fmts)
