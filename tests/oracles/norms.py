"""A slow oracle for softmax and norms: one row of codes, one rounding at a time. The rules are those of docs/elementary.md."""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fpsim.formats.named import FP32, Format
from tests.oracles import arithmetic as ao
from tests.oracles import elementary


class Code(NamedTuple):
    """A code and its format."""

    code: int
    fmt: Format


Sum = Callable[[Sequence[Code], Sequence[Code] | None], Code]  # of terms, or of products of two sequences


class Row(NamedTuple):
    """How the steps of a row are rounded."""

    between: Format
    add_up: Sum
    out: Format
    options: ao.Options = ao.PLAIN

    def step(self, name: str, *operands: Code) -> Code:
        return rounded(name, self.between, *operands)

    def last(self, name: str, *operands: Code) -> int:
        return rounded(name, self.out, *operands, options=self.options).code

    def total(self, terms: Sequence[Code], others: Sequence[Code] | None = None) -> Code:
        return self.step("convert", self.add_up(terms, others))

    def number(self, value: float) -> Code:
        return of_fraction(Fraction(value), self.between)


def rounded(name: str, out: Format, *operands: Code, options: ao.Options = ao.PLAIN) -> Code:
    """Return an operation rounded once into a format."""
    if name in elementary.REAL:
        (operand,) = operands
        exact = elementary.exact(name, ao.read(operand.fmt, operand.code))
        return Code(ao.deliver(exact, out, options)[0], out)
    codes, fmts = [x.code for x in operands], [x.fmt for x in operands]
    return Code(ao.compute(name, codes, fmts, out, options)[0], out)


def of_fraction(value: Fraction, fmt: Format) -> Code:
    """Return a number rounded to nearest even."""
    return Code(ao.deliver(ao.Exact("finite", value < 0, abs(value)), fmt, ao.PLAIN)[0], fmt)


# ---- sums


def sequential(fmt: Format) -> Sum:
    """One after another: products are rounded, then each sum; terms of a plain sum are not."""

    def add_up(terms: Sequence[Code], others: Sequence[Code] | None) -> Code:
        total = Code(0, fmt)
        for i, term in enumerate(terms):
            product = rounded("multiply", fmt, term, others[i]) if others else term
            total = rounded("add", fmt, total, product)
        return total

    return add_up


def lanes(count: int) -> Sum:
    """Lanes in turn, then halves onto halves; of terms in float32, of exact products in float64."""

    def add_up(terms: Sequence[Code], others: Sequence[Code] | None) -> Code:
        if others is None:
            totals = [Code(0, FP32)] * count
            for i, term in enumerate(terms):
                totals[i % count] = rounded("add", FP32, totals[i % count], term)
            while len(totals) > 1:
                half = len(totals) // 2
                totals = [rounded("add", FP32, totals[i], totals[i + half]) for i in range(half)]
            return totals[0]
        sums = [0.0] * count
        for i, (x, y) in enumerate(zip(terms, others, strict=True)):
            sums[i % count] += float(number(x)) * float(number(y))
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [sums[i] + sums[i + half] for i in range(half)]
        return Code(int(np.float32(sums[0]).view(np.uint32)), FP32)

    return add_up


def number(x: Code) -> Fraction:
    """Return the value of a finite code."""
    return ao.read(x.fmt, x.code).exact


# ---- functions of a row


def softmax(row: Row, xs: Sequence[Code]) -> list[int]:
    powers = [row.step("exp", distance) for distance in _distances(row, xs)]
    total = row.total(powers)
    return [row.last("divide", power, total) for power in powers]


def log_softmax(row: Row, xs: Sequence[Code]) -> list[int]:
    distances = _distances(row, xs)
    total = row.total([row.step("exp", distance) for distance in distances])
    return [row.last("subtract", distance, row.step("log", total)) for distance in distances]


def _distances(row: Row, xs: Sequence[Code]) -> list[Code]:
    largest = xs[0]
    for x in xs[1:]:
        largest = rounded("maximum", x.fmt, largest, x)
    return [row.step("subtract", x, largest) for x in xs]


def rms_norm(row: Row, xs: Sequence[Code], weights: Sequence[Code] | None, eps: float) -> list[int]:
    inverse = _inverse(row, row.total(xs, xs), len(xs), eps)
    if weights is None:
        return [row.last("multiply", x, inverse) for x in xs]
    scaled = [row.step("multiply", x, inverse) for x in xs]
    return [row.last("multiply", x, weight) for x, weight in zip(scaled, weights, strict=True)]


def layer_norm(
    row: Row, xs: Sequence[Code], weights: Sequence[Code] | None, biases: Sequence[Code] | None, eps: float
) -> list[int]:
    mean = row.step("divide", row.total(xs), of_fraction(Fraction(len(xs)), FP32))
    centred = [row.step("subtract", x, mean) for x in xs]
    inverse = _inverse(row, row.total(centred, centred), len(xs), eps)
    results = []
    for i, x in enumerate(centred):
        steps = [("multiply", inverse)]
        steps += [("multiply", weights[i])] if weights is not None else []
        steps += [("add", biases[i])] if biases is not None else []
        for name, operand in steps[:-1]:
            x = row.step(name, x, operand)
        results.append(row.last(steps[-1][0], x, steps[-1][1]))
    return results


def _inverse(row: Row, squares: Code, count: int, eps: float) -> Code:
    mean = row.step("divide", squares, of_fraction(Fraction(count), FP32))
    return row.step("rsqrt", row.step("add", mean, row.number(eps)))
