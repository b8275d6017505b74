"""The float dtype in which kernels compute an operation so that its rounded result is correct, and their arguments."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.operation import Operation
from fpsim.core.encode import UNUSUAL
from fpsim.core.layouts import decode_plan, encode_plan, pack_plan, source_width
from fpsim.core.pack import LOSES_INFINITY, LOSES_NAN
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime.records import as_rows

NAMES = ("add", "subtract", "multiply", "divide", "sqrt", "fma")


class FloatPlan(NamedTuple):
    """The arguments that float kernels (kernels/float_arithmetic.py) need to compute one operation.

    Attributes:
      width: bits of the float that computes, 32 or 64.
      layouts: unsigned integers of that width: DecodeLayout of each operand and EncodeLayout of the result, one a row.
      limits: the thresholds from which on flags change, as `_limits` returns them; None if the kernel cannot compute
        flags.
    """

    width: int
    layouts: npt.NDArray[Any]
    limits: npt.NDArray[Any] | None


@lru_cache(maxsize=4096)
def float_plan(operation: Operation) -> FloatPlan | None:
    """Return the arguments of the float kernel for an operation; None if no float kernel rounds it correctly.

    operation: the operation with its formats and options. The result is cached. For None, callers use exact integer
    arithmetic.
    """
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
        layouts = as_rows(*(decoder.layout for decoder in decoders if decoder is not None), encoder.layout)
        return FloatPlan(width, layouts, _limits(operation, width))
    return None


def _is_exact(operation: Operation, real: Format) -> bool:
    """Return whether an operation may be computed in `real`, FP32 or FP64, and then rounded to the result's format.

    It may if these two roundings give the same result as a single one, in every mode of the second. The first rounding
    is to odd for sums and fused multiply-adds, to nearest for the other operations.
    """
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
    if operation.name == "sqrt":
        return 2 * max(formats[0].precision, out.precision) + 2 <= real.precision
    if operation.name == "divide":
        # a quotient that is neither a value nor a midpoint of the result differs by more than 2**-(both precisions + 1)
        apart = formats[1].precision + out.precision + 2 <= real.precision
        return apart and places[0] - tops[1] >= lowest and tops[0] - places[1] <= highest
    return max(tops) + 1 <= highest and out.precision + 2 <= real.precision


def _limits(operation: Operation, width: int) -> npt.NDArray[Any] | None:
    """Return a 1-D array of the thresholds from which on an operation's flags change, or None.

    The first four are magnitudes of results, as bits of a float of `width` bits: the smallest that overflows, for
    positive and for negative results, and the smallest that is not tiny, for positive and for negative results. Then
    follows for each operand the smallest code, without its sign, of a quiet NaN (0 if all its NaNs are quiet). Return
    None if subnormal results are flushed, or if the result's format has no mantissa bits, or lacks the Inf or the NaN
    that an operand's format has.
    """
    out, rounding = operation.result.fmt, operation.result.rounding
    plan = pack_plan(out, *operation.result[1:4], operation.result.random_bits, "after")
    loses_infinity = plan.rules & int(LOSES_INFINITY) and any(fmt.has_infinity for fmt in operation.formats)
    loses_nan = plan.rules & int(LOSES_NAN) and any(fmt.has_nan for fmt in operation.formats)
    if loses_infinity or loses_nan or operation.result.subnormals != "keep" or out.mantissa_bits == 0:
        return None
    field, mantissa = divmod(out.max_code, 1 << out.mantissa_bits)
    hidden = 1 << out.mantissa_bits if field else 0
    # the largest finite magnitude and the next one that an unbounded exponent would give
    edge_of_overflow = Edge(hidden + mantissa, max(field, 1) - out.bias - out.mantissa_bits, bool(out.max_code & 1))
    bits = [
        _first_beyond(rounding, negative, edge, width)
        for edge in (edge_of_overflow, _edge_of_tininess(out))
        for negative in (False, True)
    ]
    if operation.tininess == "before":
        bits[2:] = [_bits(1, out.min_exponent, width)] * 2
    quiet = [fmt.max_code + 1 + (1 << (fmt.mantissa_bits - 1)) if fmt.nan == "ieee" else 0 for fmt in operation.formats]
    return np.array([*bits, *quiet], np.uint32 if width == 32 else np.uint64)


class Edge(NamedTuple):
    """Two neighbouring magnitudes, below * 2**unit and (below + 1) * 2**unit.

    Attributes:
      below, unit: integers.
      odd: whether the lower magnitude has an odd code, which decides ties to even.
    """

    below: int
    unit: int
    odd: bool


def _edge_of_tininess(fmt: Format) -> Edge:
    """Return an Edge: the smallest normal magnitude of `fmt`, and the next smaller one if exponents were unbounded."""
    return Edge((1 << fmt.precision) - 1, fmt.min_exponent - fmt.precision, True)


def _first_beyond(rounding: Rounding, negative: bool, edge: Edge, width: int) -> int:
    """Return the float bits of the smallest magnitude that a rounding mode rounds to the larger magnitude of `edge`.

    edge: two neighbouring magnitudes. negative: whether the value is negative. width: bits of the float, 32 or 64.
    """
    below, middle, above = (_bits(2 * edge.below + step, edge.unit - 1, width) for step in range(3))
    start = rounding.goes_away(edge.odd, negative)
    return {0.0: below, 0.5: middle, 1.0: above}[start.at] + (not start.included)


def _bits(significand: int, exponent: int, width: int) -> int:
    """Return the bits of the float of `width` bits (32 or 64) that equals significand * 2**exponent, which is positive.

    There must be such a float, except that a magnitude that is too large becomes Inf.
    """
    real = FP32 if width == 32 else FP64
    place = max(exponent + significand.bit_length() - 1, real.min_exponent) - real.mantissa_bits  # of the last bit
    if place + real.mantissa_bits > real.bias:
        return real.max_code + 1
    scaled = significand << (exponent - place) if exponent >= place else significand >> (place - exponent)
    return scaled + ((place + real.mantissa_bits - real.min_exponent) << real.mantissa_bits)


def tiny_below(fmt: Format, tininess: str, scaled: bool) -> np.uint32:
    """Return the float32 bits of the smallest magnitude that is not tiny in `fmt`, rounding to nearest even.

    tininess: "before" or "after" rounding. scaled: True for kernels that compute results times 2**n and then subtract n
    from the exponent field of their bits. Magnitudes below 2**-126 are then not encoded as subnormals: they have an
    exponent field of 0 or less, and their bits are compared as int32. The value returned here has the same encoding.
    """
    below, unit, _ = _edge_of_tininess(fmt)
    first = 2 * below + (2 if tininess == "before" else 1)
    lift = 64 if scaled else 0
    return np.uint32(_bits(first, unit - 1 + lift, 32) - (lift << FP32.mantissa_bits))
