"""The properties of a matrix unit as the arrays and numbers that its compiled kernels read."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.core.encode import EncodeLayout
from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.sums.long_sum import digits_for
from fpsim.core.units.nvidia import UnitLayout
from fpsim.formats.named import E8M0
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.reload import reloadable

UE4M3_BITS = 0x7F  # an unsigned E4M3 scale ignores the sign bit
ALL_BITS = -1  # as a 64-bit word


@reloadable
class UnitPlan(NamedTuple):
    """The properties of a matrix unit as arguments of the kernel `dot_add_kernel(unit.rule)` of instructions/loops.py.

    Attributes:
      layouts: uint64 constants by which codes are read and written, the fields of `Layouts`, one after the other.
      facts: the fields of a `UnitLayout`, int64, such as the number of terms and of fraction bits.
      digits: size of the scratch array for an exact sum.
    """

    layouts: npt.NDArray[Any]
    facts: npt.NDArray[Any]
    digits: int


@cache
def unit_plan(unit: MatrixUnit) -> UnitPlan:
    """Return the properties of a matrix unit as arguments of its kernel; cached."""
    a, b, d = unit.operand_format(unit.a), unit.operand_format(unit.b), unit.d.fmt
    flushes = unit.rule is Rule.FLUSHED_TREE
    # the layout of nearest even overflows to Inf, as units that truncate do too
    result = pack_plan(d, Rounding.NEAREST_EVEN, "nonfinite", "flush" if flushes else "keep", 32, "after")
    lost = d.mantissa_bits - unit.result_bits
    layouts = (
        unpack_layout(a, "keep"), unpack_layout(b, "keep"), unpack_layout(d, "keep"),
        unpack_layout(unit.scale_format or E8M0, "keep"), _narrowed(result.layout, lost, unit.result_bits),
    )  # fmt: skip
    mode = Rounding.TOWARD_ZERO if unit.rounding == "toward_zero" else Rounding.NEAREST_EVEN
    lowest = min(a.min_exponent - a.mantissa_bits + b.min_exponent - b.mantissa_bits, d.min_exponent - d.mantissa_bits)
    facts = UnitLayout(
        terms=unit.terms // 2 if unit.rule is Rule.TWO_PASSES else unit.terms,
        fraction_bits=unit.fraction_bits,
        floor_exponent=unit.floor_exponent,
        mode=int(mode),
        lost=lost,
        nan=unit.nan_code,
        block=unit.block,
        kept_a=kept_bits(unit.a),
        kept_b=kept_bits(unit.b),
        kept_scale_bits=UE4M3_BITS if unit.scale == "ue4m3" else ALL_BITS,
        step=unit.terms,
        origin=lowest,
    )
    highest = max(a.max_exponent + b.max_exponent, d.max_exponent) + 4
    digits = max(digits_for(lowest, highest), 2 * unit.terms if flushes else 0)  # or the nodes of a tree
    return UnitPlan(np.concatenate(layouts), np.array(facts, np.int64), digits)


def kept_bits(element: Element) -> int:
    """Return a mask of the bits of an operand's code that a unit reads: of TF32, the upper 19 of a float32.

    element: the operand's format in the unit, with the format of the codes that hold it. The mask is a negative integer
    with zeros for the bits that are dropped; -1 if all bits are read.
    """
    return ALL_BITS ^ ((1 << (element.carrier.bits - element.fmt.bits)) - 1)


def _narrowed(layout: npt.NDArray[Any], lost: int, mantissa_bits: int) -> npt.NDArray[Any]:
    """Return a copy of a format's layout without the last `lost` mantissa bits, so that `mantissa_bits` remain.

    layout: uint64, the fields of EncodeLayout, by which kernels write codes.
    """
    f = EncodeLayout(*(int(word) for word in layout))
    parity = f.parity if mantissa_bits else (1 << 64) - 1  # a significand of one bit is odd
    moved = ("max_code", "flush_below", "overflow", "overflow_negative", "infinite", "nan", "nan_sign", "sign_bit")
    codes = {name: getattr(f, name) >> lost for name in moved}
    return np.array(f._replace(place=f.place + lost, parity=parity, **codes), np.uint64)
