"""Sums of a matrix unit in the order of a tree of additions, computed node by node.

The unit's loops add instructions; NumPy adds float32 partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import FP32, FP64
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.products.add_product import add_product
from fpsim.products.backend import Backend
from fpsim.products.orders.code_sums import accumulator_of
from fpsim.products.orders.float_sums import product_sums
from fpsim.products.orders.table import table_of
from fpsim.products.unit_product import JOINED, Factors, UnitProduct, add_part
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.schedules.plan import Span
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Round, ScaledSum, Steps, Sum, extent, steps_of
from fpsim.schedules.trees.parts import arithmetic_of
from fpsim.sums.accumulate import NOTHING, SumProblem, accumulated
from fpsim.sums.accumulators import FusedMultiplyAdd

f32 = np.float32
FLOAT32_CHAIN = FusedMultiplyAdd(FP32)


class UnitSums(NamedTuple):
    """A product by a matrix unit for the functions that add it in the order of a tree.

    Attributes:
      product: the unit, and the codes and scales of a and b.
      backend: the object that computes on the CPU or a GPU.
      factors_at: function that returns the decode scales of partial sums, as a `Factors` (scales of rows and of
        columns). Its argument is a list with one number for each partial sum, the index along K of its first term.
    """

    product: UnitProduct
    backend: Backend
    factors_at: Callable[[list[int]], Factors]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result, (m, n)."""
        return self.product.a.shape[0], self.product.b.shape[1]


def check_unit(instructions: Collection[Arithmetic], unit: MatrixUnit) -> None:
    """Raise a ValueError unless all instructions of a tree are those of `unit`.

    instructions: the arithmetic of each kind of instruction in the tree.
    """
    wanted = arithmetic_of(unit)
    for how in instructions:
        if how != wanted:
            raise ValueError(
                f"the tree has other instructions than {unit.name}: they are {how.words}, and {unit.name}'s are "
                f"{wanted.words}. Pass the unit that the tree was made with."
            )


def instructions_of(node: Node) -> set[Arithmetic]:
    """Return the arithmetic of each kind of matrix instruction in a tree of additions; an empty set for none.

    node: the tree's last node, which returns the result. Any addition of several terms at once counts as an
    instruction.
    """
    if not isinstance(node, Sum):
        return instructions_of(node.input)
    several = any(
        isinstance(item, Gathered) or (isinstance(item, Steps) and item.terms > 1) for item in node.inputs
    )  # fmt: skip
    ways = {node.how} if node.how.rule not in ("ieee", "once") or several else set()
    return ways.union(*(instructions_of(item) for item in node.inputs if not isinstance(item, (Steps, Gathered))))


def unit_sums(root: Node, sums: UnitSums) -> Array:
    """Return the sums of a tree of additions, (M, N) float32 (float64 for units whose sums are float64).

    root: the tree's last node. sums: the operands and the backend.

    Raises:
      ValueError: a sum with block scales is not part of a chain.
    """
    if isinstance(root, Round):
        return np.asarray(sums.backend.rounded(unit_sums(root.input, sums), root.fmt))
    if isinstance(root, ScaledSum):
        raise ValueError("a sum with block scales must join a total.")
    table, product = table_of(root), sums.product
    formats = product.unit.a.carrier, product.unit.b.carrier
    if accumulator_of(root) == FLOAT32_CHAIN and 0 not in product.a.shape + product.b.shape:
        terms = slice(extent(root).stop)  # of this sum, which may be one of several
        return accumulated(FLOAT32_CHAIN, SumProblem(product.a[:, terms], product.b[terms], NOTHING, formats)).view(f32)
    total = FP64 if product.unit.d.fmt == FP64 else FP32
    if table is not None and table.fmt == total and table.rows.size:
        return product_sums(table, product.a, product.b, formats)
    with ieee_arithmetic(), np.errstate(all="ignore"):
        if root.order == "chain":
            return _chain(root, sums)
        values = [unit_sums(item, sums) for item in root.inputs if not isinstance(item, (Steps, Gathered))]
        return in_levels(values, root.order, lambda x, y: x + y)


def _chain(node: Sum, sums: UnitSums) -> Array:
    """Return the sums of a chain of instructions, or of a float32 chain of partial sums, (M, N).

    node: the chain. sums: the operands and the backend.
    """
    promoted = _promoted(node, sums)
    if promoted is not None:
        return promoted
    dtype = np.float64 if sums.product.unit.d.fmt.bits == 64 else f32
    total = np.zeros(sums.shape, dtype) if node.start == "zero" or not node.inputs else None
    run: list[Steps | Gathered] = []

    def end_run() -> None:
        if run:
            assert total is not None
            _add_steps(total, run, sums.product)
            run.clear()

    for item in node.inputs:
        if isinstance(item, (Steps, Gathered)):
            run.append(item)
            continue
        end_run()
        if isinstance(item, ScaledSum):
            total = np.zeros(sums.shape, f32) if total is None else total
            factors = sums.factors_at([extent(item).start])
            add_part(total, unit_sums(item.input, sums), factors, 0, sums.backend)
            continue
        part = unit_sums(item, sums)
        total = part if total is None else np.add(total, part, out=total)
        if node.how.then is not None and item is not node.inputs[0]:
            total = np.array(sums.backend.rounded(total, node.how.then))
    end_run()
    assert total is not None
    return total


