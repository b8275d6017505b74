"""Trees of the orders `SegmentLanes`: K in segments, which lanes or instructions add, as in Eigen, MKL and oneDNN."""

from __future__ import annotations

from itertools import accumulate, islice

from fpsim.errors import shown
from fpsim.matrix_units.catalogue import float_unit
from fpsim.schedules.regions import GROUP, TURN, UNITS, VECTORS, SegmentLanes
from fpsim.schedules.trees.nodes import FLOAT32, Gathered, Node, Start, Steps, Sum, add_instructions, terms_run
from fpsim.schedules.trees.parts import arithmetic_of, refuse_parts

TERM_BY_TERM = ("eights", "odd_first", "pairs_dealt")  # orders whose trees have about a part for each term


def by_segment_lanes(order: SegmentLanes) -> Sum:
    """Return the tree of additions that `order` describes, as a node.

    A part consists of the segments that one thread adds (`order.parts`). The segments of a part are added to +0 one
    after the other, and so are the parts, if there are several. In the lanes that consist of matrix instructions (such
    as "tiles"), these sums start at their first segment or part instead of +0.

    Raises:
      ValueError: the tree would have more than 2**20 parts.
    """
    refuse_parts(_part_count(order), f"{order} with k={shown(order.k)}")
    starts = accumulate(order.lengths, initial=0)
    sums = iter([_segment(order, *span) for span in zip(starts, order.lengths, strict=False)])
    first: Start = "first" if order.lanes in UNITS else "zero"
    parts = [_chain(first, *islice(sums, count)) for count in order.parts or (len(order.lengths),)]
    return parts[0] if len(parts) == 1 else _chain(first, *parts)


def _part_count(order: SegmentLanes) -> int:
    """Return an estimate of the number of nodes and runs of terms in the tree of `order`."""
    of_segments = len(order.lengths) * order.width * (VECTORS if order.lanes == "vectors" else 1)
    return of_segments + (order.k if order.lanes in TERM_BY_TERM else 0)


