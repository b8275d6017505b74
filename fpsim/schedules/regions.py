"""Products whose elements differ in the order of additions, as kernels treat the last rows and columns separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from fpsim.errors import integer_fields, require_integer, require_kind, require_word, shown
from fpsim.reload import reloadable
from fpsim.schedules.plan import Span

Lane = Literal[
    "chain", "even_odd", "vectors", "first_apart", "narrowing", "dealt", "neighbours", "quarters", "first_added",
    "first_added_pairs", "eights", "odd_first", "pairs_dealt", "tiles", "equal_tiles", "half_tiles",
    "equal_half_tiles", "dot_pairs",
]  # fmt: skip
# orders of instructions that add several products -> their unit
UNITS = {
    "tiles": "x86_amx_bf16_f32", "equal_tiles": "x86_amx_bf16_f32", "half_tiles": "x86_amx_f16_f32",
    "equal_half_tiles": "x86_amx_f16_f32", "dot_pairs": "x86_avx512_bf16_f32",
}  # fmt: skip
EQUAL = ("equal_tiles", "equal_half_tiles")  # orders of equally many terms in each instruction of a segment
TILE_TERMS = 32  # of an instruction of AMX
TURN = 8  # terms up to a multiple of which even and odd ones are kept apart
VECTORS = 4  # vectors to which terms are dealt in turn
NARROWEST = 8  # lanes of an order whose last lanes are an eighth of the first
GROUP = 8  # terms of a group of "eights"
FEWEST = {"narrowing": NARROWEST, "quarters": 4}  # lanes of an order that needs several
DEALT = ("vectors", "first_apart", "narrowing", "dealt", "neighbours", "quarters", "first_added",
         "first_added_pairs", "pairs_dealt")  # have a width  # fmt: skip


@reloadable
@dataclass(frozen=True)
class SegmentLanes:
    """An order of additions: segments of K, each a sum of lanes of fused multiply-adds, are added to +0 in turn.

    Args:
      lengths: terms of each segment, which add up to K.
      lanes: the order in a segment. All chains start at +0 and add products by fused multiply-adds. Terms "dealt" to
        lanes go to lane 0, 1, ... width - 1, 0, 1, ... in turn, one each. Lanes "joined by halves" are added as lane i
        and lane i + width / 2, then i and i + width / 4, and so on.
        - "chain": one chain.
        - "even_odd": up to the last multiple of 8, even terms are one chain and odd ones another. Both are added, and
          the remaining terms are added to their sum.
        - "vectors": up to the last multiple of 4 * width, terms are dealt to four vectors v0 to v3 of `width` lanes,
          which are added lane by lane as (v0 + v1) + (v2 + v3). To these lanes the next terms are added, `width` at a
          time, as long as there are so many; the lanes are joined by halves. The last terms are added one by one.
        - "first_apart": lane 0 starts from the first product, rounded. The next terms, a whole number per lane, are
          dealt to `width` lanes, which are joined by halves. Lane 0 starts again from that sum; the remaining terms are
          dealt to the lanes, which are joined by halves again.
        - "narrowing": terms up to the last multiple of `width` are dealt to `width` lanes. Of the remaining terms,
          those up to the last multiple of width / 4 are dealt to width / 8 lanes. The lanes of both groups are joined
          by halves, the two sums are added, and the last terms are added to that sum one by one.
        - "dealt": all terms are dealt to `width` lanes, which are joined by halves.
        - "neighbours": as "dealt", but neighbouring lanes are added, then neighbouring sums, level by level.
        - "quarters": as "dealt", but lanes i, i + 4, i + 8, ... are added from left to right for i = 0 to 3, and these
          four sums as (0 + 1) + (2 + 3).
        - "first_added": the first product is rounded, and the sum of the rest, in the order "dealt", is added to it.
        - "first_added_pairs": the same, but up to the last multiple of 2 * width of the rest, terms are dealt to two
          vectors of lanes, which are then added lane by lane.
        - "eights": one running sum s. Of a whole group of eight products p0 to p7, p6 is added to s by a multiply-add,
          then p4; then s = s + q75 and s = s + (q20 + q31), where qij is the product pi, rounded, to which pj is added
          by a multiply-add. The products after the last whole group are added to s one by one.
        - "odd_first": one chain, which adds the second term of each pair before the first.
        - "pairs_dealt": pairs of terms are dealt to `width` lanes, each of which adds the second term of a pair before
          the first. Lanes i and i + width / 2 are added, then neighbours among these sums, level by level.
        - "tiles": instructions of AMX (the unit x86_amx_bf16_f32) of 32 terms; a segment's last one may have fewer.
        - "equal_tiles": as few of these instructions as possible, all with the same even number of terms (66 terms are
          22 + 22 + 22).
        - "half_tiles", "equal_half_tiles": the same with the unit x86_amx_f16_f32.
        - "dot_pairs": instructions of the unit x86_avx512_bf16_f32, which add two terms.

        With the last five, the sum of the segments starts at the first segment, not at +0.
      width: lanes of a vector, a power of two; 1 for other lanes.
      parts: number of segments that each thread adds, if threads share K: a thread adds its segments to +0, and the
        threads' sums are added to +0 from left to right. () if one thread adds all.

    Raises:
      ValueError: no length, an unknown order, a width that is no power of two, parts with more or fewer segments than
        there are lengths, or a segment that has no equal tiles.

    Example:
      >>> import fpsim as fp
      >>> order = fp.schedules.SegmentLanes((64, 36), "even_odd")
      >>> order, fp.schedules.tree(order, 100)
      (SegmentLanes((64, 36), 'even_odd'), Tree(k=100, 4 levels, result FP32))
    """

    lengths: tuple[int, ...]
    lanes: Lane = "chain"
    width: int = 1
    parts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_kind("lengths", self.lengths, tuple, "a tuple of numbers of terms")
        if not self.lengths:
            raise ValueError("lengths must have the terms of a segment or more; got none.")
        for length in self.lengths:
            require_integer("a length", length, 1)
        object.__setattr__(self, "lengths", tuple(map(int, self.lengths)))
        require_word("lanes", self.lanes, get_args(Lane))
        integer_fields(self, "width", lowest=1)
        fewest = FEWEST.get(self.lanes, 1)
        if self.width < fewest:
            raise ValueError(f"width must be {fewest} or more for the lanes {self.lanes!r}; got {self.width}.")
        if self.width & (self.width - 1) or (self.width > 1 and self.lanes not in DEALT):
            raise ValueError(
                f"width must be a power of two for the lanes {', '.join(map(repr, DEALT))}, and 1 for others; got "
                f"{self.width} for {self.lanes!r}."
            )
        require_kind("parts", self.parts, tuple, "a tuple of numbers of segments")
        for count in self.parts:
            require_integer("a part", count, 1)
        object.__setattr__(self, "parts", tuple(map(int, self.parts)))
        if self.parts and sum(self.parts) != len(self.lengths):
            raise ValueError(f"parts must add up to the {len(self.lengths)} segments of lengths; got {self.parts}.")

        if self.lanes in EQUAL:
            for length in set(self.lengths):
                tiles = -(-length // TILE_TERMS)
                if length % (2 * tiles):
                    raise ValueError(
                        f"a segment of equal tiles must have {tiles} tiles of one even number of terms; got {length} "
                        'terms. Take "tiles".'
                    )

    @property
    def k(self) -> int:
        """Number of terms, the sum of the segments' lengths."""
        return sum(self.lengths)

    def instruction_terms(self, length: int) -> int:
        """Return the number of terms of an instruction in a segment of `length` terms; 0 for as many as its unit takes.

        Only the lanes "equal_tiles" and "equal_half_tiles" have instructions of fewer terms.

        Example:
          >>> import fpsim as fp
          >>> [fp.schedules.SegmentLanes((66,), lanes).instruction_terms(66) for lanes in ("tiles", "equal_tiles")]
          [0, 22]
        """
        return length // -(-length // TILE_TERMS) % TILE_TERMS if self.lanes in EQUAL else 0

    def __repr__(self) -> str:
        width = f", width={self.width}" if self.width > 1 else ""
        lengths = self.lengths if len(self.lengths) < 7 else f"({', '.join(map(str, self.lengths[:6]))}, ...)"
        parts = f", parts={self.parts}" if self.parts else ""
        return f"SegmentLanes({lengths}, {self.lanes!r}{width}{parts})"


