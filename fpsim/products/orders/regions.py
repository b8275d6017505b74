"""Products whose regions are added in different orders, as kernels for the last rows and columns do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.errors import require_kind, shown
from fpsim.formats.named import DTYPES, FP32, Format, format_argument
from fpsim.instructions.operands import refuse_axes, refuse_shapes
from fpsim.products.operand import accumulator_codes
from fpsim.products.orders.orders import CPU, ordered_product
from fpsim.products.request import Request, refuse_unit_options
from fpsim.schedules.plan import Span
from fpsim.schedules.regions import Regions, SegmentLanes
from fpsim.schedules.trees.tree import Tree, tree


def regional_product(a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any) -> Array:
    """Return the product of `fpsim.matmul` for a schedule that has an order for each region of the result.

    Raises:
      ValueError, TypeError: operands of another shape than the regions, or an argument that they have no place for.
    """
    how: Regions = request.schedule
    require_kind("strict", request.strict, (bool, np.bool_), "True or False")
    if accumulate is not None:
        raise TypeError(f"{how} says itself how it adds; got accumulate={shown(accumulate)} too. Leave it out.")
    if c is not None:
        raise ValueError("regions have no place for c. Add it to the result.")
    refuse_unit_options(request._replace(schedule=None, out_fmt=None))
    (left, right), formats = accumulator_codes(a, b, fmt, CPU)
    refuse_axes(left.shape, "a")
    refuse_axes(right.shape, "b")
    refuse_shapes(left.shape, right.shape)
    (m, k), n = left.shape, right.shape[1]
    if (m, n, k) != (how.m, how.n, how.k):
        raise ValueError(f"{how} is for one shape; got operands of {m} x {n} x {k}.")
    ends = FP32 if request.out_fmt is None else format_argument("out_fmt", request.out_fmt)
    result, target = CPU.result(out, (m, n), np.dtype(DTYPES.get(ends, ends.storage)), left, right)
    for region in how.regions:
        rows, columns = _indices(region.rows), _indices(region.columns)
        part = request._replace(schedule=_tree(region.order, ends), out_fmt=None)
        target[np.ix_(rows, columns)] = ordered_product(
            left[rows], np.ascontiguousarray(right[:, columns]), None, None, part, formats, None
        )
    return result


def _indices(spans: tuple[Span, ...]) -> Array:
    """Return the indices in spans."""
    return np.concatenate([np.arange(*span) for span in spans])


@lru_cache(maxsize=64)
def _tree(order: SegmentLanes, fmt: Format) -> Tree:
    """Return the tree of an order, the same object for the same one, whose plan is kept."""
    return tree(order, order.k, out_fmt=None if fmt == FP32 else fmt)
