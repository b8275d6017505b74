"""Finds the arithmetic of a black box whose order of additions is known: format, rounding, unrounded products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import BF16, FP16, FP32, FP64, NAMED, TF32, Format
from fpsim.probe.black_box import BlackBox
from fpsim.probe.counter import ROWS, Counter
from fpsim.probe.order import Branch, Order
from fpsim.probe.programs.program import Program
from fpsim.probe.programs.rules import FLUSHES, AdditionRule

ROUNDINGS = ("nearest_even", "toward_zero", "nearest_away", "down", "up")
ALIGNMENTS = ("truncate", "floor", "nearest")
MOST_BITS = 80  # largest precision of a sum that is measured
NARROW = -100  # ordinary operands include subnormals of formats whose smallest exponent is above this
USUAL_FORMATS = (FP32, FP64, BF16, FP16, TF32)


def programs(counter: Counter, order: Order) -> Iterator[Program]:
    """Yield programs (an order of additions with its arithmetic) that may give a black box's bits, likely ones first.

    A few calls of the black box measure the precision and rounding of its sums, which limit the programs to try.

    Args:
      counter: the Counter whose attribute `box` is the black box. 2**counter.large and 2**counter.small are the largest
        and the smallest terms that the calls use.
      order: the order of the black box's additions.
    """
    box = counter.box
    cut = _fraction_bits(counter, order)
    bits = _bits(counter, order)
    roundings = _roundings(counter, order, bits)
    ways = (
        (to, *rest)
        for to in _formats(bits, box.fmt)
        for rest in product(roundings, _zeros(box), _usual_flushes(box, to))
    )
    for fmt, rounding, zeros, (flushes, least) in ways:
        if cut is None:
            rule = AdditionRule(
                fmt, rounding, flushes=flushes, least_inputs=least, overflow=_overflow(counter, fmt), zeros=zeros
            )
            yield from _exact(box, order, rule)
            continue
        results = dict.fromkeys([None if bits >= fmt.precision else bits - 1, fmt.mantissa_bits])
        low = [operand.fmt.min_exponent for operand in box.operands]
        exponents = [(low[0], low[1]), None] if len(low) == 2 else [None]
        for alignment, result, lowest in product(ALIGNMENTS, results, exponents):
            rule = AdditionRule(fmt, rounding, alignment, cut, result, flushes, least, operand_exponents=lowest)
            yield Program(order, rule, box.fmt, box.n, frozenset(range(box.n)))


def usual_programs(counter: Counter, order: Order) -> Iterator[Program]:
    """Yield programs whose sums have the result's format, then others with FP32 sums, then others with FP64 sums.

    Each program rounds its sums to nearest even. No bits are measured. counter: the Counter whose attribute `box` is
    the black box; nothing else of it is used. order: the order of the black box's additions.
    """
    box = counter.box
    for fmt, zeros in product(dict.fromkeys((box.fmt, FP32, FP64)), _zeros(box)):
        yield from _exact(box, order, AdditionRule(fmt, zeros=zeros))


def _usual_flushes(box: BlackBox, fmt: Format) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Return pairs (flushes, least_inputs) to try: fields of an `AdditionRule` whose sums have the format `fmt`.

    `flushes` names the numbers whose subnormals become zero: "products", "sums", "starts" (first terms of chains) and
    "results"; () for none. `least_inputs` has, for each operand, the magnitude below which values become zero; () for
    none. Numbers are flushed only if their format has few exponents, since normally distributed operands give
    subnormals in such formats alone. box: the black box, for the formats of its operands and results.
    """
    least = [
        (0.0, operand.fmt.smallest_normal) if _is_narrow(operand.fmt) else (0.0,) for operand in box.operands
    ]  # fmt: skip
    sums: list[tuple[str, ...]] = [(), ("products", "sums", "starts")] if _is_narrow(fmt) else [()]
    results: list[tuple[str, ...]] = [(), ("results",)] if _is_narrow(box.fmt) and fmt != box.fmt else [()]
    return [
        ((*of_sums, *of_results), some if any(some) else ())
        for of_sums, of_results, some in product(sums, results, product(*least))
    ]


def _is_narrow(fmt: Format) -> bool:
    """Return whether a format's smallest exponent is above -100, so that normal draws include subnormal values."""
    return fmt.min_exponent > NARROW


