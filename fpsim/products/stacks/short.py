"""Stacks of small products, and grouped products, computed by single calls of a matrix unit's compiled loop.

One call computes all products of a part of the stack, whose operands are decoded together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.casts.pipelines import SHORT
from fpsim.matrix_units.catalogue import ROWS
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.fused import NO_FACTORS
from fpsim.products.plain import FLOAT, INT, PlainUnit, plain_product, plain_unit
from fpsim.products.result_parts import MACS
from fpsim.products.unit_product import ADD, NOTHING
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic, keeps_ieee
from fpsim.runtime.threads import over_units

FLOATS = 1 << 18  # floats of an operand that are decoded at a time


class ProductParts(NamedTuple):
    """Several products for one call of a compiled loop: stacks of operands, and five integers for each product.

    Attributes:
      a, b: codes, (A, M, K) and (B, K, N).
      rows: (P, 5) int64, one row for each of the P products: index of the matrix in a, index in b, index in the result,
        first row, last row + 1. Such a product multiplies only these rows of its matrix of a by its whole matrix of b,
        and is written to the same rows of its matrix of the result.
    """

    a: Array
    b: Array
    rows: Array


def short_stack(a: Any, b: Any, accumulate: Any, fmt: Formats, promote: Any) -> Array | None:
    """Return the products (..., M, N), float32, of two stacks of short matrices by a matrix unit.

    The result is None if the arguments need the general code of pipeline.py. Short means at most SHORT elements per
    matrix; a stack times a single matrix may have matrices of any size. a, b, accumulate, fmt, promote: as for
    `fpsim.matmul`.
    """
    plan = _plan(a, b, accumulate, fmt, promote)
    if plan is None:
        return None
    unit, of_unit = plan
    (m, k), n = a.shape[-2:], b.shape[-1]
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if math.prod(b.shape[:-2]) == 1:  # the rows of all products are those of one
        rows = a.reshape(-1, k)
        product = plain_product(rows, b.reshape(k, n), unit, None, promote)
        return None if product is None else product.reshape(*shape, m, n)
    if max(m * k, k * n, m * n) > SHORT:
        return None
    if n < of_unit.columns and m > n:  # vectors hold neighbours in a row of the result
        exchanged = replace(unit, a=unit.b, b=unit.a)
        result = short_stack(b.swapaxes(-1, -2), a.swapaxes(-1, -2), exchanged, fmt, promote)
        return None if result is None else np.ascontiguousarray(result.swapaxes(-1, -2))
    numbers = [np.arange(math.prod(x.shape[:-2])).reshape(x.shape[:-2]) for x in (a, b)]
    places = [np.broadcast_to(x, shape).reshape(-1) for x in numbers]
    rows = np.zeros((math.prod(shape), 5), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 4] = *places, np.arange(len(rows)), m
    parts = ProductParts(a.reshape(-1, m, k), b.reshape(-1, k, n), rows)
    result = np.zeros((len(rows), m, n), FLOAT)
    run_parts(parts, of_unit, min(of_unit.promotion, k), result)
    return result.reshape(*shape, m, n)


def _plan(
    a: Any, b: Any, accumulate: Any, fmt: Formats, promote: Any
) -> tuple[MatrixUnit, PlainUnit] | None:  # fmt: skip
    """Return (matrix unit, plan of its compiled loop) for two stacks, or None.

    None means that the products need the general code of pipeline.py. a, b, accumulate, fmt, promote: as for
    `fpsim.matmul`.
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray or not (a.size and b.size):
        return None
    unit = ROWS.get(accumulate) if type(accumulate) is str else accumulate
    usual = fmt is None and (promote is None or type(promote) is int) and a.flags.aligned and b.flags.aligned
    if not isinstance(unit, MatrixUnit) or not usual or not keeps_ieee() or allows_general_loops():
        return None
    plan = plain_unit(unit, promote)
    is_known = plan is not None and a.dtype in plan.decoders and b.dtype in plan.readers
    return (unit, plan) if plan is not None and is_known else None


def run_parts(parts: ProductParts, plan: PlainUnit, promotion: int, result: Array) -> None:
    """Add products to `result`, (C, M, N) float32, in place, on several threads if there are many.

    parts: the operands and the list of products; their dtypes are those that `plan` reads. Products that share a matrix
    of a, of b or of the result must be next to one another in that list. plan: the plan of the unit's compiled loop.
    promotion: number of instructions after which a partial sum is added to the result; 0 for one sum over K.
    """
    k, n = parts.b.shape[1:]
    tallest = int((parts.rows[:, 4] - parts.rows[:, 3]).max(initial=1))
    step = max(FLOATS // max(tallest * k, k * n), 1)

    def work(first: int, stop: int) -> None:
        with ieee_arithmetic(), wrapping():
            for start in range(first, stop, step):
                _run_some(parts._replace(rows=parts.rows[start : min(start + step, stop)]), plan, promotion, result)

    over_units(len(parts.rows), max(tallest * k * n // MACS, 1), work)


def _run_some(parts: ProductParts, plan: PlainUnit, promotion: int, result: Array) -> None:
    """Add a few products to their matrices of the result in place, by one call of the compiled loop.

    parts: the operands and the list of products. plan: the plan of the unit's compiled loop. promotion: number of
    instructions after which a partial sum is added to the result; 0 for one sum over K. result: (C, M, N) float32.
    """
    lowest, highest = parts.rows[:, :2].min(axis=0), parts.rows[:, :2].max(axis=0)
    rows = np.empty((1 + len(parts.rows), 5), np.int64)
    rows[0], rows[1:] = (promotion, 0, ADD, 0, result.shape[2]), parts.rows
    rows[1:, :2] -= lowest
    a, b = (x[i : j + 1] for x, i, j in zip((parts.a, parts.b), lowest.tolist(), highest.tolist(), strict=True))
    left = plan.decoders[a.dtype](a).view(INT)
    right, turned = plan.readers[b.dtype](b)
    if plan.facts:
        facts = plan.facts[turned]
    else:
        facts = plan.fused.facts_of((left.reshape(-1, left.shape[2]), right.reshape(-1, right.shape[2])), turned)
    plan.loop(
        left, right, result.view(INT), rows, NO_FACTORS, NO_FACTORS, NOTHING, NOTHING, facts
    )  # fmt: skip
