"""Products by a schedule in which a generic accumulator replaces the matrix unit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode
from fpsim.formats.named import FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import Backend, NumpyOperations
from fpsim.products.unit_product import UnitProduct, add_part
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.product import accumulator_product


class AccumulatorSums:
    """A CPU backend whose partial sums, each from +0, are computed by an accumulator in place of a matrix unit.

    Totals, merges of slices of K and the epilogue follow the schedule, in float32. Attributes that this class does not
    define are those of the wrapped CPU backend.
    """

    merges_slices = False

    def __init__(self, cpu: Backend, accumulator: Accumulator, formats: tuple[Format, Format]) -> None:
        self._cpu, self.accumulator, self.formats = cpu, accumulator, formats

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cpu, name)

    def add_product(self, total: Array, product: UnitProduct) -> None:
        """Add the sums of a product to `total` (M, N) float32, in place.

        product: codes, and `promote`, the number of terms of K in a partial sum. Each partial sum is multiplied by its
        decode scales and added. If `promote` is 0, `total` must be zeros: it is replaced by the sum over all of K, as
        adding to +0 would turn a sum of -0 into +0.
        """
        k = product.a.shape[1]
        if k == 0 or total.size == 0:
            return
        with ieee_arithmetic(), np.errstate(all="ignore"):
            for part, start in enumerate(range(0, k, product.promote or k)):
                terms = slice(start, start + (product.promote or k))
                a, b = np.ascontiguousarray(product.a[:, terms]), product.b[terms]
                codes = accumulator_product(a, b, None, self.accumulator, formats=self.formats)
                sums = decode(codes, self.accumulator.result_format, np.float32)
                if product.promote:
                    add_part(total, sums, product.factors, part)
                else:
                    total[...] = sums

    def lane_product(self, product: UnitProduct, lanes: Lanes, run: int, terms: Span) -> Array:
        """Raise a ValueError for any arguments: schedules without matrix units add by float32 FMA only."""
        raise ValueError(
            f"a schedule of lanes adds by float32 fused multiply-adds; got accumulate={self.accumulator}. Take "
            "fp.FusedMultiplyAdd(fp.FP32)."
        )


def scheduled_accumulator(
    accumulator: Accumulator, chain: MatrixUnit, c: Any, backend: Backend
) -> tuple[MatrixUnit, Backend]:
    """Return what `fpsim.matmul` needs to run a schedule with an accumulator: (a matrix unit, a backend).

    The unit has one term per instruction, which a schedule can chain; the backend adds its partial sums by the
    accumulator.

    Args:
      accumulator: adds the terms of a partial sum.
      chain: float32 fused multiply-adds as a unit of one term, for the formats of the operands.
      c: the argument of `fpsim.matmul`; it must be None.
      backend: the backend of the product, which must be the CPU's.

    Raises:
      ValueError: float32 does not hold the accumulator's sums, they are rounded stochastically, c is passed, or the
        product is one on a GPU.
    """
    if not isinstance(backend, NumpyOperations):
        raise ValueError(
            f"a schedule of {accumulator} runs on the CPU; got one for a product on a GPU. Take fp.matmul."
        )
    fmt = accumulator.result_format
    if not FP32.holds(fmt):
        raise ValueError(f"a schedule adds partial sums in float32, which does not hold those of {accumulator}.")
    if accumulator.rounding is Rounding.STOCHASTIC:
        raise ValueError(f"a schedule adds sums without random numbers; got {accumulator}. Take another rounding.")
    if c is not None:
        raise ValueError(f"partial sums of {accumulator} start at +0, so that c has no place. Add it to the result.")
    unit = replace(chain, name=repr(accumulator), result_bits=min(fmt.mantissa_bits, FP32.mantissa_bits))
    sums: Any = AccumulatorSums(backend, accumulator, (chain.a.fmt, chain.b.fmt))
    return unit, sums