def other_flushes(program: Program, box: BlackBox) -> Iterator[Program]:
    """Yield copies of a program that differ in which subnormals become zero, those with the fewest flushes first.

    Each copy has another combination of two fields of its rule: `flushes` (names of FLUSHES) and `least_inputs` (for
    each operand, 0 or its smallest normal value). The first copy flushes nothing. box: the black box, for the formats
    of its operands.
    """
    names = tuple(name for name in FLUSHES if len(box.operands) == 2 or name != "products")
    inputs = list(product(*((0.0, operand.fmt.smallest_normal) for operand in box.operands)))
    sets = [some for count in range(len(names) + 1) for some in combinations(names, count)]
    pairs = sorted(product(sets, inputs), key=lambda pair: len(pair[0]) + sum(x > 0 for x in pair[1]))
    for flushes, some in pairs:
        rule = replace(program.rule, flushes=flushes, least_inputs=some if any(some) else ())
        yield replace(program, rule=rule)


def _exact(box: BlackBox, order: Order, rule: AdditionRule) -> Iterator[Program]:
    """Yield programs whose additions round the exact sum of their inputs once.

    For a plain sum of one operand there is one program. For products, calls of the black box show which products it
    adds unrounded; the first program does the same, and rounds the other products to the format of the sums. A second
    program rounds all products to the operands' format. It follows only if both operands have one format, and that of
    the sums represents all products exactly. order: the order of the additions. rule: their arithmetic.
    """
    if len(box.operands) == 1:
        yield Program(order, rule, box.fmt, box.n)
        return
    a, b = (operand.fmt for operand in box.operands)
    yield Program(order, rule, box.fmt, box.n, exact_products(box, order, rule.fmt))
    if a == b and a.precision + b.precision <= rule.fmt.precision:
        yield Program(order, replace(rule, product=a), box.fmt, box.n)


def mixed_programs(counter: Counter, order: Order) -> Iterator[Program]:
    """Yield programs in which two-operand additions have different formats, from the measured bits of each addition.

    counter: the Counter of the black box, which measures the bits of its sums. order: the order of the black box's
    additions. Nothing is yielded if an addition takes more than two numbers, or if the terms' range is too small to
    measure bits.
    """
    box = counter.box
    if order.widest != 2 or counter.large - counter.small < FP64.precision:
        return
    formats = _formats_of_additions(counter, order)
    narrow = min(dict.fromkeys(formats), key=lambda fmt: fmt.precision)
    for terms, zeros in product(dict.fromkeys((narrow, FP32, FP64)), _zeros(box)):
        rule = AdditionRule(terms, zeros=zeros)
        exact = exact_products(box, order, terms) if len(box.operands) == 2 else frozenset()
        for last in dict.fromkeys((formats[-1], FP32, FP64)):
            yield Program(order, rule, box.fmt, box.n, exact, (*formats[:-1], last))


