"""Fused multiply-adds of BF16 and FP16 to nearest even, 32 at a time.

a * b + c is computed twice in float32, rounded down and rounded up by the instructions themselves. Of the two results,
the one whose last bit is set is the exact result rounded to odd, which is then rounded to the format. No intermediate
result overflows or vanishes unless the result does, so all operands are allowed. Measured: docs/performance.md.

For processors with AVX-512 (`has_avx512`). nearest_fma.py computes the same for others, and is the reference.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fpsim.arithmetic.kernels.short_floats import BFLOAT_NAN
from fpsim.casts.half import NAN as HALF_NAN
from fpsim.formats.ieee import Flags
from fpsim.runtime import vectors as v

STEP = 2 * v.WIDTH  # codes of a vector, two in each word
PLACES = 16  # of a float32 that BF16 does not have
UPPER = -1 << PLACES  # the upper code of a word, as an int32
INEXACT, TINY = int(Flags.INEXACT), int(Flags.INEXACT | Flags.UNDERFLOW)


def _to_bfloat(builder: Any, bits: Any) -> Any:
    """Emit LLVM code that rounds 16 float32 to BF16, nearest even.

    builder: llvmlite's IRBuilder; bits: LLVM vector of 16 int32, the float32 patterns. Return a vector of 16 int32
    whose upper 16 bits are the codes; their lower bits have no meaning. A NaN becomes BF16's canonical NaN.
    """
    result = builder.bitcast(bits, v.FLOATS)
    is_nan = builder.fcmp_unordered("uno", result, result)
    nan = v.constant(int(BFLOAT_NAN) << PLACES, v.INTS)
    bits = builder.select(is_nan, nan, bits)
    is_odd = builder.icmp_signed("!=", builder.and_(bits, v.constant(1 << PLACES, v.INTS)), v.constant(0, v.INTS))
    half = v.constant(1 << (PLACES - 1), v.INTS)
    return builder.add(bits, builder.select(is_odd, half, v.constant((1 << (PLACES - 1)) - 1, v.INTS)))


def _bfloats(builder: Any, sources: list[Any], target: Any, offset: Any) -> list[Any]:
    """Emit LLVM code that computes STEP (32) results a * b + c of BF16 and stores their codes.

    builder: llvmlite's IRBuilder. sources: addresses of the arrays of codes a, b and c. target: address of the array of
    results. offset: LLVM int64, number of bytes that is added to all four addresses.
    Return two LLVM vectors of 16 int32: float32 bits of the exact results rounded to odd, for elements 0, 2, 4, ... and
    for elements 1, 3, 5, ...
    """
    places, upper = v.constant(PLACES, v.INTS), v.constant(UPPER, v.INTS)
    words = [v.load(builder, source, offset, v.INTS) for source in sources]
    lows = (builder.bitcast(builder.shl(word, places), v.FLOATS) for word in words)
    highs = (builder.bitcast(builder.and_(word, upper), v.FLOATS) for word in words)
    odd = [builder.bitcast(v.odd_fused(builder, *operands), v.INTS) for operands in (lows, highs)]
    low, high = (_to_bfloat(builder, bits) for bits in odd)
    v.store(builder, builder.or_(builder.lshr(low, places), builder.and_(high, upper)), target, offset)
    return odd


def _halves(builder: Any, sources: list[Any], target: Any, offset: Any) -> tuple[Any, Any]:
    """Emit LLVM code that computes 16 results a * b + c of FP16 and stores their codes.

    builder: llvmlite's IRBuilder. sources: addresses of the arrays of codes a, b and c. target: address of the array of
    results. offset: LLVM int64, number of bytes that is added to all four addresses.
    Return two LLVM vectors of 16 int32, bits of float32: the exact results rounded to odd, and the results rounded to
    FP16.
    """
    few, halves = v.vector(v.SMALL, v.WIDTH), v.vector(v.HALF, v.WIDTH)
    values = [builder.fpext(v.load(builder, source, offset, few), v.FLOATS) for source in sources]
    result = builder.bitcast(v.odd_fused(builder, *values), v.FLOATS)
    rounded = builder.fptrunc(result, few)
    is_nan = builder.fcmp_unordered("uno", result, result)
    codes = builder.select(is_nan, v.constant(int(HALF_NAN), halves), builder.bitcast(rounded, halves))
    v.store(builder, codes, target, offset)
    return builder.bitcast(result, v.INTS), builder.bitcast(builder.fpext(rounded, v.FLOATS), v.INTS)


def _raised(builder: Any, odd: Any, is_inexact: Any, tiny_below: Any) -> Any:
    """Emit LLVM code for the flags of 16 finite results: INEXACT, with UNDERFLOW if tiny, or 0; return int32s.

    builder: llvmlite's IRBuilder. odd: int32 bits of float32, the exact results rounded to odd; is_inexact: mask of the
    elements whose results were rounded; tiny_below: int32 bits, in all elements, of the smallest magnitude that is not
    tiny.
    """
    is_tiny = builder.icmp_signed("<", builder.and_(odd, v.constant(0x7FFFFFFF, v.INTS)), tiny_below)
    flags = builder.select(is_tiny, v.constant(TINY, v.INTS), v.constant(INEXACT, v.INTS))
    return builder.select(is_inexact, flags, v.constant(0, v.INTS))


@intrinsic  # type: ignore[untyped-decorator]
def fuse_bfloats(_typing: Any, a: Any, b: Any, c: Any, codes: Any, start: Any, steps: Any) -> Any:
    """Set codes[i] to a[j] * b[j] + c[j], rounded to nearest even, with j = start + i, for i < steps * STEP.

    STEP is 32. a, b, c, codes: contiguous 1-D uint16 arrays of BF16 codes; codes must not overlap the others. start,
    steps: int64. Kernels for processors with AVX-512 call it without _typing, numba's typing context.
    """

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = builder.mul(args[4], v.LONG(2))
        *sources, target = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(4))
        sources = [builder.gep(source, [first]) for source in sources]

        def turn(i: Any) -> None:
            _bfloats(builder, sources, target, builder.mul(i, v.LONG(v.SIZE)))

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, types.int64, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def fuse_halves(_typing: Any, a: Any, b: Any, c: Any, codes: Any, start: Any, steps: Any) -> Any:
    """Set codes[i] to a[j] * b[j] + c[j], rounded to nearest even, with j = start + i, for i < steps * STEP.

    STEP is 32. a, b, c, codes: contiguous 1-D uint16 arrays of FP16 codes; codes must not overlap the others. start,
    steps: int64. Kernels for processors with AVX-512 call it without _typing, numba's typing context.
    """

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = builder.mul(args[4], v.LONG(2))
        *sources, target = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(4))
        sources = [builder.gep(source, [first]) for source in sources]

        def turn(i: Any) -> None:
            for part in range(2):
                offset = builder.add(builder.mul(i, v.LONG(v.SIZE)), v.LONG(part * v.SIZE // 2))
                _halves(builder, sources, target, offset)

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, types.int64, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def fuse_flagged_bfloats(
    _typing: Any, a: Any, b: Any, c: Any, codes: Any, flags: Any, steps: Any, tiny_below: Any
) -> Any:
    """Set codes[i] to a[i] * b[i] + c[i] and flags[i] to INEXACT and UNDERFLOW if raised, else 0, for i < steps * STEP.

    STEP is 32. Flags of Inf and NaN results are not right; callers replace them. a, b, c, codes: contiguous 1-D uint16
    arrays of BF16 codes. flags: uint8. steps: int64. tiny_below: uint32 bits of the smallest float32 magnitude that is
    not tiny. Kernels call it without _typing, numba's typing context.
    """

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        *sources, target, raised = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(5))
        tiny = v.everywhere(builder, args[6], v.INTS)
        dropped, zeros = v.constant((1 << PLACES) - 1, v.INTS), v.constant(0, v.INTS)

        def turn(i: Any) -> None:
            low, high = (
                _raised(builder, odd, builder.icmp_signed("!=", builder.and_(odd, dropped), zeros), tiny)
                for odd in _bfloats(builder, sources, target, builder.mul(i, v.LONG(v.SIZE)))
            )
            both = builder.or_(low, builder.shl(high, v.constant(8, v.INTS)))
            pairs = builder.trunc(both, v.vector(v.HALF, v.WIDTH))
            v.store(builder, pairs, raised, builder.mul(i, v.LONG(STEP)))

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, flags, types.int64, types.uint32), build


@intrinsic  # type: ignore[untyped-decorator]
def fuse_flagged_halves(
    _typing: Any, a: Any, b: Any, c: Any, codes: Any, flags: Any, steps: Any, tiny_below: Any
) -> Any:
    """Set codes[i] to a[i] * b[i] + c[i] and flags[i] to INEXACT and UNDERFLOW if raised, else 0, for i < steps * STEP.

    STEP is 32. Flags of Inf and NaN results are not right; callers replace them. a, b, c, codes: contiguous 1-D uint16
    arrays of FP16 codes. flags: uint8. steps: int64. tiny_below: uint32 bits of the smallest float32 magnitude that is
    not tiny. Kernels call it without _typing, numba's typing context.
    """

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        *sources, target, raised = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(5))
        tiny = v.everywhere(builder, args[6], v.INTS)

        def turn(i: Any) -> None:
            for part in range(2):
                place = builder.add(builder.mul(i, v.LONG(STEP)), v.LONG(part * v.WIDTH))
                odd, rounded = _halves(builder, sources, target, builder.mul(place, v.LONG(2)))
                flags = _raised(builder, odd, builder.icmp_signed("!=", odd, rounded), tiny)
                v.store(builder, builder.trunc(flags, v.vector(v.BYTE, v.WIDTH)), raised, place)

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, flags, types.int64, types.uint32), build
