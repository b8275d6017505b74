"""What the additions of a known order do: their format, their rounding, and which products join unrounded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import BF16, FP16, FP32, FP64, NAMED, TF32, Format
from fpsim.probe.black_box import BlackBox
from fpsim.probe.counter import Counter
from fpsim.probe.order import Branch, Order
from fpsim.probe.program import Program, Rule

ROUNDINGS = ("nearest_even", "toward_zero", "nearest_away", "down", "up")
ALIGNMENTS = ("truncate", "floor", "nearest")
MOST_BITS = 80  # of a sum that are looked for
USUAL_FORMATS = (FP32, FP64, BF16, FP16, TF32)


def programs(counter: Counter, order: Order) -> Iterator[Program]:
    """Programs that may be the black box, the likely ones first; what it does with single sums decides which.

    Args:
      counter: of the black box.
      order: of its additions.
    """
    box = counter.box
    cut = _fraction_bits(counter, order)
    bits = _bits(counter, order)
    found = _formats(bits, box.fmt)
    starts_at_zero = not np.signbit(box.of(*_minus_zeros(box)))[0]
    for fmt, keeps, rounding in product(found, ("keep", "flush"), ROUNDINGS):
        if cut is None:
            yield from _exact(box, order, Rule(fmt, rounding, subnormals=keeps, starts_at_zero=bool(starts_at_zero)))
            continue
        results = dict.fromkeys([None if bits >= fmt.precision else bits - 1, fmt.mantissa_bits])
        for alignment, result in product(ALIGNMENTS, results):
            rule = Rule(fmt, rounding, alignment, cut, result, keeps)
            yield Program(order, rule, box.fmt, box.n, frozenset(range(box.n)))


def _exact(box: BlackBox, order: Order, rule: Rule) -> Iterator[Program]:
    """Programs whose nodes round exact sums."""
    if len(box.operands) == 1:
        yield Program(order, rule, box.fmt, box.n)
        return
    a, b = (operand.fmt for operand in box.operands)
    if a.precision + b.precision > rule.fmt.precision:
        yield Program(order, rule, box.fmt, box.n, exact_products(box, order, rule.fmt))
        return
    yield Program(order, rule, box.fmt, box.n)
    if a == b:
        yield Program(order, Rule(**{**rule.__dict__, "product": a}), box.fmt, box.n)


def _formats(bits: int, out: Format) -> list[Format]:
    """The formats with so many bits of precision; of more bits than any known sum shows, the result's own."""
    signed = [fmt for fmt in dict.fromkeys((*USUAL_FORMATS, *NAMED.values())) if fmt.signed and fmt.has_zero]
    found = [fmt for fmt in signed if fmt.precision == bits]
    wider = [fmt for fmt in USUAL_FORMATS if fmt.precision > bits] if bits == out.precision else []
    # results that have been cut to fewer bits than their format has
    cut = [FP32] if not found and bits < FP32.precision else []
    return sorted(found, key=lambda fmt: fmt != out) + wider + cut


def _minus_zeros(box: BlackBox) -> tuple[Array, ...]:
    """One sum of -0 alone."""
    minus = np.full((1, box.n), -0.0)
    return (minus,) if len(box.operands) == 1 else (minus, np.ones((1, box.n)))


# ---- bits of a sum


def _bits(counter: Counter, order: Order) -> int:
    """Bits of a partial sum: from its first one to the last that is kept, seen once a third term cancels the first."""
    three = _three(order.branch)
    if three is None:
        return counter.bits
    i, j, k = three
    box, most = counter.box, min(counter.large - counter.small, MOST_BITS)
    rows = np.zeros((most, box.n))
    rows[:, i] = 2.0 ** (counter.small + np.arange(1, most + 1))
    rows[:, k] = -rows[:, i]
    rows[:, j] = 2.0**counter.small
    kept = box.values(rows) == 2.0**counter.small
    return int(np.argmin(kept)) + 1 if not kept.all() else most


def _three(branch: Branch) -> tuple[int, int, int] | None:
    """Two terms that meet below the node where they meet a third one; None where no node lies below another."""
    stack = [branch]
    while stack:
        node = stack.pop()
        for child in node.children:
            if child.children:
                other = next(each for each in node.children if each is not child)
                return child.children[0].lowest, child.children[1].lowest, other.lowest
        stack.extend(node.children)
    return None


def _fraction_bits(counter: Counter, order: Order) -> int | None:
    """Bits below the largest exponent that a node of three numbers or more keeps; None where it adds exactly."""
    node = _widest(order.branch)
    if len(node.children) < 3:
        return None
    i, j, k = (child.lowest for child in node.children[-3:])
    box, most = counter.box, min(counter.large - counter.small, MOST_BITS)
    rows = np.zeros((most, box.n))
    rows[:, i] = 2.0 ** (counter.small + np.arange(1, most + 1))
    rows[:, j] = -rows[:, i]
    rows[:, k] = 2.0**counter.small
    kept = box.values(rows) == 2.0**counter.small
    return None if kept.all() else int(np.argmin(kept))


def _widest(branch: Branch) -> Branch:
    """The node that adds most numbers."""
    best, stack = branch, [branch]
    while stack:
        node = stack.pop()
        best = node if len(node.children) > len(best.children) else best
        stack.extend(node.children)
    return best


# ---- products


def exact_products(box: BlackBox, order: Order, fmt: Format) -> frozenset[int]:
    """Terms whose product is not rounded before it is added: (1 + 2^-h)^2 beside what cancels all but its last bit."""
    half = (fmt.precision + 1) // 2
    pairs = list(_beside(order.branch))
    if not pairs:
        return frozenset()
    found: list[int] = []
    step = max((1 << 20) // box.n, 1)
    for start in range(0, len(pairs), step):
        part = np.array(pairs[start : start + step])
        each = np.arange(len(part))
        a, b = np.zeros((len(part), box.n)), np.ones((len(part), box.n))
        a[each, part[:, 0]] = b[each, part[:, 0]] = 1 + 2.0**-half
        a[each, part[:, 1]] = -(1 + 2.0 ** (1 - half))
        left = box.of(a, b)
        found += [int(k) for k, rest in zip(part[:, 0], left, strict=True) if rest == 2.0 ** (-2 * half)]
    return frozenset(found)


def _beside(branch: Branch) -> Iterator[tuple[int, int]]:
    """Every term with one of those that it meets first."""
    stack = [branch]
    while stack:
        node = stack.pop()
        for child in node.children:
            if not child.children:
                yield child.lowest, next(each for each in node.children if each is not child).lowest
        stack.extend(node.children)
