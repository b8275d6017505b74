"""Plans of sums: the 64-bit representation of sums, and the layouts that the kernels read."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.core.encode import UNUSUAL
from fpsim.core.layouts import decode_plan, encode_plan, pack_plan, unpack_layout
from fpsim.core.number import UnpackLayout
from fpsim.core.sums.long_sum import digits_for
from fpsim.core.sums.running_sum import DECODING, RULES, TARGET_FIELDS
from fpsim.core.sums.sum_order import Randomness
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import FP64, Format
from fpsim.formats.rounding import Rounding
from fpsim.reload import reloadable
from fpsim.sums.accumulators import Accumulator, Chunked
from fpsim.sums.kernels.settle import SETTLING, Settling
from fpsim.sums.kernels.steps import FIXED_MODES

u64 = np.uint64
NO_LAYOUT = np.zeros(len(UnpackLayout._fields), u64)  # of an operand that is always one
WAYS = {mode: way for way, mode in FIXED_MODES.items()}
RANDOM_PRECISION = 53 - 1 - 32  # a sum rounded to odd in float64 keeps 32 random bits below this many


def options_of(accumulator: Accumulator, fmt: Format) -> CastOptions:
    """Return the options by which an accumulator rounds into `fmt`, one of its formats, without its seed."""
    return CastOptions(
        fmt, accumulator.rounding, accumulator.overflow, accumulator.subnormals, None, accumulator.random_bits
    )


def seedless(accumulator: Accumulator) -> Accumulator:
    """Return a copy of the accumulator with the seed 0, or the accumulator itself if it has no seed or the seed 0.

    Caches of plans use the result as a key, as plans do not depend on seeds.
    """
    if not accumulator.seed:
        return accumulator
    copy = object.__new__(type(accumulator))  # whose fields have been checked
    copy.__dict__.update(accumulator.__dict__, seed=0)
    return copy


@lru_cache(maxsize=4096)
def ways(accumulator: Accumulator, formats: tuple[Format | None, Format]) -> tuple[str, str]:
    """Return (name of the 64-bit representation of an accumulator's sums, the same for Chunked's outer sums); cached.

    A name is "core" (codes, added in integer arithmetic), "double" (FP64 sums, as float64), or a rounding mode (values
    in float64, rounded to the format in that mode): "nearest", "up", "down", "toward_zero", "stochastic", or "any" for
    other modes. accumulator: one with its seed removed (`seedless`). formats: formats of a and b; None for an a of
    ones.
    """
    fmt, outer = accumulator.fmt, accumulator.result_format
    if fmt == FP64 and outer == FP64:
        return "double", "double"
    in_float64 = products_fit(formats) and _sums_fit(accumulator, fmt)
    if not in_float64 or (outer != FP64 and not _sums_fit(accumulator, outer)):
        return "core", "core"
    way = WAYS.get(accumulator.rounding, "any")
    return way, "double" if outer == FP64 else way


def products_fit(formats: tuple[Format | None, Format]) -> bool:
    """Return whether float64 holds every product of values of both formats as a zero or a normal number.

    formats: formats of a and b. For (None, fmt), where a is all ones, return whether float64 holds every value of fmt.
    """
    present = [fmt for fmt in formats if fmt is not None]
    if len(present) < len(formats):
        return decode_plan(formats[1], 64) is not None
    precision = sum(fmt.precision for fmt in present)
    lowest, highest = sum(lowest_place(fmt) for fmt in present), sum(highest_place(fmt) for fmt in present)
    held = all(decode_plan(fmt, 64) is not None for fmt in present)
    return held and precision <= FP64.precision and lowest >= FP64.min_exponent and highest < -FP64.min_exponent


def _sums_fit(accumulator: Accumulator, fmt: Format) -> bool:
    """Return whether float64 has enough bits and range for sums that the accumulator rounds to `fmt`.

    The kernels round a sum to odd in float64, then to `fmt`. With enough bits that equals one rounding of the exact
    sum.
    """
    narrow = fmt.precision <= RANDOM_PRECISION or accumulator.rounding is not Rounding.STOCHASTIC
    if not fmt.signed or not narrow or fmt.precision + 2 > FP64.precision or decode_plan(fmt, 64) is None:
        return False
    if fmt.max > 2.0**900:  # a sum with any float64 stays finite
        return False
    return encode_plan(fmt, 64, *options_of(accumulator, fmt)[1:4], accumulator.random_bits).kind != UNUSUAL


@lru_cache(maxsize=4096)
def target(options: CastOptions, in_float64: bool) -> Array:
    """Return the constants by which kernels round sums to a format and read them back, as one uint64 array; cached.

    For sums held as float64, the array has the fields of EncodeLayout, DecodeLayout and Settling, one after another;
    all are 0 for FP64, to which the processor rounds. For sums held as codes, it has the fields of EncodeLayout and
    UnpackLayout, and the sum of the flags LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of core/pack.py that
    apply.

    options: format and rounding of a sum. in_float64: True if sums are held as float64, False if as codes.
    """
    fmt, rounding, overflow, subnormals, _, random_bits = options
    fields = np.zeros(SETTLING + len(Settling._fields) if in_float64 else TARGET_FIELDS, u64)
    if in_float64 and fmt == FP64:
        return fields  # the processor rounds to it
    if in_float64:
        back = decode_plan(fmt, 64)
        assert back is not None
        encoder = encode_plan(fmt, 64, rounding, overflow, subnormals, random_bits)
        fields[:DECODING], fields[DECODING : DECODING + back.layout.size] = encoder.layout, back.layout
        fields[SETTLING:] = _settling(options)
        return fields
    plan = pack_plan(fmt, rounding, overflow, subnormals, random_bits, "after")
    layout = unpack_layout(fmt, "keep")
    fields[:DECODING], fields[DECODING:RULES], fields[RULES] = plan.layout, layout, plan.rules
    return fields


def _settling(options: CastOptions) -> Array:
    """Return the constants by which loops round float64 with `options`, as four uint64: the fields of `Settling`."""
    fmt, _, _, subnormals, _, random_bits = options
    plain = subnormals == "keep" and fmt.negative_zero and fmt.mantissa_bits > 0  # else ties are decided by the code
    plain = plain and lowest_place(fmt) <= 0  # else a small float64, in units of the last place, would underflow to 0
    least, top = np.array([2.0**fmt.min_exponent, fmt.max if plain else -1.0]).view(u64)
    random_mask = ((1 << random_bits) - 1) << (32 - random_bits)
    return np.array([least, fmt.mantissa_bits << FP64.mantissa_bits, top, random_mask], u64)


@reloadable
class ExactPlan(NamedTuple):
    """The plan by which kernels hold an exact sum, as an integer of several digits, and round it.

    Attributes:
      digits: number of int64 digits; each stands for 32 bits of the sum, the lowest first.
      lowest: exponent of the power of two that the first digit counts.
      layouts: constants by which codes of a, b and c are read and codes of the result are written.
      rules: uint64 sum of those flags LOSES_INFINITY, LOSES_NAN, TINY_BEFORE and UNSIGNED of core/pack.py that apply.
    """

    digits: int
    lowest: int
    layouts: tuple[Array, Array, Array, Array]
    rules: Any


@lru_cache(maxsize=4096)
def exact_plan(accumulator: Accumulator, formats: tuple[Format | None, Format], starts: bool) -> ExactPlan:
    """Return the ExactPlan (how exact sums are held and rounded) for operands in two formats; cached.

    accumulator: an Exact with its seed removed (`seedless`). formats: formats of a and b; None for an a of ones.
    starts: True if sums begin with values c, False at 0.
    """
    fmt, of_a = accumulator.fmt, formats[0]
    present = [operand for operand in formats if operand is not None]
    lowest = min(sum(lowest_place(operand) for operand in present), lowest_place(fmt) if starts else 0)
    highest = max(sum(highest_place(operand) for operand in present), highest_place(fmt) if starts else 0)
    pack = pack_plan(fmt, *options_of(accumulator, fmt)[1:4], accumulator.random_bits, "after")
    of_operands = [NO_LAYOUT if of_a is None else unpack_layout(of_a, "keep"), unpack_layout(formats[1], "keep")]
    layouts = (of_operands[0], of_operands[1], unpack_layout(fmt, "keep"), pack.layout)
    return ExactPlan(digits_for(lowest, highest), lowest, layouts, u64(pack.rules))


def lowest_place(fmt: Format) -> int:
    """Return the exponent of the largest power of two of which every value of `fmt` is a multiple."""
    return fmt.min_exponent - fmt.mantissa_bits


def highest_place(fmt: Format) -> int:
    """Return the exponent of the smallest power of two that exceeds every finite value of `fmt`."""
    return int(np.frexp(fmt.max)[1])


def randomness(accumulator: Accumulator, terms: int, first: int = 0) -> Randomness:
    """Return an accumulator's rounding mode and seed as a Randomness, for kernels that add sums of `terms` terms.

    first: index of the first sum, on which random numbers depend.
    """
    # random words of products, of sums and of outer sums (docs/accumulators.md), each padded to a multiple of 4
    whole = -(-terms // 4) * 4
    runs = -(-terms // accumulator.chunk) if isinstance(accumulator, Chunked) else 0
    stride, seed = u64(2 * whole + -(-runs // 4) * 4), accumulator.seed or 0
    return Randomness(int(accumulator.rounding), stride, u64(seed & 0xFFFFFFFF), u64(seed >> 32), u64(first))
