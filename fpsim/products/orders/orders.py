"""Matrix products, sums and dot products by a tree of additions or an order in nested tuples. Loads numba."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array, words
from fpsim.errors import require_kind
from fpsim.formats.named import DTYPES, FP32, FP64, Format
from fpsim.instructions.operands import refuse_shapes
from fpsim.matrix_units.catalogue import any_unit
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.cpu import Cpu
from fpsim.products.matmul_plan import plan_matmul
from fpsim.products.operand import accumulator_matrices, read_operand
from fpsim.products.orders import float_sums
from fpsim.products.orders.code_sums import CodedSums, accumulator_of, coded, rounded_sums, tree_sums
from fpsim.products.orders.lane_sums import lane_sums
from fpsim.products.orders.table import OrderTable, table_of
from fpsim.products.orders.unit_sums import UnitSums, check_unit, instructions_of, unit_sums
from fpsim.products.pipeline import prepared
from fpsim.products.request import Request, no_accumulate, refuse_unit_options
from fpsim.products.total import MatmulCall, with_epilogue
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.schedules.schedule import FLAT, Chain, Epilogue, Schedule
from fpsim.schedules.trees.array_sums import SumOrder
from fpsim.schedules.trees.nodes import Arithmetic, Node, Round, ScaledSum, Sum, zero
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulate import NOTHING, SumProblem, accumulated
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.lines import TERMS_AT_ONCE, Lines, line_sums

CPU = Cpu()
ZERO = zero(FP32)
Order = Tree | SumOrder | tuple[Any, ...]
How = Accumulator | MatrixUnit | None
KEPT = 64  # trees whose plans are kept


class SameOrder:
    """A cache key for a tree or nested tuples, compared by identity: comparing all their elements takes too long."""

    __slots__ = ("order",)

    def __init__(self, order: Tree | tuple[Any, ...]) -> None:
        self.order = order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameOrder) and self.order is other.order

    def __hash__(self) -> int:
        return id(self.order)


class TreePlan(NamedTuple):
    """The plan of sums in the order of a tree: an accumulator or a table with the same additions, where there is one.

    Attributes:
      tree: the tree.
      accumulator: an accumulator with the tree's additions, None if there is none.
      table: the additions as integers for a fast loop, None if there is none; without both, sums are computed node by
        node.
      instructions: the arithmetic of the tree's matrix instructions, empty if it has none.
    """

    tree: Tree
    accumulator: Accumulator | None
    table: OrderTable | None
    instructions: frozenset[Arithmetic]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the result: that of the tree's format, or of its unsigned codes if the format has no dtype."""
        return np.dtype(DTYPES.get(self.tree.fmt, self.tree.fmt.storage))


def plan_order(order: Order, k: int, how: How, name: str) -> TreePlan:
    """Return the plan of sums of k terms in a given order.

    Args:
      order: a tree, a SumOrder, or nested tuples of terms, such as ((0, 1), 2).
      k: number of terms.
      how: the accumulator or unit whose arithmetic nested tuples use; None for float32. A tree has its own arithmetic.
      name: the caller's argument that holds the order, for errors.

    Raises:
      ValueError: the order has another number of terms than k, or `how` cannot add it.
      TypeError: an accumulator is passed with a tree.
    """
    whole = order.tree(k) if isinstance(order, SumOrder) else order
    plan = _plan(SameOrder(whole), k if isinstance(whole, tuple) else -1, how)
    if plan.tree.k != k:
        raise ValueError(f"{name} adds {plan.tree.k} terms; got K = {k}. Make a tree for that number of terms.")
    return plan


@lru_cache(maxsize=KEPT)
def _plan(same: SameOrder, k: int, how: Hashable) -> TreePlan:
    """Return the plan of sums in the order of a tree or of nested tuples, from a cache.

    same: the tree or nested tuples, which the cache compares by identity. k: number of terms of nested tuples, -1 for a
    tree. how: the accumulator or unit that adds nested tuples; None for float32. For a tree it must be a unit or None.

    Raises:
      ValueError: nested tuples with k = 0, or a tree that rounds stochastically.
      TypeError: an accumulator is passed with a tree.
    """
    order = same.order
    if isinstance(order, tuple):
        if k == 0:
            raise ValueError("an order of additions has one term or more; got operands with K = 0.")
        assert how is None or isinstance(how, (Accumulator, MatrixUnit))
        made = tree(order, k, accumulate=how)
    else:
        made = order
        if isinstance(how, Accumulator):
            raise TypeError(
                f"a tree includes its arithmetic; got accumulate={how} too. Leave it out, or pass nested tuples."
            )
    root = made.root
    inner = root.input if isinstance(root, Round) else root
    if isinstance(inner, Sum) and inner.how.stream:
        raise ValueError(
            f"a tree has no random numbers; got one of {inner.how.stream}, which rounds stochastically. Pass the "
            "accumulator itself."
        )
    accumulator = accumulator_of(inner) if made.k else None
    table = None if accumulator is not None else table_of(inner)
    return TreePlan(made, accumulator, table, frozenset(instructions_of(root)))


