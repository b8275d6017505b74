"""Products in which each region of the result has its own order of additions, as libraries treat a matrix's edges."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array
from fpsim.arrays import words as words_of
from fpsim.errors import require_kind, shown
from fpsim.formats.named import DTYPES, FP32, Format, format_argument
from fpsim.matrix_units.catalogue import float_unit
from fpsim.products.operand import accumulator_codes, accumulator_matrices
from fpsim.products.orders.code_sums import coded
from fpsim.products.orders.orders import CPU, ordered_product
from fpsim.products.pipeline import multiplied
from fpsim.products.request import Request, refuse_unit_options
from fpsim.products.total import bias_of
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.plan import Span
from fpsim.schedules.regions import UNITS, Regions, SegmentLanes
from fpsim.schedules.shaped import ChosenSchedule
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulators import FusedMultiplyAdd

CHAIN = FusedMultiplyAdd(FP32)


def regional_product(a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any) -> Array:
    """Return a @ b as `fpsim.matmul` does for a schedule of Regions (blocks with their own order of additions).

    a, b, c, accumulate, fmt, out: as for `fpsim.matmul`. request: its other keyword arguments, of which `schedule` is
    the Regions. A bias is added to the float32 sums before they are rounded to the result's format.

    Raises:
      ValueError, TypeError: operands of another shape than the regions', or an argument that has no meaning with them.
    """
    how: Regions = request.schedule
    require_kind("strict", request.strict, (bool, np.bool_), "True or False")
    if accumulate is not None:
        raise TypeError(f"{how} includes its arithmetic; got accumulate={shown(accumulate)} too. Leave it out.")
    if c is not None:
        raise ValueError("regions have no place for c. Add it to the result.")
    refuse_unit_options(request._replace(schedule=None, out_fmt=None, bias=None))
    (left, right), formats = accumulator_matrices(a, b, fmt, CPU)
    for region in how.regions:
        name = UNITS.get(region.order.lanes)
        if name is not None and formats != ((element := float_unit(name).a.fmt), element):
            raise ValueError(f"{region.order} is for operands in {element}; got {formats[0]} and {formats[1]}.")
    (m, k), n = left.shape, right.shape[1]
    if (m, n, k) != (how.m, how.n, how.k):
        raise ValueError(f"{how} is for one shape; got operands of {m} x {n} x {k}.")
    ends = FP32 if request.out_fmt is None else format_argument("out_fmt", request.out_fmt)
    result, target = CPU.result(out, (m, n), np.dtype(DTYPES.get(ends, ends.storage)), left, right)
    if request.bias is not None:
        vector = bias_of(CPU.floats(request.bias, "bias"), (m, n))
        sums = regional_product(a, b, None, None, request._replace(bias=None, out_fmt=FP32), fmt, None)
        with ieee_arithmetic(), np.errstate(all="ignore"):
            sums += vector
        words_of(target)[...] = coded(sums, FP32, ends)
        return result
    for region in (of for of in how.regions if of.rows and of.columns):
        rows, columns = _places(region.rows), _places(region.columns)
        whole = isinstance(rows, slice) and isinstance(columns, slice)
        at = (rows, columns) if whole else np.ix_(_indices(region.rows), _indices(region.columns))
        x, y = left[rows], np.ascontiguousarray(right[:, columns])
        if region.order.lanes in ("chain", "odd_first", *UNITS):
            words_of(target)[at] = _chains(x, y, region.order, formats, ends)
            continue
        part = request._replace(schedule=_tree(region.order, ends), out_fmt=None)
        target[at] = ordered_product(x, y, None, None, part, formats, None)
    return result


def biased_product(a: Any, b: Any, chosen: ChosenSchedule, fmt: Formats, words: Mapping[str, Any]) -> Array:
    """Return a @ b plus a bias by a library's kernel whose sums start at the bias.

    a, b, fmt: as for `fpsim.matmul`. chosen: the library's choice of schedule. Its field `bias` is "start" (one chain
    of multiply-adds starts at the bias) or "first" (the sums of segments of K are added to the bias). words: the
    keyword arguments `bias`, `out_fmt` and, if it was passed, `out`.
    """
    (left, right), formats = accumulator_codes(a, b, fmt, CPU)
    shape = left.shape[0], right.shape[1]
    start = np.broadcast_to(bias_of(CPU.floats(words["bias"], "bias"), shape), shape)
    ends = FP32 if words["out_fmt"] is None else format_argument("out_fmt", words["out_fmt"])
    result, target = CPU.result(words.get("out"), shape, np.dtype(DTYPES.get(ends, ends.storage)), left, right)
    how = chosen.schedule
    if chosen.bias == "start":
        sums = multiplied(left, right, np.ascontiguousarray(start), CHAIN, Request(), formats, None, CPU)
        codes = coded(sums, FP32, ends)
    else:
        order = how.order_at(0, 0) if isinstance(how, Regions) else SegmentLanes(how.slicing.lengths)
        codes = _chains(left, right, order, formats, ends, start)
    words_of(target)[...] = codes
    return result


def _chains(
    a: Array, b: Array, order: SegmentLanes, formats: tuple[Format, Format], fmt: Format, start: Array | None = None
) -> Array:
    """Return a @ b as codes of `fmt`, (M, N), from float32 chains over segments of K.

    Each segment's chain starts at +0. The chains of a part, some consecutive segments, are added in order, and then the
    parts' sums. Every addition is rounded to float32, and the total to `fmt`. A total of -0 becomes +0 if the chains
    are of multiply-adds, in one part and without a start.

    Args:
      a, b: (M, K) and (K, N) codes of the two `formats`.
      order: the lengths of the segments; in `parts` the number of segments of each part, None for one part; and in
        `lanes` the order of terms in a segment. "chain": ascending. "odd_first": the second of each two terms comes
        before the first. A key of UNITS, such as "tiles": a chain of instructions of the matrix unit UNITS[key].
      formats: the formats of a and b.
      fmt: the result's format.
      start: float32 numbers (M, N) to which the first part's chains are added, or None.
    """
    unit = UNITS.get(order.lanes)
    total: Any = None
    lengths, first = iter(order.lengths), 0
    for number, count in enumerate(order.parts or (len(order.lengths),)):
        part: Any = None if number else start
        of_part = list(islice(lengths, count))
        # sums of segments are merged in one call, unless each is added to a start
        by = order.instruction_terms if part is None else None
        groups = [[*group] for _, group in groupby(of_part, by)] if by else [[length] for length in of_part]
        for group in groups:
            step = order.instruction_terms(group[0])
            schedule = segments(*group, step=step, odd_first=order.lanes == "odd_first")
            stop = first + sum(schedule.slicing.lengths)
            x, y = a[:, first:stop], b[first:stop]
            if unit:
                sums = multiplied(x, y, None, unit, Request(schedule), None, None, CPU).view(np.float32)
            else:
                sums = multiplied(x, y, None, CHAIN, Request(schedule), formats, None, CPU)
            with ieee_arithmetic(), np.errstate(all="ignore"):
                part = sums if part is None else part + sums
            first = stop
        with ieee_arithmetic(), np.errstate(all="ignore"):
            if not (unit or order.parts or start is not None):
                part += np.float32(0)  # Eigen adds its sums to +0, which turns -0 into +0
            total = part if total is None else total + part
    return coded(total, FP32, fmt)


def _places(spans: tuple[Span, ...]) -> slice | Array:
    """Return the indices start .. stop - 1 of all `spans`: a slice if spans are contiguous, else an integer array."""
    if all(span.stop == following.start for span, following in pairwise(spans)):
        return slice(spans[0].start, spans[-1].stop)
    return _indices(spans)


def _indices(spans: tuple[Span, ...]) -> Array:
    """Return the indices start .. stop - 1 of each of `spans`, one span after the other, as one integer array."""
    return np.concatenate([np.arange(*span) for span in spans])


@lru_cache(maxsize=64)
def _tree(order: SegmentLanes, fmt: Format) -> Tree:
    """Return the tree of additions in `order` with results in `fmt`, cached so that equal orders share one plan."""
    return tree(order, order.k, out_fmt=None if fmt == FP32 else fmt)
