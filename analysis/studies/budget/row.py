"""One row of a budget: a product of a layer, and the squares of its errors by cause, which add up over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fpsim.analysis.studies.budget.tiles import WorstTile, worst_of
from fpsim.deprecation import warn_renamed

# The causes, in the order of tables and pictures; the last is what the others leave of `joint`.
CAUSES = ("rounding_a", "rounding_b", "scales", "accumulator", "promotion", "cast", "interplay")
FIGURES = (
    "joint", *CAUSES, "local", "inherited", "total", "lines", "stored_a", "stored_b",
    "closed_a", "closed_b", "closed_cast", "closed", "reference_bound",
)  # fmt: skip


class Squares(NamedTuple):
    """Sums of squares, which add up over micro-batches and steps.

    Attributes:
      reference: of the exact product.
      a_exact, b_exact: of the error with one operand rounded by exact scales, and all else exact.
      a_own, b_own: the same with the recipe's scales.
      chain: of what the unit alone, in one chain, changes of the exact sum of the rounded operands.
      sums: the same with the recipe's promotion and schedule.
      cast: of the exact product's rounding to the format of the result.
      joint: of all together.
      inherited: of the exact product of the operands as they arrive; None where these are not known.
      total: of all together on those.
      closed_a, closed_b, closed_cast: of what roundings should come to by their closed forms; None without one.
      a, b, a_stored, b_stored: of the operands, and of what the recipe's cast changes of them.
      rows, row_count, columns, column_count: relative squares of every line of the product, each at most 1, and the
        lines that are not 0.
      rounded: of what single elements of both operands lose, times what they meet: what tiles have shares of.
      bound: of what the reference itself may be off.
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
        """The sums of both."""
        return Squares(*(None if x is None or y is None else x + y for x, y in zip(self, other, strict=True)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class BudgetRow:
    """The error of one product of a layer. Every figure is relative to the exact product, in the Frobenius norm.

    A cause that takes an error away is negative: figures are roots of differences of squares, with their sign.

    Attributes:
      layer, product: "fprop" (x w^T), "dgrad" (dy w) or "wgrad" (dy^T x).
      shape: (M, N, K) of the first batch.
      batches: how many were added.
      operands: what a and b are called: "input", "weight", "output_gradient".
      formats: of a and b, as text; "float32" where nothing is cast.
      unit, schedule: what adds, and in which order; "torch" for torch's float32.
      out_fmt: of the result.
      squares: the sums behind the figures.
      tiles: the tiles of the operands whose rounding costs most.
      kind: "linear", "convolution" (whose input is its patches) or "attention".
      parts: how many products of that shape the row is of: groups of a convolution, heads of an attention.
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
        """Return `out_fmt`, by its old name."""
        warn_renamed("BudgetRow.out_format", "BudgetRow.out_fmt")
        return self.out_fmt

    def _relative(self, square: float | None) -> float:
        """The root of a square over the reference's, with its sign; NaN where it is not known."""
        reference = self.squares.reference
        if square is None:
            return math.nan
        if reference == 0 or math.isnan(square):
            return 0.0 if square == 0 else math.nan
        return math.copysign(math.sqrt(abs(square) / reference), square) if square else 0.0

    @property
    def rounding_a(self) -> float:
        """The first operand rounded with exact scales, all else exact."""
        return self._relative(self.squares.a_exact)

    @property
    def rounding_b(self) -> float:
        """The second one likewise."""
        return self._relative(self.squares.b_exact)

    @property
    def scales(self) -> float:
        """What the recipe's scales add to the rounding of both operands, each rounded alone."""
        rounded, exact = self.squares.a_own + self.squares.b_own, self.squares.a_exact + self.squares.b_exact
        return self._relative(rounded - exact)

    @property
    def accumulator(self) -> float:
        """What the unit's sums, in one chain, change of the exact sums of the same rounded operands."""
        return self._relative(self.squares.chain)

    @property
    def promotion(self) -> float:
        """What promotion and schedule change of that."""
        return self._relative(self.squares.sums - self.squares.chain)

    @property
    def cast(self) -> float:
        """The exact product rounded to the format of the result."""
        return self._relative(self.squares.cast)

    @property
    def joint(self) -> float:
        """All causes together, on the operands of the recording."""
        return self._relative(self.squares.joint)

    @property
    def local(self) -> float:
        """The same as `joint`, beside `inherited`."""
        return self.joint

    @property
    def interplay(self) -> float:
        """What the causes, each alone, leave of `joint` in quadrature."""
        alone = self.squares.a_own + self.squares.b_own + self.squares.sums + self.squares.cast
        return self._relative(self.squares.joint - alone)

    @property
    def inherited(self) -> float:
        """The exact product of operands as they arrive, beside that of exact operands; NaN where not known."""
        return self._relative(self.squares.inherited)

    @property
    def total(self) -> float:
        """All causes together on operands as they arrive."""
        return self._relative(self.squares.total)

    @property
    def lines(self) -> float:
        """The relative error of single rows or columns, at most 1 each: the larger root mean square of the two."""
        found = self.squares
        means = [
            total / count for total, count in ((found.rows, found.row_count), (found.columns, found.column_count))
            if count
        ]  # fmt: skip
        return math.sqrt(max(means)) if means else math.nan

    @property
    def stored_a(self) -> float:
        """The relative error of the first operand itself."""
        return math.sqrt(self.squares.a_stored / self.squares.a) if self.squares.a else math.nan

    @property
    def stored_b(self) -> float:
        """That of the second one."""
        return math.sqrt(self.squares.b_stored / self.squares.b) if self.squares.b else math.nan

    @property
    def closed_a(self) -> float:
        """What `rounding_a` should come to by its closed form; NaN where there is none."""
        return self._relative(self.squares.closed_a)

    @property
    def closed_b(self) -> float:
        """The same of `rounding_b`."""
        return self._relative(self.squares.closed_b)

    @property
    def closed_cast(self) -> float:
        """The same of `cast`."""
        return self._relative(self.squares.closed_cast)

    @property
    def closed(self) -> float:
        """The closed forms in quadrature."""
        return math.hypot(self.closed_a, self.closed_b, self.closed_cast)

    @property
    def reference_bound(self) -> float:
        """What the reference, in float64, may be off at most."""
        return self._relative(self.squares.bound)

    @property
    def severity(self) -> float:
        """What rows are ranked by: the larger of `joint` and `lines`, at most 1 (an error as large as the product)."""
        worst = max(
            (value for value in (self.joint, self.lines) if not math.isnan(value)), default=0.0
        )  # of a product that is 0 nothing is relative
        return min(worst, 1.0)

    @property
    def sums(self) -> float:
        """What `accumulator` and `promotion` come to together."""
        return self._relative(self.squares.sums)

    def merge(self, other: BudgetRow) -> BudgetRow:
        """The row of both batches."""
        tiles = worst_of((*self.tiles, *other.tiles))
        squares = self.squares.plus(other.squares)
        return replace(self, batches=self.batches + other.batches, squares=squares, tiles=tiles)

    def with_part(self, other: BudgetRow) -> BudgetRow:
        """The row of both products of one layer and batch."""
        return replace(self.merge(other), batches=self.batches, parts=self.parts + other.parts)

    def to_dict(self) -> dict[str, Any]:
        """As a row of a table."""
        fields = {name: getattr(self, name) for name in ("layer", "kind", "product", "shape", "parts", "batches")}
        for i, side in enumerate("ab"):
            fields |= {f"operand_{side}": self.operands[i], f"format_{side}": self.formats[i]}
        fields |= {name: getattr(self, name) for name in ("unit", "schedule", "out_fmt")}
        return fields | {name: getattr(self, name) for name in FIGURES}
