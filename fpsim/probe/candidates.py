"""Candidate arithmetics for a black box: units with schedules, and accumulators, with their orders of additions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import dropwhile, islice
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.errors import shown
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import BF16, FP16, FP32, FP64, TF32, Format
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.probe.operands import ProbedOperand
from fpsim.probe.order import Branch, Order, chained, joined
from fpsim.products.matmul import matmul
from fpsim.products.reduce import dot, sum
from fpsim.schedules.call import Call
from fpsim.schedules.catalogue import ROWS
from fpsim.schedules.libraries.cublas import TF32_BLOCKS, cublas
from fpsim.schedules.libraries.cutlass import cutlass_2xacc
from fpsim.schedules.libraries.triton import triton
from fpsim.schedules.limits import refusals
from fpsim.schedules.plan import interval_of
from fpsim.schedules.schedule import FLAT, Chain, Schedule
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import Arithmetic, StackOperation
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

SUM_FORMATS = (FP32, FP64, BF16, FP16, TF32)  # formats of the accumulators that are tried
SHAPES = ((16, 16, 1024), (1, 16, 1024))  # examples of a matrix product, and of a vector by a matrix
ALIGNMENT = {
    Rule.FUSED: "truncate", Rule.SCALED: "truncate", Rule.GROUPED: "truncate", Rule.TWO_PASSES: "truncate",
    Rule.EXACT: "exact", Rule.FLUSHED_TREE: "rounded", Rule.SEPARATE: "floor", Rule.EVEN_ODD: "floor",
    Rule.REVERSED_CHAIN: "rounded", Rule.TWO_CHAINS: "rounded",
    Rule.ODD_PAIR: "rounded", Rule.FUSED_PAIR: "rounded",
}  # fmt: skip
TOGETHER = 32  # sums per matrix product, which takes about the time of a call
# Rules by which an instruction adds some of its products first.
OWN_NODES = ("two_passes", "flushed_tree", "reversed_chain", "two_chains", "odd_pair", "fused_pair")


class AdderCandidate(NamedTuple):
    """A candidate arithmetic: a matrix unit with a schedule, or an accumulator, and the format of its results.

    Attributes:
      how: the unit or the accumulator.
      schedule: the order in which the unit's instructions are used; None for an accumulator.
      out: the format that results are rounded to.
    """

    how: MatrixUnit | Accumulator  # the unit or the accumulator
    schedule: Schedule | None  # the order in which the unit's instructions are used; None for an accumulator
    out: Format  # the format that results are rounded to

    @property
    def name(self) -> str:
        """Python expression of the candidate: the accumulator, or the unit's name and the schedule."""
        if isinstance(self.how, Accumulator):
            return repr(self.how)
        plain = self.schedule is None or self.schedule == FLAT
        return self.how.name if plain else f"{self.how.name}, {self.schedule}"

    @property
    def own_format(self) -> Format:
        """Format of the candidate's sums, before results are cast to `out`."""
        if isinstance(self.how, Accumulator):
            return self.how.result_format
        return self.how.d.fmt

    @property
    def promotion(self) -> int | None:
        """Number of terms after which a partial sum is added to a total; None if there is no total."""
        if isinstance(self.how, Chunked):
            return self.how.chunk
        if isinstance(self.how, Accumulator) or self.schedule is None or not isinstance(self.schedule.sums, Chain):
            return None
        return interval_of(self.schedule.sums, self.how) or None

    def tree(self, k: int, n: int | None) -> Tree:
        """Return the tree of additions for k products.

        n: number of columns of the matrix product, on which some schedules depend; None for any number.
        """
        return _tree(self, k, n)

    def matmul(
        self, a: Array, b: Array, scale_a: Array | None = None, scale_b: Array | None = None, *, fmt: Formats = None
    ) -> Array:
        """Return the product (M, N) of (M, K) and (K, N) matrices in the dtype of the candidate's result format.

        a, b: arrays of the operands' dtypes, or codes. scale_a, scale_b: scale codes of block-scaled units, else None.
        fmt: for accumulators, the format of operands that are codes, as for `fp.matmul`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings that a library would choose another kernel
            if isinstance(self.how, Accumulator):
                return self._cast(matmul(a, b, accumulate=self.how, fmt=fmt))
            uncast = self.how.d.fmt if self.schedule in (None, FLAT) else FP32
            return np.asarray(
                matmul(
                    a, b, accumulate=self.how, schedule=self.schedule, out_fmt=None if self.out == uncast else self.out,
                    scale_a=scale_a, scale_b=scale_b, strict=False,
                )
            )  # fmt: skip

    def sum(self, x: Array, *, fmt: Format | None = None) -> Array:
        """Return the sums (R,) of rows (R, n) of terms, in the dtype of the candidate's result format.

        The candidate must be an accumulator. fmt: the format of terms that are codes.
        """
        assert isinstance(self.how, Accumulator)
        return self._cast(np.asarray(sum(x, accumulate=self.how, axis=-1, fmt=fmt)))

    def dot(self, a: Array, b: Array, *, fmt: Formats = None) -> Array:
        """Return the dot products (R,) of rows (R, n) of both operands, in the dtype of the candidate's result.

        fmt: for accumulators, the format of operands that are codes, as for `fp.dot`.
        """
        if isinstance(self.how, Accumulator):
            return self._cast(np.asarray(dot(a, b, accumulate=self.how, fmt=fmt)))
        if not len(a):
            return np.zeros(0, DTYPES.get(self.out, self.out.storage))
        k = a.shape[1]
        # the diagonal of a product holds the sums, unless the order of additions depends on the number of columns
        step = TOGETHER if self.tree(k, 1) == self.tree(k, None) else 1
        rows = range(0, len(a), step)
        return np.concatenate(
            [self.matmul(a[r : r + step], np.ascontiguousarray(b[r : r + step].T)).diagonal() for r in rows]
        )

    def _cast(self, x: Array) -> Array:
        """Return results of an accumulator, in its `own_format` (values, or codes if it has no dtype), cast to `out`.

        The array has the dtype of the format `out`.
        """
        if self.out == self.own_format:
            return x
        with np.errstate(all="ignore"):
            if self.own_format.dtype is None:  # codes
                from fpsim.casts.cast import decode

                x = decode(x, self.own_format, np.float64)
            return encode(x, self.out).view(DTYPES[self.out])


@lru_cache(maxsize=1024)
def _tree(candidate: AdderCandidate, k: int, n: int | None) -> Tree:
    """Return the tree of additions of a candidate for k products, cached.

    n: number of columns of the matrix product; None for any number.
    """
    if isinstance(candidate.how, Accumulator):
        return tree(candidate.how, k, out_fmt=candidate.out)
    schedule = candidate.schedule or FLAT
    return tree(schedule, k, n=n, accumulate=candidate.how, out_fmt=candidate.out, scaled=False)


def by_units(
    a: ProbedOperand, b: ProbedOperand, out: Format, order: Order | None, scale: str, block: int, refused: bool = False
) -> Iterator[AdderCandidate]:  # fmt: skip
    """Yield matrix units that take both operands and the block scales, each with every schedule that it can follow.

    Args:
      a, b: the operands.
      out: the format of the results.
      order: the probed order of additions, None if unknown. Its partial sums suggest schedules with promotion or with
        splits of K, as in `_with_sizes`.
      scale, block: the format of block scales, and the number of terms that share one; "" and 0 without scales.
      refused: True for the schedules whose library has no kernel for these operands, False for all other schedules.
    """
    for unit in units():
        fits = _takes(unit.a, a) and _takes(unit.b, b) and (unit.scale or "") == scale and unit.block == block
        if not fits or (out != unit.d.fmt and not (unit.d.fmt == FP32 and out in (FP16, BF16))):
            continue
        if not refused:
            yield AdderCandidate(unit, FLAT, out)
        if unit.d.fmt != FP32:
            continue
        for row in [*ROWS[1:], *_with_sizes(unit, order)]:
            chain = row.sums if isinstance(row.sums, Chain) else None
            interval = interval_of(chain, unit) if chain else 0
            takes = row.arch in ("", unit.arch) and interval % unit.terms == 0 and not (scale and interval)
            # some kernels compute only a product of matrices, or only one of a row vector and a matrix
            if takes and refused is all(refusals(Call(row, unit, *shape, out_fmt=out)) for shape in SHAPES):
                yield AdderCandidate(unit, row, out)


def _takes(element: Element, operand: ProbedOperand) -> bool:
    """Return whether an element type of a matrix unit takes an operand.

    FP32 and TF32 operands are taken by elements that are passed as float32, such as TF32. Operands of another format
    are taken by elements of that format. element: a unit's `Element`, with its format `fmt` and the format `carrier` in
    which it is passed.
    """
    return element.carrier == FP32 if operand.fmt in (FP32, TF32) else element.fmt == operand.fmt


def _with_sizes(unit: MatrixUnit, order: Order | None) -> Iterator[Schedule]:
    """Yield schedules of a matrix unit that divide K as an order does: by promotion, or into equal splits of K.

    Promotion adds partial sums of a fixed number of terms to a float32 total; this number is that of the order's first
    partial sum. The number of splits is the number of the order's partial sums. Nothing is yielded if the order is None
    or has a single partial sum.
    """
    if order is None or order.widest == 1:
        return
    parts = partial_sums(order)
    if len(parts) < 2:
        return
    block = parts[0]
    if block >= unit.terms and block % unit.terms == 0:
        yield cutlass_2xacc(block)
        if 32 <= block < 128:
            yield triton(128, max_num_imprecise_acc=block)
    if unit.arch in ("hopper", "blackwell", "ada"):
        options: list[dict[str, Any]] = [{"fast_accum": fast} for fast in (False, True)[: 1 + (unit.a.fmt.bits == 8)]]
        options += [{"family": "cutlass", "merge": merge} for merge in ("output_type", "in_place")]
        if unit.a.fmt.bits == 16:
            steps: list[dict[str, Any]] = [{}, {"step": 8}, {"step": 8, "merge": "output_type"}]
            options += [{"family": "cutlass"} | step for step in steps]
        if unit.a.fmt == TF32:
            options += [{"family": "cutlass_tf32", "block_k": terms} for terms in TF32_BLOCKS]
        for keywords in options:
            with suppress(ValueError):
                yield cublas(unit.arch, split_k=len(parts), **keywords)


def spine(branch: Branch) -> list[int]:
    """Return the number of terms of each partial sum that a branch adds to a running sum, first to last.

    At each two-operand addition the larger operand is the running sum. The list is [] if the branch's last addition
    takes a single term or more than two numbers.

    Example:
      >>> from fpsim.probe.candidates import spine
      >>> from fpsim.probe.order import Order
      >>> spine(Order.of((((0, 1), (2, 3)), (4, 5))).branch), spine(Order.of(((0, 1), 2)).branch)
      ([2, 2, 2], [])
    """
    sizes: list[int] = []
    while len(branch.children) == 2 and min(child.size for child in branch.children) > 1:
        first, second = branch.children
        longer = first if first.size >= second.size else second
        sizes.append((second if longer is first else first).size)
        branch = longer
    return [branch.size, *reversed(sizes)] if sizes else []


def partial_sums(order: Order) -> list[int]:
    """Return the number of terms of each partial sum of an order, as `spine` does, if the last one may be one term.

    Example:
      >>> from fpsim.probe.candidates import partial_sums
      >>> from fpsim.probe.order import Order
      >>> partial_sums(Order.of((((0, 1), (2, 3)), 4))), partial_sums(Order.of(((0, 1), 2)))
      ([2, 2, 1], [])
    """
    parts, children = spine(order.branch), order.branch.children
    if parts or len(children) != 2:
        return parts
    rest = max(children, key=lambda child: child.size)
    before = spine(rest) or ([rest.size] if order.widest > 2 else [])  # else, the terms are one chain
    return [*before, 1] if before else []


def by_accumulators(out: Format, order: Order | None, operands: Sequence[Format]) -> Iterator[AdderCandidate]:
    """Yield accumulators as candidates: those with sums in a format of at least the precision of `out` come first.

    The formats are `out`, the format of the results, and those of SUM_FORMATS. If `order`, an order of additions, has
    partial sums, their numbers of terms are the chunks of `fp.Chunked` candidates. Last come `fp.Chunked` with sums in
    BF16 or FP16 within a chunk, and FP32 between chunks. operands: the format of the terms, or of both factors; for
    products of FP64 only sums in FP64 and exact sums are yielded, as others cannot add them.
    """
    wide = len(operands) > 1 and FP64 in operands
    for how in _accumulators(out, order, len(operands) > 1):
        if not wide or isinstance(how, Exact) or how.fmt == how.result_format == FP64:
            yield AdderCandidate(how, None, out)


def _accumulators(out: Format, order: Order | None, of_products: bool) -> Iterator[Accumulator]:
    """Yield the accumulators that `by_accumulators` lists; of_products: True to include fused multiply-adds."""
    chunks = {parts[0] for parts in [partial_sums(order) if order is not None else []] if len(parts) > 1}
    for fmt in dict.fromkeys((out, *SUM_FORMATS)):
        if fmt.precision < out.precision:
            continue
        for make in (Sequential, Pairwise, Exact, *([FusedMultiplyAdd] if of_products else [])):
            yield make(fmt)
        for chunk in sorted(chunks):
            yield Chunked(fmt, chunk)
    for chunk in sorted(chunks):
        for inner in (BF16, FP16):
            yield Chunked(inner, chunk, FP32)


@lru_cache(maxsize=256)
def order_of(how: Tree) -> Order | None:
    """Return the order of additions of a tree; None for a sum of no terms.

    An instruction that cuts its terms to common fraction bits adds them in one node.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.probe.candidates import order_of
      >>> order_of(fp.schedules.tree(fp.Pairwise("fp32"), 5)).nested
      (((0, 1), (2, 3)), 4)
      >>> order_of(fp.schedules.tree("volta_f16_f32", 8)).nested
      ((0, 1, 2, 3), 4, 5, 6, 7)
    """
    stack: list[Branch | None] = []
    for operation in how.operations():
        if operation.kind == "begin":
            stack.append(None)
        elif operation.kind == "push":
            stack.append(_added(_terms(operation)))
        elif operation.kind == "step":
            stack[-1] = _step(stack[-1], operation)
        elif operation.kind == "join":
            second = stack.pop()
            stack[-1] = _added([stack[-1], second])
        elif operation.kind in ("pairwise", "butterfly"):
            numbers = stack[len(stack) - operation.numbers :]
            del stack[len(stack) - operation.numbers :]
            stack.append(in_levels(numbers, operation.kind, lambda x, y: _added([x, y])))
    return None if stack[-1] is None else Order.of(stack[-1])


def may_have(how: Tree, order: Order) -> bool:
    """Return whether a tree may have the given order of additions, judged by the terms that the tree adds first.

    how: the tree. It adds first the terms of its first instruction, or its first two terms if it adds one term after
    another. Return False if no single addition of `order` takes all these terms. Return True for fewer than two terms.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.probe.candidates import may_have
      >>> from fpsim.probe.order import Order
      >>> hopper, order = fp.schedules.tree("hopper_f16_f32", 4), Order.of((((0, 1), 2), 3))
      >>> may_have(hopper, order), may_have(fp.schedules.tree(fp.Sequential("fp32"), 4), order)
      (False, True)
    """
    first = list[int]()
    for operation in islice(dropwhile(lambda operation: operation.kind == "begin", how.operations()), 2):
        if operation.kind != "step" or not isinstance(operation.how, Arithmetic) or operation.how.rule in OWN_NODES:
            break
        first += [term.lowest for term in _terms(operation)]
        if operation.how.rule != "ieee":
            break
    return len(first) < 2 or order.are_siblings(first)


def _terms(operation: StackOperation) -> list[Branch]:
    """Return the terms that one operation of a tree adds, each as a Branch (a node of an order of additions)."""
    return [Branch(k) for span in operation.spans for k in range(*span)]


def _added(parts: list[Branch | None] | list[Branch]) -> Branch | None:
    """Return the branch that adds all branches in `parts` that are not None; None if all of them are None."""
    some = [part for part in parts if part is not None]
    return joined(some) if some else None


def _step(total: Branch | None, step: StackOperation) -> Branch | None:
    """Return the branch of a running sum after one instruction has added its products to it.

    total: the branch before the instruction; None if nothing has been added yet. step: the instruction. Products that
    the unit adds in one rounding are in one node, because a probe cannot see an order among them.
    """
    how = step.how
    assert isinstance(how, Arithmetic)
    terms = _terms(step)
    if how.rule == "two_passes":
        first = [t for i, t in enumerate(terms) if i % 4 < 2]
        second = [t for i, t in enumerate(terms) if i % 4 > 1]
        return _added([total, _added([_added(first), *second])])
    if how.rule == "flushed_tree":
        return _added([total, _added([_added(terms[:2]), _added(terms[2:])])])
    if how.rule == "reversed_chain":
        for term in reversed(terms):
            total = _added([total, term])
        return total
    if how.rule in ("odd_pair", "fused_pair"):
        return _added([total, _added(terms)])
    if how.rule == "two_chains":
        return _added([total, _added([chained(some) for some in (terms[::2], terms[1::2]) if some])])
    if how.rule == "ieee" and len(terms) > 1:
        raise ValueError(f"an addition of IEEE 754 takes one product; got {shown(terms)}.")
    return _added([total, *terms])
