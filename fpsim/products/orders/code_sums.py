"""Sums in the order of a tree of additions for any accumulator, computed node by node.

The accumulators' loops add terms; `fpsim.add` adds partial sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.functions import add
from fpsim.arrays import Array, words
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import FP32, Format
from fpsim.products.backend import output_overflow
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Round, ScaledSum, Steps, Sum, steps_of
from fpsim.sums.accumulate import SumProblem, accumulated, canonical
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential

ADDED_ONCE = ("once", "exact")


class CodedSums(NamedTuple):
    """The sums of a product as codes, with their format.

    Attributes:
      codes: (M, N), unsigned codes of the format `fmt`.
      fmt: format of the sums.
    """

    codes: Array
    fmt: Format


def accumulator_of(root: Node) -> Accumulator | None:
    """Return the accumulator that performs the same additions as a tree with the node `root`; None if there is none.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.products.orders.code_sums import accumulator_of
      >>> accumulator_of(fp.schedules.tree(((0, 1), (2, 3))).root)
      Pairwise(FP32)
    """
    if not isinstance(root, Sum) or root.how.then is not None or root.how.stream:
        return None
    if len(root.inputs) == 1 and isinstance(root.inputs[0], Steps):
        return _of_terms(root, root.inputs[0], 0)
    return _chunked(root)


def _of_terms(node: Sum, steps: Steps, first: int) -> Accumulator | None:
    """Return the accumulator that performs the same additions as the sum `node`, or None if there is none.

    There can be one only if the terms are consecutive from term `first` of K on. steps: the only input of `node`, a run
    of additions of products: start, stride and number of terms.
    """
    in_order = steps.start == first and (steps.stride == 1 or steps.count == 1)
    if node.how.rule != "ieee" or steps.terms != 1 or not in_order or node.product not in (None, node.how):
        return None
    if node.order == "pairwise" and node.product is not None:
        return _made(Pairwise, node.how)
    if node.order == "chain" and node.start == "zero":
        return _made(FusedMultiplyAdd if node.product is None else Sequential, node.how)
    return None


def _chunked(root: Sum) -> Accumulator | None:
    """Return the Chunked accumulator that performs the same additions as the sum `root`; None if there is none.

    There is one if root is a chain of sums of consecutive terms, all of one length; only the last may be shorter.
    """
    parts = [item for item in root.inputs if isinstance(item, Sum)]
    if len(parts) < len(root.inputs) or len(parts) < 2 or root.order != "chain" or root.how.rule != "ieee":
        return None
    if root.start == "first" and root.how.rounding != "nearest_even":
        return None  # a +0 at the start changes the sign of zeros
    inner, position, lengths = parts[0].how, 0, []
    for part in parts:
        steps = part.inputs[0] if len(part.inputs) == 1 else None
        if (
            not isinstance(steps, Steps)
            or part.how != inner
            or not isinstance(_of_terms(part, steps, position), Sequential)
        ):
            return None
        lengths.append(steps.count)
        position += steps.count
    even = all(length == lengths[0] for length in lengths[:-1]) and lengths[-1] <= lengths[0]
    if not even or replace(inner, fmt=root.how.fmt) != root.how:
        return None
    keywords = _keywords(inner)
    return Chunked(inner.fmt, chunk=lengths[0], outer=root.how.fmt, **keywords)


def _keywords(how: Arithmetic) -> dict[str, Any]:
    """Return the fields rounding, overflow and subnormals of the record `how` as keyword arguments of `fpsim.add`."""
    return {"rounding": how.rounding, "overflow": how.overflow, "subnormals": how.subnormals}


def _made(kind: Any, how: Arithmetic) -> Accumulator:
    """Return an accumulator of the class `kind`, such as Pairwise, made from a record of the arithmetic of an addition.

    how: the record; its format, rounding, overflow and subnormals become those of the accumulator.
    """
    accumulator: Accumulator = kind(how.fmt, **_keywords(how))
    return accumulator


def tree_sums(root: Node, problem: SumProblem) -> CodedSums:
    """Return a @ b, (M, N), in the order and arithmetic of a tree of additions, as codes with their format.

    root: the tree's last node. problem: codes of a (M, K) and b (K, N), and their formats.

    Raises:
      ValueError: the tree has instructions of a matrix unit, or sums with block scales.
    """
    if isinstance(root, Round):
        return rounded_sums(tree_sums(root.input, problem), root.fmt)
    if isinstance(root, ScaledSum):
        raise ValueError("a tree with block scales belongs to a matrix unit. Pass accumulate= that unit.")
    if root.how.rule != "ieee" and root.how.rule not in ADDED_ONCE:
        raise ValueError(
            f"the tree has instructions of a matrix unit ({root.how.words}). Pass accumulate= the unit, such as "
            "'hopper_e4m3_f32'."
        )
    if root.order == "chain":
        return _chain(root, problem)
    if root.order == "pairwise" and root.product == root.how and all(isinstance(x, Steps) for x in root.inputs):
        terms = _part(problem, _terms(root.inputs))
        return CodedSums(accumulated(_made(Pairwise, root.how), terms), root.how.fmt)
    values = [value for item in root.inputs for value in _separate(item, root, problem)]
    return in_levels(values, root.order, lambda x, y: _joined(x, y, root.how))


def _chain(node: Sum, problem: SumProblem) -> CodedSums:
    """Return the sums (M, N) of a chain node, whose inputs are added to one running sum in order.

    node: the chain. problem: the operands: codes of a (M, K) and b (K, N), and their formats.
    """
    how, total = node.how, None
    for item in node.inputs:
        if isinstance(item, (Steps, Gathered)):
            total = _with_terms(node, item, total, problem)
        else:
            part = tree_sums(item, problem)
            if total is None and node.start == "zero":
                total = CodedSums(np.zeros_like(part.codes, how.fmt.storage), how.fmt)
            total = part if total is None else _joined(total, part, how)
    if total is None:
        total = CodedSums(np.zeros(problem.shape, how.fmt.storage), how.fmt)
    return total


def _with_terms(node: Sum, item: Steps | Gathered, total: CodedSums | None, problem: SumProblem) -> CodedSums:
    """Return a chain's running sum (M, N) after adding one of its inputs.

    node: the chain. item: the input, a run of additions of products; a `Gathered` input is one addition of several
    products. total: the running sum before, or None at the start. problem: the operands, codes of a (M, K) and b (K,
    N).
    """
    how, terms = node.how, _terms([item])
    if how.rule in ADDED_ONCE or isinstance(item, Gathered) or item.terms > 1:
        for spans in steps_of(item):
            at = np.concatenate([np.arange(*span) for span in spans])
            total = CodedSums(accumulated(_made(Exact, how), _part(problem, at, total, how.fmt)), how.fmt)
        assert total is not None
        return total if how.then is None else rounded_sums(total, how.then)
    if total is None and node.start == "first":
        first = _part(problem, terms[:1])
        assert node.product is not None
        total, terms = CodedSums(accumulated(_made(Pairwise, node.product), first), node.product.fmt), terms[1:]
    if not terms.size:
        assert total is not None
        return total
    if node.product not in (None, how) or how.then is not None:  # no accumulator has these roundings
        for term in terms:
            alone = Pairwise if node.product is not None else FusedMultiplyAdd
            part = accumulated(_made(alone, node.product or how), _part(problem, np.array([term])))
            product = CodedSums(part, (node.product or how).fmt)
            total = product if total is None else _joined(total, product, how)
        assert total is not None
        return total
    kind, rest = FusedMultiplyAdd if node.product is None else Sequential, _part(problem, terms, total, how.fmt)
    if rest.are_terms and node.start == "first" and node.product is not None:
        rest = _with_rounded_terms(rest, node.product)  # as Pairwise does, unlike Sequential
    return CodedSums(accumulated(_made(kind, how), rest), how.fmt)


def _with_rounded_terms(problem: SumProblem, how: Arithmetic) -> SumProblem:
    """Return a copy of `problem` with rounded terms, for orders that round every term before they add it.

    problem: the terms, codes b (K, N), of which each column is added up. If rounding changes no term, `problem` itself
    is returned. how: the format, rounding, overflow and subnormals.
    """
    fmt = problem.formats[1]
    if fmt == how.fmt and how.subnormals == "keep":
        return problem
    values = decode(problem.b, fmt, np.float32 if FP32.holds(fmt) else np.float64)
    return problem._replace(b=encode(values, how.fmt, **_keywords(how)), formats=(None, how.fmt))


def _terms(items: Any) -> Array:
    """Return the indices along K of all terms of some inputs of a sum, in the order of addition, (terms,) int64.

    items: the inputs: `Steps` (evenly spaced runs of terms) or `Gathered` (terms added at once), but no nodes.
    """
    return np.concatenate([np.arange(*span) for item in items for spans in steps_of(item) for span in spans])


def _part(problem: SumProblem, terms: Array, total: CodedSums | None = None, fmt: Format = FP32) -> SumProblem:
    """Return a copy of `problem`, the operands of sums over K, that has only some of the terms.

    problem: codes of a (M, K) and b (K, N), and their formats. terms: indices along K, int64, at least one. total:
    running sums from which the result starts, converted to `fmt`; None to start from problem.c.
    """
    start, k = terms[0], problem.terms
    whole = terms.size == terms[-1] + 1 - start and bool((np.diff(terms) == 1).all())
    at: Any = slice(int(start), int(start) + terms.size) if whole else terms
    b = problem.b[at]
    if problem.paired:
        b = np.ascontiguousarray(problem.b.reshape(-1, k)[:, at]).reshape(-1, 1)
    c = problem.c if total is None else _held(total, fmt)
    return problem._replace(a=problem.a[:, at], b=b, c=c)


def _held(total: CodedSums, fmt: Format) -> Array:
    """Return the running sums `total` as codes (M, N) of the format `fmt`.

    Raises:
      ValueError: `fmt` cannot hold all values of the sums' format.
    """
    if total.fmt == fmt:
        return total.codes
    if not fmt.holds(total.fmt):
        raise ValueError(f"a chain in {fmt} goes on from a sum in {total.fmt}, which it does not hold. Round it first.")
    return encode(decode(total.codes, total.fmt, np.float64), fmt)


def _joined(x: CodedSums, y: CodedSums, how: Arithmetic) -> CodedSums:
    """Return the elementwise sum x + y of two running sums (M, N), rounded to how.fmt.

    Unless how.then is None, the sum is rounded a second time, to the format how.then. how: the arithmetic of the
    addition.
    """
    codes = add(x.codes, y.codes, fmt=(x.fmt, y.fmt), out_fmt=how.fmt, **_keywords(how))
    total = CodedSums(np.asarray(codes), how.fmt)
    return total if how.then is None else rounded_sums(total, how.then)


def rounded_sums(total: CodedSums, fmt: Format) -> CodedSums:
    """Return the sums `total` rounded to nearest even to `fmt`, unchanged if they have that format; FP8 saturates."""
    if total.fmt == fmt:
        return total
    values = decode(total.codes, total.fmt, np.float64)
    return CodedSums(encode(values, fmt, overflow=output_overflow(fmt)), fmt)


def coded(sums: Array, fmt: Format, to: Format) -> Array:
    """Return float sums of the format `fmt`, FP32 or FP64, as codes of the format `to`, rounded to nearest even."""
    return rounded_sums(CodedSums(canonical(words(sums), fmt), fmt), to).codes


def _separate(item: Node | Steps | Gathered, node: Sum, problem: SumProblem) -> list[CodedSums]:
    """List the summands that one input of a pairwise or butterfly sum contributes, each (M, N).

    item: the input: a run of products, which contributes one summand per term of K, or a node, which contributes its
    sum. node: the sum, whose arithmetic rounds the products. problem: the operands, codes of a (M, K) and b (K, N).
    """
    if not isinstance(item, (Steps, Gathered)):
        return [tree_sums(item, problem)]
    how = node.product or node.how
    return [
        CodedSums(accumulated(_made(Pairwise, how), _part(problem, np.array([k]))), how.fmt) for k in _terms([item])
    ]