def _segment(order: SegmentLanes, start: int, length: int) -> Sum:
    """Return the sum of terms start to start + length - 1, one segment, in lanes as `order` (SegmentLanes) says."""
    if order.lanes == "chain":
        return _chain("zero", terms_run(start, length))
    if order.lanes == "even_odd":
        turns = length // TURN * TURN
        apart: list[Node | Steps] = []
        if turns:
            apart = [terms_run(start, turns // 2, 2), _chain("zero", terms_run(start + 1, turns // 2, 2))]
        return _chain("zero", *apart, terms_run(start + turns, length - turns))
    if order.lanes in UNITS:
        unit, steps = float_unit(UNITS[order.lanes]), list[Steps | Gathered]()
        add_instructions(steps, start, length, order.instruction_terms(length) or unit.terms)
        return Sum(arithmetic_of(unit), "zero", "chain", tuple(steps))
    width = order.width
    if order.lanes == "first_apart":
        return _first_apart(start, length, width)
    if order.lanes == "narrowing":
        return _narrowing(start, length, width)
    if order.lanes == "odd_first":
        return _chain("zero", *_pairs_turned(start, length))
    if order.lanes == "pairs_dealt":
        return _pairs_dealt(start, length, width)
    if order.lanes == "eights":
        return _eights(start, length)
    if order.lanes in ("dealt", "neighbours", "quarters"):
        dealt = _dealt_lanes(start, length, width)
        if order.lanes == "neighbours" and width > 1:
            return Sum(FLOAT32, "first", "pairwise", dealt)
        if order.lanes == "quarters":
            quarters = tuple(_chain("first", *dealt[i::4]) for i in range(4))
            return Sum(FLOAT32, "first", "pairwise", quarters)
        return _by_halves(dealt)
    if order.lanes in ("first_added", "first_added_pairs"):
        vectors = 2 if order.lanes == "first_added_pairs" else 1
        first = _chain("first", terms_run(start, 1))
        rest = _by_halves(_dealt_lanes(start + 1, length - 1, width, vectors))
        return Sum(FLOAT32, "first", "chain", (first, rest)) if length > 1 else first
    whole = length // width * width
    joined = _by_halves(_dealt_lanes(start, whole, width, VECTORS))
    return _chain("first", joined, terms_run(start + whole, length - whole))


def _first_apart(start: int, length: int, width: int) -> Sum:
    """Return the sum of a segment in "first_apart" lanes, of which lane 0 starts with the first product, rounded.

    The segment has the terms start to start + length - 1. After the first one, whole turns of `width` terms are dealt
    to the `width` lanes. Lanes are joined by halves: lane i + width / 2 is added to lane i, and so on to one lane.
    Lane 0 starts again from that sum, and the remaining terms are dealt and joined in the same way.
    """
    total: Steps | Sum = terms_run(start, 1)
    whole = (length - 1) // width * width
    for first, count in ((start + 1, whole), (start + 1 + whole, length - 1 - whole)):
        if count:
            runs = [terms_run(first + lane, -(-(count - lane) // width), width) for lane in range(width)]
            lanes = [_chain("first", total, runs[0]), *(_chain("zero", run) for run in runs[1:])]
            total = _by_halves(tuple(lanes))
    return total if isinstance(total, Sum) else _chain("first", total)


def _eights(start: int, length: int) -> Sum:
    """Return the sum of terms start to start + length - 1: a running sum s to which each group of eight is added.

    s starts at +0. p0 to p7 are the products of a group. First p6 is added to s by a fused multiply-add, then p4. Then
    s = s + q75 and s = s + (q20 + q31), where qij is the product pi, rounded, to which pj is added by a fused
    multiply-add. The terms after the last whole group are added to s one by one, by fused multiply-adds.
    """
    groups = length // GROUP
    inputs: list[Node | Steps] = []
    for first in range(start, start + groups * GROUP, GROUP):
        pairs = [_chain("first", terms_run(first + i, 1), terms_run(first + j, 1)) for i, j in ((7, 5), (2, 0), (3, 1))]
        inputs += [terms_run(first + 6, 1), terms_run(first + 4, 1), pairs[0], _chain("first", *pairs[1:])]
    return _chain("zero", *inputs, terms_run(start + groups * GROUP, length - groups * GROUP))


def _pairs_turned(start: int, length: int, stride: int = 2) -> list[Node | Steps]:
    """List additions of single terms in the order in which pairs are added, the second term of a pair before the first.

    The pairs begin at start, start + stride, ...; terms from start + length on are left out. Start 0 and length 5 give
    terms 1, 0, 3, 2, 4.
    """
    pairs = range(start, start + length, stride)
    return [terms_run(term, 1) for pair in pairs for term in (pair + 1, pair) if term < start + length]


def _pairs_dealt(start: int, length: int, width: int) -> Sum:
    """Return the sum of terms start to start + length - 1, whose pairs belong to `width` lanes in turn.

    A lane adds the second term of a pair before the first. Then lane i + width / 2 is added to lane i, and neighbours
    among these sums are added, level by level.
    """
    lanes = []
    for lane in range(width):
        first = 2 * lane
        lanes.append(_chain("zero", *_pairs_turned(start + first, max(0, length - first), 2 * width)))
    half = width // 2
    joined = [_chain("first", *lanes[i::half]) for i in range(half)] if half else lanes
    return joined[0] if len(joined) == 1 else Sum(FLOAT32, "first", "pairwise", tuple(joined))


def _dealt_lanes(start: int, count: int, width: int, vectors: int = 1) -> tuple[Sum, ...]:
    """Return the sums of `width` lanes to which `count` terms from `start` on are dealt in turn.

    With 2 or more `vectors`, the terms up to the last multiple of vectors * width are dealt to `vectors` vectors of
    `width` lanes, which are then added lane by lane, neighbours first; the remaining terms are added to these lanes.
    """
    apart = vectors * width
    whole = count // apart * apart if vectors > 1 else 0
    lanes = []
    for lane in range(width):
        rest = terms_run(start + whole + lane, max(0, -(-(count - whole - lane) // width)), width)
        if not whole:
            lanes.append(_chain("zero", rest))
            continue
        runs = [_chain("zero", terms_run(start + i * width + lane, whole // apart, apart)) for i in range(vectors)]
        lanes.append(_chain("first", Sum(FLOAT32, "first", "pairwise", tuple(runs)), rest))
    return tuple(lanes)


def _by_halves(lanes: tuple[Sum, ...]) -> Sum:
    """Return the sum of n lanes joined by halves: lane i + n / 2 is added to lane i, then i + n / 4, and so on."""
    return lanes[0] if len(lanes) == 1 else Sum(FLOAT32, "first", "butterfly", lanes)


def _narrowing(start: int, length: int, width: int) -> Sum:
    """Return the sum of a segment in "narrowing" order: first in `width` lanes, then in width / 8, then term by term.

    The segment has the terms start to start + length - 1. Its terms up to the last multiple of `width` are dealt to
    `width` lanes. Of the remaining terms, those up to the last multiple of width / 4 are dealt to width / 8 lanes. The
    lanes of both groups are joined by halves; the two sums are added to +0, and then the last terms one by one.
    """
    wide = length // width * width
    narrow = (length - wide) // (width // 4) * (width // 4)
    parts: list[Node | Steps] = []
    for first, count, lanes in ((start, wide, width), (start + wide, narrow, width // 8)):
        if count:
            parts.append(_by_halves(_dealt_lanes(first, count, lanes)))
    return _chain("zero", *parts, terms_run(start + wide + narrow, length - wide - narrow))


def _chain(start: Start, *inputs: Node | Steps) -> Sum:
    """Return the float32 sum of `inputs` as a chain: they are added to a running sum one after the other.

    A Steps is a run of single products, each of which is added by a fused multiply-add. A node is a sum, which is added
    by a float32 addition. Runs without terms are left out. start: "zero" starts the running sum at +0, "first" at the
    first input; with "first", a single node is returned unchanged.
    """
    kept = tuple(x for x in inputs if not isinstance(x, Steps) or x.count > 0)
    only = kept[0] if len(kept) == 1 and start == "first" else None
    return only if isinstance(only, Sum) else Sum(FLOAT32, start, "chain", kept)
