"""The interface that a backend of softmax and norms, the CPU or a GPU, has: operations on codes in its memory."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import Format
from fpsim.norms.lane_sum import LaneSum
from fpsim.sums.accumulators import Accumulator


class Values(NamedTuple):
    """Codes in the memory of a backend, or a NumPy number for all backends, with their format."""

    codes: Any
    fmt: Format

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.codes.shape)


class NormBackend(Protocol):
    """The CPU or a GPU: how it reads operands, rounds operations, adds along an axis, and makes the result."""

    def read(self, x: Any, fmt: Format | None, name: str) -> tuple[Values, bool]:
        """Return an operand, and whether it came in a float dtype; fmt: the format of codes, None for that of a dtype.

        Raises:
          ValueError, TypeError: x has another format, or is not an array in this backend's memory.
        """

    def reshaped(self, x: Values, shape: tuple[int, ...]) -> Values:
        """Return values reshaped to another shape with the same number of elements."""

    def step(self, name: str, operands: tuple[Values, ...], fmt: Format) -> Values:
        """Return the result of an operation on operands that broadcast, rounded to nearest even into a format."""

    def last(self, name: str, operands: tuple[Values, ...], options: CastOptions, typed: bool) -> Any:
        """Return an operation's result rounded by the options of a cast, as an array of the caller's library.

        typed: whether the result is an array of the format's dtype, where it has one, or of codes.
        """

    def rounded(self, x: Values, fmt: Format) -> Values:
        """Return values rounded to nearest even into a format."""

    def largest(self, x: Values, axis: int) -> Values:
        """Return the largest element along an axis, with an axis of one element.

        It is NaN if an element is NaN, and +0 if the largest elements are zeros of both signs.
        """

    def lane_sums(self, accumulate: LaneSum, x: Values, axis: int, squares: bool) -> Values:
        """Return sums of elements or of their squares along an axis in lanes, in FP32, without the axis."""

    def sums(self, accumulate: Accumulator, x: Values, axis: int, squares: bool) -> Values:
        """Return sums of elements or of their squares along an axis by an accumulator, without the axis."""