@reloadable
class ResultRegion(NamedTuple):
    """A part of a result with one order of additions: the elements in both the listed rows and the listed columns."""

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    order: SegmentLanes


@reloadable
@dataclass(frozen=True)
class Regions:
    """The orders of additions in a product of M x K by K x N, one for each region; passed as `fp.matmul(schedule=)`.

    Attributes:
      m, n, k: the sizes of the product.
      regions: parts of the result with one order each; every element is in exactly one of them.

    Raises:
      ValueError: an element is in no region or in two, or an order is for another K.
      TypeError: a field has another type than those above.

    Example:
      >>> import fpsim as fp
      >>> how = fp.schedules.eigen().at(40, 7, 100, "fp32").schedule
      >>> how, how.order_at(0, 0), how.order_at(39, 0)
      (Regions(40 x 7 x 100, 2 orders), SegmentLanes((100,), 'chain'), SegmentLanes((100,), 'even_odd'))
    """

    m: int
    n: int
    k: int
    regions: tuple[ResultRegion, ...]

    def __post_init__(self) -> None:
        integer_fields(self, "m", "n", "k", lowest=1)
        require_kind("regions", self.regions, tuple, "a tuple of fp.schedules.ResultRegion")
        for region in self.regions:
            require_kind("a region", region, ResultRegion, "an fp.schedules.ResultRegion")
            require_kind("the order of a region", region.order, SegmentLanes, "an fp.schedules.SegmentLanes")
            for spans in region[:2]:
                if not isinstance(spans, tuple) or not all(isinstance(span, Span) for span in spans):
                    raise TypeError(f"rows and columns of a region must be tuples of Span; got {shown(spans)}.")
            if region.order.k != self.k:
                raise ValueError(f"{region.order} is for K = {region.order.k}; got a product of K = {self.k}.")
        _refuse_gaps(self.regions, self.m, self.n)

    def order_at(self, row: int, column: int) -> SegmentLanes:
        """Return the order of additions of the element [row, column], an argument for `fp.schedules.tree`.

        Raises:
          ValueError: the element is outside the result.
        """
        for region in self.regions:
            if _holds(region.rows, row) and _holds(region.columns, column):
                return region.order
        raise ValueError(f"element ({row}, {column}) is outside the result of {self.m} x {self.n}.")

    def __repr__(self) -> str:
        count = len({region.order for region in self.regions})
        return f"Regions({self.m} x {self.n} x {self.k}, {count} order{'s' if count > 1 else ''})"


