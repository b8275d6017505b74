"""The interface of a backend (CPU or GPU) of softmax and norms: operations on codes in the backend's memory."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import Format
from fpsim.norms.lane_sum import LaneSum
from fpsim.sums.accumulators import Accumulator


class Values(NamedTuple):
    """An operand of a backend: codes and their format.

    Attributes:
      codes: an array of codes in the backend's memory, or one code as a NumPy scalar, which every backend accepts.
      fmt: the format of the codes.
    """

    codes: Any
    fmt: Format

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        return tuple(self.codes.shape)


class NormBackend(Protocol):
    """The operations that a backend, the CPU or a GPU, implements for softmax and norms."""

    def read(self, x: Any, fmt: Format | None, name: str) -> tuple[Values, bool]:
        """Return (codes of x with their format, whether x has a float dtype).

        fmt: format of x if it holds codes; None if its float dtype determines the format. name: what errors call
        x, such as "weight".

        Raises:
          ValueError, TypeError: x has another format, or is not an array in this backend's memory.
        """

    def reshaped(self, x: Values, shape: tuple[int, ...]) -> Values:
        """Return the operand x reshaped to `shape`, which has as many elements."""

    def step(self, name: str, operands: tuple[Values, ...], fmt: Format) -> Values:
        """Return the result of an operation on codes, rounded to nearest even to the format `fmt`.

        name: operation of `fpsim.arithmetic`, such as "divide". operands: their shapes broadcast against each other.
        """

    def last(self, name: str, operands: tuple[Values, ...], options: CastOptions, typed: bool) -> Any:
        """Return the result of an operation, rounded as `options` says, as an array of the caller's library.

        The library is NumPy for the CPU. name: operation of `fpsim.arithmetic`, such as "divide". operands: codes with
        their formats; their shapes broadcast against each other. options: format and rounding of the result. typed:
        True for an array of the result format's dtype, if the library has one; False for codes.
        """

    def rounded(self, x: Values, fmt: Format) -> Values:
        """Return the operand x rounded to nearest even to the format `fmt`."""

    def largest(self, x: Values, axis: int) -> Values:
        """Return the largest element of x along an axis, whose length becomes 1.

        It is NaN if an element is NaN; +0 if the largest elements are zeros of both signs.
        """

    def lane_sums(self, accumulate: LaneSum, x: Values, axis: int, squares: bool) -> Values:
        """Return the FP32 sums of elements of x along an axis, in the order of `accumulate`; the result lacks the axis.

        squares: True adds the squares of the elements instead.
        """

    def sums(self, accumulate: Accumulator, x: Values, axis: int, squares: bool) -> Values:
        """Return the sums of elements of x along an axis, in the accumulator's result format, without the axis.

        accumulate: the accumulator. squares: True adds the squares of the elements instead.
        """
