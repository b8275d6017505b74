"""CPU loops of Sequential, FusedMultiplyAdd and Chunked to nearest even in float32, sixteen lanes or more at a time.

B is stored in panels of up to COLUMNS columns, decoded to float32, so that BLOCK rows of one stay in the L1 cache while
they are multiplied by all STRIP rows of A in a strip. Four rows and two steps of k are written out: four independent
chains hide the latency of the additions, each load of B serves four rows, and registers hold all elements of A.

Sums in FP32 need no rounding of their own. To round x to a format of up to 11 bits, s = 24 - precision, a number of at
least 2**s * |x| is added and subtracted: its last place is the one to keep, so the processor rounds the sum to even at
that place. The number is (2**s + 1) * x, one multiplication (Veltkamp), or 1.5 * 2**(exponent + s), made of the bits
of x; where subnormals of the format may occur, it is at least the number whose last place is that of subnormals. A
product that is not subnormal is rounded without an addition: 2**s * x minus the rounded (2**s - 1) * x is x, rounded.
A sum of two numbers of up to 11 bits that is rounded to 24 bits and then to the format equals the sum rounded once
(Figueroa 1995: 24 >= 2 * 11 + 2). The sum of longer terms is rounded to odd first (Boldo and Melquiond 2008), and
products that float32 does not hold are fused with the number that is added.

This rounding handles neither overflow nor NaN, and -0 only where a sum can round to it. So before each block of k, a
bound on the sums in it is compared with the format's largest value. If the bound comes near that value, the strip of
this panel is marked, and callers compute it by other loops.

Toward zero, up and down, the processor itself rounds, in the mode to which its control register is set meanwhile: a
rounding to float32 and then one to the format, both in one direction, equal a single rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.core.decode import decode_bits_32, decode_fields
from fpsim.reload import reloadable
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.float_steps import fused as fma
from fpsim.runtime.processor import exchange_control, has_control
from fpsim.runtime.records import fields_of
from fpsim.sums.kernels.vector_rows import vector_rows

f32, f64, u32, i64, u64 = np.float32, np.float64, np.uint32, np.int64, np.uint64

COLUMNS = 128  # of a panel
GRANULE = 16  # columns of a narrow panel come in multiples
STRIP = 16  # rows of A that a block of a panel is multiplied by
ROWS, STEPS = 4, 2  # written out
BLOCK = 32  # steps of k between two checks of the bound: 16 KiB of a panel

MAGNITUDE, EXPONENT, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000), u32(0x7F800000)
HALF = u32(0x00400000)  # the first bit of a mantissa
MINUS_ZERO, NAN = u32(0x80000000), u32(0x7FC00000)
ONE_FLOAT, MOST_SPLIT = f32(1), u32(0x76800000)  # 2**110, the largest of A that is multiplied by up to 2**16 + 1
SIGN_SHIFT, ONE, ZERO = u32(31), u32(1), u32(0)
NO_LEAST = u32(INFINITY - ONE)  # bits of the smallest magnitude, minus 1, where there is none

CONTROLLED = has_control()

# Numbers of the steps.
PLAIN = 0  # FP32: t + a * b, each rounded
FUSED = 1  # FP32: fma(a, b, t)
ROUNDED = 2  # product and sum rounded to a shorter format; a fits that, and float32 holds the product
WIDE = 3  # as ROUNDED, for any a and b
ODD = 4  # the sum of t and an exact product rounded to a shorter format once
SIGNED = 5  # product and sum rounded to a shorter format, zeros with their signs, in any mode of the processor
NORMAL = 8  # as ROUNDED, where no product is subnormal in the format (6 and 7: float32_pairs)

# Methods of adding the totals of chunks to the outer sum.
NO_OUTER, OUTER_FP32, OUTER_ROUNDED = 0, 1, 2
NO_CHUNK = 0  # in place of the terms of a chunk: all terms are one chunk


@reloadable
class StripFacts(NamedTuple):
    """Constants of an accumulator that the kernels read, as 64-bit words; the first six are bits of float64.

    Attributes:
      growth: factor by which rounding can increase the bound on a sum over a block of terms.
      reach, smallest: largest bound on sums, and least nonzero product, that these kernels compute correctly.
      scale, outer_scale: 2**(24 - precision) of the format, and of Chunked's outer format.
      smallest_subnormal: the format's smallest positive value.
      floor, outer_floor: float32 bits of 1.5 times the smallest normal value of the format, and of the outer format.
      control: value for the processor's control register.
      join: how totals of chunks are added, NO_OUTER, OUTER_FP32 or OUTER_ROUNDED.
      chunk: number of terms of a chunk, or NO_CHUNK.
    """

    growth: Any
    reach: Any
    smallest: Any
    scale: Any
    outer_scale: Any
    smallest_subnormal: Any
    floor: Any
    outer_floor: Any
    control: Any
    join: Any
    chunk: Any


strip_facts = fields_of(StripFacts)


@scalar
def float_of(word: Any) -> Any:
    """Return the float64 whose bits are `word`, a uint64."""
    return u64(word).view(f64)


@scalar
def _addend(x: Any, floor: Any) -> Any:
    """Return the float32 1.5 * 2**(exponent of x), but at least the float32 whose bits are `floor`."""
    return u32(max(u32(u32(f32(x).view(u32) & EXPONENT) | HALF), floor)).view(f32)


@scalar
def _shortened(x: Any, scale: Any, floor: Any) -> Any:
    """Return x, float32, rounded to nearest even to a shorter format; -0 becomes 0.

    scale: 2**(24 - precision of the format). floor: float32 bits of 1.5 times the format's smallest normal value.
    """
    addend = _addend(x, floor)
    return f32(fma(f32(-addend), scale, f32(fma(addend, scale, f32(x)))))


@scalar
def _split(x: Any, factor: Any) -> Any:
    """Return x, float32, rounded to nearest even to 24 - s bits, where factor = 2**s + 1; -0 becomes 0.

    Ties go to even: an x halfway between two results is an even multiple of its last place, so the rounding of factor *
    x decides alone. If x is the sum of two values of a format, and below the format's smallest normal value, x has at
    most 24 - s bits and is returned unchanged.
    """
    large = f32(f32(x) * factor)
    return f32(large + f32(f32(x) - large))


@scalar
def _split_by_two(x: Any, scale: Any) -> Any:
    """Return x, float32, rounded to nearest even to 24 - s bits, where scale = 2**s, s >= 13; -0 becomes 0.

    The result is 2**s * x - p by a fused multiply-add, where p is (2**s - 1) * x rounded to float32. Both are multiples
    of the result's last place. If x is halfway between two results, 2**s * x is an even multiple of that place, so ties
    go to even. With s < 13 an x just above a power of two may keep more bits.
    """
    less = f32(f32(x) * f32(scale - ONE_FLOAT))
    return f32(fma(scale, f32(x), f32(-less)))


@scalar
def signed_like(x: Any, y: Any) -> Any:
    """Return a float32 with the magnitude of x and the sign of y."""
    return u32(u32(f32(x).view(u32) & MAGNITUDE) | u32(f32(y).view(u32) & MINUS_ZERO)).view(f32)


@scalar
def shortened_in_mode(x: Any, scale: Any, floor: Any) -> Any:
    """Return x, float32, rounded in the processor's mode to a shorter format; a zero has the sign of x.

    scale: 2**(24 - precision of the format). floor: float32 bits of 1.5 times the format's smallest normal value.
    """
    addend = signed_like(_addend(x, floor), x)  # so that rounding toward zero has one direction for both
    return signed_like(fma(f32(-addend), scale, f32(fma(addend, scale, f32(x)))), x)


@scalar
def _plain(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    return f32(t + f32(a * b))


@scalar
def _fused(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    return f32(fma(a, b, t))


@scalar
def _rounded(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    factor, least = f32(scale + ONE_FLOAT), f32(u32(floor).view(f32) * scale)
    large = f32(abs(f32(a * factor)) * abs(b))  # a has no more bits than are kept, so its product is exact
    large = large if large > least else least
    return _split_by_two(f32(t + f32(large + f32(fma(a, b, f32(-large))))), scale)


@scalar
def _rounded_product(a: Any, b: Any, scale: Any) -> Any:
    """Return the product a * b rounded to nearest even to 24 - s bits, where scale = 2**s, s >= 13; -0 becomes 0.

    float32 must hold the exact product. a: a float32 of at most 24 - s significand bits. The method is that of
    `_split_by_two`.
    """
    less = f32(f32(a * f32(scale - ONE_FLOAT)) * b)
    return f32(fma(f32(a * scale), b, f32(-less)))


@scalar
def _normal(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    return _split(f32(t + _rounded_product(a, b, scale)), f32(scale + ONE_FLOAT))


@scalar
def _wide(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    addend = _addend(f32(a * b), floor)  # a product that rounds up to a power of two is less than a unit below it
    product = f32(fma(f32(-addend), scale, f32(fma(a, b, f32(addend * scale)))))
    return _split(f32(t + product), f32(scale + ONE_FLOAT))


@scalar
def _odd(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    product = f32(a * b)
    total = f32(t + product)
    back = f32(total - t)
    error = f32(f32(t - f32(total - back)) + f32(product - back))
    bits, error_bits = f32(total).view(u32), f32(error).view(u32)
    inward = u32(u32(bits ^ error_bits) >> SIGN_SHIFT)
    odd = u32(u32(bits - inward) | ONE)
    short = _shortened(u32(odd if error != f32(0) else bits).view(f32), scale, floor)
    return u32(f32(short).view(u32) | u32(bits & MINUS_ZERO)).view(f32)  # what is left may round to -0


@scalar
def _signed(t: Any, a: Any, b: Any, scale: Any, floor: Any) -> Any:
    product = shortened_in_mode(f32(a * b), scale, floor)
    return shortened_in_mode(f32(t + product), scale, floor)


STEP_OF = {PLAIN: _plain, FUSED: _fused, ROUNDED: _rounded, WIDE: _wide, ODD: _odd, SIGNED: _signed, NORMAL: _normal}


@cache
def pack_kernel() -> Any:
    """Return the kernel that decodes operands into the float32 arrays that the other kernels read.

    The kernel is `(a, b, floats, panels, ranges, padding, of_a, of_b)`. It reads a (M, K) and b (K, N), codes, and
    fills floats, panels and ranges, the arrays of a Panels of float32_plan.py. floats gets the values of a; the rows
    and terms beyond them get `padding`, the bits of a zero. panels (P, K or more, width), zero at first, gets the
    columns of b. of_a, of_b: constants by which codes of a and b are decoded (fields of DecodeLayout).
    """

    @scalar
    def most_and_least(bits: Any, most: Any, least: Any) -> Any:
        magnitude = u32(bits & MAGNITUDE)
        return max(most, magnitude), min(least, u32(magnitude - ONE))  # zero wraps around to the largest word

    def pack(
        a: Any, b: Any, floats: Any, panels: Any, ranges: Any, padding: Any, of_a: Any, of_b: Any
    ) -> None:  # fmt: skip
        from_a, from_b = decode_fields(of_a), decode_fields(of_b)
        width, rows = panels.shape[2], floats.shape[0]
        for panel in range(panels.shape[0]):
            begin = panel * width
            count = min(width, b.shape[1] - begin)
            most, least = ZERO, NO_LEAST
            for k in range(b.shape[0]):
                for j in range(count):
                    bits = decode_bits_32(u32(b[k, u64(begin + j)]), from_b)
                    panels[panel, k, j] = u32(bits).view(f32)
                    most, least = most_and_least(bits, most, least)
            ranges[0, rows + panel], ranges[1, rows + panel] = most, least
        zero = u32(padding).view(f32)
        for i in range(rows):
            most, least = ZERO, NO_LEAST
            terms = a.shape[1] if i < a.shape[0] else 0
            for k in range(terms):
                bits = decode_bits_32(u32(a[i, k]), from_a)
                floats[i, k] = u32(bits).view(f32)
                most, least = most_and_least(bits, most, least)
            for k in range(terms, floats.shape[1]):
                floats[i, k] = zero
            ranges[0, i], ranges[1, i] = most, least

    return kernel(pack)


@cache
def rows_kernel(how: int, vectors: str = "") -> Any:
    """Return the kernel that computes sums in term order in float32, for blocks of the result.

    The kernel is `(a, panels, c, out, given_up, ranges, first, stop, facts) -> lost`. A block ("strip") is STRIP rows
    of a times one panel (columns of b); blocks first .. stop - 1, counted along rows of blocks, are computed.

    a, panels, ranges: as in Panels of float32_plan.py; a has a multiple of ROWS rows and of STEPS terms. c: (M, N)
    float32 bits from which sums start, or empty for 0. out: (M, N) float32 bits, written. given_up: 1-D uint8, set to 1
    for each block that float32 cannot compute and whose part of `out` stays as it was, else to 0. lost: the number of
    ones. facts: constants of the accumulator, the fields of StripFacts.

    Args:
      how: the step that multiplies, adds and rounds: PLAIN, FUSED, ROUNDED, WIDE, ODD, SIGNED or NORMAL.
      vectors: "avx512" or "avx2" to use the code of vector_rows.py, for ROUNDED only; "" not to.
    """
    step, checked, splits = scalar(STEP_OF[how]), how not in (PLAIN, FUSED), how in (ROUNDED, NORMAL)

    def four_rows(t: Any, r: int, a: Any, i: int, b: Any, first: int, stop: int, scale: Any, floor: Any) -> None:
        # rows as views would be counted, which takes as long as two of their vectors
        for k in range(first, stop, STEPS):
            a00, a10, a20, a30 = a[i, k], a[i + 1, k], a[i + 2, k], a[i + 3, k]
            a01, a11, a21, a31 = a[i, k + 1], a[i + 1, k + 1], a[i + 2, k + 1], a[i + 3, k + 1]
            for j in range(t.shape[1]):
                b0, b1 = b[k, j], b[k + 1, j]
                x0, x1 = step(t[r, j], a00, b0, scale, floor), step(t[r + 1, j], a10, b0, scale, floor)
                x2, x3 = step(t[r + 2, j], a20, b0, scale, floor), step(t[r + 3, j], a30, b0, scale, floor)
                t[r, j], t[r + 1, j] = step(x0, a01, b1, scale, floor), step(x1, a11, b1, scale, floor)
                t[r + 2, j], t[r + 3, j] = step(x2, a21, b1, scale, floor), step(x3, a31, b1, scale, floor)

    in_vectors: Any = vector_rows(vectors == "avx512") if vectors else None

    def four_in_vectors(
        t: Any, r: int, a: Any, i: int, b: Any, first: int, stop: int, scale: Any, floor: Any
    ) -> None:  # fmt: skip
        sizes, of_rows = np.empty((ROWS, BLOCK), f32), a[i : i + ROWS, first:stop]
        for row in range(ROWS):
            for k in range(of_rows.shape[1]):
                sizes[row, k] = abs(f32(of_rows[row, k] * f32(scale + ONE_FLOAT)))
        least = f32(u32(floor).view(f32) * scale)
        in_vectors(t, i64(r), sizes, of_rows, b, i64(first), scale, least)

    four_rows = kernel(four_in_vectors if vectors else four_rows)

    @scalar
    def largest_of(t: Any, rows: int) -> Any:
        """Return the largest magnitude in the first `rows` rows of t, as float64; NaN counts as larger than all."""
        most = ZERO
        for r in range(rows):
            bits = t[r].view(u32)
            for j in range(bits.size):
                most = max(most, u32(bits[j] & MAGNITUDE))
        return f64(u32(most).view(f32))

    def rows(
        a: Any, panels: Any, c: Any, out: Any, given_up: Any, ranges: Any, first: int, stop: int, facts: Any
    ) -> int:
        u = strip_facts(facts)
        before, lost = exchange_control(u.control) if CONTROLLED else u.control, 0
        terms, width, columns = a.shape[1], panels.shape[2], out.shape[1]
        join, chunk = i64(u.join), i64(u.chunk) if u.chunk != NO_CHUNK else a.shape[1]
        growth, reach, smallest = float_of(u.growth), float_of(u.reach), float_of(u.smallest)
        scale, outer_scale, floor, outer_floor = (
            f32(float_of(u.scale)), f32(float_of(u.outer_scale)), u32(u.floor), u32(u.outer_floor),
        )  # fmt: skip
        t = np.zeros((STRIP, width), np.float32)
        outer = t if join == NO_OUTER else np.zeros((STRIP, width), np.float32)
        for strip in range(first, stop):
            i, panel = strip // panels.shape[0] * STRIP, strip % panels.shape[0]
            height, j = min(STRIP, a.shape[0] - i), panel * width
            real_height, count = min(STRIP, out.shape[0] - i), min(width, columns - j)
            b = panels[panel]
            start = t if join == NO_OUTER else outer
            start[:, :] = f32(0)
            signed_zero = False
            if c.size > 0:
                for r in range(real_height):
                    for lane in range(count):
                        start[r, lane] = u32(c[i + r, j + lane]).view(f32)
                        signed_zero |= c[i + r, j + lane] == MINUS_ZERO
            most, least = ZERO, NO_LEAST
            for r in range(height):
                most, least = max(most, ranges[0, i + r]), min(least, ranges[1, i + r])
            of_panel, of_least = ranges[0, a.shape[0] + panel], ranges[1, a.shape[0] + panel]
            product = f64(u32(most).view(f32)) * f64(u32(of_panel).view(f32))
            holds = (not splits) or most <= MOST_SPLIT
            lowest = f64(u32(least + ONE).view(f32)) * f64(u32(of_least + ONE).view(f32))
            alive = (not checked) or (product <= reach and lowest >= smallest and holds and not signed_zero)
            for begin in range(0, terms, chunk):
                end = min(begin + chunk, terms)
                if join != NO_OUTER:
                    t[:, :] = f32(0)
                for k in range(begin, end, BLOCK):
                    if checked and alive:
                        alive = (largest_of(t, height) + BLOCK * product) * growth <= reach
                    if not alive:
                        break
                    for r in range(0, height, ROWS):
                        four_rows(t, r, a, i + r, b, k, min(k + BLOCK, end), scale, floor)
                if not alive:
                    break
                if join == OUTER_FP32:
                    for r in range(height):
                        for lane in range(width):
                            outer[r, lane] += t[r, lane]
                if join == OUTER_ROUNDED:
                    alive = (largest_of(outer, height) + largest_of(t, height)) * growth <= reach
                    for r in range(height):
                        for lane in range(width):
                            total = f32(outer[r, lane] + t[r, lane])
                            outer[r, lane] = _shortened(total, outer_scale, outer_floor)
            given_up[strip] = not alive
            lost += not alive
            if alive:
                for r in range(real_height):
                    for lane in range(count):
                        bits = f32(start[r, lane]).view(u32)
                        out[i + r, j + lane] = NAN if u32(bits & MAGNITUDE) > INFINITY else bits
        if CONTROLLED:
            exchange_control(before)
        return lost

    return kernel(rows)
