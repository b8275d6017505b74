"""A matrix product by a unit, in the form that GPU kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.unit_product import Factors


class GpuProduct(NamedTuple):
    """A matrix product by a unit, in the form that GPU kernels read.

    Attributes:
      unit: the matrix unit.
      a, b: codes on the GPU, (M, K) and (K, N).
      scale_a, scale_b: codes of block scales, (M, K / block) and (K / block, N); not read for units without them.
      terms: int32 indices along K in the order in which terms are added; -1 for a zero term.
      promote: number of terms of a partial sum that is added to a float32 total; 0 for one sum.
      factors: decode scales of the partial sums; without scales by default.

    Terms and factors are on the CPU, or for `add_fused` on the GPU.
    """

    unit: MatrixUnit
    a: Any
    b: Any
    scale_a: Any
    scale_b: Any
    terms: Any
    promote: int = 0
    factors: Factors = Factors()

    def part(self, start: int, stop: int) -> GpuProduct:
        """Return the product over terms[start:stop] alone, as one sum: `promote` is 0, and `factors` has no scales."""
        return self._replace(terms=self.terms[start:stop], promote=0, factors=Factors())

    def in_order(self, spans: Sequence[tuple[int, int]], gap: int, place: int) -> GpuProduct:
        """Return the product of the terms in `spans`, span after span, with `gap` zero terms before spans[place].

        spans: (start, stop) indices of self.terms. gap: 0 for no zero terms.
        """
        runs = [self.terms[slice(*span)] for span in spans]
        if gap:
            runs.insert(place, np.full(gap, -1, np.int32))
        return self._replace(terms=np.concatenate(runs))
