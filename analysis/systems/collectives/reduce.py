"""The sums of an all-reduce: computes the codes that every rank holds afterwards, with memory for a few buffers."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.systems.collectives.algorithms import (
    Algorithm,
    BufferSpan,
    Direct,
    Flat,
    Ring,
    RingBuffer,
    TwoLevel,
    split,
)
from fpsim.analysis.systems.collectives.contributions import CodeRows
from fpsim.analysis.systems.collectives.exact import exact_reduce
from fpsim.analysis.systems.collectives.orders import ExactSum, Hops, OneRank, Order, first_rank, ranks_in, substituted
from fpsim.analysis.systems.collectives.rounding import Adder
from fpsim.arrays import Array


def reduce_rows(algorithm: Algorithm, rows: CodeRows, adder: Adder) -> Array:
    """Return the codes of the sum that every rank holds after an all-reduce.

    Args:
      algorithm: the order of the additions; callers call `algorithm.check` first.
      rows: the contributions as codes, a row for each rank.
      adder: formats and rounding of the additions.
    Returns:
      Codes (n,) of `adder.fmt`.
    """
    if isinstance(algorithm, TwoLevel):
        nodes = NodeSums(rows, algorithm, adder)
        return _reduced(algorithm.levels[1], nodes, adder, nodes.shards, nodes.node)
    return _reduced(algorithm, rows, adder, [BufferSpan(0, rows.size)], 1)


class NodeSums:
    """For each node, the sum of its ranks' contributions as a row of codes; `row` computes the sums.

    A row consists of shards, and each shard adds the ranks in its own order, as a reduce-scatter inside the node does.

    Args:
      rows: the contributions as codes, a row for each rank.
      algorithm: the sizes of nodes, and the algorithm inside them.
      adder: the rounding of the additions.

    Attributes:
      node: number of ranks in a node.
      count, size: number of nodes, and of elements of the buffer.
      shards: the spans of the buffer that the ranks of a node own after a reduce-scatter.
    """

    def __init__(self, rows: CodeRows, algorithm: TwoLevel, adder: Adder) -> None:
        self._rows, self._adder = rows, adder
        self.node = algorithm.node(rows.count)
        self.count, self.size = rows.count // self.node, rows.size
        self.shards = split(BufferSpan(0, rows.size), self.node)
        self._orders = [algorithm.levels[0].owned(shard, self.node) for shard in range(self.node)]

    def row(self, index: int, start: int, stop: int) -> Array:
        """Return the codes of the elements start .. stop - 1 of the sum over node `index`."""
        sums = np.empty(stop - start, self._adder.fmt.storage)
        base = index * self.node
        for shard, order in zip(self.shards, self._orders, strict=True):
            low, high = max(start, shard.start), min(stop, shard.stop)
            if low < high:
                of_node = substituted(order, lambda i: base + i)
                sums[low - start : high - start] = evaluated(of_node, self._rows, self._adder, BufferSpan(low, high), 1)
        return sums


def _reduced(algorithm: Flat, rows: CodeRows, adder: Adder, spans: list[BufferSpan], node: int) -> Array:
    """Return the codes (n,) of the sum of all rows by an algorithm; each of `spans` is reduced like a separate buffer.

    rows, adder: contributions as codes, and the rounding of additions. node: number of ranks whose contributions a
    row sums; 1 if a row is the contribution of one rank.
    """
    sums = np.empty(rows.size, adder.fmt.storage)
    if isinstance(algorithm, Ring):
        _around_rings([b for span in spans for b in algorithm.buffers(span, rows.count)], rows, adder, sums, node)
        return sums
    for span in spans if not isinstance(algorithm, Direct) else [BufferSpan(0, rows.size)]:
        for part, order in algorithm.parts(span, rows.count):
            if part.start < part.stop:
                sums[part.start : part.stop] = evaluated(order, rows, adder, part, node)
    return sums


def _around_rings(buffers: list[RingBuffer], rows: CodeRows, adder: Adder, total: Array, node: int) -> None:
    """Write the codes of the sums that rings compute into `total` (n,), in two passes over the positions of the rings.

    The sum of a chunk begins at one position of its ring. The first pass makes the additions from there to the ring's
    last position, the second pass those from position 0 on, so that each row is read only twice.

    Args:
      buffers: the parts of the buffer, each with its ring.
      rows, adder: contributions as codes, and the rounding of additions.
      node: number of ranks whose contributions a row sums; 1 if a row is the contribution of one rank.
    """
    for turn in (0, 1):
        for position in range(rows.count):
            for buffer in buffers:
                rank = buffer.ranks[position]
                begun = _chunks(buffer, 0, position) if turn == 0 else _chunks(buffer, position + 1, rows.count)
                for start, stop in begun:
                    adder.add_into(total[start:stop], rows.row(rank, start, stop), start, rows.size, rank * node)
                for start, stop in _chunks(buffer, position, position + 1) if turn == 0 else ():
                    total[start:stop] = rows.row(rank, start, stop)


def _chunks(buffer: RingBuffer, first: int, last: int) -> list[BufferSpan]:
    """Return the spans of the chunks of `buffer` whose sums begin at the positions first .. last - 1 of its ring.

    The chunks are consecutive, or wrap around from the last to chunk 0, so that there are two spans at most.
    """
    ranks = len(buffer.ranks)
    low, high = first - buffer.first % ranks, last - buffer.first % ranks
    parts = [(low, high)] if low >= 0 else [(low + ranks, min(high, 0) + ranks), (0, max(high, 0))]
    edges = buffer.edges
    return [BufferSpan(edges[a], edges[b]) for a, b in parts if a < b and edges[a] < edges[b]]


def evaluated(order: Order, rows: CodeRows, adder: Adder, span: BufferSpan, node: int) -> Array:
    """Return the codes of the sum of rows, for a span of the buffer; callers must not change the array.

    Args:
      order: the order of the additions as nested tuples of row indices, as `Ring.order` returns them.
      rows, adder: contributions of ranks or nodes as codes, and the rounding of their additions.
      span: the range of elements.
      node: number of ranks whose contributions a row already sums; row index * node is the rank that selects random
        bits.
    """
    if isinstance(order, int):
        return rows.row(order, span.start, span.stop)
    if isinstance(order, ExactSum):
        return _at_once(list(ranks_in(order)), rows, adder, span)
    if isinstance(order, OneRank):
        operands = [(first_rank(operand) * node, evaluated(operand, rows, adder, span, node)) for operand in order]
        return adder.add_all(operands, span.start, rows.size)
    assert isinstance(order, Hops)
    total = evaluated(order[0], rows, adder, span, node)
    total = total.copy() if isinstance(order[0], int) else total
    for operand in order[1:]:
        codes = evaluated(operand, rows, adder, span, node)
        adder.add_into(total, codes, span.start, rows.size, first_rank(operand) * node)
    return total


def _at_once(members: list[int], rows: CodeRows, adder: Adder, span: BufferSpan) -> Array:
    """Return the codes of a sum of rows that one rank adds, for the elements of a span of the buffer.

    rows, members: contributions as codes, and the indices of the rows to add. The sum is exact and rounded once. If
    `adder` has an accumulation format, the rows are added in that format instead, in the order of `members`, before the
    rounding.
    """
    if adder.accumulate is None:
        return exact_reduce(rows, adder, members, span.start, span.stop)
    if adder.wide is None:
        return adder.add_all([(m, rows.row(m, span.start, span.stop)) for m in members], span.start, rows.size)
    total = adder.widened(rows.row(members[0], span.start, span.stop))
    for member in members[1:]:
        adder.add_wide(total, rows.row(member, span.start, span.stop))
    return adder.sent(total, span.start, rows.size, members[0])
