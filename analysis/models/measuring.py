"""Measurement of tensors while a model runs: the range of all elements, and the rounding error of a sample."""

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
SMALL = 8  # formats of up to 8 bits have a scale from the tensor's amax
SAMPLE = 1 << 15  # sampled values of a tensor; with these, recording less than doubles the time of most steps


class Measure:
    """A function that measures an array of floats: its range, and its rounding error in each format.

    Args:
      formats: float formats, by name, dtype or object, one or several; those of up to 8 bits have one scale per tensor,
        from its amax.
      sample: number of elements whose error is measured, in blocks of 2048 successive ones; None for all.
    Raises:
      TypeError, ValueError: an unknown format, one without float values, or a sample below 2048.
    """

    def __init__(self, formats: Any = FORMATS, sample: int | None = SAMPLE) -> None:
        no_errors = isinstance(formats, (list, tuple)) and not formats
        elements = [] if no_errors else [element_format(fmt) for fmt in several(formats, "formats")]
        for element in elements:
            if not isinstance(element, Format):
                raise ValueError(f"formats must be float formats, such as 'e4m3'; got {element.name}.")
        if sample is not None:
            require_integer("sample", sample, BLOCK)
        self.sample = None if sample is None else int(sample)
        self.names = tuple(dict.fromkeys(element.name for element in elements))
        self._ways = [
            RoundingWay(element, "amax" if element.bits <= SMALL else None, "nearest_even")
            for element in dict.fromkeys(elements)
        ]
        self._histogram = Histogram()

    def __call__(self, x: Array) -> tuple[RangeReport, tuple[ErrorReport, ...]]:
        """Return (range of all elements of an array of floats, tuple with the error of a sample in each format)."""
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


def sampled(x: Array, size: int | None) -> Array:
    """Return at most `size` elements of an array as a 1-d array: evenly spaced blocks of 2048 successive ones.

    There are size // 2048 blocks: the first begins at the first element, the last ends at the last; a single block is
    the first. The whole array is returned if `size` is None or large enough.

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
