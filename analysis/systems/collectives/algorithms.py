"""Algorithms of an all-reduce as data: the order of additions over ranks, for each part of the buffer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpsim.analysis.systems.collectives.orders import (
    ExactSum,
    Hops,
    Order,
    binary_tree,
    distances,
    halves,
    rotated,
    substituted,
)
from fpsim.errors import is_integer, require_integer, require_word, shown, unknown

NODE = 8  # ranks of a node in two_level: the GPUs of one server


class BufferSpan(NamedTuple):
    """A range of element indices of the buffer: start <= index < stop."""

    start: int
    stop: int


class RingBuffer(NamedTuple):
    """A part of the buffer that travels around a ring once, divided into one chunk for each rank.

    edges: index of the first element of each chunk, then the end of the last: ranks + 1 numbers. ranks: the ranks in
    the order of the ring. first: the sum of chunk c begins with the rank at position (c + first) % len(ranks).
    """

    edges: tuple[int, ...]
    ranks: tuple[int, ...]
    first: int


def split(span: BufferSpan, parts: int) -> list[BufferSpan]:
    """Divide a span into `parts` spans whose sizes differ by at most one, longer ones first, as numpy.array_split does.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import BufferSpan, split
      >>> [tuple(part) for part in split(BufferSpan(0, 5), 3)]
      [(0, 2), (2, 4), (4, 5)]
    """
    size, longer = divmod(span.stop - span.start, parts)
    starts = [span.start + i * size + min(i, longer) for i in range(parts + 1)]
    return [BufferSpan(*pair) for pair in itertools.pairwise(starts)]


class SpanOrders:
    """Base class of algorithms; they use one order of ranks for all elements of a span (a range of the buffer).

    Rings override `order_within` instead of `parts`, as each chunk of a span has its own order.
    """

    def check(self, ranks: int) -> None:
        """Raise ValueError if the algorithm does not support this number of ranks."""

    def owned(self, chunk: int, ranks: int) -> Order:
        """Return the order in which a reduce-scatter over `ranks` ranks adds the contributions to chunk `chunk`.

        The order is the same for all chunks.
        """
        raise NotImplementedError

    def parts(self, span: BufferSpan, ranks: int) -> list[tuple[BufferSpan, Order]]:
        """Divide a span, and return (part, order of the additions to it as nested tuples of ranks) for each part."""
        return [(span, self.owned(0, ranks))]

    def order(self, element: int, size: int, ranks: int) -> Order:
        """Return the order of the additions for element `element` of `size` elements, as nested tuples of ranks."""
        return self.order_within(element, BufferSpan(0, size), ranks)

    def order_within(self, element: int, span: BufferSpan, ranks: int) -> Order:
        """Return the order of the additions to an element if a span is reduced like a separate buffer.

        element: index of the element in the whole buffer. span: the range of elements, which contains it. ranks:
        number of ranks.
        """
        for part, order in self.parts(span, ranks):
            if part.start <= element < part.stop:
                return order
        raise IndexError(f"element {element} is outside {span.start} .. {span.stop}")


@dataclass(frozen=True)
class Ring(SpanOrders):
    """The ring all-reduce: a chunk's sum travels from rank to rank, and each rank adds its own contribution.

    Attributes:
      channels: number of contiguous parts of the buffer, each of which has a separate ring.
      chunk: elements of a chunk; a channel is then reduced in several turns of up to ranks * chunk elements each. None:
        one turn, with the channel split evenly into a chunk for each rank.
      first: the sum of chunk c begins with the rank at position (c + first) % number of ranks of the ring: 0 in
        textbooks, 1 in NCCL.
      rings: the ranks in the order of the ring, one permutation for each channel; () for ascending ranks in every
        channel.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import Ring
      >>> Ring().order(5, 8, 4)  # of element 5 of 8 on 4 ranks, which is in chunk 2
      (2, 3, 0, 1)
    """

    channels: int = 1
    chunk: int | None = None
    first: int = 0
    rings: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        require_integer("channels", self.channels, 1)
        require_integer("first", self.first, 0)
        if self.chunk is not None:
            require_integer("chunk", self.chunk, 1)
        rings = tuple(tuple(int(rank) if is_integer(rank) else rank for rank in ring) for ring in self.rings)
        object.__setattr__(self, "rings", rings)  # ranks in orders of additions are Python's integers
        if self.rings and len(self.rings) != self.channels:
            raise ValueError(
                f"rings must have a permutation of the ranks for each of {self.channels} channels; got "
                f"{len(self.rings)}. Set channels={len(self.rings)}."
            )

    def check(self, ranks: int) -> None:
        """Raise ValueError unless each of `rings` is a permutation of 0 .. ranks - 1."""
        for ring in self.rings:
            if not all(map(is_integer, ring)) or sorted(ring) != list(range(ranks)):
                raise ValueError(
                    f"each ring must hold the ranks 0 .. {ranks - 1} once, as there are {ranks}; got {shown(ring)}."
                )

    def buffers(self, span: BufferSpan, ranks: int) -> list[RingBuffer]:
        """Divide a span of the buffer into RingBuffers, the parts that travel around their rings separately.

        The span is divided into channels, and a channel into turns of up to ranks * chunk elements (one turn if `chunk`
        is None); each turn is a RingBuffer.
        """
        buffers = []
        for number, channel in enumerate(split(span, self.channels)):
            ring = self.rings[number] if self.rings else tuple(range(ranks))
            step = max(channel.stop - channel.start, 1) if self.chunk is None else ranks * self.chunk
            for start in range(channel.start, channel.stop, step):
                turn = BufferSpan(start, min(start + step, channel.stop))
                if self.chunk is None:
                    edges = [part.start for part in split(turn, ranks)]
                else:
                    edges = [min(start + c * self.chunk, turn.stop) for c in range(ranks)]
                buffers.append(RingBuffer((*edges, turn.stop), ring, self.first))
        return buffers

    def owned(self, chunk: int, ranks: int) -> Order:
        """Return the ranks in the order in which a reduce-scatter adds their contributions to chunk `chunk`."""
        return rotated(self.rings[0] if self.rings else range(ranks), (chunk + self.first) % ranks)

    def order_within(self, element: int, span: BufferSpan, ranks: int) -> Order:
        for edges, ring, first in self.buffers(span, ranks):
            if edges[0] <= element < edges[-1]:
                chunk = next(c for c in range(ranks) if edges[c] <= element < edges[c + 1])
                return rotated(ring, (chunk + first) % ranks)
        raise IndexError(f"element {element} is outside {span.start} .. {span.stop}")


@dataclass(frozen=True)
class ReductionTree(SpanOrders):
    """A tree all-reduce: sums travel toward a root in a number of rounds that grows as the logarithm of the ranks.

    Attributes:
      shape: "binomial": neighbouring ranks add first, then sums of neighbours, with a rounding after each addition;
        "double_binary": NCCL's two binary trees, one for each half of the buffer; a rank adds the sums of up to two
        children to its own contribution before it rounds.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import ReductionTree
      >>> ReductionTree().order(0, 8, 4)
      ((0, 1), (2, 3))
    """

    shape: str = "binomial"

    def __post_init__(self) -> None:
        require_word("shape", self.shape, ("binomial", "double_binary"))

    def parts(self, span: BufferSpan, ranks: int) -> list[tuple[BufferSpan, Order]]:
        if self.shape == "binomial":
            return [(span, halves(0, ranks))]
        second = (lambda i: (i - 1) % ranks) if ranks % 2 else (lambda i: ranks - 1 - i)
        trees = binary_tree(ranks, lambda i: i), binary_tree(ranks, second)
        return list(zip(split(span, 2), trees, strict=True))

    def owned(self, chunk: int, ranks: int) -> Order:
        return halves(0, ranks) if self.shape == "binomial" else binary_tree(ranks, lambda i: i)


@dataclass(frozen=True)
class RecursiveHalving(SpanOrders):
    """Recursive halving: ranks half of all ranks apart exchange halves of the buffer, ranks a quarter apart quarters.

    Attributes:
      fold: whether to accept a number of ranks r that is not a power of two. Let p be the largest power of two below
        r. As in MPICH, the first 2 (r - p) ranks first add in pairs, 0 and 1, 2 and 3, and so on. The halving is then
        among the r - p sums and the 2 p - r other ranks.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import RecursiveHalving
      >>> RecursiveHalving().order(0, 8, 4)
      ((0, 2), (1, 3))
    """

    fold: bool = False

    def check(self, ranks: int) -> None:
        """Raise ValueError for a number of ranks that is not a power of two, unless `fold` is set."""
        if ranks & (ranks - 1) and not self.fold:
            raise ValueError(
                f"recursive_halving needs a power of two as the number of ranks; got {ranks}. Pass algorithm='ring' or "
                "'tree', or collectives.RecursiveHalving(fold=True), which adds neighbours first."
            )

    def owned(self, chunk: int, ranks: int) -> Order:
        power = 1 << (ranks.bit_length() - 1)
        pairs = ranks - power
        folded = [*(Hops([2 * i, 2 * i + 1]) for i in range(pairs)), *range(2 * pairs, ranks)]
        return distances(folded)


@dataclass(frozen=True)
class Direct(SpanOrders):
    """A one-shot all-reduce: each rank receives all contributions to the chunk that it owns, adds them and rounds once.

    The sum is exact before this rounding, unless the all-reduce has an accumulation format: then contributions are
    added in that format, in ascending order of ranks.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import Direct
      >>> Direct().order(0, 8, 4)
      (0, 1, 2, 3)
    """

    def owned(self, chunk: int, ranks: int) -> Order:
        return ExactSum(range(ranks))


Flat = Ring | ReductionTree | RecursiveHalving | Direct
FLAT: dict[str, Flat] = {
    "ring": Ring(), "tree": ReductionTree(), "recursive_halving": RecursiveHalving(), "direct": Direct(),
}  # fmt: skip


@dataclass(frozen=True)
class TwoLevel:
    """A two-level all-reduce: reduce-scatter inside nodes, all-reduce of each shard between nodes, all-gather inside.

    With the rows of a grid of ranks as nodes this is the correct two-dimensional all-reduce.

    Attributes:
      ranks_per_node: number of consecutive ranks that form a node; None: 8, or all ranks if there are fewer.
      inside, between: the algorithm inside nodes, and the one between nodes: "ring", "tree", "recursive_halving" or
        "direct", or a Ring, ReductionTree, RecursiveHalving or Direct.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import TwoLevel
      >>> TwoLevel(2).order(0, 8, 4)  # element 0 is in shard 0, whose sums begin at the first rank of a node
      ((0, 1), (2, 3))
    """

    ranks_per_node: int | None = None
    inside: str | Flat = "ring"
    between: str | Flat = "ring"

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None:
            require_integer("ranks_per_node", self.ranks_per_node, 1)
        for name in ("inside", "between"):
            value = getattr(self, name)
            if isinstance(value, str) and value in FLAT:
                object.__setattr__(self, name, FLAT[value])
            elif not isinstance(value, Flat):
                raise unknown(name, value, tuple(FLAT))

    @property
    def levels(self) -> tuple[Flat, Flat]:
        """Algorithms inside nodes and between nodes, as objects."""
        return self.inside, self.between  # type: ignore[return-value]  # names became objects in __post_init__

    def node(self, ranks: int) -> int:
        """Return the number of ranks in a node, given the number of all ranks."""
        return min(NODE, ranks) if self.ranks_per_node is None else int(self.ranks_per_node)

    def check(self, ranks: int) -> None:
        """Raise ValueError if the algorithm does not support this number of ranks.

        Nodes must be of equal size, `inside` must support the ranks of a node, and `between` the number of nodes.
        """
        size = self.node(ranks)
        if ranks % size:
            best = max(n for n in range(1, NODE + 1) if ranks % n == 0)
            raise ValueError(
                f"two_level needs nodes of equal size; got {ranks} ranks, not a multiple of {size}. Pass "
                f"collectives.TwoLevel(ranks_per_node={best}), for example."
            )
        for part, count in zip(self.levels, (size, ranks // size), strict=True):
            part.check(count)

    def order(self, element: int, size: int, ranks: int) -> Order:
        """Return the order of the additions for element `element` of `size` elements, as nested tuples of ranks."""
        node = self.node(ranks)
        shards = split(BufferSpan(0, size), node)
        if not 0 <= element < size:
            raise IndexError(f"element {element} is outside 0 .. {size}")
        shard = next(i for i, span in enumerate(shards) if span.start <= element < span.stop)
        inside, between = self.levels
        inner, outer = inside.owned(shard, node), between.order_within(element, shards[shard], ranks // node)
        return substituted(outer, lambda k: substituted(inner, lambda i: k * node + i))


Algorithm = Flat | TwoLevel


NAMED: dict[str, Algorithm] = {**FLAT, "two_level": TwoLevel()}


def algorithm_of(value: Any) -> Algorithm:
    """Return the all-reduce algorithm with the name `value`, such as "ring"; return an algorithm object unchanged.

    Raises:
      ValueError: `value` is neither.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import algorithm_of
      >>> algorithm_of("tree")
      ReductionTree(shape='binomial')
    """
    if isinstance(value, Algorithm):
        return value
    if not isinstance(value, str) or value not in NAMED:
        raise unknown("algorithm", value, tuple(NAMED), others="or an object such as collectives.Ring(channels=2)")
    return NAMED[value]


def name_of(algorithm: Algorithm) -> str:
    """Return an algorithm's name, followed by the fields that differ from their defaults.

    Example:
      >>> from fpsim.analysis.systems.collectives.algorithms import Ring, name_of
      >>> name_of(Ring()), name_of(Ring(channels=2))
      ('ring', 'ring(channels=2)')
    """
    names = {type(default): name for name, default in NAMED.items()}
    plain = type(algorithm)()
    changed = {
        field: getattr(algorithm, field)
        for field in algorithm.__dataclass_fields__
        if getattr(algorithm, field) != getattr(plain, field)
    }
    details = ", ".join(f"{field}={_brief(value)}" for field, value in changed.items())
    return names[type(algorithm)] + (f"({details})" if details else "")


def _brief(value: Any) -> str:
    """Return the value of an algorithm's field as short text: a number, a name, or a tuple in parentheses.

    A long tuple of rings becomes the number of rings and of ranks, such as "2 of 16 ranks".
    """
    if isinstance(value, Flat):
        return name_of(value)
    text = repr(int(value) if is_integer(value) else value)
    return text if isinstance(value, str) or len(text) < 24 else f"{len(value)} of {len(value[0])} ranks"


def largest_group(algorithm: Algorithm, ranks: int) -> int:
    """Return the number of ranks whose contributions should stay in memory, because they are read repeatedly.

    A TwoLevel algorithm reads the contributions of a node again for each shard; the result is the number of ranks in
    a node. For other algorithms it is 1.
    """
    return algorithm.node(ranks) if isinstance(algorithm, TwoLevel) else 1
