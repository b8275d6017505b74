"""A matrix unit as the numbers that the kernels take."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.sums.long_sum import digits_for
from fpsim.core.units.nvidia import UnitLayout
from fpsim.formats.named import E8M0
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule

TF32_BITS = 0xFFFFE000  # the bits of a float32 that tensor cores read of a tf32 operand (PTX ISA, wgmma)
UE4M3_BITS = 0x7F  # an unsigned E4M3 scale ignores the sign bit
ALL_BITS = (1 << 63) - 1


class UnitPlan(NamedTuple):
    """What the specification of a unit takes."""

    layouts: tuple[npt.NDArray[Any], ...]  # UnpackLayouts of a, b, accumulator and scales, EncodeLayout of the result
    facts: npt.NDArray[Any]  # a UnitLayout
    digits: int  # of an exact sum
    origin: int  # the exponent of its lowest digit


@cache
def unit_plan(unit: MatrixUnit) -> UnitPlan:
    """The plan of a unit."""
    a, b, d = unit.operand_format(unit.a), unit.operand_format(unit.b), unit.d.fmt
    flushes = unit.rule is Rule.FLUSHED_TREE
    # the layout of nearest even overflows to Inf, which is what units do that cut toward zero as well
    result = pack_plan(d, Rounding.NEAREST_EVEN, "nonfinite", "flush" if flushes else "keep", 32, "after")
    layouts = (
        unpack_layout(a, "keep"), unpack_layout(b, "keep"), unpack_layout(d, "keep"),
        unpack_layout(unit.scale_format or E8M0, "keep"), result.layout,
    )  # fmt: skip
    mode = Rounding.TOWARD_ZERO if unit.rounding == "toward_zero" else Rounding.NEAREST_EVEN
    facts = UnitLayout(
        terms=16 if unit.rule is Rule.TWO_PASSES else unit.terms,
        fraction_bits=unit.fraction_bits,
        floor_exponent=unit.floor_exponent,
        mode=int(mode),
        cleared=(1 << (d.mantissa_bits - unit.result_bits)) - 1,
        nan=unit.nan_code,
        block=unit.block,
        kept_bits=TF32_BITS if unit.a.name in ("tf32", "xf32") else ALL_BITS,
        kept_scale_bits=UE4M3_BITS if unit.scale == "ue4m3" else ALL_BITS,
    )
    lowest = min(a.min_exponent - a.mantissa_bits + b.min_exponent - b.mantissa_bits, d.min_exponent - d.mantissa_bits)
    highest = max(a.bias + b.bias, d.bias) + 4
    return UnitPlan(layouts, np.array(facts, np.int64), digits_for(lowest, highest), lowest)
