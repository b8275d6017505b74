"""An order of additions with its arithmetic, as a program that runs over many sums at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.functions import add
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
    Target,
    node_rows,
)
from fpsim.probe.kernels.tree_products import ADD, HIGH, JOIN, PUSH, TAKE, WIDE, tree_products
from fpsim.probe.kernels.tree_rows import (
    AS_IT_IS,
    IN_DOUBLE,
    TO_BF16,
    TO_FP16,
    mixed_rows,
    tree_rows,
)
from fpsim.probe.order import Branch, Order
from fpsim.products.reduce import sum as sum_of
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.runtime.threads import over_spans
from fpsim.sums.accumulators import Exact

COST = 4  # elements of a cast that take as long as an addition of the loop
FAST = {FP32: AS_IT_IS, FP16: TO_FP16, BF16: TO_BF16}
NODE_COST = 30  # what a number of a node takes as long as, in elements of a cast
TERMS_AT_ONCE = 1 << 18  # terms that are held at a time, so that they stay in the cache
MODES = {
    "nearest_even": NEAREST_EVEN, "toward_zero": TOWARD_ZERO, "nearest_away": NEAREST_AWAY, "down": DOWN, "up": UP,
}  # fmt: skip
# Numbers that may lose their subnormals: products before they are added, sums, the sum of +0 and the first term of each
# chain, and results in their own format.
FLUSHES = ("products", "sums", "starts", "results")
MOST_FRACTION_BITS = 40  # of numbers that a node cuts and float64 adds exactly
MOST_CUT = 1 << 10  # numbers of such a node


@dataclass(frozen=True)
class AdditionRule:
    """The rule of an addition of an order.

    Args:
      fmt: the format of every sum.
      rounding: a word of `fp.encode`.
      alignment: "exact": the numbers of a node are added exactly and rounded once. "truncate", "floor", "nearest":
        they are first cut to `fraction_bits` below the largest exponent among them.
      fraction_bits: None where nothing is cut.
      result_bits: mantissa bits of a sum; None for those of the format.
      flushes: names of FLUSHES: numbers whose subnormals become zeros of their sign.
      least_inputs: for each operand the smallest magnitude that does not count as zero; none where all count.
      overflow: as of `fp.encode`.
      zeros: "kept": a sum of -0 alone is -0. "added": +0 is added to the result. "begin": a sum begins at +0, which its
        first product joins unrounded, as in a chain of fused multiply-adds; a negative one may round to -0 then.
      product: the format that products are rounded to before they are added; None for that of the sums.
      operand_exponents: the smallest exponents of both operands, where a product is aligned by the sum of its operands'
        exponents; None where it is aligned by its own.
    """

    fmt: Format
    rounding: str = "nearest_even"
    alignment: str = "exact"
    fraction_bits: int | None = None
    result_bits: int | None = None
    flushes: tuple[str, ...] = ()
    least_inputs: tuple[float, ...] = ()
    overflow: str = "nonfinite"
    zeros: str = "added"
    product: Format | None = None
    operand_exponents: tuple[int, int] | None = None


class SumScale(NamedTuple):
    """A factor: of the sum ("times", or "over" a divisor), or of each term, of a's in products ("terms").

    The product or quotient is rounded to nearest even to `fmt`, which the sum is rounded to before.
    """

    how: str
    by: float
    fmt: Format


class _Steps(NamedTuple):
    """An order as two-operand additions: line into[i] takes line taken[i], or the product of term[i] where >= 0."""

    into: Array
    taken: Array
    term: Array
    result: int


@dataclass(frozen=True)
class Program:
    """An order of additions, its arithmetic, and which products join unrounded.

    Args:
      order: of the terms; terms that it does not have are never added.
      rule: of every addition.
      exact: terms whose product is not rounded before it is added, as in a fused multiply-add.
      out: the format of the result.
      n: terms of a sum, those that nobody adds included.
      formats: of every addition, in the order in which they stand in the program; none where all have the rule's.
        Terms and products are rounded to the rule's then, unless they are exact.
      scale: a factor of the sum or of its terms; None for a plain sum.
    """

    order: Order
    rule: AdditionRule
    out: Format
    n: int
    exact: frozenset[int] = frozenset()
    formats: tuple[Format, ...] = ()
    scale: SumScale | None = None

    @cached_property
    def is_fast(self) -> bool:
        """Return whether the compiled loop runs it."""
        rule = self.rule
        plain = rule.rounding == "nearest_even" and rule.alignment == "exact" and rule.overflow == "nonfinite"
        flushing = bool({"products", "sums", "starts"} & {*rule.flushes})
        known = rule.fmt in FAST if not flushing else FAST.get(rule.fmt, TO_FP16) != TO_FP16
        known = known or (rule.fmt == FP64 and not flushing)
        return plain and known and self.order.widest <= 2 and self._steps is not None

    @cached_property
    def _steps(self) -> _Steps | None:
        """None where an addition takes two unrounded products."""
        into, taken, term = [], [], []
        stack: list[tuple[int, bool]] = []  # the line of a number, and whether it is a product that is not rounded
        for each in self.order.program:
            if each >= 0:
                stack.append((each, each in self.exact))
                continue
            (x, x_exact), (y, y_exact) = stack[-2:]
            if x_exact and y_exact:
                return None
            if x_exact:
                (x, x_exact), (y, y_exact) = (y, y_exact), (x, x_exact)
            into.append(x)
            taken.append(y)
            term.append(y if y_exact else -1)
            stack[-2:] = [(x, False)]
        line, alone = stack[0]
        if alone:
            return None
        columns = [np.array(x, np.int64) for x in (into, taken, term)]
        return _Steps(columns[0], columns[1], columns[2], line)

    @cached_property
    def _beginnings(self) -> list[int]:
        """Terms that chains begin with, by an addition to +0: the first of two that are added to each other."""
        return [] if self._steps is None else [x for x, _ in self._chain_starts]

    @cached_property
    def _chain_starts(self) -> list[tuple[int, bool]]:
        """The first term of each chain, and whether an unrounded product joins it, as in fused multiply-adds."""
        steps, seen, found = self._steps, set[int](), []
        assert steps is not None
        for x, y, term in zip(steps.into.tolist(), steps.taken.tolist(), steps.term.tolist(), strict=True):
            found += [(x, term >= 0)] if x not in seen and y not in seen else []
            seen |= {x, y}
        return found

    @cached_property
    def _flushed_terms(self) -> list[int]:
        """Terms whose subnormals become zeros before the first addition that takes two numbers."""
        rule, found = self.rule, set[int]()
        if "products" in rule.flushes:
            fused = set() if self._steps is None else {x for x, joins in self._chain_starts if joins}
            found = set(range(self.n)) - self.exact - fused
        if "starts" in rule.flushes:
            found |= {*self._beginnings}
        return sorted(found)

    @cached_property
    def has_nodes(self) -> bool:
        """Return whether the compiled loop over nodes runs it, but for sums at the ends of the range."""
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
        """The sums of rows, (R, n) float64 values of one or two operands, as (R,) codes of the result's format."""
        values = self._read(values)
        rows = values[0].shape[0]
        step = max(TERMS_AT_ONCE // max(self.n, 1), SUMS_AT_ONCE)
        sums = np.zeros(rows)
        for start in range(0, rows, step):
            sums[start : start + step] = self._run([x[start : start + step].T for x in values])
        return self._encoded(sums)

    def run_product(self, a: Array, b: Array) -> Array:
        """The product of matrices of float64 values, (M, n) by (n, N), as (M, N) codes of the result's format."""
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
        """Operands as the additions see them."""
        least = self.rule.least_inputs
        values = tuple(map(_flushed, values, least)) if least else values
        if self.scale is None or self.scale.how != "terms":
            return values
        return (_to_format(values[0] * self.scale.by, self.scale.fmt), *values[1:])

    @cached_property
    def _flushes_alike(self) -> bool:
        """Return whether the compiled product of matrices flushes as it should: each number that it holds, or none."""
        flushes = {*self.rule.flushes} & {"products", "sums", "starts"}
        held = {*self._beginnings} | (set(range(self.n)) - self.exact)
        return not flushes or ("sums" in flushes and held <= {*self._flushed_terms})

    def _encoded(self, sums: Array) -> Array:
        if self.rule.zeros == "added":
            sums = sums + 0.0
        if self.scale is not None and self.scale.how != "terms":
            with np.errstate(all="ignore"):
                held = _to_format(sums, self.scale.fmt)
                scaled = held * self.scale.by if self.scale.how == "times" else held / self.scale.by
                sums = _to_format(scaled, self.scale.fmt)
        codes = encode(sums, self.out)
        if "results" not in self.rule.flushes:
            return codes
        values = decode(codes, self.out, np.float64)
        return np.where(np.abs(values) < self.out.smallest_normal, encode(np.copysign(0.0, values), self.out), codes)

    @property
    def _dtype(self) -> Any:
        """The dtype in which lines are held."""
        return np.float32 if self.is_fast and self.rule.fmt != FP64 and not self.formats else np.float64

    def _run(self, lines: list[Array]) -> Array:
        """The sums of lines (n, R) as floats that hold them."""
        with ieee_arithmetic(), np.errstate(all="ignore"):
            if self.is_fast:
                return self._by_lines(lines)
            if self.has_nodes:
                sums: Array = self._by_loop(*lines)[0]
                return sums
            return self._by_nodes([x.T for x in lines])

    # ---- the compiled loops

    def _by_lines(self, lines: list[Array]) -> Array:
        dtype = self._dtype
        lines = [np.ascontiguousarray(x, dtype) for x in lines]  # (n, R)
        flushes = "sums" in self.rule.flushes
        sums = self._rounded(self._product(lines) if len(lines) == 2 else lines[0].copy())
        if self.rule.zeros == "begin" and len(lines) == 1:
            sums[self._beginnings] += 0
        if self._flushed_terms:
            sums[self._flushed_terms] = _flushed(sums[self._flushed_terms], self.rule.fmt.smallest_normal)
        a, b = lines if len(lines) == 2 else (np.zeros((1, 0), dtype),) * 2
        steps = self._steps
        assert steps is not None
        mode = FAST.get(self.rule.fmt, AS_IT_IS)
        modes = np.array([FAST.get(fmt, IN_DOUBLE) for fmt in self.formats], np.int64)

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                if self.formats:
                    mixed_rows(sums, a, b, steps.into, steps.taken, steps.term, modes, first, stop)
                else:
                    tree_rows(sums, a, b, steps.into, steps.taken, steps.term, mode, int(flushes), first, stop)

        over_spans(sums.shape[1], work, 64, weight=self.n / COST)
        return np.asarray(sums[steps.result])

    def _by_products(self, a: Array, b: Array) -> Array:
        """The product of matrices by the loop that forms its products itself."""
        rule, dtype = self.rule, self._dtype
        a, b = np.ascontiguousarray(a, dtype), np.ascontiguousarray(b, dtype)
        out = np.zeros((a.shape[0], b.shape[1]), dtype)
        steps, depth = self._products_steps
        begins, flushes = rule.zeros == "begin", int("sums" in rule.flushes)
        mode = FAST.get(rule.fmt, AS_IT_IS)

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                tree_products(out, a, b, steps, depth, mode, flushes, begins, first, stop)

        tiles = -(-out.shape[0] // HIGH) * -(-out.shape[1] // WIDE)
        over_spans(tiles, work, 1, weight=self.n * HIGH * WIDE / COST)
        return out

    @cached_property
    def _products_steps(self) -> tuple[Array, int]:
        """The order as steps of `tree_products`, the larger branch of each addition first, and their depth."""
        rule, steps = self.rule, list[tuple[int, int, int]]()
        # products are as they are when they are added
        plain = "sums" not in rule.flushes and rule.zeros != "begin" and FAST.get(rule.fmt, AS_IT_IS) == AS_IT_IS
        todo: list[Branch | tuple[int, int, int]] = [self.order.branch]
        places = [0]  # of the sums that branches make
        while todo:
            each = todo.pop()
            if isinstance(each, tuple):
                steps.append(each)
                continue
            at = places.pop()
            if not each.children:
                steps.append((PUSH, at, each.lowest))
                continue
            second, first = sorted(each.children, key=lambda child: (child.size, child.lowest not in self.exact))
            joins = second.lowest in self.exact
            if second.size == 1 and (joins or plain):
                todo += [(JOIN if joins else TAKE, at, second.lowest), first]
                places.append(at)
            else:
                todo += [(ADD, at, at + 1), second, first]
                places += [at + 1, at]
        return np.array(steps, np.int64), 1 + max(at for _, at, _ in steps)

    def _by_loop(self, *operands: Array, of_matrices: bool = False) -> Array:
        """The sums of lines (n, R), as one row, or a product of matrices, node by node."""
        a, b = (np.ascontiguousarray(x, np.float64) for x in (*operands, np.zeros((0, operands[0].shape[1])))[:2])
        sums = np.zeros((a.shape[0] if of_matrices else 1, b.shape[1]))
        unsure = np.zeros(sums.shape, np.int64)
        whole = of_matrices and self.rule.product is None and _holds_products(a, b, self.rule.fmt)
        rounded = np.array([not whole and k not in self.exact for k in range(self.n)])
        code, rule = np.array(self.order.program, np.int64), self._addition(len(operands))

        def work(first: int, stop: int) -> None:
            with ieee_arithmetic(), np.errstate(all="ignore"):
                node_rows(sums, unsure, a, b, of_matrices, code, rounded, self._depth, rule, first, stop)

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
        """The rule as the loop takes it."""
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

    @cached_property
    def _depth(self) -> int:
        """Numbers that its stack holds at once, at most."""
        depths = np.cumsum([1 if each >= 0 else each + 1 for each in self.order.program])
        return int(depths.max())

    def _product(self, values: Sequence[Array]) -> Array:
        """Products, in the format that they are rounded to."""
        products: Array = values[0] * values[1]
        if self.rule.zeros == "begin":
            products = np.where((values[0] == 0) | (values[1] == 0), np.abs(products), products)
        fmt = self.rule.product
        return products if fmt is None else decode(encode(products, fmt), fmt, products.dtype.type)

    def _rounded(self, products: Array) -> Array:
        """float32 or float64 values as the format of the sums has them."""
        fmt = self.rule.fmt
        if fmt == FP64 or products.dtype == fmt.dtype:
            return products
        return decode(encode(products, fmt), fmt, products.dtype.type)

    # ---- the specification, node by node

    def _by_nodes(self, values: Sequence[Array]) -> Array:
        rule = self.rule
        exact = self._product(values) if len(values) == 2 else values[0]
        if rule.fraction_bits is not None:
            return self._by_cuts(exact, self._exponents(values, exact))
        stack: list[Array] = []
        for each in self.order.program:
            if each < 0:
                stack[each:] = [self._exact(np.stack(stack[each:], axis=-1))]
            else:
                term = exact[:, each]
                if each not in self.exact:
                    term = np.where(np.isinf(term), term, self._once(term))
                stack.append(_flushed(term, rule.fmt.smallest_normal) if each in self._flushed_terms else term)
        return stack[0] if self.order.widest > 1 else self._once(stack[0])

    def _by_cuts(self, terms: Array, exponents: Array) -> Array:
        """The same where numbers are cut before they are added: terms (R, n), and the exponents that align them."""
        stack: list[tuple[Array, Array]] = []
        for each in self.order.program:
            if each < 0:
                numbers, of_numbers = (np.stack(x, axis=-1) for x in zip(*stack[each:], strict=True))  # (R, c)
                total = self._fused(numbers, of_numbers)
                stack[each:] = [(total, np.frexp(total)[1] - 1)]
            else:
                stack.append((terms[:, each], exponents[:, each]))
        return stack[0][0] if self.order.widest > 1 else self._summed(stack[0][0])

    def _exponents(self, values: Sequence[Array], products: Array) -> Array:
        """Return what terms are aligned by."""
        least = self.rule.operand_exponents
        if least is None or len(values) < 2:
            return np.asarray(np.frexp(products)[1] - 1)
        of_a, of_b = (np.maximum(np.frexp(x)[1] - 1, low) for x, low in zip(values, least, strict=True))
        return np.asarray(of_a + of_b)

    def _once(self, x: Array) -> Array:
        """Values rounded to the format of the sums."""
        rule = self.rule
        codes = encode(x, rule.fmt, rounding=rule.rounding, overflow=rule.overflow)
        return decode(codes, rule.fmt, np.float64)

    def _summed(self, x: Array) -> Array:
        """Sums rounded to their format, without subnormals where these are flushed."""
        rounded = self._once(x)
        return _flushed(rounded, self.rule.fmt.smallest_normal) if "sums" in self.rule.flushes else rounded

    def _exact(self, numbers: Array) -> Array:
        """The exact sum of each row, rounded once."""
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
        return _flushed(sums, rule.fmt.smallest_normal) if "sums" in rule.flushes else sums

    def _fused(self, numbers: Array, exponents: Array) -> Array:
        """The sum of each row, cut before it is added."""
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


def _target(fmt: Format, rule: AdditionRule) -> Target:
    """A format that numbers are rounded to, as the loop takes it."""
    least = fmt.smallest_normal if rule.flushes else 0.0
    return Target(fmt.mantissa_bits, fmt.min_exponent, float(fmt.max), MODES[rule.rounding], least)


CUTS = {"truncate": "toward_zero", "floor": "down", "nearest": "nearest_even"}


def _integers(x: Array, rounding: str) -> Array:
    """Floats rounded to integers."""
    if rounding == "nearest_away":
        return np.copysign(np.floor(np.abs(x) + 0.5), x)
    by = {"nearest_even": np.rint, "toward_zero": np.trunc, "down": np.floor, "up": np.ceil}
    return np.asarray(by[rounding](x))


def _holds_products(a: Array, b: Array, fmt: Format) -> bool:
    """Return whether all products of two float64 arrays are zeros or normal numbers of a format."""
    sizes = [np.abs(x[x != 0]) for x in (a, b)]
    if not all(x.size and np.isfinite(x).all() for x in sizes):
        return False
    least, most = (float(of(sizes[0])) * float(of(sizes[1])) for of in (np.min, np.max))
    spare = [np.bitwise_or.reduce(x.view(np.int64)) for x in sizes]  # bits below the last one that any of them has
    bits = sum(53 - min((int(x) & -int(x)).bit_length() - 1, 52) for x in spare)
    return fmt.smallest_normal < least and most <= fmt.max and bits <= fmt.precision


def _to_format(x: Array, fmt: Format) -> Array:
    """Floats rounded to nearest even to a format, as float64."""
    return np.asarray(x, np.float64) if fmt == FP64 else decode(encode(np.asarray(x, np.float64), fmt), fmt, np.float64)


def _flushed(x: Array, least: float) -> Array:
    """Floats of which those below a magnitude are zeros of their sign."""
    return np.where(np.abs(x) < least, np.copysign(x.dtype.type(0), x), x)
