"""The schedules of MKL's float32 products with one row or one column (sgemv), on one thread or two."""

from __future__ import annotations

from collections.abc import Sequence

from fpsim.formats.named import FP32
from fpsim.schedules.plan import Span
from fpsim.schedules.regions import Lane, Regions, ResultRegion, SegmentLanes
from fpsim.schedules.shaped import ChosenSchedule, ProductShape, declined

GROUP, LANES = 4, 16  # results that are computed at once from terms side by side, and lanes of each
BLOCK = 16  # results that are computed at once from results side by side
HALVED = 256  # terms from which two threads take a half of K each,
MIDDLE, HALVED_MIDDLE = range(41, 70), 1000  # for these numbers of results from more on,
MOST = 1001  # and with more results never
SMALL = 8192  # multiply-adds up to which one of two threads computes results of terms side by side,
WORK, EXTRA = 41_700, 288  # and results * (K + EXTRA) from which both do
LONG = 20_000  # terms from which both threads share K in another way
ONE_THEN_TWO = "the first product, rounded, and {} lanes of multiply-adds over whole turns, then over the rest"
TAILS: tuple[Lane, ...] = ("first_added_pairs", "first_added", "first_added_pairs")
DOTS = {"first_apart", *TAILS}  # orders of results whose terms are contiguous in the matrix


def vector_schedule(name: str, threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of a product with one row or one column on one thread or two, or raise a DeclinedShape.

    If the terms of a result are contiguous in the matrix, results are computed in groups of four, in the lanes
    "first_apart" of `SegmentLanes`. One to three results after the last whole group are added in the lanes of TAILS.
    Two threads take half of the results each, unless the product is small. For other matrices see `_across`. name: name
    of the ShapedSchedule, for the error. threads: 1 or 2. shape: sizes and layout of the product.
    """
    m, n, k = shape.m, shape.n, shape.k
    if m == n == 1:
        if shape.layout != "nn":
            raise declined(name, shape, "the kernel of one result of operands that are not in C order is not known")
        order = _halved(k, "chain", threads == 2 and k >= HALVED)
        rule = "a chain of multiply-adds over K, or over a half of it a thread"
        return _by_result(shape, [((Span(0, 1),), order)], rule)
    along_k = shape.layout != "tn" if n == 1 else shape.layout == "nt"
    if not along_k:
        return _across(threads, shape)
    if threads == 2 and k >= LONG:
        raise declined(name, shape, f"how 2 threads share a vector of {LONG} terms or more is not known")
    count = m * n
    shares = threads == 2 and count * k > SMALL and count * (k + EXTRA) >= WORK
    parts = (Span(0, -(-count // 2)), Span(-(-count // 2), count)) if shares else (Span(0, count),)
    bodies, placed = [], []
    for part in parts:
        whole = part.start + (part.stop - part.start) // GROUP * GROUP
        bodies += [Span(part.start, whole)] if whole > part.start else []
        placed += [(Span(i, i + 1), TAILS[i - whole]) for i in range(whole, part.stop)]
    orders = [(tuple(bodies), SegmentLanes((k,), "first_apart", LANES))] if bodies else []
    for lanes in dict.fromkeys(lanes for _, lanes in placed):
        spans = tuple(span for span, kind in placed if kind == lanes)
        orders.append((spans, SegmentLanes((k,), lanes, LANES)))
    return _by_result(shape, orders, ONE_THEN_TWO.format(LANES) + "; other lanes for results beyond groups of four")


def _across(threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of a vector times a matrix in which the K terms of a result are not contiguous in memory.

    MKL then adds multiples of whole rows of b to the result (or of columns of a transposed a): eight rows at once for
    whole blocks of BLOCK results, one at a time for the other results. threads: 1, or 2, which may add half of K each.
    shape: the shape of the product, with one row or column.
    """
    k, count = shape.k, shape.m * shape.n
    fewest = HALVED_MIDDLE if count in MIDDLE else HALVED
    halves = threads == 2 and k >= fewest and count <= MOST
    whole = count // BLOCK * BLOCK
    orders = [((Span(0, whole),), _halved(k, "eights", halves))] if whole else []
    orders += [((Span(whole, count),), _halved(k, "chain", halves))] if whole < count else []
    over = ", over a half of K a thread" if halves else ""
    rule = f"groups of eight terms for whole blocks of {BLOCK} results, a chain of multiply-adds for the others{over}"
    return _by_result(shape, orders, rule)


def _halved(k: int, lanes: Lane, halves: bool) -> SegmentLanes:
    """Return the order in which the k terms of a result are added in `lanes`, one of the names of `SegmentLanes`.

    halves: True if two halves of the terms, the larger one first, are added separately in these lanes, and then their
    sums; False if all terms are added together.
    """
    return SegmentLanes((-(-k // 2), k // 2), lanes, parts=(1, 1)) if halves else SegmentLanes((k,), lanes)


def _by_result(
    shape: ProductShape, orders: Sequence[tuple[tuple[Span, ...], SegmentLanes]], rule: str
) -> ChosenSchedule:
    """Return the schedule of a product with one row or column whose elements differ in the order of additions.

    shape: the shape of the product. orders: pairs (spans of results, their order), which cover all results. rule: text
    on the orders.
    """
    one = (Span(0, 1),)
    row = shape.m == 1
    parts = tuple(ResultRegion(one if row else spans, spans if row else one, order) for spans, order in orders)
    is_dot = {order.lanes for _, order in orders} <= DOTS and shape.m + shape.n > 2 and shape.k > 1
    return ChosenSchedule(
        "sgemv", Regions(shape.m, shape.n, shape.k, parts), None, FP32, rule, "last" if is_dot else ""
    )