def _promoted(node: Sum, sums: UnitSums) -> Array | None:
    """Return the sums (M, N) of a chain of partial sums, if the unit's kernels can compute them in one call; else None.

    For that, partial sums must have equally many terms, a multiple of an instruction's; only the last may have fewer.
    Either each covers one range of K, and the ranges are consecutive; or no partial sum is multiplied by scales.
    node: the chain. sums: the operands and the backend.
    """
    parts, unit = node.inputs, sums.product.unit
    if len(parts) < 2 or node.how.then is not None or node.how.fmt != FP32 or node.how.rule != "ieee":
        return None
    inner = [_whole_run(part, unit) for part in parts]
    runs = [run for run in inner if run is not None]
    if len(runs) < len(parts):
        return _promoted_apart(node, sums)
    length = runs[0].terms
    equal = all(run.start == runs[0].start + i * length for i, run in enumerate(runs))
    if not equal or length % unit.terms or any(run.terms != length for run in runs[:-1]) or runs[-1].terms > length:
        return None
    product, factors = sums.product, Factors()
    if isinstance(parts[0], ScaledSum):
        factors = sums.factors_at([run.start for run in runs])
        if factors.mode not in JOINED:
            return None
    total = np.full(sums.shape, 0.0 if node.start == "zero" else -0.0, f32)
    add_product(total, product.part(runs[0].start, runs[-1].stop)._replace(promote=length, factors=factors))
    return total


def _promoted_apart(node: Sum, sums: UnitSums) -> Array | None:
    """Return the sums (M, N) of a chain of partial sums over any terms of K, by one call of the unit's loops, or None.

    The terms are copied in their order first. The result is None if one call cannot compute the sums: the unit has
    block scales, or the partial sums (chains of instructions from +0) differ in their number of terms. Only the last
    partial sum, and the last instruction in it, may have fewer. node: the chain. sums: the operands and the backend.
    """
    product, unit = sums.product, sums.product.unit
    terms: list[Array] = []
    for part in node.inputs:
        if (
            not isinstance(part, Sum)
            or (part.order, part.start) != ("chain", "zero")
            or part.how != arithmetic_of(unit)
        ):
            return None
        if not all(isinstance(item, Steps) for item in part.inputs) or not part.inputs:
            return None
        steps = [np.arange(*span) for item in part.inputs if isinstance(item, Steps) for (span,) in steps_of(item)]
        if any(len(step) != unit.terms for step in steps[:-1]):
            return None
        terms.append(np.concatenate(steps))
    length = len(terms[0])
    if unit.block or length % unit.terms or any(len(x) != length for x in terms[:-1]) or len(terms[-1]) > length:
        return None
    total = np.full(sums.shape, 0.0 if node.start == "zero" else -0.0, f32)
    add_product(total, _picked(product, np.concatenate(terms))._replace(promote=length))
    return total


def _whole_run(part: Node | Steps | Gathered, unit: MatrixUnit) -> Span | None:
    """Return the range of K that `part` adds, if it is a chain of full instructions from +0 over contiguous terms.

    Only the last instruction may have fewer terms than an instruction of `unit` adds. The result is None if `part` is
    anything else.
    """
    node = part.input if isinstance(part, ScaledSum) else part
    if not isinstance(node, Sum) or node.order != "chain" or node.start != "zero" or node.how != arithmetic_of(unit):
        return None
    position: int | None = None
    for i, item in enumerate(node.inputs):
        last = i + 1 == len(node.inputs)
        if not isinstance(item, Steps) or (position is not None and item.start != position):
            return None
        full = item.terms == unit.terms and item.stride in (0, unit.terms)
        if not full and not (last and item.count == 1):
            return None
        position = item.start + item.terms * item.count
    first = node.inputs[0] if node.inputs else None
    return Span(first.start, position) if isinstance(first, Steps) and position is not None else None


def _add_steps(total: Array, run: Sequence[Steps | Gathered], product: UnitProduct) -> None:
    """Add matrix instructions to `total` (M, N) in place, in as few calls of the unit's kernels as their terms allow.

    run: the instructions in order: `Steps` (evenly spaced runs of terms of K) or `Gathered` (any terms). product: the
    unit and the codes of both operands.

    Raises:
      ValueError: the terms of a unit with block scales are not in order.
    """
    widest = max(item.terms for item in run)
    if widest < product.unit.terms and product.unit.rule is Rule.FUSED and widest % 4 == 0:
        product = product._replace(unit=replace(product.unit, terms=widest))  # less time than with zeros
    unit, first = product.unit, run[0]
    if len(run) == 1 and isinstance(first, Steps) and (first.count == 1 or first.stride == first.terms == unit.terms):
        add_product(total, product.part(first.start, first.start + first.count * first.terms))
        return
    if unit.block:
        raise ValueError(f"the tree takes terms of K out of their order, where {unit.name} has block scales for it.")
    steps = [np.concatenate([np.arange(*span) for span in spans]) for item in run for spans in steps_of(item)]
    if unit.rule is Rule.FLUSHED_TREE:  # zeros in place of missing terms would change bits
        for terms in steps:
            add_product(total, _picked(product, terms))
        return
    places = np.full((len(steps), unit.terms), -1, np.int64)
    for i, terms in enumerate(steps):
        places[i, : terms.size] = terms
    add_product(total, _picked(product, places.reshape(-1)))


def _picked(product: UnitProduct, terms: Array) -> UnitProduct:
    """Return the product of the terms `terms` of K, in that order; an index of -1 is a zero term.

    product: the unit and the codes of both operands. terms: 1-D integers.
    """
    a, b, missing = product.a[:, terms], product.b[terms], terms < 0
    a[:, missing] = 0
    b[missing] = 0
    return product._replace(a=a, b=b, promote=0, factors=Factors(), cut=0)
