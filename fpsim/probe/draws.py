"""Random operands that tell arithmetics apart, of any format and shape, as functions of a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32, Format
from fpsim.probe.black_box import BlackBox
from fpsim.probe.operands import ProbedCall, ProbedOperand

Shape = tuple[int, ...]
SPAN = 12  # binades on either side of the middle in which values of wide formats are drawn
ROWS = 32  # sums to draw of a kind, if each is a call
APART = 6  # binades between magnitudes in "layers", beyond the precision of a sum, if the range allows
SHARE_OFF = 0.05  # share of the cancelling pairs that differ in a bit

# Kinds of operands: a model must reproduce the black box for USUAL ones; differences for EDGES are reported.
USUAL = ("normal", "cancelling", "wide", "positive", "ties", "alike", "layers")
EDGES = ("zeros", "large", "subnormal", "vanishing", "special")


def drawn(kind: str, box: BlackBox | ProbedCall, seed: int, rows: int = ROWS) -> tuple[Array, ...]:
    """Return random operands as float64 values of their formats: two matrices, or rows (rows, n) of each operand.

    Args:
      kind: the kind of values: "normal", "positive", "wide" (many exponents), "cancelling" ("wide" in pairs of terms
        that cancel), "alike" ("normal" in pairs of neighbours that cancel), "ties" (powers of two), "layers" (three
        magnitudes far apart); or at the edges of the range "zeros", "large", "subnormal" (most products have one
        normal operand), "vanishing" (products of subnormals) or "special" (with Inf, NaN and zeros).
      box: the black box, or its kind, shape and operands.
      seed: the seed of the draws.
      rows: number of sums; ignored for matrix products.

    Example:
      >>> from fpsim.probe.black_box import BlackBox
      >>> from fpsim.probe.operands import ProbedCall, operand_of
      >>> from fpsim.probe.draws import drawn
      >>> box = BlackBox(np.sum, ProbedCall("sum", 4, (operand_of("bf16", "x"),)))
      >>> [x.shape for x in drawn("cancelling", box, seed=0)]
      [(32, 4)]
    """
    rng = np.random.default_rng([seed, [*USUAL, *EDGES].index(kind)])
    matrices = box.kind == "matmul"
    shapes = [(box.shape[0], box.n), (box.n, box.shape[1])] if matrices else [(rows, box.n)] * len(box.operands)
    values = [DRAW[kind](rng, operand, shape, box.n) for operand, shape in zip(box.operands, shapes, strict=True)]
    by_term = [x if matrices and i == 1 else np.moveaxis(x, -1, 0) for i, x in enumerate(values)]
    if kind in ("cancelling", "alike"):
        _cancel(rng, by_term, near=kind == "alike")
    elif kind == "layers":
        _in_layers(rng, by_term, box.operands[0].fmt)
    elif kind == "subnormal" and len(values) == 2:
        # products of two subnormals become 0, so most terms have one ordinary operand
        which = rng.integers(0, 3, box.n)
        for i, terms in enumerate(by_term):
            terms[which == i] = rng.standard_normal(terms[which == i].shape)
    elif kind == "zeros" and len(values) == 2 and box.operands[0].fmt.signed:
        # products of two negative zeros are +0, so zeros and ones of b are positive
        values[1] = rng.choice([0.0, 1.0], shapes[1])
    return tuple(operand.drawn(x) for operand, x in zip(box.operands, values, strict=True))


def drawn_scales(kind: str, box: BlackBox, seed: int) -> tuple[Array, ...]:
    """Return random codes of both operands' block scales, (M, n / block) and (n / block, N); () if the box takes none.

    kind, seed: the arguments with which `drawn` returned the operands.
    """
    rng = np.random.default_rng([seed, [*USUAL, *EDGES].index(kind), 1])
    if box.scale == "ue8m0":
        span = 20 if kind in ("wide", "subnormal") else 3
        return box.scales(lambda shape: rng.integers(127 - span, 128 + span, shape))
    return box.scales(lambda shape: rng.integers(0 if kind == "subnormal" else 0x28, 0x50, shape))


def answers(box: BlackBox, values: tuple[Array, ...], scales: tuple[Array, ...] = ()) -> Array:
    """Return the black box's results, in their dtype, for operands from `drawn` and block scales from `drawn_scales`.

    The result is (M, N) for a matrix product, else (rows,). values: the operands; scales: () for scales of 1.
    """
    with np.errstate(all="ignore"):
        if box.kind == "matmul":
            return box.whole(*values, scales=scales or None)
        return box.results(*(operand.passed(x) for operand, x in zip(box.operands, values, strict=True)))


def _span(operand: ProbedOperand) -> int:
    """Return s: values of an operand are drawn from s binades below to s binades above the middle of its range."""
    low, high = operand.exponents
    return max(min(SPAN, (high - low) // 3), 1)


def _wide(rng: np.random.Generator, operand: ProbedOperand, shape: Shape, n: int) -> Array:
    """Draw float64 values of a shape, whose exponents are spread over many binades in the middle of the format's range.

    Values are rounded to the operand's format. rng: the source of random numbers. n, the number of terms of a sum, is
    not used.
    """
    span, (low, high) = _span(operand), operand.exponents
    middle = 0 if low < -span and high > span else (low + high) // 2
    return operand.drawn(np.ldexp(rng.standard_normal(shape), rng.integers(-span, span + 1, shape) + middle))


def _ties(rng: np.random.Generator, operand: ProbedOperand, shape: Shape, n: int) -> Array:
    """Draw float64 values of a shape: positive and negative powers of two in the middle of the operand's range.

    Their partial sums are often ties of a rounding, or next to one. rng: the source of random numbers. n, the number of
    terms of a sum, is not used.
    """
    span = _span(operand)
    low, high = operand.exponents
    exponents = np.clip(rng.integers(-span, span + 1, shape), low, high)
    return np.asarray(np.ldexp(rng.choice([-1.0, 1.0], shape), exponents))


def _subnormal(rng: np.random.Generator, operand: ProbedOperand, shape: Shape, n: int) -> Array:
    """Draw float64 values of a shape, of both signs, up to 4 times the smallest normal number of the operand's format.

    rng: the source of random numbers. n, the number of terms of a sum, is not used.
    """
    fmt = operand.fmt
    units = rng.integers(0, 4 << fmt.mantissa_bits, shape).astype(np.float64)
    values = np.ldexp(units, fmt.min_exponent - fmt.mantissa_bits) * rng.choice([-1.0, 1.0], shape)
    return operand.drawn(values)


def _zeros(rng: np.random.Generator, operand: ProbedOperand, shape: Shape, n: int) -> Array:
    """Return random float64 zeros of a shape; each is +0 with the probability 0.5 / n, and -0 otherwise.

    So about half of the sums of n such zeros consist of -0 only. For an unsigned operand all zeros are +0. In a sum of
    products these zeros are the values of the first operand; for the second, `drawn` draws +0 or 1, unless operands are
    unsigned. rng: the source of random numbers. operand: the operand whose terms are drawn. n: number of terms of a
    sum.
    """
    return np.where(rng.random(shape) < 0.5 / n, 0.0, -0.0 if operand.fmt.signed else 0.0)


def _special(rng: np.random.Generator, operand: ProbedOperand, shape: Shape, n: int) -> Array:
    """Draw float64 values of a shape: standard normal values, and a few special ones in their place.

    Special values are infinities and NaNs (if the operand's format has them), zeros of both signs, the largest values
    of both signs, and half of the largest value. A sum of n terms has about 1.5 special values. rng: the source of
    random numbers.
    """
    fmt = operand.fmt
    some = [0.0, -0.0, fmt.max, -fmt.max, fmt.max / 2]
    some += [np.inf, -np.inf] if fmt.has_infinity else []
    some += [np.nan] if fmt.has_nan else []
    chosen = rng.choice(some, shape)
    return np.where(rng.random(shape) < 1.5 / n, chosen, operand.drawn(rng.standard_normal(shape)))


def _in_layers(rng: np.random.Generator, values: list[Array], fmt: Format) -> None:
    """Scale terms in place to three magnitudes that are far apart; terms of the two larger ones cancel in pairs.

    A compensated sum, which adds the rounding error of each addition back later, still loses the smallest terms.
    values: float64 arrays of one or two operands, whose first axis counts terms and whose values are near 1. fmt: the
    format whose range limits the magnitudes.
    """
    n = values[0].shape[0]
    reach = max(fmt.precision, FP32.precision) * 5 // 2
    low = max(fmt.min_exponent + fmt.mantissa_bits, -reach)
    high = max(min(int(np.log2(fmt.max)) - 2 - (n - 1).bit_length(), reach), low)
    apart = min((high - low) // 3, max(fmt.precision, FP32.precision) + APART)
    place = rng.permutation(n)
    first, second = place[0 : n - n % 2 : 2], place[1::2]
    layer = np.full(n, 2)
    layer[first] = layer[second] = rng.integers(0, 3, first.size)
    for x in values:
        x[second] = x[first]
    values[-1][second[layer[second] < 2]] *= -1.0
    top = rng.integers(low + 2 * apart, high + 1, values[0].shape[1:])
    values[0][:] = np.ldexp(values[0], top - apart * layer.reshape(-1, *[1] * top.ndim))


def _cancel(rng: np.random.Generator, values: list[Array], near: bool) -> None:
    """Pair the terms, and make the second of each pair the negative of the first, in place.

    In one of 20 pairs the second is also larger by the factor 1 + 2**-6. values: float64 arrays of one or two operands,
    whose first axis counts terms; with two, only the last one changes its sign. near: True to pair each term with its
    neighbour, False to pair at random.
    """
    n = values[0].shape[0]
    place = np.arange(n) if near else rng.permutation(n)
    first, second = place[0 : n - n % 2 : 2], place[1::2]
    for x in values:
        x[second] = x[first]
    off = rng.random(second.size) < SHARE_OFF
    values[-1][second] *= np.where(off, -1.0 - 2.0**-6, -1.0).reshape(-1, *[1] * (values[-1].ndim - 1))


# Kind -> function from (random generator, operand, shape, number of terms n of a sum) to float64 values of its format.
DRAW: dict[str, Callable[[np.random.Generator, ProbedOperand, Shape, int], Array]] = {
    "normal": lambda rng, operand, shape, n: operand.drawn(rng.standard_normal(shape)), "wide": _wide,
    "cancelling": _wide, "positive": lambda rng, operand, shape, n: operand.drawn(rng.uniform(0.25, 1, shape)),
    "ties": _ties, "layers": lambda rng, operand, shape, n: operand.drawn(rng.uniform(1, 2, shape)), "zeros": _zeros,
    # partial sums of such values can overflow even if the exact sum does not
    "large": lambda rng, operand, shape, n: operand.drawn(
        operand.fmt.max * rng.uniform(0.25, 1, shape) * rng.choice([-1.0, 1.0], shape)
    ),
    "subnormal": _subnormal, "vanishing": _subnormal, "special": _special,
}  # fmt: skip
DRAW["alike"] = DRAW["normal"]
