"""Rows of operands of matrix units, and the codes that the oracle gives for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fpsim.formats.named import E4M3, E8M0
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from tests.oracles.matrix_units import Array, dot_add


class Rows(NamedTuple):
    """Operands of `fp.dot_add`: codes a, b (N, K) and c (N,), scale codes (N, K / block) or None."""

    a: Array
    b: Array
    c: Array
    scale_a: Array | None = None
    scale_b: Array | None = None

    def __len__(self) -> int:
        return len(self.c)

    def scales(self) -> dict[str, Array]:
        """Keywords of `fp.dot_add`."""
        named = {"scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: codes for name, codes in named.items() if codes is not None}


def dot_add_rows(rows: Rows, unit: MatrixUnit) -> Array:
    """Return the oracle's code for every row."""
    empty = np.zeros((len(rows), 0), np.uint8)
    columns = (rows.a, rows.b, rows.c, *(empty if scale is None else scale for scale in (rows.scale_a, rows.scale_b)))
    results = [
        dot_add(a, b, c, unit, scale_a, scale_b)
        for a, b, c, scale_a, scale_b in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return np.array(results, unit.d.dtype)


class Codes:
    """Random codes of one element, in arrays of one shape."""

    def __init__(self, element: Element, shape: tuple[int, ...], generator: np.random.Generator) -> None:
        self.fmt, self.element, self.shape, self.generator = element.fmt, element, shape, generator

    def integers(self, count: int) -> Array:
        """0 .. count - 1."""
        if count == 1:  # for which nothing is drawn
            return np.zeros(self.shape, np.uint64)
        return self.generator.integers(0, count, self.shape, dtype=np.uint64)

    def carried(self, codes: Array) -> Array:
        """Codes as the unit takes them: what TF32 drops is random."""
        low = self.element.carrier.bits - self.fmt.bits
        return (codes << np.uint64(low) | self.integers(1 << low) if low else codes).astype(self.element.dtype)

    def signed(self, magnitudes: Array) -> Array:
        """With a random sign; zero stays +0 where the format has no -0."""
        signs = self.integers(2) * np.uint64(self.fmt.sign_bit)
        return self.carried(magnitudes | (signs if self.fmt.negative_zero else signs * (magnitudes != 0)))

    def near(self, exponent: int, spread: int, *, few_bits: bool = False) -> Array:
        """Finite values about 2**exponent, up to 2**spread away: with any mantissa, or with one bit of it at most."""
        fmt = self.fmt
        fields = self.generator.integers(exponent - spread, exponent + spread + 1, self.shape) + fmt.bias
        mantissa = self.integers(1 << fmt.mantissa_bits)
        if few_bits:
            mantissa &= np.uint64(1) << self.integers(2 * fmt.mantissa_bits + 1)
        fields = np.minimum(np.maximum(fields, 0), fmt.max_code >> fmt.mantissa_bits).astype(np.uint64)
        return self.signed(np.minimum(fields << np.uint64(fmt.mantissa_bits) | mantissa, np.uint64(fmt.max_code)))

    def wide(self) -> Array:
        """Every finite exponent."""
        return self.near(0, 1 << self.fmt.exponent_bits)

    def uniform(self) -> Array:
        """Every finite magnitude alike."""
        return self.signed(self.integers(self.fmt.max_code + 1))

    def largest(self) -> Array:
        """Draw values of the top binades."""
        return self.near((self.fmt.max_code >> self.fmt.mantissa_bits) - self.fmt.bias, 1)

    def subnormal(self) -> Array:
        return self.signed(self.integers(1 << self.fmt.mantissa_bits))

    def zero(self) -> Array:
        zeros: Array = self.signed(self.integers(1)) & self.element.dtype.type(self.element.carrier.sign_bit)
        return zeros

    def anything(self) -> Array:
        """Every code of the carrier."""
        return self.integers(1 << self.element.carrier.bits).astype(self.element.dtype)

    def special(self) -> Array:
        """NaN, Inf, the largest and the smallest magnitudes and zero, where the format has them."""
        fmt = self.fmt
        smallest_normal = 1 << fmt.mantissa_bits
        magnitudes = {0, 1, smallest_normal - 1, smallest_normal, fmt.max_code, fmt.top_magnitude}
        magnitudes |= {code for code in (fmt.infinity_code, fmt.nan_code) if code is not None}
        signs = self.integers(2) * np.uint64(fmt.sign_bit)
        return self.carried(self.generator.choice(np.array(sorted(magnitudes), np.uint64), self.shape) | signs)

    def negated(self, codes: Array) -> Array:
        """Return the same magnitudes with the other sign; +0 stays if the format has no -0."""
        has_sign = (codes != 0) | self.fmt.negative_zero
        flipped: Array = codes ^ (self.element.dtype.type(self.element.carrier.sign_bit) * has_sign)
        return flipped

    def positive(self, codes: Array) -> Array:
        magnitudes: Array = codes & self.element.dtype.type(self.element.carrier.top_magnitude)
        return magnitudes

    def mix(self, codes: Array, others: Array, chance: float) -> Array:
        """`others` in place of `codes` with a probability."""
        return np.where(self.generator.random(self.shape) < chance, others, codes)


class Sides(NamedTuple):
    """What rows are made of: codes of a, b, c, and of the scales where the unit has some."""

    a: Codes
    b: Codes
    c: Codes
    scale: Codes | None
    unit: MatrixUnit


def rows_of(sides: Sides, a: Array, b: Array, c: Array, scales: Callable[[Codes], Array] | None = None) -> Rows:
    """Rows with scales about 1, or with the given ones."""
    if sides.scale is None:
        return Rows(a, b, c)
    draw = scales or (lambda scale: scale.near(0, 3))
    return Rows(a, b, c, draw(sides.scale), draw(sides.scale))


def normal(sides: Sides) -> Rows:
    """Values of a few binades."""
    return rows_of(sides, sides.a.near(-1, 3), sides.b.near(-1, 3), sides.c.near(0, 4))


def wide(sides: Sides) -> Rows:
    """Every exponent."""
    return rows_of(sides, sides.a.wide(), sides.b.wide(), sides.c.wide(), Codes.wide)


def cancelling(sides: Sides) -> Rows:
    """Odd terms that negate the even ones but for some, and an accumulator of any size below them."""
    a, b = sides.a.near(0, 4), sides.b.near(0, 4)
    odd = a.shape[1] // 2
    last = 2 * odd
    b[:, 1:last:2] = sides.b.negated(b)[:, 0:last:2]
    a[:, 1:last:2] = sides.a.mix(a, sides.a.near(0, 4), 0.05)[:, 0:last:2]
    return rows_of(sides, a, b, sides.c.mix(sides.c.near(-10, 12), sides.c.zero(), 0.3))


def ties(sides: Sides) -> Rows:
    """Powers of two, or with one bit more: sums half-way between results."""
    c = sides.c.near(0, 12, few_bits=True)
    return rows_of(sides, sides.a.near(0, 6, few_bits=True), sides.b.near(0, 6, few_bits=True), c)


def few_products(sides: Sides) -> Rows:
    """Mostly zeros, so that single products of any size meet the accumulator."""
    a = sides.a.mix(sides.a.wide(), sides.a.zero(), 0.8)
    return rows_of(sides, a, sides.b.wide(), sides.c.mix(sides.c.wide(), sides.c.zero(), 0.3), Codes.wide)


def subnormal(sides: Sides) -> Rows:
    """Subnormal operands and accumulators."""
    a = sides.a.mix(sides.a.subnormal(), sides.a.near(0, 3), 0.2)
    return rows_of(sides, a, sides.b.near(0, 3), sides.c.mix(sides.c.subnormal(), sides.c.zero(), 0.3))


def tiny(sides: Sides) -> Rows:
    """Return products near and below the exponent of zeros, with accumulators that are zero or subnormal."""
    place = (sides.unit.floor_exponent or sides.unit.d.fmt.min_exponent) // 2 - 6  # of one of two factors
    of_code = 0 if sides.scale is not None else place
    a = sides.a.mix(sides.a.near(of_code, 8), sides.a.zero(), 0.6)
    c = sides.c.mix(sides.c.zero(), sides.c.subnormal(), 0.3)
    return rows_of(sides, a, sides.b.near(of_code, 8), c, lambda scale: scale.near(place, 8))


def zeros(sides: Sides) -> Rows:
    """Zeros of both signs, with little else."""
    a, b = sides.a.mix(sides.a.zero(), sides.a.near(0, 3), 0.1), sides.b.mix(sides.b.near(0, 3), sides.b.zero(), 0.5)
    return rows_of(sides, a, b, sides.c.mix(sides.c.zero(), sides.c.near(0, 4), 0.2))


def any_accumulator(sides: Sides) -> Rows:
    """Accumulators from the smallest to the largest."""
    return rows_of(sides, sides.a.near(0, 3), sides.b.near(0, 3), sides.c.uniform())


def overflowing(sides: Sides) -> Rows:
    """Return the largest values, with one sign in each row."""
    b = sides.b.positive(sides.b.largest())
    b[::2] = sides.b.negated(b)[::2]
    return rows_of(sides, sides.a.positive(sides.a.largest()), b, sides.c.largest(), Codes.largest)


def special(sides: Sides) -> Rows:
    """NaN, Inf, extremes and zeros among values of a few binades."""
    a = sides.a.mix(sides.a.near(0, 3), sides.a.special(), 0.1)
    b = sides.b.mix(sides.b.near(0, 3), sides.b.special(), 0.1)
    c = sides.c.mix(sides.c.near(0, 4), sides.c.special(), 0.4)
    return rows_of(sides, a, b, c, lambda scale: scale.mix(scale.near(0, 3), scale.special(), 0.2))


def any_code(sides: Sides) -> Rows:
    """Every code."""
    return rows_of(sides, sides.a.anything(), sides.b.anything(), sides.c.anything(), Codes.anything)


KINDS: tuple[Callable[[Sides], Rows], ...] = (
    normal, wide, cancelling, ties, few_products, subnormal, tiny, zeros, any_accumulator, overflowing, special,
    any_code,
)  # fmt: skip
SCALES = {"ue8m0": Element("ue8m0", E8M0, E8M0), "ue4m3": Element("ue4m3", E4M3, E4M3)}


def random_rows(unit: MatrixUnit, kind: Callable[[Sides], Rows], count: int, terms: int, seed: int = 0) -> Rows:
    """Rows of a kind; `terms` is a multiple of the block where the unit has scales."""
    generator = np.random.default_rng((seed, KINDS.index(kind), terms))
    a, b = (Codes(element, (count, terms), generator) for element in (unit.a, unit.b))
    scale = Codes(SCALES[unit.scale], (count, terms // unit.block), generator) if unit.scale else None
    return kind(Sides(a, b, Codes(unit.d, (count,), generator), scale, unit))
