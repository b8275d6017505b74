"""Programs: an order of additions with its arithmetic, which run over many sums at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import BF16, FP16, FP32, FP64, Format
from fpsim.probe.kernels.node_rows import (
    DOWN,
    NEAREST_AWAY,
    NEAREST_EVEN,
    SUMS_AT_ONCE,
    TOWARD_ZERO,
    UP,
    Addition,
    Cut,
    NodeProgram,
    Target,
    node_rows,
)
from fpsim.probe.kernels.tree_products import HIGH, WIDE, tree_products
from fpsim.probe.kernels.tree_rows import AS_IT_IS, IN_DOUBLE, TO_BF16, TO_FP16, mixed_rows, tree_rows
from fpsim.probe.order import Order
from fpsim.probe.programs.rules import AdditionRule, SumScale
from fpsim.probe.programs.specification import CUTS, Specification, flushed, to_format
from fpsim.probe.programs.steps import PairSteps, ProductSteps, pair_steps, product_steps
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans

COST = 4  # an addition takes the time of casting a quarter of an element
FAST = {FP32: AS_IT_IS, FP16: TO_FP16, BF16: TO_BF16}
NODE_COST = 30  # a number of a node takes the time of casting so many elements
TERMS_AT_ONCE = 1 << 18  # terms in memory at a time, few enough for the cache
MODES = {
    "nearest_even": NEAREST_EVEN, "toward_zero": TOWARD_ZERO, "nearest_away": NEAREST_AWAY, "down": DOWN, "up": UP,
}  # fmt: skip
MOST_FRACTION_BITS = 40  # fraction bits of cut numbers that float64 adds exactly
MOST_CUT = 1 << 10  # cut numbers that a node adds exactly in float64


@dataclass(frozen=True)
class Program:
    """An order of additions with its arithmetic, which computes sums.

    Args:
      order: the order of additions; terms that are not in it are left out of the sum.
      rule: the arithmetic of every addition.
      out: the format of the result.
      n: number of terms, those left out included.
      exact: terms whose product is not rounded before it is added, as in a fused multiply-add.
      formats: the format of each addition, in the order of `order.program`; () if all have the rule's format. Terms and
        products are rounded to the rule's format in any case, unless they are in `exact`.
      scale: the factor of the sum or of its terms; None for a plain sum.
    """

    order: Order  # the order of additions; terms that are not in it are left out of the sum
    rule: AdditionRule  # the arithmetic of every addition
    out: Format  # the format of the result
    n: int  # number of terms, those left out included
    exact: frozenset[int] = frozenset()
    formats: tuple[Format, ...] = ()
    scale: SumScale | None = None  # the factor of the sum or of its terms; None for a plain sum

    @cached_property
    def is_fast(self) -> bool:
        """True if the compiled loop of two-operand additions (`tree_rows`) can run the program."""
        rule = self.rule
        plain = rule.rounding == "nearest_even" and rule.alignment == "exact" and rule.overflow == "nonfinite"
        flushing = bool({"products", "sums", "starts"} & {*rule.flushes})
        known = rule.fmt in FAST if not flushing else FAST.get(rule.fmt, TO_FP16) != TO_FP16
        known = known or (rule.fmt == FP64 and not flushing)
        return plain and known and self.order.widest <= 2 and self._steps is not None

    @cached_property
    def _steps(self) -> PairSteps | None:
        """The order as steps of the kernel `tree_rows`, which add one row to another.

        None if a step would add two unrounded products, or if the sum is a single unrounded product.
        """
        return pair_steps(self.order, self.exact)

    @cached_property
    def _chain_starts(self) -> list[tuple[int, bool]]:
        """Pairs (first term of a running sum, whether the number added to it next is an unrounded product).

        There is a pair for each running sum; [] if `_steps` is None.
        """
        seen, starts = set[int](), []
        if self._steps is not None:
            for x, y, term in zip(*(column.tolist() for column in self._steps[:3]), strict=True):
                starts += [(x, term >= 0)] if x not in seen and y not in seen else []
                seen |= {x, y}
        return starts

    @cached_property
    def _flushed_terms(self) -> list[int]:
        """Terms whose subnormals become zero before they are added, ascending."""
        rule, flushed = self.rule, set[int]()
        if "products" in rule.flushes:
            fused = {x for x, joins in self._chain_starts if joins}
            flushed = set(range(self.n)) - self.exact - fused
        if "starts" in rule.flushes:
            flushed |= {x for x, _ in self._chain_starts}
        return sorted(flushed)

    @cached_property
    def has_nodes(self) -> bool:
        """True if the compiled loop over nodes, `node_rows`, can run the program.

        `Specification` then computes only the sums that the loop marks as undecided.
        """
        rule = self.rule
        exponents = rule.fraction_bits or 0, rule.result_bits or 0
        return (
            not self.formats
            and self.order.widest > 1
            and rule.rounding in MODES
            and FP32.holds(rule.fmt)
            and rule.fmt.min_exponent >= FP32.min_exponent
            and max(exponents) <= MOST_FRACTION_BITS
            and (rule.fraction_bits is None or self.order.widest <= MOST_CUT)
        )

    def run(self, *values: Array) -> Array:
        """Return the sums of float64 rows (R, n) of one or two operands as codes (R,) of the result's format."""
        values = self._read(values)
        rows = values[0].shape[0]
        step = max(TERMS_AT_ONCE // max(self.n, 1), SUMS_AT_ONCE)
        sums = np.zeros(rows)
        for start in range(0, rows, step):
            sums[start : start + step] = self._run([x[start : start + step].T for x in values])
        return self._encoded(sums)

    def run_product(self, a: Array, b: Array) -> Array:
        """Return the product of float64 matrices (M, n) and (n, N) as codes (M, N) of the result's format."""
        a, b = self._read((a, b))
        if not self.is_fast and self.has_nodes:
            return self._encoded(self._by_loop(a, b, of_matrices=True))
        if self.is_fast and not self.formats and self.rule.product is None and self._flushes_alike:
            return self._encoded(self._by_products(a, b))
        (m, n), columns = a.shape, b.shape[1]
        sums = np.zeros((m, columns))
        across = max(min(TERMS_AT_ONCE // max(n, 1), columns), 1)
        down = max(TERMS_AT_ONCE // max(n * across, 1), 1)
        dtype = self._dtype
        a, b = np.ascontiguousarray(a.T, dtype), np.ascontiguousarray(b, dtype)
        tiles = [(i, j) for i in range(0, m, down) for j in range(0, columns, across)]

        def work(first: int, stop: int) -> None:
            for i, j in tiles[first:stop]:
                some, others = a[:, i : i + down], b[:, j : j + across]
                lines = [np.repeat(some, others.shape[1], axis=1), np.tile(others, (1, some.shape[1]))]
                sums[i : i + down, j : j + across] = self._run(lines).reshape(some.shape[1], -1)

        over_spans(len(tiles), work, 1, weight=TERMS_AT_ONCE)
        return self._encoded(sums)

    def _read(self, values: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return float64 operands, of any shape, with flushed inputs and the factor of terms applied.

        If the rule flushes inputs, subnormal inputs become zeros. If the program multiplies terms by a factor, the
        first operand is multiplied by it and rounded.
        """
        least = self.rule.least_inputs
        values = tuple(map(flushed, values, least)) if least else values
        if self.scale is None or self.scale.how != "terms":
            return values
        return (to_format(values[0] * self.scale.by, self.scale.fmt), *values[1:])

    @cached_property
    def _flushes_alike(self) -> bool:
        """True if subnormal sums and terms all stay or all become zero, which the loop `tree_products` requires."""
        flushes = {*self.rule.flushes} & {"products", "sums", "starts"}
        held = {x for x, _ in self._chain_starts} | (set(range(self.n)) - self.exact)
        return not flushes or ("sums" in flushes and held <= {*self._flushed_terms})

    def _encoded(self, sums: Array) -> Array:
        """Return float sums, multiplied by the program's factor if it has one, as codes of the result's format.

        If the rule adds +0 to results, -0 becomes +0. If it flushes results, subnormal ones become zeros of their sign.
        """
        if self.rule.zeros == "added":
            sums = sums + 0.0
        if self.scale is not None and self.scale.how != "terms":
            with np.errstate(all="ignore"):
                held = to_format(sums, self.scale.fmt)
                scaled = held * self.scale.by if self.scale.how == "times" else held / self.scale.by
                sums = to_format(scaled, self.scale.fmt)
        codes = encode(sums, self.out)
        if "results" not in self.rule.flushes:
            return codes
        values = decode(codes, self.out, np.float64)
        return np.where(np.abs(values) < self.out.smallest_normal, encode(np.copysign(0.0, values), self.out), codes)

    @property
    def _dtype(self) -> Any:
        """Dtype of the compiled loops' sums, float32 or float64."""
        return np.float32 if self.is_fast and self.rule.fmt != FP64 and not self.formats else np.float64

    def _run(self, lines: list[Array]) -> Array:
        """Return float sums (R,): `lines` holds one array of terms (n, R), or two whose products are the terms."""
        with ieee_arithmetic(), np.errstate(all="ignore"):
            if self.is_fast:
                return self._by_lines(lines)
            if self.has_nodes:
                sums: Array = self._by_loop(*lines)[0]
                return sums
            return self._by_nodes([x.T for x in lines])

    # ---- the compiled loops

    def _by_lines(self, lines: list[Array]) -> Array:
        """Return the float sums (R,) of one or two operands (n, R) by `tree_rows`, a loop of two-operand additions."""
        dtype = self._dtype
        lines = [np.ascontiguousarray(x, dtype) for x in lines]  # (n, R)
        flushes = "sums" in self.rule.flushes
        sums, fmt = self._product(lines) if len(lines) == 2 else lines[0].copy(), self.rule.fmt
        if fmt != FP64 and sums.dtype != fmt.dtype:
            sums = decode(encode(sums, fmt), fmt, sums.dtype.type)
        if self.rule.zeros == "begin" and len(lines) == 1:
            sums[[x for x, _ in self._chain_starts]] += 0
        if self._flushed_terms:
            sums[self._flushed_terms] = flushed(sums[self._flushed_terms], self.rule.fmt.smallest_normal)
        a, b = lines if len(lines) == 2 else (np.zeros((1, 0), dtype),) * 2
        steps = self._steps
        assert steps is not None
        mode = FAST.get(self.rule.fmt, AS_IT_IS)
        modes = np.array([FAST.get(fmt, IN_DOUBLE) for fmt in self.formats], np.int64)

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                if self.formats:
                    mixed_rows(sums, a, b, steps, modes, first, stop)
                else:
                    tree_rows(sums, a, b, steps, mode, int(flushes), first, stop)

        over_spans(sums.shape[1], work, 64, weight=self.n / COST)
        return np.asarray(sums[steps.result])

    def _by_products(self, a: Array, b: Array) -> Array:
        """Return the product (M, N) of (M, n) and (n, N) matrices by the compiled loop `tree_products`.

        The result has the dtype `self._dtype`.
        """
        rule, dtype = self.rule, self._dtype
        a, b = np.ascontiguousarray(a, dtype), np.ascontiguousarray(b, dtype)
        out = np.zeros((a.shape[0], b.shape[1]), dtype)
        steps = self._product_steps
        begins, flushes = rule.zeros == "begin", int("sums" in rule.flushes)
        mode = FAST.get(rule.fmt, AS_IT_IS)

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                tree_products(out, a, b, steps, mode, flushes, begins, first, stop)

        tiles = -(-out.shape[0] // HIGH) * -(-out.shape[1] // WIDE)
        over_spans(tiles, work, 1, weight=self.n * HIGH * WIDE / COST)
        return out

    @cached_property
    def _product_steps(self) -> ProductSteps:
        """The order of additions as steps (ProductSteps) of the kernel `tree_products`."""
        plain = "sums" not in self.rule.flushes and self.rule.zeros != "begin"
        return product_steps(self.order, self.exact, plain and FAST.get(self.rule.fmt, AS_IT_IS) == AS_IT_IS)

    def _by_loop(self, *operands: Array, of_matrices: bool = False) -> Array:
        """Return float64 sums by the compiled loop over nodes of the tree of additions.

        They are (1, R) for operands (n, R); or (M, N) for (M, n) and (n, N) matrices if `of_matrices`. The loop marks
        sums that it cannot decide, which the slower `Specification` computes.
        """
        a, b = (np.ascontiguousarray(x, np.float64) for x in (*operands, np.zeros((0, operands[0].shape[1])))[:2])
        sums = np.zeros((a.shape[0] if of_matrices else 1, b.shape[1]))
        unsure = np.zeros(sums.shape, np.int64)
        whole = of_matrices and self.rule.product is None and _holds_products(a, b, self.rule.fmt)
        rounded = np.array([not whole and k not in self.exact for k in range(self.n)])
        code = np.array(self.order.program, np.int64)
        depth = int(np.cumsum(np.where(code >= 0, 1, code + 1)).max())  # most values on the stack at once
        program = NodeProgram(code, rounded, depth, self._addition(len(operands)))

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                node_rows(sums, unsure, a, b, of_matrices, program, first, stop)

        pieces = sums.shape[0] * -(-sums.shape[1] // SUMS_AT_ONCE)
        over_spans(pieces, work, 1, weight=self.n * SUMS_AT_ONCE * NODE_COST)
        rows, columns = np.nonzero(unsure)
        for start in range(0, rows.size, max(TERMS_AT_ONCE // self.n, 1)):
            i, j = (x[start : start + max(TERMS_AT_ONCE // self.n, 1)] for x in (rows, columns))
            values = [a[i], b[:, j].T] if of_matrices else [x[:, j].T for x in operands]
            with ieee_arithmetic(), np.errstate(all="ignore"):
                sums[i, j] = self._by_nodes(values)
        return sums

    def _addition(self, operands: int) -> Addition:
        """Return the rule as an `Addition`, the record that the compiled loop over nodes takes.

        operands: 1 if the terms of sums are the elements of one operand, 2 if they are products of two operands'
        elements.
        """
        rule = self.rule
        least = rule.operand_exponents if operands == 2 else None
        cut = Cut(
            -1 if rule.fraction_bits is None else rule.fraction_bits, MODES[CUTS.get(rule.alignment, "toward_zero")],
            -1 if rule.result_bits is None else rule.result_bits, least is not None, *(least or (0, 0)),
        )  # fmt: skip
        product = (
            _target(rule.product, AdditionRule(rule.product)) if rule.product else Target(0, 0, 0.0, NEAREST_EVEN, 0.0)
        )
        return Addition(_target(rule.fmt, rule), product, cut, rule.zeros == "begin")

    def _by_nodes(self, values: Sequence[Array]) -> Array:
        """Return the float64 sums (R,) of rows (R, n) of each operand, computed slowly by a `Specification`."""
        how = Specification(self.order, self.rule, self.exact, frozenset(self._flushed_terms))
        return how.sums(self._product(values) if len(values) == 2 else values[0], values)

    def _product(self, values: Sequence[Array]) -> Array:
        """Return the elementwise products of two operands, rounded to the format `rule.product` unless that is None.

        values: the two operands, float32 or float64 arrays of one shape. If sums begin at +0 (`rule.zeros` is "begin"),
        products with a zero operand are +0.
        """
        products: Array = values[0] * values[1]
        if self.rule.zeros == "begin":
            products = np.where((values[0] == 0) | (values[1] == 0), np.abs(products), products)
        fmt = self.rule.product
        return products if fmt is None else decode(encode(products, fmt), fmt, products.dtype.type)


def _target(fmt: Format, rule: AdditionRule) -> Target:
    """Return the Target of sums: the format `fmt`, the rule's rounding, and limits beyond which sums are undecided.

    `node_rows` leaves undecided sums to slower code. These are sums beyond the format's largest value and, if the rule
    flushes anything, nonzero sums up to the format's smallest normal value.
    """
    least = fmt.smallest_normal if rule.flushes else 0.0
    return Target(fmt.mantissa_bits, fmt.min_exponent, float(fmt.max), MODES[rule.rounding], least)


def _holds_products(a: Array, b: Array, fmt: Format) -> bool:
    """Return True if bounds show that each product of an element of a and one of b is 0 or a normal number of a format.

    The bounds are the smallest and largest magnitudes, and the number of significand bits that values use; False
    may be returned although all products fit, and is returned if an array holds only zeros, or Inf or NaN.
    """
    sizes = [np.abs(x[x != 0]) for x in (a, b)]
    if not all(x.size and np.isfinite(x).all() for x in sizes):
        return False
    least, most = (float(of(sizes[0])) * float(of(sizes[1])) for of in (np.min, np.max))
    spare = [np.bitwise_or.reduce(x.view(np.int64)) for x in sizes]  # the bits that any value has set
    bits = sum(53 - min((int(x) & -int(x)).bit_length() - 1, 52) for x in spare)
    return fmt.smallest_normal < least and most <= fmt.max and bits <= fmt.precision
