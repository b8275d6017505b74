"""A slow, obvious oracle for accumulators: exact fractions, one output at a time.

Every rounding is that of oracles/arithmetic.py; what is here is the order of the terms and the numbers of the random
words. The rules are those of docs/accumulators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from fpsim.formats.named import Format
from tests.core.test_philox import random_word
from tests.oracles import arithmetic as ao
from tests.oracles.arithmetic import Exact, Operand

Word = Callable[[int], int]  # number of a rounding -> its random word


class Rule(NamedTuple):
    """An accumulator in words: kind is the name of its class."""

    kind: str
    fmt: Format
    words: dict[str, Any] = {}  # noqa: RUF012  # rounding, seed, overflow, subnormals, random_bits; never changed
    chunk: int = 64
    outer: Format | None = None

    @property
    def result(self) -> Format:
        return self.outer or self.fmt

    def options(self, word: int) -> ao.Options:
        return ao.Options(**{name: value for name, value in self.words.items() if name != "seed"}, word=word)


def whole(count: int) -> int:
    """Round up to a multiple of four."""
    return (count + 3) // 4 * 4


def words_of(rule: Rule, terms: int, output: int) -> Word:
    """Return the random words of one output."""
    if rule.words.get("rounding") != "stochastic":
        return lambda number: 0
    seed = rule.words["seed"]
    if rule.kind == "Exact":
        return lambda number: random_word(output, seed)
    runs = -(-terms // rule.chunk) if rule.kind == "Chunked" else 0
    stride = 2 * whole(terms) + whole(runs)
    return lambda number: random_word(output * stride + number, seed)


def as_operand(exact: Exact) -> Operand:
    """Return an exact product as a term of a sum."""
    return Operand(exact.kind, exact.negative, exact.magnitude)


def rounded(exact: Exact, fmt: Format, rule: Rule, word: int) -> Operand:
    """One rounding."""
    return ao.read(fmt, ao.deliver(exact, fmt, rule.options(word))[0])


def code_of(value: Operand, fmt: Format) -> int:
    """Return the code of a value of the format."""
    return ao.deliver(Exact(value.kind, value.negative, value.magnitude), fmt, ao.PLAIN)[0]


def dot(rule: Rule, a: Sequence[Operand], b: Sequence[Operand], c: Operand | None, output: int = 0) -> int:
    """Return the code of c plus the products of two columns."""
    return total(
        rule, [as_operand(ao.exact_product(x, y)) for x, y in zip(a, b, strict=True)], c, output, products=True
    )


def total(rule: Rule, terms: Sequence[Operand], c: Operand | None, output: int = 0, products: bool = False) -> int:
    """Return the code of c plus exact terms. products: the terms are products, which may be rounded first."""
    word = words_of(rule, len(terms), output)
    start = c or Operand("finite")
    if not terms:
        return code_of(start._replace(negative=start.negative and start.kind != "nan"), rule.result)
    if rule.kind == "Exact":
        return exact_total(rule, [*terms, *([c] if c else [])], word)
    if (products and rule.kind != "FusedMultiplyAdd") or rule.kind == "Pairwise":
        terms = [rounded(alone(term), rule.fmt, rule, word(k)) for k, term in enumerate(terms)]
    sums = whole(len(terms))
    if rule.kind == "Pairwise":
        return code_of(pairwise(rule, list(terms), c, lambda number: word(sums + number)), rule.fmt)
    if rule.kind == "Chunked":
        return code_of(chunked(rule, terms, start, word), rule.result)
    return code_of(sequential(rule, terms, start, lambda k: word(sums + k)), rule.fmt)


def alone(x: Operand) -> Exact:
    """Return a term by itself."""
    return ao.nan(x) if x.kind == "nan" else Exact(x.kind, x.negative, x.magnitude)


def sequential(rule: Rule, terms: Sequence[Operand], start: Operand, word: Word) -> Operand:
    value = start
    for k, term in enumerate(terms):
        value = rounded(ao.exact_sum(value, term), rule.fmt, rule, word(k))
    return value


def chunked(rule: Rule, terms: Sequence[Operand], start: Operand, word: Word) -> Operand:
    value, sums = start, whole(len(terms))
    for run, first in enumerate(range(0, len(terms), rule.chunk)):
        part = terms[first : first + rule.chunk]
        inner = sequential(rule, part, Operand("finite"), lambda k, first=first: word(sums + first + k))  # type: ignore[misc]
        value = rounded(ao.exact_sum(value, inner), rule.result, rule, word(2 * sums + run))
    return value


def pairwise(rule: Rule, level: list[Operand], c: Operand | None, word: Word) -> Operand:
    number, terms = 0, len(level)
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            above.append(rounded(ao.exact_sum(left, right), rule.fmt, rule, word(number)))
            number += 1
        level = above + (level[-1:] if len(level) % 2 else [])
    return level[0] if c is None else rounded(ao.exact_sum(c, level[0]), rule.fmt, rule, word(terms - 1))


def exact_total(rule: Rule, terms: Sequence[Operand], word: Word) -> int:
    """One rounding of all terms together."""
    infinities = {term.negative for term in terms if term.kind == "infinity"}
    if ao.any_nan(*terms) or len(infinities) == 2:
        exact = ao.nan(invalid=True)
    elif infinities:
        exact = Exact("infinity", infinities.pop())
    else:
        value = sum((Fraction(term.number) for term in terms), Fraction(0))
        signs = {term.negative for term in terms}
        keeps = all(term.is_zero for term in terms) and len(signs) == 1
        exact = ao.signed(value) if value else Exact("finite", keeps and True in signs, cancelled=not keeps)
    return ao.deliver(exact, rule.fmt, rule.options(word(0)))[0]
