"""Fused multiply-adds of BF16 and FP16 to nearest even, 32 at a time.

a * b + c is computed twice in float32, rounded down and rounded up by the instructions themselves. Of the two results,
the one whose last bit is set is the exact result rounded to odd, which one more rounding takes to the format. No
intermediate result overflows or vanishes unless the result does, so all operands are allowed. Measured:
docs/performance.md.

For processors with AVX-512 (`has_avx512`). nearest_fma.py computes the same for others, and decides what is right.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from fpsim.arithmetic.kernels.short_floats import BFLOAT_NAN
from fpsim.casts.half import NAN as HALF_NAN
from fpsim.runtime import vectors as v

STEP = 2 * v.WIDTH  # codes of a vector, two in each word
PLACES = 16  # of a float32 that BF16 does not have
UPPER = -1 << PLACES  # the upper code of a word, as an int32


def _rounded(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Emit a * b + c for vectors of float32, rounded to BF16; return int32 whose upper halves are the codes."""
    result = builder.bitcast(v.odd_fused(builder, a, b, c), v.FLOATS)
    is_nan = builder.fcmp_unordered("uno", result, result)
    nan = v.constant(int(BFLOAT_NAN) << PLACES, v.INTS)
    bits = builder.select(is_nan, nan, builder.bitcast(result, v.INTS))
    is_odd = builder.icmp_signed("!=", builder.and_(bits, v.constant(1 << PLACES, v.INTS)), v.constant(0, v.INTS))
    half = v.constant(1 << (PLACES - 1), v.INTS)
    return builder.add(bits, builder.select(is_odd, half, v.constant((1 << (PLACES - 1)) - 1, v.INTS)))


@intrinsic  # type: ignore[untyped-decorator]
def fuse_bfloats(_typing: Any, a: Any, b: Any, c: Any, codes: Any, start: Any, steps: Any) -> Any:
    """Set codes[i] to a * b + c at element start + i, for i < steps * STEP; all are contiguous arrays of BF16 codes."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        size = v.LONG(v.SIZE)
        first = builder.mul(args[4], v.LONG(2))
        *sources, target = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(4))
        sources = [builder.gep(source, [first]) for source in sources]
        places, upper = v.constant(PLACES, v.INTS), v.constant(UPPER, v.INTS)

        def turn(i: Any) -> None:
            offset = builder.mul(i, size)
            words = [v.load(builder, source, offset, v.INTS) for source in sources]
            low = _rounded(builder, *(builder.bitcast(builder.shl(word, places), v.FLOATS) for word in words))
            high = _rounded(builder, *(builder.bitcast(builder.and_(word, upper), v.FLOATS) for word in words))
            both = builder.or_(builder.lshr(low, places), builder.and_(high, upper))
            v.store(builder, both, target, offset)

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, types.int64, types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def fuse_halves(_typing: Any, a: Any, b: Any, c: Any, codes: Any, start: Any, steps: Any) -> Any:
    """Set codes[i] to a * b + c at element start + i, for i < steps * STEP; all are contiguous arrays of FP16 codes."""

    def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        few, halves = v.vector(v.SMALL, v.WIDTH), v.vector(v.HALF, v.WIDTH)
        first = builder.mul(args[4], v.LONG(2))
        *sources, target = (v.start_of(context, builder, sig.args[i], args[i]) for i in range(4))
        sources = [builder.gep(source, [first]) for source in sources]

        def turn(i: Any) -> None:
            for part in range(2):
                offset = builder.add(builder.mul(i, v.LONG(v.SIZE)), v.LONG(part * v.SIZE // 2))
                values = [builder.fpext(v.load(builder, source, offset, few), v.FLOATS) for source in sources]
                result = builder.bitcast(v.odd_fused(builder, *values), v.FLOATS)
                rounded = builder.bitcast(builder.fptrunc(result, few), halves)
                is_nan = builder.fcmp_unordered("uno", result, result)
                v.store(builder, builder.select(is_nan, v.constant(int(HALF_NAN), halves), rounded), target, offset)

        v.over_range(builder, args[5], turn)
        return context.get_dummy_value()

    return types.void(a, b, c, codes, types.int64, types.int64), build
