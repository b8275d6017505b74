"""Measurements of tensors while a model runs: the range of all elements, and the rounding error of a sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.analysis.measures.comparison import several
from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import Histogram, RangeReport
from fpsim.analysis.measures.loops import BLOCK
from fpsim.analysis.measures.passes import as_floats, float_pieces, sums_of_array
from fpsim.analysis.measures.rounding_error import RoundingWay
from fpsim.arrays import Array
from fpsim.errors import require_integer
from fpsim.formats.element import element_format
from fpsim.formats.named import Format

FORMATS = ("e4m3", "bf16")
SMALL = 8  # bits of a format up to which values are divided by a scale from the tensor's amax first
SAMPLE = 1 << 15  # values of a tensor: of most models a recorded step takes less than twice the time of others


class Measure:
    """A function that measures a tensor: its range, and its rounding error in each format.

    Args:
      formats: float formats, by name, dtype or object; one of up to 8 bits has one scale, "amax", for each tensor.
      sample: values of a tensor whose error is measured, in runs of 2048; None for all.

    Raises:
      TypeError, ValueError: an unknown format, one without float values, or a sample below 2048.
    """

    def __init__(self, formats: Any = FORMATS, sample: int | None = SAMPLE) -> None:
        elements = [element_format(fmt) for fmt in several(formats, "formats")] if _any(formats) else []
        for element in elements:
            if not isinstance(element, Format):
                raise ValueError(f"formats must be float formats, such as 'e4m3'; got {element.name}.")
        if sample is not None:
            require_integer("sample", sample, BLOCK)
        self.sample = sample
        self.names = tuple(dict.fromkeys(element.name for element in elements))
        self._ways = [
            RoundingWay(element, "amax" if element.bits <= SMALL else None, "nearest_even")
            for element in dict.fromkeys(elements)
        ]
        self._histogram = Histogram()

    def __call__(self, x: Array) -> tuple[RangeReport, tuple[ErrorReport, ...]]:
        """Return the range of all elements of an array of floats, and the error of its sample in each format."""
        counts = self._histogram
        counts.clear()
        counts.add(float_pieces(x))
        spread = counts.report()
        if not self._ways:
            return spread, ()
        part = as_floats(sampled(x, self.sample))
        candidates = [way.candidate(part, amax=spread.amax) for way in self._ways]
        sums = sums_of_array(part, candidates)
        return spread, tuple(
            way.report(s, c) for way, s, c in zip(self._ways, sums, candidates, strict=True)
        )  # fmt: skip


def _any(formats: Any) -> bool:
    """Return whether `formats` is other than an empty list or tuple, with which only ranges are measured."""
    return not (isinstance(formats, (list, tuple)) and not formats)


def sampled(x: Array, size: int | None) -> Array:
    """Return runs of 2048 elements, evenly spaced from the first to the last, `size` in all; or the whole array.

    Example:
      >>> from fpsim.analysis.models.measuring import sampled
      >>> part = sampled(np.arange(8192.0), 4096)
      >>> part[[0, 2048, -1]]
      array([   0., 6144., 8191.])
    """
    flat = x.reshape(-1)
    if size is None or flat.size <= size:
        return flat
    runs = size // BLOCK
    if runs == 1:
        return flat[:BLOCK]
    starts = [i * (flat.size - BLOCK) // (runs - 1) for i in range(runs)]
    return np.concatenate([flat[start : start + BLOCK] for start in starts])
