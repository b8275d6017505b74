"""One row of a budget: a product of a layer, with its squared errors by cause, which can be added over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fpsim.analysis.studies.budget.tiles import WorstTile, worst_of
from fpsim.deprecation import warn_renamed

# The causes, in the order of tables and pictures; the last is the remainder of `joint`.
CAUSES = ("rounding_a", "rounding_b", "scales", "accumulator", "promotion", "cast", "interplay")
FIGURES = (
    "joint", *CAUSES, "local", "inherited", "total", "lines", "stored_a", "stored_b",
    "closed_a", "closed_b", "closed_cast", "closed", "reference_bound",
)  # fmt: skip


class Squares(NamedTuple):
    """Sums of squares of a product and of its errors, which can be added over micro-batches and steps.

    Each attribute from `reference` to `b_stored` is the sum of the squares of the elements of the array that it names.

    Attributes:
      reference: the exact product.
      a_exact, b_exact: the error if only a (only b) is rounded, with unrounded scales.
      a_own, b_own: the error if only a (only b) is rounded, with the recipe's scales.
      chain: the error of the matrix unit's sums of the rounded operands, each sum as one chain of instructions.
      sums: the error of the matrix unit's sums of the rounded operands, with the recipe's promotion and schedule.
      cast: the error of rounding the exact product to the format of the result.
      joint: the error with all causes together.
      inherited: the error of the exact product of the operands of a run in low precision; None without such a run.
      total: the error with all causes together on the operands of a run in low precision; None without such a run.
      closed_a, closed_b, closed_cast: the errors that formulas predict for a_exact, b_exact, cast; None if unknown.
      a, b: the exact operands.
      a_stored, b_stored: the errors of the operands themselves after the recipe's casts.
      rows, columns: the sum over rows (columns) of the squared relative error of each; an error above 1 counts as 1.
      row_count, column_count: number of rows and columns that are not 0 in the exact product.
      rounded: the sum of squares of the product's error if rounding errors of single elements were independent; shares
        of tiles refer to it.
      bound: a bound of the sum of squares of the error of the reference itself, ((K + 2) 2^-53 |a| |b|)^2.
    """

    reference: float
    a_exact: float
    b_exact: float
    a_own: float
    b_own: float
    chain: float
    sums: float
    cast: float
    joint: float
    inherited: float | None
    total: float | None
    closed_a: float | None
    closed_b: float | None
    closed_cast: float | None
    a: float
    b: float
    a_stored: float
    b_stored: float
    rows: float
    row_count: float
    columns: float
    column_count: float
    rounded: float
    bound: float

    def plus(self, other: Squares) -> Squares:
        """Return the sums of squares of this product and another one, added attribute by attribute.

        An attribute is None if it is None in either.
        """
        return Squares(*(None if x is None or y is None else x + y for x, y in zip(self, other, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BudgetRow:
    """The error of one product of a layer, by cause, relative to the exact product (in the Frobenius norm).

    A metric is the square root of a sum or difference of squares, with the sign of the difference: a cause that reduces
    the error has a negative metric.

    Attributes:
      layer: name of the layer.
      product: "fprop" (x w^T), "dgrad" (dy w) or "wgrad" (dy^T x).
      shape: (M, N, K) of the product in the first batch; a is (M, K), b is (K, N).
      batches: number of batches that were added.
      operands: names of a and b: "input", "weight", "output_gradient".
      formats: formats of a and b, as text; "float32" without a cast.
      unit: the matrix unit or accumulator, as text; "torch" for torch's float32.
      schedule: the schedule, or the promotion (partial sums added to a float32 total every few terms), as text; "" for
        one chain of instructions along K.
      out_fmt: format of the result, as text.
      squares: the sums of squares from which the metrics are computed.
      tiles: the tiles of the operands whose rounding adds most to the error.
      kind: "linear", "convolution" (whose input is its patches) or "attention".
      parts: number of products of that shape that the row adds: groups of a convolution, heads of an attention.
    """

    layer: str
    product: str
    shape: tuple[int, int, int]
    batches: int
    operands: tuple[str, str]
    formats: tuple[str, str]
    unit: str
    schedule: str
    out_fmt: str
    squares: Squares = field(repr=False)
    tiles: tuple[WorstTile, ...] = field(repr=False, default=())
    kind: str = "linear"
    parts: int = 1

    @property
    def out_format(self) -> str:
        """Deprecated name of `out_fmt`; using it warns."""
        warn_renamed("BudgetRow.out_format", "BudgetRow.out_fmt")
        return self.out_fmt

    def _relative(self, square: float | None) -> float:
        """Return the relative error sign(square) sqrt(|square| / reference) that a sum of squared errors stands for.

        `square`: a sum or difference of squared errors; None if unknown. The reference is the sum of squares of the
        exact product. Return 0 if `square` is 0, even if the reference is 0 too. Return NaN if `square` is None or NaN,
        or if only the reference is 0.
        """
        reference = self.squares.reference
        if square is None:
            return math.nan
        if reference == 0 or math.isnan(square):
            return 0.0 if square == 0 else math.nan
        return math.copysign(math.sqrt(abs(square) / reference), square) if square else 0.0

    @property
    def rounding_a(self) -> float:
        """Relative error of the product if only the first operand is rounded, with unrounded scales."""
        return self._relative(self.squares.a_exact)

    @property
    def rounding_b(self) -> float:
        """Relative error of the product if only the second operand is rounded, with unrounded scales."""
        return self._relative(self.squares.b_exact)

    @property
    def scales(self) -> float:
        """Relative error that rounding the recipe's scales adds to the errors of rounding each operand alone.

        Its square is the squared error of rounding only a plus that of rounding only b, both with the recipe's scales,
        minus the same sum with unrounded scales; the error is negative if this difference is negative.
        """
        rounded, exact = self.squares.a_own + self.squares.b_own, self.squares.a_exact + self.squares.b_exact
        return self._relative(rounded - exact)

    @property
    def accumulator(self) -> float:
        """Relative error of the matrix unit's sums of the rounded operands, each one chain of instructions along K."""
        return self._relative(self.squares.chain)

    @property
    def promotion(self) -> float:
        """Relative error that promotion and schedule add to `accumulator`.

        The value is the root of |d| with the sign of d, where d = sums^2 - accumulator^2. Promotion adds partial sums
        to a float32 total every few terms; the schedule is a library's order of additions.
        """
        return self._relative(self.squares.sums - self.squares.chain)

    @property
    def cast(self) -> float:
        """Relative error of the exact product rounded to the format of the result."""
        return self._relative(self.squares.cast)

    @property
    def joint(self) -> float:
        """Relative error of the product with all causes together, on the recorded operands."""
        return self._relative(self.squares.joint)

    @property
    def local(self) -> float:
        """Relative error of the product with all causes together, on exact operands; another name of `joint`."""
        return self.joint

    @property
    def interplay(self) -> float:
        """The part of `joint` that no single cause explains.

        The value is the root of |d| with the sign of d, where d is joint^2 minus the squares of all causes' errors.
        """
        alone = self.squares.a_own + self.squares.b_own + self.squares.sums + self.squares.cast
        return self._relative(self.squares.joint - alone)

    @property
    def inherited(self) -> float:
        """Relative error of multiplying inexact operands exactly: the operands of a run in low precision.

        NaN if the budget was made without such a run (argument `arriving` of `fp.analysis.budget`).
        """
        return self._relative(self.squares.inherited)

    @property
    def total(self) -> float:
        """Relative error with all causes together on inexact operands: the operands of a run in low precision.

        NaN if the budget was made without such a run (argument `arriving` of `fp.analysis.budget`).
        """
        return self._relative(self.squares.total)

    @property
    def lines(self) -> float:
        """The root mean square of the relative errors of the result's rows, or of its columns if larger.

        An error above 1 counts as 1. NaN if the exact product is 0.
        """
        sums = (self.squares.rows, self.squares.row_count), (self.squares.columns, self.squares.column_count)
        means = [total / count for total, count in sums if count]
        return math.sqrt(max(means)) if means else math.nan

    @property
    def stored_a(self) -> float:
        """Relative error of the first operand itself after the recipe's cast; NaN if the operand is all zeros."""
        return math.sqrt(self.squares.a_stored / self.squares.a) if self.squares.a else math.nan

    @property
    def stored_b(self) -> float:
        """Relative error of the second operand itself after the recipe's cast; NaN if the operand is all zeros."""
        return math.sqrt(self.squares.b_stored / self.squares.b) if self.squares.b else math.nan

    @property
    def closed_a(self) -> float:
        """Prediction of `rounding_a`, the error if only the first operand is rounded; NaN without a formula.

        The formula depends on the precision of a float format, or on the scales of an integer format.
        """
        return self._relative(self.squares.closed_a)

    @property
    def closed_b(self) -> float:
        """Prediction of `rounding_b`, the error if only the second operand is rounded; NaN without a formula.

        The formula depends on the precision of a float format, or on the scales of an integer format. For wgrad, the
        prediction includes the rounding with which the layer stored its input.
        """
        return self._relative(self.squares.closed_b)

    @property
    def closed_cast(self) -> float:
        """Prediction of `cast`, the error of rounding the result, from the precision of its format; 0 without a cast.

        NaN if the format is not a float.
        """
        return self._relative(self.squares.closed_cast)

    @property
    def closed(self) -> float:
        """Prediction of the relative error of all roundings: the root of closed_a^2 + closed_b^2 + closed_cast^2."""
        return math.hypot(self.closed_a, self.closed_b, self.closed_cast)

    @property
    def reference_bound(self) -> float:
        """Bound of the relative error of the reference, computed in float64: (K + 2) 2^-53 |a| |b| / |a b|."""
        return self._relative(self.squares.bound)

    @property
    def severity(self) -> float:
        """The larger of `joint` and `lines` (relative errors of the product, and of its single rows or columns).

        The severity is at most 1, and 0 if both errors are NaN. Budgets rank layers by their severities.
        """
        known = [value for value in (self.joint, self.lines) if not math.isnan(value)]
        return min(max(known, default=0.0), 1.0)  # none is known if the product is 0

    @property
    def sums(self) -> float:
        """Relative error of the matrix unit's sums of the rounded operands, in the order of the recipe's schedule."""
        return self._relative(self.squares.sums)

    def merge(self, other: BudgetRow) -> BudgetRow:
        """Return the row of the same product over the batches of this row and of another row.

        Sums of squares and numbers of batches are added; the 3 worst tiles of both rows remain.
        """
        tiles = worst_of((*self.tiles, *other.tiles))
        squares = self.squares.plus(other.squares)
        return replace(self, batches=self.batches + other.batches, squares=squares, tiles=tiles)

    def with_part(self, other: BudgetRow) -> BudgetRow:
        """Return one row for this product and the product of another group or head of the same layer and batch.

        Sums of squares and `parts` are added; `batches` does not change.
        """
        return replace(self.merge(other), batches=self.batches, parts=self.parts + other.parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the names and metrics as a dictionary, name -> value, for a row of a table."""
        fields = {name: getattr(self, name) for name in ("layer", "kind", "product", "shape", "parts", "batches")}
        for i, side in enumerate("ab"):
            fields |= {f"operand_{side}": self.operands[i], f"format_{side}": self.formats[i]}
        fields |= {name: getattr(self, name) for name in ("unit", "schedule", "out_fmt")}
        return fields | {name: getattr(self, name) for name in FIGURES}
