"""The specification of a program of additions: sums computed node by node with exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fpsim.arithmetic.functions import add
from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import FP64, Format
from fpsim.probe.kernels.node_rows import ALMOST_HALF
from fpsim.probe.order import Order
from fpsim.probe.programs.rules import AdditionRule
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Exact

# How numbers are cut, as a rounding to integers in units of their last bit.
CUTS = {"truncate": "toward_zero", "floor": "down", "nearest": "nearest_even"}


class Specification(NamedTuple):
    """A slow reference for an order of additions and its arithmetic, which defines the bits of the compiled loops.

    Attributes:
      order: the order of additions.
      rule: the arithmetic of every addition.
      exact: terms whose product is not rounded before it is added.
      flushed_terms: terms whose subnormals become zeros before they are added.
    """

    order: Order  # the order of additions
    rule: AdditionRule  # the arithmetic of every addition
    exact: frozenset[int]  # terms whose product is not rounded before it is added
    flushed_terms: frozenset[int]  # terms whose subnormals become zeros before they are added

    def sums(self, numbers: Array, values: Sequence[Array]) -> Array:
        """Return the sum of each row as float64.

        Args:
          numbers: (R, n) float64: the terms, or the operands' products, not yet rounded to the format of the sums.
          values: one or two (R, n) arrays: the operands, whose exponents align products.
        """
        if self.rule.fraction_bits is not None:
            return self._by_cuts(numbers, values)
        stack: list[Array] = []
        for step in self.order.program:
            if step < 0:
                stack[step:] = [self._exact(np.stack(stack[step:], axis=-1))]
            else:
                term = numbers[:, step]
                if step not in self.exact:
                    term = np.where(np.isinf(term), term, self._once(term))
                stack.append(flushed(term, self.rule.fmt.smallest_normal) if step in self.flushed_terms else term)
        return stack[0] if self.order.widest > 1 else self._once(stack[0])

    def _by_cuts(self, terms: Array, values: Sequence[Array]) -> Array:
        """Return the sums (R,) of terms (R, n), float64, where each addition cuts its numbers to common fraction bits.

        Each addition first rounds its numbers to multiples of 2**(e - rule.fraction_bits), where e is the largest of
        their exponents, and at least -900. The exponent of x is floor(log2(abs(x))); zeros have none. But if
        `rule.operand_exponents` is set, the exponent of a product is the sum of the exponents of its two operands in
        `values`, each raised to the operand's limit in the rule if it is lower.
        """
        exponents = np.frexp(terms)[1] - 1
        least = self.rule.operand_exponents
        if least is not None and len(values) == 2:
            of_a, of_b = (np.maximum(np.frexp(x)[1] - 1, low) for x, low in zip(values, least, strict=True))
            exponents = of_a + of_b
        stack: list[tuple[Array, Array]] = []
        for step in self.order.program:
            if step < 0:
                numbers, of_numbers = (np.stack(x, axis=-1) for x in zip(*stack[step:], strict=True))  # (R, c)
                total = self._fused(numbers, of_numbers)
                stack[step:] = [(total, np.frexp(total)[1] - 1)]
            else:
                stack.append((terms[:, step], exponents[:, step]))
        return stack[0][0] if self.order.widest > 1 else self._summed(stack[0][0])

    def _once(self, x: Array) -> Array:
        """Return values rounded once to the format of the sums, as float64."""
        rule = self.rule
        codes = encode(x, rule.fmt, rounding=rule.rounding, overflow=rule.overflow)
        return decode(codes, rule.fmt, np.float64)

    def _summed(self, x: Array) -> Array:
        """Return values rounded to the format of the sums, with subnormals flushed if the rule flushes sums."""
        rounded = self._once(x)
        return flushed(rounded, self.rule.fmt.smallest_normal) if "sums" in self.rule.flushes else rounded

    def _exact(self, numbers: Array) -> Array:
        """Return the exact sum of each row of numbers (R, c), rounded once to the format of the sums, as float64."""
        rule = self.rule
        held = decode(encode(numbers, rule.fmt), rule.fmt, np.float64)
        if numbers.shape[-1] == 2 and np.array_equal(held, numbers, equal_nan=True) and rule.fmt != FP64:
            codes = encode(numbers, rule.fmt)
            total = add(codes[:, 0], codes[:, 1], fmt=rule.fmt, rounding=rule.rounding, overflow=rule.overflow)
            sums = decode(np.asarray(total), rule.fmt, np.float64)
        else:
            how = Exact(rule.fmt, rounding=rule.rounding, overflow=rule.overflow)
            total = np.asarray(sum_of(numbers, accumulate=how, axis=-1))
            sums = total.astype(np.float64) if rule.fmt.dtype is not None else decode(total, rule.fmt, np.float64)
        return flushed(sums, rule.fmt.smallest_normal) if "sums" in rule.flushes else sums

    def _fused(self, numbers: Array, exponents: Array) -> Array:
        """Return the float64 sum (R,) of each row of numbers (R, c), which are first cut to a common last bit.

        A row's last bit is `rule.fraction_bits` below its largest exponent. exponents: (R, c), the numbers' exponents.
        The sum of the cut numbers is exact; it is rounded to `rule.result_bits`, if that is set, and to the format of
        the sums.
        """
        rule = self.rule
        assert rule.fraction_bits is not None
        exponents = np.where(numbers == 0, -(1 << 20), exponents)
        grid = np.maximum(exponents.max(axis=-1, keepdims=True), -900) - rule.fraction_bits
        units = _integers(np.ldexp(numbers, -grid), CUTS[rule.alignment])
        total = np.ldexp(units.sum(axis=-1), grid[:, 0])
        if rule.result_bits is not None:
            scale = np.frexp(total)[1] - 1 - rule.result_bits
            total = np.ldexp(_integers(np.ldexp(total, -scale), rule.rounding), scale)
        return self._summed(total) + 0.0


def _integers(x: Array, rounding: str) -> Array:
    """Return floats rounded to integers, as floats; rounding: a name of ROUNDINGS, such as "nearest_even"."""
    if rounding == "nearest_away":
        return np.copysign(np.floor(np.abs(x) + ALMOST_HALF), x)
    by = {"nearest_even": np.rint, "toward_zero": np.trunc, "down": np.floor, "up": np.ceil}
    return np.asarray(by[rounding](x))


def to_format(x: Array, fmt: Format) -> Array:
    """Return floats rounded to a format, to nearest even, as float64."""
    return np.asarray(x, np.float64) if fmt == FP64 else decode(encode(np.asarray(x, np.float64), fmt), fmt, np.float64)


def flushed(x: Array, least: float) -> Array:
    """Return floats in which values of a magnitude below `least` are replaced by zeros of their sign."""
    return np.where(np.abs(x) < least, np.copysign(x.dtype.type(0), x), x)