def one_order(m: int, n: int, k: int, order: SegmentLanes) -> Regions:
    """Return the Regions of an m x k by k x n product whose elements are all added in one order."""
    return Regions(m, n, k, (ResultRegion((Span(0, m),), (Span(0, n),), order),))


def _holds(spans: Sequence[Span], index: int) -> bool:
    """Return whether an index is in one of the spans."""
    return any(span.start <= index < span.stop for span in spans)


def _refuse_gaps(regions: Sequence[ResultRegion], m: int, n: int) -> None:
    """Raise a ValueError unless every element of an m x n result is in exactly one of `regions`."""
    rows = sorted({0, m, *(edge for region in regions for span in region.rows for edge in span)})
    columns = sorted({0, n, *(edge for region in regions for span in region.columns for edge in span)})
    if rows[0] < 0 or rows[-1] > m or columns[0] < 0 or columns[-1] > n:
        raise ValueError(f"regions must lie in the result of {m} x {n}; got one that does not.")
    for row in rows[:-1]:
        for column in columns[:-1]:
            count = sum(
                sum(span.start <= row < span.stop for span in region.rows)
                * sum(span.start <= column < span.stop for span in region.columns)
                for region in regions
            )
            if count != 1:
                raise ValueError(f"every element must be in one region; ({row}, {column}) is in {count}.")