# ---- matrix products


def ordered_product(a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any) -> Array:
    """Return a @ b as `fpsim.matmul` does for a schedule that is an order of additions, in `out` or a new array.

    a, b, c, accumulate, fmt, out: as for `fpsim.matmul`. request: a record of its other keyword arguments, with the
    order as `schedule`.

    Raises:
      ValueError, TypeError: as for `plan_order` and `fpsim.matmul`, or an argument that has no meaning with an order.
    """
    require_kind("strict", request.strict, (bool, np.bool_), "True or False")
    for name, value in (("promote", request.promote), ("scale_order", request.scale_order)):
        if value is not None:
            raise ValueError(f"{name} is part of the order of additions in schedule; got both. Leave {name} out.")
    if accumulate is not None and not isinstance(accumulate, Accumulator):
        if not isinstance(accumulate, (str, MatrixUnit, IntegerUnit)):
            raise no_accumulate(accumulate, {"a": a, "b": b, "c": c})
        unit = any_unit("accumulate", accumulate)
        if isinstance(unit, IntegerUnit):
            raise ValueError(f"an order of additions is for floats; {unit.name} adds integers. Leave schedule out.")
        if fmt is not None:
            raise ValueError(f"fmt is for accumulators; {unit.name} has its own formats. Leave it out.")
        with ieee_arithmetic():
            return _by_unit(a, b, c, unit, request, out)
    refuse_unit_options(request._replace(schedule=None))
    if c is not None:
        raise ValueError("an order of additions has no place for c. Add it to the result, or make it a term of K.")
    (left, right), formats = accumulator_matrices(a, b, fmt, CPU)
    plan = plan_order(request.schedule, left.shape[1], accumulate, "schedule")
    result, target = CPU.result(out, (left.shape[0], right.shape[1]), plan.dtype, left, right)
    table, root = plan.table if _fits(plan.table, formats) else None, plan.tree.root
    inner = root.input if isinstance(root, Round) else root
    lanes = None if table is None else lane_sums(plan.tree, inner, left, right, formats, formats)
    if lanes is not None and table is not None:
        codes = coded(lanes, table.fmt, plan.tree.fmt)
    elif table is not None and left.size and right.size:
        codes = coded(float_sums.product_sums(table, left, right, formats), table.fmt, plan.tree.fmt)
    else:
        codes = _by_codes(plan, SumProblem(left, right, NOTHING, formats))
    words(target)[...] = codes
    return result


def _fits(table: OrderTable | None, formats: tuple[Format | None, Format]) -> bool:
    """Return whether there is a table and its float format holds all values of the operands.

    table: the additions of a tree, or None. formats: formats of both operands; None is ignored.
    """
    return table is not None and all(fmt is None or table.fmt.holds(fmt) for fmt in formats)


def _by_codes(plan: TreePlan, problem: SumProblem) -> Array:
    """Return the sums (M, N) of a tree by its accumulator, or else node by node, as codes of the tree's format.

    plan: the plan of the tree. problem: codes of the operands, or of terms to add, and their formats.
    """
    if 0 in problem.shape:
        return np.zeros(problem.shape, plan.tree.fmt.storage)
    if plan.accumulator is None:
        return tree_sums(plan.tree.root, problem).codes
    sums = CodedSums(accumulated(plan.accumulator, problem), plan.accumulator.result_format)
    return rounded_sums(sums, plan.tree.fmt).codes


# ---- matrix products by a unit


