"""Operands at which arithmetic can go wrong, for any format.

`level_one` follows the idea of Berkeley TestFloat's first level: edge exponents times edge significands, and specials.
The hypothesis strategies build the operands of one hard case: sums that nearly cancel, results next to a midpoint,
results at the seam of the subnormals, quotients next to a half.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import fpsim as fp
from tests.oracles import casts

Array = npt.NDArray[Any]
Codes = tuple[int, ...]


# ---- edges times edges


def edge_fields(fmt: fp.Format) -> set[int]:
    """Return exponent fields at both ends, around 1, and where 1 is an ulp or half a precision away."""
    top = 2**fmt.exponent_bits - 1
    centre = fmt.bias
    steps = {0, 1, 2, fmt.mantissa_bits // 2, fmt.mantissa_bits, fmt.mantissa_bits + 1, fmt.mantissa_bits + 2}
    around = {centre + step for step in steps} | {centre - step for step in steps}
    ends = {0, 1, 2, fmt.mantissa_bits, fmt.mantissa_bits + 1, top // 4, top // 2, top - 2, top - 1, top}
    return {field for field in ends | around if 0 <= field <= top}


def edge_fractions(fmt: fp.Format) -> set[int]:
    """Return stored fractions: 0, all ones, one ulp from both, single bits, runs of ones from both ends."""
    ones = 2**fmt.mantissa_bits - 1
    bits = range(fmt.mantissa_bits) if fmt.mantissa_bits <= 10 else (0, 1, 2, 5, 11, 12, fmt.mantissa_bits - 1)
    single = {1 << bit for bit in bits}
    runs = {(1 << bit) - 1 for bit in bits} | {ones ^ ((1 << bit) - 1) for bit in bits}
    half = 2**fmt.mantissa_bits // 2
    picked = {0, 1, 2, ones, ones - 1, ones - 2, half - 1, half, half + 1, ones // 3} | single | runs
    return {fraction for fraction in picked if 0 <= fraction <= ones}


@cache
def level_one(fmt: fp.Format) -> Array:
    """Return codes of edge exponents with edge significands, of both signs, and of every special value."""
    fractions = edge_fractions(fmt)
    magnitudes = {field << fmt.mantissa_bits | fraction for field in edge_fields(fmt) for fraction in fractions}
    most = casts.code_of_kind(fmt, "finite")
    top = 2 ** (fmt.exponent_bits + fmt.mantissa_bits) - 1
    assert most is not None
    magnitudes |= {min(max(most + step, 0), top) for step in range(-3, 4)} | {top, top - 1}
    signs = {0, casts.sign_of(fmt)}
    codes = np.array(sorted(sign | magnitude for sign in signs for magnitude in magnitudes), np.uint64)
    return codes.astype(fmt.storage)


def every_code(fmt: fp.Format) -> Array:
    """Return all codes of a format of up to 16 bits."""
    return np.arange(1 << fmt.bits).astype(fmt.storage)


def every_pair(fmt: fp.Format) -> tuple[Array, Array]:
    """Return all pairs of codes of a format of up to 8 bits."""
    codes = every_code(fmt)
    return np.repeat(codes, codes.size), np.tile(codes, codes.size)


def tuples(fmts: tuple[fp.Format, ...], count: int, seed: int) -> list[Array]:
    """Return columns of level-one operands: every combination if these are at most `count`, else that many drawn ones.

    Every level-one code of every operand takes part as long as there are as many rows as codes.
    """
    generator = np.random.default_rng(seed)
    columns = [level_one(fmt) for fmt in fmts]
    if np.prod([column.size for column in columns], dtype=np.float64) <= count:
        return [grid.reshape(-1) for grid in np.meshgrid(*columns, indexing="ij")]
    drawn = []
    for column in columns:
        rounds = [generator.permutation(column) for _ in range(-(-count // column.size))]
        drawn.append(np.concatenate(rounds)[:count])
    return [generator.permutation(column) for column in drawn]


def as_floats(columns: Sequence[Array], dtype: Any) -> list[Array]:
    """Return columns of codes as arrays of the float dtype of the format."""
    return [np.asarray(column.view(dtype)) for column in columns]


# ---- exact values to codes and back


def exact_value(fmt: fp.Format, code: int) -> Fraction:
    """Return the value of a finite code."""
    sign = casts.sign_of(fmt)
    size = casts.magnitude_value(fmt, code & ~sign)
    return -size if code & sign else size


def near(fmt: fp.Format, exact: Fraction, ulps: int = 0) -> int:
    """Return the code of the nearest value, moved by some codes, but not beyond the largest value."""
    most = casts.code_of_kind(fmt, "finite")
    assert most is not None
    size = casts.round_magnitude(abs(exact), exact < 0, fmt, "nearest_even", 0, 32)
    magnitude = casts.code_of_value(fmt, min(size, casts.largest(fmt)))
    magnitude = min(max(magnitude + ulps, 0), most)
    if not fmt.negative_zero and magnitude == 0:
        return 0
    return magnitude | (casts.sign_of(fmt) if exact < 0 else 0)


def tiny_unit(fmt: fp.Format) -> Fraction:
    """Return the smallest positive value."""
    return casts.power(casts.lowest_exponent(fmt) - (fmt.mantissa_bits if fmt.subnormals else 0))


# ---- strategies


@cache
def finite_codes(fmt: fp.Format) -> st.SearchStrategy[int]:
    """Draw codes of finite values: level one, small significands, and any."""
    most = casts.code_of_kind(fmt, "finite")
    assert most is not None
    sign = casts.sign_of(fmt)
    edges = [int(code) for code in level_one(fmt) if int(code) & ~sign <= most and (int(code) != sign or not sign)]
    magnitudes = st.integers(0, most)
    signs = st.sampled_from([0, sign])
    negative_zero = {} if fmt.negative_zero else {sign}
    drawn = st.builds(lambda magnitude, s: magnitude | s, magnitudes, signs)
    return (st.sampled_from(edges) | drawn).filter(lambda code: code not in negative_zero or not sign)


@cache
def any_codes(fmt: fp.Format) -> st.SearchStrategy[int]:
    """Draw codes of a format, specials and every NaN included."""
    return st.sampled_from(level_one(fmt).tolist()) | st.integers(0, (1 << fmt.bits) - 1)


def few_ulps() -> st.SearchStrategy[int]:
    return st.integers(-3, 3)


@st.composite
def near_cancellation(draw: st.DrawFn, fmt: fp.Format) -> Codes:
    """Draw (a, b, c) of which a * b + c cancels all but the last bits of the product, or everything."""
    a, b = draw(finite_codes(fmt)), draw(finite_codes(fmt))
    product = exact_value(fmt, a) * exact_value(fmt, b)
    return a, b, near(fmt, -product, draw(few_ulps()))


@st.composite
def near_tie(draw: st.DrawFn, fmt: fp.Format) -> Codes:
    """Draw (a, b, c) of which a * b + c is a midpoint of two neighbours, or within a tiny unit of it."""
    if draw(st.booleans()):  # c is large, and the product is about half of its ulp
        c = draw(finite_codes(fmt))
        middle = casts.spacing(fmt, abs(exact_value(fmt, c))) / 2
        a = draw(finite_codes(fmt).filter(lambda code: exact_value(fmt, code) != 0))
        sign = draw(st.sampled_from([1, -1]))
        return a, near(fmt, sign * middle / exact_value(fmt, a), draw(few_ulps())), c
    # the product has one bit more than the format, and c is tiny
    i = draw(st.integers(1, fmt.mantissa_bits + 1))
    x, y = draw(odd_significands(fmt, i)), draw(odd_significands(fmt, fmt.mantissa_bits + 2 - i))
    z = draw(st.sampled_from([0, 1, -1, 2, -2])) * tiny_unit(fmt)
    return near(fmt, x * draw(st.sampled_from([1, -1]))), near(fmt, y), near(fmt, z)


def odd_significands(fmt: fp.Format, bits: int) -> st.SearchStrategy[Fraction]:
    """Draw odd integers of a number of bits, times powers of two of the format."""
    low, high = casts.lowest_exponent(fmt), casts.exponent_of(casts.largest(fmt))
    integers = st.integers(2 ** (bits - 1), 2**bits - 1).map(lambda n: n | 1)
    return st.builds(lambda n, exponent: n * casts.power(exponent - bits), integers, st.integers(low, high))


@st.composite
def subnormal_seam(draw: st.DrawFn, fmt: fp.Format) -> Codes:
    """Draw (a, b, c) of which a * b + c is near the smallest normal value, or near half of the smallest value."""
    unit = tiny_unit(fmt)
    normal = casts.power(casts.lowest_exponent(fmt))
    seams = [normal, normal - unit / 2, normal - unit / 4, normal / 2, unit, unit / 2, unit * 3 / 2]
    target = draw(st.sampled_from(seams)) * draw(st.sampled_from([1, -1]))
    a = draw(finite_codes(fmt).filter(lambda code: exact_value(fmt, code) != 0))
    c_value = draw(st.sampled_from([Fraction(0), unit, -unit, 2 * unit, normal, -normal, normal - unit]))
    c = near(fmt, c_value)
    b = near(fmt, (target - exact_value(fmt, c)) / exact_value(fmt, a), draw(few_ulps()))
    return a, b, c


def hard_triples(fmt: fp.Format) -> st.SearchStrategy[Codes]:
    """Draw the three hard cases of fma, or any operands."""
    anything = st.tuples(any_codes(fmt), any_codes(fmt), any_codes(fmt))
    return near_cancellation(fmt) | near_tie(fmt) | subnormal_seam(fmt) | anything


@st.composite
def near_halfway_quotient(draw: st.DrawFn, fmt: fp.Format) -> Codes:
    """Draw (a, b) whose quotient is a few ulps from an integer or a half-integer, however large."""
    b = draw(finite_codes(fmt).filter(lambda code: exact_value(fmt, code) != 0))
    n = Fraction(draw(st.integers(0, 9) | st.integers(0, 2 ** (fmt.mantissa_bits + 2)))) / 2
    scale = casts.power(draw(st.sampled_from([0, 0, 0, 1, 3, 2**fmt.exponent_bits // 4, 2**fmt.exponent_bits // 2])))
    return near(fmt, exact_value(fmt, b) * n * scale, draw(few_ulps())), b


def hard_pairs(fmt: fp.Format) -> st.SearchStrategy[Codes]:
    """Draw pairs for operations of two operands: hard quotients, near cancellations, subnormal results, anything."""
    cancelling = st.builds(
        lambda a, ulps, flip: (a, near(fmt, (-1 if flip else 1) * exact_value(fmt, a), ulps)),
        finite_codes(fmt),
        few_ulps(),
        st.booleans(),
    )
    seam = subnormal_seam(fmt).map(lambda abc: abc[:2])
    return near_halfway_quotient(fmt) | cancelling | seam | st.tuples(any_codes(fmt), any_codes(fmt))
