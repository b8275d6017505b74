"""A matrix product as it was computed: its operands, its arithmetic and its result."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from fpsim.arrays import Array
from fpsim.formats.named import Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Schedule


class OperandLike(Protocol):
    """Protocol of an operand that is compared, such as `fpsim.torch.products.CastOperand`."""

    @property
    def source(self) -> Array:
        """Numbers before the cast, floats, (rows, columns)."""

    @property
    def encoded(self) -> Any:
        """The operand after the cast: a Scaled, codes of `fmt`, or the source itself if it was not cast."""

    @property
    def fmt(self) -> Format | None:
        """Format of the codes in `encoded`; None for a Scaled (which has its own), or an operand that was not cast."""

    @property
    def values(self) -> Array:
        """Numbers that were multiplied, float32 or float64, (rows, columns)."""


class AddsLike(Protocol):
    """Protocol of the arithmetic that computes a product, such as `fpsim.torch.plan.Adds`."""

    @property
    def unit(self) -> MatrixUnit | None:
        """Matrix unit that computes the product; None if an accumulator or torch does."""

    @property
    def accumulator(self) -> Any:
        """Accumulator that sums the products of elements; None if a matrix unit or torch does."""

    @property
    def schedule(self) -> Schedule | None:
        """Order in which the unit or accumulator adds along K; None for the default order (see `schedule_of`)."""

    @property
    def promote(self) -> int | None:
        """Number of terms of K after which the unit's sum is added to a float32 total; None for never."""

    @property
    def out_fmt(self) -> Format | None:
        """Format to which results are rounded; None keeps the format of the sums."""


class Product(NamedTuple):
    """One matrix product as it was computed.

    Attributes:
      layer, product: names of the layer and the product, such as "blocks.0.mlp.down" and "fprop".
      a, b: the operands, (M, K) and (K, N).
      adds: its arithmetic: unit, schedule and promotion, or accumulator.
      result: (M, N) float32 or float64.
      bias: (N,) floats, or None.
      operands: names of a and b, such as "input" and "weight".
      place: text on the device or library that computed it, such as "on the GPU"; "" for this processor.
      dtype: name of the dtype in which torch multiplied; "" for that of the result.
    """

    layer: str
    product: str
    a: OperandLike
    b: OperandLike
    adds: AddsLike
    result: Array
    bias: Array | None = None
    operands: tuple[str, str] = ("a", "b")
    place: str = ""
    dtype: str = ""

    @property
    def is_emulated(self) -> bool:
        """True if fpsim computed the product; False if torch did, whose order of additions is unknown."""
        return self.adds.unit is not None or self.adds.accumulator is not None
