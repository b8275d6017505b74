"""CPU loops of fused multiply-adds in FP16 and BF16 to nearest even, at the speed of float32.

a * b + c is first rounded to odd, in float32, so that one more rounding, to FP16 or BF16, gives the same result as
rounding once. nearest.py describes the arguments of the kernels.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.arithmetic.kernels.float_arithmetic import real_width
from fpsim.arithmetic.kernels.fused_vectors import (
    STEP,
    fuse_bfloats,
    fuse_flagged_bfloats,
    fuse_flagged_halves,
    fuse_halves,
)
from fpsim.arithmetic.kernels.nearest import (
    BLOCK,
    SHORT_INVALID,
    SHORT_MAGNITUDE,
    SHORT_ONE,
    SHORT_OVERFLOW,
    SHORT_ZERO,
    load_store,
)
from fpsim.arithmetic.kernels.short_floats import (
    INEXACT,
    MAGNITUDE,
    TINY_AND_INEXACT,
    ZERO,
    f32,
    load_bfloat,
    narrow_to_odd,
    round_bfloat,
    store_bfloat,
    u16,
    u32,
)
from fpsim.core.elementary.steps import bits_of, float_of
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.formats.named import BF16, Format
from fpsim.runtime.compile import inner_loop, kernel, scalar
from fpsim.runtime.stream import block_loop
from fpsim.runtime.vectors import has_avx512

u64, f64 = np.uint64, np.float64

# The codes of 2**-67 and 2**64. The last of the 16 bits of a product of such BF16 values is worth at least 2**-148,
# and the product is below 2**128.
SMALLEST_FACTOR, LARGEST_FACTOR = u16((127 - 67) << 7), u16((127 + 64) << 7)

_sum_to_odd, _fused_64 = real_width(32).sum_to_odd, real_width(64).fused

LONG_BLOCK = 4096  # elements, with flags in vectors: slices of a block cost as much as some hundred elements


@scalar
def wide_bits(x: Any) -> Any:
    """Convert a float32 to float64, and return the bits of that as a uint64."""
    return u64(f64(x).view(np.uint64))


@cache
def _fused(fmt: Format) -> Any:
    """Return the scalar function (a, b, c) -> uint32 float32 bits of a * b + c rounded to odd, NaN without a sign.

    a, b, c: codes of `fmt`, FP16 or BF16. Float32 must hold the product exactly, as it does for any FP16 codes.
    """
    load, _ = load_store(fmt)
    fused_32 = real_width(32).fused

    @scalar
    def by_float32(a: Any, b: Any, c: Any) -> Any:
        bits, _ = fused_32(bits_of(load(a)), bits_of(load(b)), bits_of(load(c)), NEAREST_EVEN)
        return u32(bits)

    return by_float32


@scalar
def _fused_in_range(a: Any, b: Any, c: Any) -> Any:
    """Return the uint32 float32 bits of a * b + c rounded to odd, by float32 arithmetic.

    a, b, c: finite BF16 codes; float32 must hold a * b exactly, as `_in_range` checks.
    """
    return u32(_sum_to_odd(f32(load_bfloat(a) * load_bfloat(b)), load_bfloat(c)))


@scalar
def _fused_wide(a: Any, b: Any, c: Any) -> Any:
    """Return the uint32 float32 bits of a * b + c rounded to odd, for any BF16 codes, by float64 arithmetic."""
    x, y, z = wide_bits(load_bfloat(a)), wide_bits(load_bfloat(b)), wide_bits(load_bfloat(c))
    bits, _ = _fused_64(x, y, z, NEAREST_EVEN)
    return u32(narrow_to_odd(u64(bits).view(np.float64)))


@scalar
def _in_range(a: Any, b: Any, c: Any) -> Any:
    """Return True only if float32 holds all products a[i] * b[i] exactly and no element of a, b or c is Inf or NaN.

    The result may be False although all this holds, since only the largest and the smallest magnitudes are checked. a,
    b, c: 1-D uint16 arrays of BF16 codes, of one size.
    """
    largest, least = SHORT_ZERO, SHORT_MAGNITUDE
    for i in range(a.size):
        p, q, r = u16(a[i] & SHORT_MAGNITUDE), u16(b[i] & SHORT_MAGNITUDE), u16(c[i] & SHORT_MAGNITUDE)
        largest = u16(max(largest, u16(max(u16(max(p, q)), r))))
        least = u16(min(least, u16(min(u16(p - SHORT_ONE), u16(q - SHORT_ONE)))))  # zeros wrap around, as allowed
    return largest < LARGEST_FACTOR and least >= SMALLEST_FACTOR - SHORT_ONE


@cache
def fma_kernel(fmt: Format, streamed: bool = False) -> Any:
    """Return the kernel (a, b, c, codes) -> None that writes the codes of a * b + c to `codes`; fmt: FP16 or BF16.

    a, b, c, codes: 1-D uint16 arrays; codes must share no memory with the others. streamed: True if results are written
    around the caches, for arrays that would not stay in them.
    """
    in_vectors = has_avx512()
    fill = _fill_in_vectors(fmt) if in_vectors else _fill_fused_bfloat if fmt == BF16 else _fill_fused(fmt)
    loop = block_loop(fill, streamed, BLOCK if fmt == BF16 and not in_vectors else 0)

    def fma(a: Any, b: Any, c: Any, codes: Any) -> None:
        loop((a, b, c), codes, None)

    return kernel(fma)


def _fill_fused(fmt: Format) -> Any:
    """Return the function (triple, start, count, codes, facts, state) -> state that computes a block of a * b + c.

    It writes the results of elements start .. start + count - 1 of triple, (a, b, c), to codes[:count]; all are 1-D
    arrays of uint16 codes of `fmt`. facts is not used, and state is returned unchanged, as `block_loop`
    (runtime/stream.py) allows.
    """
    fused, (_, store) = _fused(fmt), load_store(fmt)

    def fill(triple: Any, start: int, count: int, codes: Any, facts: Any, state: int) -> int:
        a, b, c = triple[0][start : start + count], triple[1][start : start + count], triple[2][start : start + count]
        for i in range(count):
            codes[i] = store(float_of(fused(a[i], b[i], c[i])))
        return state

    return fill


@scalar  # a call would count references to arrays in every block, by locked instructions that wait for the stores
def _fill_wide(a: Any, b: Any, c: Any, codes: Any) -> None:
    """Write the codes of a * b + c, computed by float64, to `codes`; all are 1-D arrays of uint16 BF16 codes."""
    for i in range(a.size):
        codes[i] = store_bfloat(float_of(_fused_wide(a[i], b[i], c[i])))


def _fill_fused_bfloat(triple: Any, start: int, count: int, codes: Any, facts: Any, state: int) -> int:
    """Write the codes of a block of a * b + c to codes[:count], for elements start .. start + count - 1.

    triple: (a, b, c). All are 1-D arrays of uint16 BF16 codes. The block is computed by float32 if that holds every
    product and no code is Inf or NaN, else by float64. facts is not used, and state is returned unchanged.
    """
    a, b, c = triple[0][start : start + count], triple[1][start : start + count], triple[2][start : start + count]
    if _in_range(a, b, c):
        for i in range(count):
            codes[i] = round_bfloat(_fused_in_range(a[i], b[i], c[i]))
    else:
        _fill_wide(a, b, c, codes)
    return state


def _fill_in_vectors(fmt: Format) -> Any:
    """Return the function (triple, start, count, codes, facts, state) -> state that computes a * b + c by AVX-512.

    It writes the results of elements start .. start + count - 1 of triple, (a, b, c), to codes[:count], 32 at a time
    and the rest one by one. All are 1-D arrays of uint16 codes of `fmt`. facts is not used, and state is returned
    unchanged.
    """
    fused, fuse = (_fused_wide, fuse_bfloats) if fmt == BF16 else (_fused(fmt), fuse_halves)
    _, store = load_store(fmt)

    def fill(triple: Any, start: int, count: int, codes: Any, facts: Any, state: int) -> int:
        a, b, c = triple[0], triple[1], triple[2]
        fuse(a, b, c, codes, start, count // STEP)
        for i in range(count // STEP * STEP, count):
            codes[i] = store(float_of(fused(a[start + i], b[start + i], c[start + i])))
        return state

    return fill


@cache
def flagged_fma_kernel(fmt: Format) -> Any:
    """Return the kernel (a, b, c, codes, flags, tiny_below) -> None that writes a * b + c and its flags.

    a, b, c, codes: 1-D uint16 arrays of codes of `fmt`, FP16 or BF16; codes must share no memory with the others.
    flags: uint8, bits of `fp.Flags`. tiny_below: uint32, the float32 bits of the smallest magnitude that is not tiny.
    """
    in_vectors, is_bfloat = has_avx512(), fmt == BF16
    wide = inner_loop(_fill_flagged_fused(fmt, _fused_wide if is_bfloat else _fused(fmt)))
    if in_vectors:
        whole = scalar(_fill_flagged_in_vectors(fmt, wide))
    else:
        whole = scalar(_fill_flagged_fused(fmt, _fused_in_range if is_bfloat else _fused(fmt)))
    block = LONG_BLOCK if in_vectors else BLOCK
    has_range = is_bfloat and not in_vectors  # operands for which float32 holds all products
    infinity, quiet = u16(fmt.infinity_code or 0), u16(fmt.nan_code or 0)

    def fma(a: Any, b: Any, c: Any, codes: Any, flags: Any, tiny_below: Any) -> None:
        for start in range(0, codes.size, block):
            x, y, z = a[start : start + block], b[start : start + block], c[start : start + block]
            target, raised = codes[start : start + block], flags[start : start + block]
            if not has_range or _in_range(x, y, z):
                largest = whole(x, y, z, target, raised, tiny_below)
            else:
                largest = wide(x, y, z, target, raised, tiny_below)
            if largest >= infinity:
                for i in range(target.size):
                    raised[i] = _special_fma_flags(u16(raised[i]), x[i], y[i], z[i], target[i], infinity, quiet)

    return kernel(fma)


def _fill_flagged_fused(fmt: Format, fused: Any) -> Any:
    """Return the loop (a, b, c, codes, flags, tiny_below) -> largest that computes a * b + c one by one.

    a, b, c: 1-D uint16 codes of `fmt`. It writes codes of a * b + c, and flags (uint8), right for finite results only:
    INEXACT, and UNDERFLOW if an inexact result is tiny. tiny_below: float32 bits of the smallest magnitude that is not
    tiny. It returns the largest code of the results without their signs, as uint16.
    fused: scalar function (a, b, c) -> float32 bits of a * b + c rounded to odd.
    """
    load, store = load_store(fmt)

    def fill(a: Any, b: Any, c: Any, codes: Any, flags: Any, tiny_below: Any) -> Any:
        largest = SHORT_ZERO
        for i in range(codes.size):
            bits = u32(fused(a[i], b[i], c[i]))
            code = u16(store(float_of(bits)))
            tiny = u32(bits & MAGNITUDE) < tiny_below
            codes[i] = code
            # bits rounded to odd are those of a value of the format only if that value is exact
            flags[i] = (TINY_AND_INEXACT if tiny else INEXACT) if bits_of(load(code)) != bits else ZERO
            largest = u16(max(largest, u16(code & SHORT_MAGNITUDE)))
        return largest

    return fill


def _fill_flagged_in_vectors(fmt: Format, rest: Any) -> Any:
    """Return the loop (a, b, c, codes, flags, tiny_below) -> largest that computes a * b + c by AVX-512.

    a, b, c: 1-D uint16 codes of `fmt`. It writes codes of a * b + c, and flags (uint8), right for finite results only:
    INEXACT, and UNDERFLOW if an inexact result is tiny. tiny_below: float32 bits of the smallest magnitude that is not
    tiny. It returns the largest code of the results without their signs, as uint16.
    rest: the loop of `_fill_flagged_fused`, for the last elements, fewer than 32.
    """
    fuse = fuse_flagged_bfloats if fmt == BF16 else fuse_flagged_halves

    def fill(a: Any, b: Any, c: Any, codes: Any, flags: Any, tiny_below: Any) -> Any:
        end = codes.size // STEP * STEP
        fuse(a, b, c, codes, flags, codes.size // STEP, tiny_below)
        largest = SHORT_ZERO
        if end < codes.size:
            largest = u16(rest(a[end:], b[end:], c[end:], codes[end:], flags[end:], tiny_below))
        for i in range(end):
            largest = u16(max(largest, u16(codes[i] & SHORT_MAGNITUDE)))
        return largest

    return fill


@scalar
def _special_fma_flags(flags: Any, a: Any, b: Any, c: Any, code: Any, infinity: Any, quiet: Any) -> Any:
    """Return the flags of a * b + c as uint16, from uint16 codes of the operands and `code` of the result.

    flags: returned unchanged if the result is finite; not used for Inf and NaN. infinity, quiet: codes of Inf and of
    the quiet NaN.
    """
    p, q, r = u16(a & SHORT_MAGNITUDE), u16(b & SHORT_MAGNITUDE), u16(c & SHORT_MAGNITUDE)
    result = u16(code & SHORT_MAGNITUDE)
    largest = u16(max(u16(max(p, q)), r))
    of_infinity = SHORT_OVERFLOW if largest < infinity else SHORT_ZERO
    flags = of_infinity if result == infinity else flags
    above, span = u16(infinity + SHORT_ONE), u16(u16(quiet - infinity) - SHORT_ONE)
    signals = u16(min(u16(min(u16(p - above), u16(q - above))), u16(r - above))) < span
    # 0 * Inf is invalid whatever c is
    zero_times_infinity = (u16(min(p, q)) == SHORT_ZERO) & (u16(max(p, q)) == infinity)
    invalid = (largest <= infinity) | signals | zero_times_infinity
    return (SHORT_INVALID if invalid else SHORT_ZERO) if result > infinity else flags
