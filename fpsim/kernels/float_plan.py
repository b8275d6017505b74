"""Which float an operation can be computed in exactly, and the layouts and thresholds that its kernel takes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.core.encode import UNUSUAL
from fpsim.formats import FP32, FP64, Format
from fpsim.kernels.layout import decode_plan, encode_plan, pack_plan, source_width
from fpsim.operation import Operation
from fpsim.rounding import Rounding

NAMES = ("add", "subtract", "multiply", "divide", "fma")


class FloatPlan(NamedTuple):
    """What a float kernel takes."""

    width: int  # of the float, 32 or 64 bits
    layouts: tuple[npt.NDArray[Any], ...]  # of the operands and the result
    limits: npt.NDArray[Any] | None  # for the flags; None where this kernel cannot make them


@lru_cache(maxsize=4096)
def float_plan(operation: Operation) -> FloatPlan | None:
    """The plan of an operation, or None where only the integer core is exact."""
    name, formats, result, input_subnormals, _, _ = operation
    out = result.fmt
    usual = all(fmt.signed and fmt.has_zero for fmt in (*formats, out))
    if name not in NAMES or not usual or input_subnormals != "keep" or result.rounding is Rounding.STOCHASTIC:
        return None
    for width in (32, 64):
        decoders = [decode_plan(fmt, width) for fmt in formats]
        exact = _is_exact(operation, FP32 if width == 32 else FP64)
        if not exact or source_width(out) > width or None in decoders:
            continue
        encoder = encode_plan(out, width, result.rounding, result.overflow, result.subnormals, result.random_bits)
        if encoder.kind == UNUSUAL:
            return None
        layouts = (*(decoder.layout for decoder in decoders if decoder is not None), encoder.layout)
        return FloatPlan(width, layouts, _limits(operation, width))
    return None


def _is_exact(operation: Operation, real: Format) -> bool:
    """Whether a float holds what arises: products and sums with their errors, and quotients apart from midpoints."""
    formats, out = operation.formats, operation.result.fmt
    places = [fmt.min_exponent - fmt.mantissa_bits for fmt in formats]  # every value is a multiple of 2**place
    tops = [math.frexp(fmt.max)[1] for fmt in formats]  # and less than 2**top
    lowest, highest = real.min_exponent, 2 - real.min_exponent
    if operation.name in ("multiply", "fma"):
        exact = formats[0].precision + formats[1].precision <= real.precision
        if not exact or places[0] + places[1] < lowest or tops[0] + tops[1] > highest:
            return False
        tops = [tops[0] + tops[1], *tops[2:]]
    if operation.name == "multiply":
        return True
    if operation.name == "divide":
        # a quotient that is no value or midpoint of the result keeps more than 2**-(both precisions + 1) from them
        apart = formats[1].precision + out.precision + 2 <= real.precision
        return apart and places[0] - tops[1] >= lowest and tops[0] - places[1] <= highest
    return max(tops) + 1 <= highest and out.precision + 2 <= real.precision


def _limits(operation: Operation, width: int) -> npt.NDArray[Any] | None:
    """The thresholds of the flags in bits of a float, or None where they follow other rules."""
    out, rounding = operation.result.fmt, operation.result.rounding
    plan = pack_plan(out, *operation.result[1:4], operation.result.random_bits, "after")
    if plan.rules or operation.result.subnormals != "keep" or out.mantissa_bits == 0:
        return None
    bits = [
        _first_beyond(rounding, negative, *edge, width)
        for edge in (_edge_of_overflow(out), _edge_of_tininess(out))
        for negative in (False, True)
    ]
    if operation.tininess == "before":
        bits[2:] = [_bits(out.smallest_normal, width)] * 2
    quiet = [fmt.max_code + 1 + (1 << (fmt.mantissa_bits - 1)) if fmt.nan == "ieee" else 0 for fmt in operation.formats]
    return np.array([*bits, *quiet], np.uint32 if width == 32 else np.uint64)


def _edge_of_overflow(fmt: Format) -> tuple[float, float, bool]:
    """The largest value, the one that would follow, and whether the first has an odd code."""
    unit = math.ldexp(fmt.eps, math.frexp(fmt.max)[1] - 1)
    return fmt.max, fmt.max + unit, bool(fmt.max_code & 1)


def _edge_of_tininess(fmt: Format) -> tuple[float, float, bool]:
    """The value that would precede the smallest normal one at full precision, and that one."""
    normal = fmt.smallest_normal
    return normal - normal * fmt.eps / 2, normal, True


def _first_beyond(rounding: Rounding, negative: bool, below: float, above: float, odd: bool, width: int) -> int:
    """The bits of the smallest magnitude that a mode rounds up to `above`, its neighbour being `below`."""
    middle = below + (above - below) / 2
    away = (rounding is Rounding.UP and not negative) or (rounding is Rounding.DOWN and negative)
    if rounding is Rounding.NEAREST_AWAY or (rounding is Rounding.NEAREST_EVEN and odd):
        return _bits(middle, width)
    if rounding is Rounding.NEAREST_EVEN:
        return _bits(middle, width) + 1
    if away or (rounding is Rounding.ODD and not odd):
        return _bits(below, width) + 1
    return _bits(above, width)


def _bits(value: float, width: int) -> int:
    """The bits of a value that a float of the width holds."""
    array = np.array(value, np.float32 if width == 32 else np.float64)
    return int(array.view(np.uint32 if width == 32 else np.uint64))


def tiny_below(fmt: Format, tininess: str) -> np.uint32:
    """The bits of the smallest float32 magnitude that is not tiny to nearest even, as if its exponent had no bound."""
    below, above, _ = _edge_of_tininess(fmt)
    first = above if tininess == "before" else below + (above - below) / 2
    lift = 64
    return np.uint32(_bits(math.ldexp(first, lift), 32) - (lift << FP32.mantissa_bits))
