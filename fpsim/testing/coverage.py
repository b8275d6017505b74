"""Summary of the inputs that a check passed to the tested function: shapes, layouts, dtypes and ranges of values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fpsim.arrays import Array, format_of


@dataclass(frozen=True)
class InputCoverage:
    """Summary of the inputs for which a check compared results.

    Attributes:
      calls: number of calls.
      shapes: shapes of the arrays, each once, in the order of the calls.
      layouts: names of memory layouts other than C order.
      dtypes: names of dtypes of the inputs.
      smallest, largest: smallest and largest magnitude of a finite value other than zero; 0 if there is none.
      specials: which of "zeros", "infinities" and "NaNs" were among the values.
    """

    calls: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    layouts: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    smallest: float = 0.0
    largest: float = 0.0
    specials: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of elements of the smallest and of the largest array, as a pair; (0, 0) without calls."""
        sizes = [math.prod(shape) for shape in self.shapes]
        return min(sizes, default=0), max(sizes, default=0)

    def __str__(self) -> str:
        if not self.calls:
            return "nothing was compared"
        low, high = self.sizes
        axes = sorted({len(shape) for shape in self.shapes})
        several = axes[0] if len(axes) == 1 else f"{axes[0]} to {axes[-1]}"
        arrays = f"arrays of {low:,} to {high:,} elements" if low != high else f"arrays of {high:,} elements"
        widest = max(self.shapes, key=math.prod)
        shapes = f"{arrays} with {several} {'axis' if axes == [1] else 'axes'}, the largest {widest}"
        parts = [shapes, f"dtypes {', '.join(self.dtypes)}", f"layouts {', '.join(('C order', *self.layouts))}"]
        if self.largest:
            parts.append(f"magnitudes from {self.smallest:.3g} to {self.largest:.3g}")
        if self.specials:
            parts.append(", ".join(self.specials))
        return "; ".join(parts)


class CoverageRecord:
    """Record of the calls of a check, from which the property `coverage` summarises the inputs."""

    def __init__(self) -> None:
        self.calls = 0
        self.shapes: dict[tuple[int, ...], None] = {}
        self.layouts: dict[str, None] = {}
        self.dtypes: dict[str, None] = {}
        self.specials: dict[str, None] = {}
        self.smallest, self.largest = math.inf, 0.0

    def note(self, x: Array, layout: str = "", *, values: bool = True) -> None:
        """Add a call of the tested function with the array `x` to the record.

        Args:
          x: the input.
          layout: name of its memory layout, "" for C order.
          values: whether its magnitudes, zeros, infinities and NaNs count; False for an array that repeats the values
            of an earlier one. They count only in arrays of floats and integers.
        """
        self.calls += 1
        self.shapes.setdefault(x.shape)
        self.dtypes.setdefault(x.dtype.name)
        if layout:
            self.layouts.setdefault(layout)
        if not values or not x.size or (format_of(x.dtype) is None and x.dtype.kind not in "iu"):
            return
        with np.errstate(all="ignore"):
            magnitude = np.abs(x.astype(np.float64))
        finite = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
        if finite.size:
            self.smallest = min(self.smallest, float(finite.min()))
            self.largest = max(self.largest, float(finite.max()))
        kinds = (("zeros", magnitude == 0), ("infinities", np.isinf(magnitude)), ("NaNs", np.isnan(magnitude)))
        self.specials.update({name: None for name, places in kinds if places.any()})

    @property
    def coverage(self) -> InputCoverage:
        """Summary of the inputs of all calls so far."""
        smallest = 0.0 if math.isinf(self.smallest) else self.smallest
        return InputCoverage(
            self.calls, tuple(self.shapes), tuple(self.layouts), tuple(self.dtypes), smallest, self.largest,
            tuple(self.specials),
        )  # fmt: skip