def _formats_of_additions(counter: Counter, order: Order) -> tuple[Format, ...]:
    """Return the format of each addition, in the order of `order.program`: BF16, FP16, FP32 or FP64.

    It is the narrowest format with the bits that the addition keeps. These are measured by the term that is added next
    to the addition's sum, and cancels most of it. Nothing is added to the last sum, so the last addition gets the
    format of the last but one. counter: the Counter of the black box.
    """
    box = counter.box
    stack: list[tuple[int, int | None]] = []  # the smallest term of each number, and the addition that computed it
    pairs: list[tuple[int, int]] = []
    siblings: dict[int, int] = {}  # addition -> a term of the number that is added to its sum next
    for step in order.program:
        if step >= 0:
            stack.append((step, None))
            continue
        (x, of_x), (y, of_y) = stack[-2:]
        siblings |= {of: term for of, term in ((of_x, y), (of_y, x)) if of is not None}
        pairs.append((x, y))
        stack[-2:] = [(min(x, y), len(pairs) - 1)]
    kept = np.zeros(len(pairs), np.int64)
    inner = np.array(sorted(siblings))
    step = max(ROWS // box.n, 1)
    for fmt in (BF16, FP16, FP32):
        for start in range(0, inner.size, step):
            part = inner[start : start + step]
            rows, lines = np.zeros((part.size, box.n)), np.arange(part.size)
            large, small = np.array([pairs[at] for at in part]).T
            rows[lines, large] = 2.0 ** (counter.small + fmt.precision)
            rows[lines, small] = 2.0**counter.small
            rows[lines, [siblings[int(at)] for at in part]] = -(2.0 ** (counter.small + fmt.precision))
            kept[part] += box.values(rows) == 2.0**counter.small
    formats = [(BF16, FP16, FP32, FP64)[count] for count in kept]
    formats[-1] = formats[-2] if len(formats) > 1 else formats[-1]
    return tuple(formats)


def _formats(bits: int, out: Format) -> list[Format]:
    """Return the formats of sums to try: those with the precision `bits`, then wider ones.

    bits: measured precision of a partial sum. out: the format of the results. If both precisions are equal, sums may be
    wider and be rounded to `out` at the end, so the wider formats of USUAL_FORMATS follow. FP32 is tried if no format
    has the precision `bits` and FP32 has more.
    """
    signed = [fmt for fmt in dict.fromkeys((*USUAL_FORMATS, *NAMED.values())) if fmt.signed and fmt.has_zero]
    exact = [fmt for fmt in signed if fmt.precision == bits]
    wider = [fmt for fmt in USUAL_FORMATS if fmt.precision > bits] if bits == out.precision else []
    # results may be cut to fewer bits than their format has
    cut = [FP32] if not exact and bits < FP32.precision else []
    return sorted(exact, key=lambda fmt: fmt != out) + wider + cut


def _overflow(counter: Counter, fmt: Format) -> str:
    """Return the overflow mode of sums in the format `fmt`, found by adding its largest number to itself.

    It is "saturate" if the result is that largest number. It is "nonfinite" for any other result, and also if the black
    box raises a ValueError, if its first operand cannot be that large, or if it adds fewer than two terms. counter: the
    Counter of the black box.
    """
    box = counter.box
    two = counter.alive[:2]
    if box.operands[0].fmt.max < fmt.max or two.size < 2:
        return "nonfinite"
    rows = np.zeros((1, box.n))
    rows[0, two] = fmt.max
    ones = [np.ones((1, box.n))] * (len(box.operands) - 1)
    try:
        return "saturate" if box.of(box.operands[0].drawn(rows), *ones)[0] == fmt.max else "nonfinite"
    except ValueError:  # the black box raises where a sum overflows
        return "nonfinite"


def _zeros(box: BlackBox) -> tuple[str, ...]:
    """Return values to try for `AdditionRule.zeros`, by the sign of the black box's sum of negative zeros.

    They are ("kept",) if the sum is -0, and ("added", "begin") if it is +0: then +0 is added to the result, or sums
    begin at +0.
    """
    ones = [np.ones((1, box.n))] * (len(box.operands) - 1)
    return ("kept",) if np.signbit(box.of(np.full((1, box.n), -0.0), *ones))[0] else ("added", "begin")


# ---- bits of a sum


def _kept(counter: Counter, large: int, minus: int, small: int) -> Array:
    """Return for d = 1, 2, ... whether the black box's sum of x, -x and s is s, where the term x is 2**d times s.

    large, minus, small: indices of the terms x, -x and s = 2**counter.small; all other terms are 0. counter: the
    Counter of the black box.
    """
    box, most = counter.box, min(counter.large - counter.small, MOST_BITS)
    rows = np.zeros((most, box.n))
    rows[:, large] = 2.0 ** (counter.small + np.arange(1, most + 1))
    rows[:, minus] = -rows[:, large]
    rows[:, small] = 2.0**counter.small
    kept: Array = box.values(rows) == 2.0**counter.small
    return kept


def _bits(counter: Counter, order: Order) -> int:
    """Return the precision, in bits, of a partial sum, measured by a third term that cancels its larger term.

    The partial sum adds two powers of two, the smaller one 2**-d of the other. The precision is d + 1 for the largest d
    up to which the result still is the smaller one.

    If the order adds no third term to a sum of two, return `counter.bits`, the precision of a sum of two terms in the
    result. counter: the Counter of the black box.
    """
    three = _three(order.branch)
    if three is None:
        return counter.bits
    i, j, k = three
    kept = _kept(counter, i, k, j)
    return int(np.argmin(kept)) + 1 if not kept.all() else kept.size


def _roundings(counter: Counter, order: Order, bits: int) -> tuple[str, ...]:
    """Return the names of rounding modes that agree with the black box's sums of a number and a part of its last bit.

    The part is a quarter, a half or three quarters, of either sign. bits: precision of a partial sum. All of ROUNDINGS
    are returned if no mode agrees, or if the order or the range of terms allows no such sum. counter: the Counter of
    the black box.
    """
    three = _three(order.branch)
    too_near = counter.large - counter.small < bits + 2 or counter.box.operands[0].fmt.mantissa_bits < 1
    if three is None or too_near:
        return ROUNDINGS
    i, j, k = three
    unit = 2.0 ** (counter.small + 2)  # value of the last bit of a sum whose first bit has the value `first`
    first = unit * 2.0 ** (bits - 1)
    parts = np.array([0.25, 0.5, 0.75]) * unit
    rows = np.zeros((6, counter.box.n))
    rows[:3, i], rows[3:, i] = first, -first
    rows[:3, j], rows[3:, j] = parts, -parts
    rows[:, k] = -rows[:, i]
    grows = tuple(bool(x) for x in np.abs(counter.box.values(rows)) >= unit)
    return tuple(word for word, seen in GROWS.items() if seen == grows) or ROUNDINGS


# Whether a magnitude is rounded up if a quarter, a half and three quarters of its last bit are cut off: three answers
# for positive and three for negative sums.
GROWS = {
    "nearest_even": (False, False, True) * 2, "toward_zero": (False,) * 6, "nearest_away": (False, True, True) * 2,
    "down": (False, False, False, True, True, True), "up": (True, True, True, False, False, False),
}  # fmt: skip


def _three(branch: Branch) -> tuple[int, int, int] | None:
    """Return indices (i, j, k) of terms: one addition adds i and j, and the one that takes its sum adds k.

    Return None if no addition takes a sum. branch: the root of the tree of additions.
    """
    for node in branch.nodes():
        for child in node.children:
            if child.children:
                other = next(sibling for sibling in node.children if sibling is not child)
                return child.children[0].lowest, child.children[1].lowest, other.lowest
    return None


def _fraction_bits(counter: Counter, order: Order) -> int | None:
    """Return the number of fraction bits, below the largest exponent, that the addition with the most operands keeps.

    Return None if it keeps all bits that can be measured, or if no addition takes three numbers or more. counter: the
    Counter of the black box. order: the order of its additions.
    """
    node = max(order.branch.nodes(), key=lambda node: len(node.children))
    if len(node.children) < 3:
        return None
    kept = _kept(counter, *(child.lowest for child in node.children[-3:]))
    return None if kept.all() else int(np.argmin(kept))


# ---- products


def exact_products(box: BlackBox, order: Order, fmt: Format) -> frozenset[int]:
    """Return the indices of terms whose product is not rounded to `fmt` before it is added, as in fused multiply-adds.

    Calls of the black box test each term. If products need more bits than `fmt` has, the test adds (1 + 2^-h)^2 to a
    number that cancels all but its last bit; h is half the precision of `fmt`. If only the range of `fmt` is too small,
    the test adds a product beyond the range to -Inf. The result is empty if `fmt` represents every product, or if no
    test applies. order: the order of the black box's additions.
    """
    of_a, of_b = (operand.fmt for operand in box.operands)
    # each term, and a term of another operand of the addition that takes it
    pairs = [
        (child.lowest, next(sibling for sibling in node.children if sibling is not child).lowest)
        for node in order.branch.nodes() for child in node.children if not child.children
    ]  # fmt: skip
    half = (fmt.precision + 1) // 2
    longer = of_a.precision + of_b.precision > fmt.precision
    high = min(of_a.max, of_b.max) ** 0.5 * 4.0
    beyond = of_a.has_infinity and of_a == of_b and 2 * np.log2(high) > np.log2(fmt.max) + 1
    if not pairs or not (longer or beyond):
        return frozenset()
    large, other = (1 + 2.0**-half, -(1 + 2.0 ** (1 - half))) if longer else (2.0 ** int(np.log2(high)), -np.inf)
    exactly = 2.0 ** (-2 * half) if longer else -np.inf
    terms: list[int] = []
    step = max(ROWS // box.n, 1)
    for start in range(0, len(pairs), step):
        part = np.array(pairs[start : start + step])
        lines = np.arange(len(part))
        a, b = np.zeros((len(part), box.n)), np.ones((len(part), box.n))
        a[lines, part[:, 0]] = b[lines, part[:, 0]] = large
        a[lines, part[:, 1]] = other
        terms += [int(k) for k, rest in zip(part[:, 0], box.of(a, b), strict=True) if rest == exactly]
    return frozenset(terms)