def _by_unit(a: Any, b: Any, c: Any, unit: MatrixUnit, request: Request, out: Any) -> Array:
    """Return a @ b by a matrix unit in the order of `request.schedule`, in `out` or a new array.

    a, b, c, out: as for `fpsim.matmul`. request: a record of its other keyword arguments.

    Raises:
      ValueError, TypeError: as for `ordered_product`.
    """
    order: Any = request.schedule
    scaled = _first_scaled(SameOrder(order)) if isinstance(order, Tree) else None
    left = read_operand(a, "a", unit, request.scale_a, scaled is not None, CPU)
    right = read_operand(b, "b", unit, request.scale_b, scaled is not None, CPU)
    refuse_shapes(left.facts.shape, right.facts.shape)
    tree_plan = plan_order(order, left.facts.shape[1], unit, "schedule")
    root = tree_plan.tree.root
    check_unit(tree_plan.instructions, unit)
    fmt = request.out_fmt
    if isinstance(root, Round) and fmt is None:
        root, fmt = root.input, root.fmt
    if fmt is None and root.fmt not in (FP32, unit.d.fmt):
        fmt = root.fmt
    blocks = [side.along_k for side in (left.facts, right.facts) if side.along_k is not None]
    if blocks and scaled is None:
        raise ValueError(
            f"the tree has no place for scales that change along K; got scales per {blocks[0]} terms. Make it of a "
            "schedule with block scales, such as fp.schedules.deepgemm()."
        )
    if unit.d.fmt == FP64 and c is not None:
        raise ValueError(f"an order of additions of {unit.name} has no place for c. Add it to the result.")
    schedule = FLAT if unit.d.fmt == FP64 else _as_schedule(scaled, min(blocks, default=0))
    request = request._replace(schedule=schedule, out_fmt=fmt)
    plan = plan_matmul(unit, left.facts, right.facts, request, has_c=c is not None)
    if fmt is None and root.fmt == FP32:
        plan = replace(plan, fmt=FP32)
    call = MatmulCall(plan, left, right, request, c)
    result: Array
    product, result, target = prepared(call, out, CPU)
    formats, elements = (unit.a.carrier, unit.b.carrier), (unit.a.fmt, unit.b.fmt)
    sums = lane_sums(tree_plan.tree, root, product.a, product.b, formats, elements)
    if sums is None:
        sums = unit_sums(root, UnitSums(product, CPU, call.factors_at))
    total = with_epilogue(sums, call, CPU)
    CPU.deliver(np.ascontiguousarray(total), plan.fmt, plan.nan_code, plan.overflow, target)
    return result


@lru_cache(maxsize=64)
def _as_schedule(scaled: ScaledSum | None, block: int) -> Schedule:
    """Return a schedule for planning a product by a tree: it applies scales as the tree does, and adds C at the end.

    scaled: the tree's first sum that block scales multiply, whose order of scales is taken; None for a tree without.
    block: number of terms of K that share a scale, 0 for none.
    """
    order: Any = "product" if scaled is None else scaled.order
    chain = Chain(block) if scaled is not None else Chain()
    return Schedule(
        "a tree", sums=chain, epilogue=Epilogue(order, adds_c=True), block_scaled=scaled is not None,
        fuses_scales=scaled is None or scaled.fuses,
    )  # fmt: skip


@lru_cache(maxsize=KEPT)
def _first_scaled(same: SameOrder) -> ScaledSum | None:
    """Return a copy of the first sum in a tree that block scales multiply, or None if there is none; cached.

    same: a SameOrder that holds the tree, so that the cache compares trees by identity.
    """
    assert isinstance(same.order, Tree)
    return _scaled_sum(same.order.root)


def _scaled_sum(node: Node) -> ScaledSum | None:
    """Return a copy of the first sum at or below `node` that block scales multiply; None if there is none.

    The copy holds the order of scales and the flag `fuses`; its input is +0 in place of the sum's nodes.
    """
    if isinstance(node, ScaledSum):
        return ScaledSum(node.order, ZERO, node.fuses)
    if isinstance(node, Round):
        return _scaled_sum(node.input)
    nodes = (item for item in node.inputs if isinstance(item, (Sum, Round, ScaledSum)))
    return next((inner for inner in map(_scaled_sum, nodes) if inner is not None), None)


# ---- sums and dot products


def ordered_sums(order: Order, lines: Lines) -> tuple[Array, Format]:
    """Return the sum of every row of `lines`, added in the given order, as (codes (rows,), format of the codes).

    order: a tree, a SumOrder, or nested tuples. lines: codes of the terms, (..., K), or of both factors of each term.

    Raises:
      ValueError, TypeError: as for `plan_order`.
    """
    plan = plan_order(order, lines.terms, None, "accumulate")
    fmt = plan.tree.fmt
    if plan.accumulator is not None:
        sums = CodedSums(line_sums(plan.accumulator, lines), plan.accumulator.result_format)
        return rounded_sums(sums, fmt).codes, fmt
    codes = np.empty(lines.number, fmt.storage)
    step = max(TERMS_AT_ONCE // max(lines.terms, 1), 1)
    for start in range(0, lines.number, step):
        stop = min(start + step, lines.number)
        codes[start:stop] = _some_lines(plan, lines.some(start, stop))
    return codes, fmt


def _some_lines(plan: TreePlan, lines: Lines) -> Array:
    """Return the sums of some rows of terms, or of products of factors, as codes (rows,) of the tree's format.

    plan: the plan of the tree. lines: codes of the terms, (rows, K), or of both factors of each term.
    """
    table = plan.table
    both = table is not None and lines.a is not None and table.rounds and table.fuses
    if table is not None and not both and _fits(table, lines.formats) and lines.terms:
        return coded(float_sums.line_sums(table, lines.a, lines.b, lines.formats), table.fmt, plan.tree.fmt)
    if lines.a is None:
        problem = SumProblem(np.zeros((1, lines.terms), np.uint8), lines.b.T, NOTHING, lines.formats)
    else:
        problem = SumProblem(lines.a, lines.b.reshape(-1, 1), NOTHING, lines.formats, paired=True)
    return _by_codes(plan, problem).reshape(-1)
