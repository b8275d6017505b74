"""Orders in which NumPy, torch and JAX add the terms of a sum on CPUs, as data.

The order depends on the library's version and the processor, so no entry is guaranteed to be that of an
installed library; `fp.probe.sum` finds which one it follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fpsim.errors import integer_fields, is_integer, require_integer, require_kind, require_word, shown
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Start, Steps, Sum, terms_run, zero
from fpsim.schedules.trees.parts import refuse_parts
from fpsim.schedules.trees.tree import Tree

NUMPY = "numpy/_core/src/umath/loops_utils.h.src, pairwise sum; compared with NumPy 2.4.6"
TORCH = "pytorch/aten/src/ATen/native/cpu/SumKernel.cpp, cascade sum; compared with torch 2.13.0"
JAX = "openxla/xla, TreeReductionRewriter; compared with JAX 0.10.2 (CPU)"
JAX_TERMS = 4095  # from 4,096 terms on, JAX 0.10.2 returns other bits on an Emerald Rapids
MOST_PARTS = 1 << 22  # nodes and runs of a tree, which take about a minute; numpy_sum() has fewer for up to 2**24 terms
CHAINS, LEVELS, LEAST_POWER = 4, 4, 4  # of torch: chains of a lane, totals of a chain, log2 of the terms of the first


@dataclass(frozen=True)
class SumOrder:
    """The order in which a library adds the terms of any sum; `accumulate=` of `fp.sum` and `fp.dot` takes it.

    Args:
      name: the call that makes it.
      rule: "pairwise" (NumPy), "cascade" (torch) or "windows" (JAX).
      lanes: the number of chains over which consecutive terms are distributed; 1 for windows.
      block: for "pairwise" the largest number of terms that is not halved first; for "windows" the terms of a window;
        for "cascade" the number of lanes.
      fmt: the format of sums.
      most: the largest number of terms for which the library follows the order; 0 for any number.
      source: text on where the order is published.

    Raises:
      ValueError, TypeError: a field has another type or value than those above; for "pairwise", lanes is not a power of
        two or block is below 2 * lanes - 1, with which halves would be empty; for "windows", block is below 2.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.numpy_sum().tree(300)
      Tree(k=300, 8 levels, result FP32)
    """

    name: str
    rule: str
    lanes: int
    block: int
    fmt: Format = FP32
    most: int = 0
    source: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        require_word("rule", self.rule, list(RULES))
        require_kind("name", self.name, str, "a text")
        integer_fields(self, "lanes", lowest=1)
        if self.rule == "pairwise" and self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes must be a power of two, which are joined in pairs; got {shown(self.lanes)}.")
        integer_fields(self, "block", lowest={"pairwise": 2 * self.lanes - 1, "windows": 2}.get(self.rule, self.lanes))
        integer_fields(self, "most", lowest=0)
        require_kind("fmt", self.fmt, Format, "a format, such as fp.FP32")

    def tree(self, k: int) -> Tree:
        """Return the additions of a sum of k terms.

        Raises:
          ValueError: k is below 0 or larger than `most`, or the tree would have more than 2**22 parts.
        """
        require_integer("k", k, 0)
        k = int(k)
        if 0 < self.most < k:
            raise ValueError(
                f"{self} is known for up to {self.most} terms, from which on the library adds otherwise; "
                f"got {shown(k)}."
            )
        refuse_parts(_part_count(self, k), f"{self} with k={shown(k)}", MOST_PARTS)
        return _tree(self, k)

    def __repr__(self) -> str:
        return self.name


def numpy_sum(lanes: int = 8, block: int = 128, fmt: str | Format = FP32) -> SumOrder:
    """Return the order of NumPy's pairwise sum along contiguous terms.

    Up to `block` terms are distributed over lanes: their i-th term is added in lane i mod `lanes`. The lanes are added
    in pairs, then the terms after the last whole round, one by one. Fewer terms than lanes are one chain. More than
    `block` terms are halved, the first half rounded down to a multiple of the lanes.

    Args:
      lanes: the number of lanes, a power of two.
      block: the largest number of terms that lanes add, as more are halved first; at least 2 * lanes - 1.
      fmt: the format of sums.

    Raises:
      ValueError: lanes is not a power of two, or the block is smaller than 2 * lanes - 1.

    Source: numpy/_core/src/umath/loops_utils.h.src.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
      >>> fp.sum(x, accumulate=fp.schedules.numpy_sum()).dtype
      dtype('float32')
    """
    fmt = find_format(fmt)
    return SumOrder(_name("numpy_sum", lanes=lanes, block=block, fmt=fmt), "pairwise", lanes, block, fmt, source=NUMPY)


def torch_sum(lanes: int = 8, fmt: str | Format = FP32) -> SumOrder:
    """Return the order of torch's sum along contiguous terms on the CPU.

    Term i is added in lane i mod `lanes`, and the terms of a lane are distributed in the same manner over four chains.
    A chain adds its terms to a total; every 16 terms (more in chains of more than 2**19) it adds that total to a second
    one and starts again at +0. Every 16 such totals are added to a third, and so on to a fourth (cascade); the four are
    added at the end. A lane adds its chains one after the other. The terms after the last whole round of the lanes are
    added first, then the lanes, one after the other. This is the order of one thread: torch divides sums of more than
    32,768 terms among threads.

    Args:
      lanes: the number of elements in a vector: 8 with AVX2, which torch uses for sums with AVX-512 too.
      fmt: the format of sums.

    Raises:
      ValueError: lanes is below 1.

    Source: pytorch/aten/src/ATen/native/cpu/SumKernel.cpp.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.torch_sum(), fp.schedules.torch_sum(16).tree(100).k
      (torch_sum(), 100)
    """
    fmt = find_format(fmt)
    return SumOrder(_name("torch_sum", lanes=lanes, fmt=fmt), "cascade", lanes, lanes, fmt, source=TORCH)


def jax_sum(window: int = 32, fmt: str | Format = FP32) -> SumOrder:
    """Return the order of jnp.sum of a vector on the CPU: a chain for each window of terms, then windows of these sums.

    Sums of windows are added in windows again until one sum is left. If the windows do not divide the terms, the first
    and the last window are shorter, by nearly equal numbers of terms. The order of 4,096 terms and more is not known.

    Args:
      window: the number of terms of a chain.
      fmt: the format of sums.

    Raises:
      ValueError: the window has fewer than two terms.

    Source: openxla/xla, TreeReductionRewriter.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.jax_sum(), fp.schedules.jax_sum(fmt="fp64").tree(100).fmt.name
      (jax_sum(), 'FP64')
    """
    fmt = find_format(fmt)
    require_integer("window", window, 2)
    return SumOrder(_name("jax_sum", window=window, fmt=fmt), "windows", 1, window, fmt, most=JAX_TERMS, source=JAX)


USUAL = {"lanes": 8, "block": 128, "window": 32, "fmt": FP32}


def _name(maker: str, **fields: int | Format) -> str:
    """Return the text of the call of `maker` that creates a SumOrder, without arguments that equal their defaults.

    fields: the arguments. Only integers and Formats are compared with the defaults; SumOrder refuses other values, and
    `==` of an array is no bool.
    """
    known = {field for field, value in fields.items() if is_integer(value) or isinstance(value, Format)}
    named = {field: value for field, value in fields.items() if field not in known or value != USUAL[field]}
    words = [f"{field}={value if isinstance(value, Format) else shown(value)}" for field, value in named.items()]
    return f"{maker}({', '.join(words)})"


# ---- trees


def _part_count(row: SumOrder, k: int) -> int:
    """Return an estimate of the number of nodes and runs of terms in the tree of the SumOrder `row` for k terms."""
    if row.rule == "pairwise":
        halvings = max(-(-k // row.block) - 1, 0).bit_length()
        return (1 << halvings) * (3 * min(row.lanes, k) + 1)
    if row.rule == "windows":
        return 2 * (k // row.block) + 1
    count = k // (row.lanes * CHAINS)
    return 2 * (k >> _power(count)) + 12 * min(row.lanes, k)


@lru_cache(maxsize=64)
def _tree(row: SumOrder, k: int) -> Tree:
    """Return the tree of additions of k terms in the order `row`; cached."""
    how = Arithmetic("ieee", row.fmt)
    return Tree(k, RULES[row.rule](row, k, how) if k else zero(row.fmt))


def _chain(how: Arithmetic, start: Start, inputs: Sequence[Node | Steps | Gathered]) -> Sum:
    """Return a node that adds products of terms and other nodes in order.

    how: the arithmetic of each product and addition. start: "zero" if the sum starts at +0, "first" if it starts at its
    first input. inputs: nodes, and runs of terms (Steps, Gathered), in the order in which they are added.
    """
    return Sum(how, start, "chain", tuple(inputs), how)


def _pairwise(row: SumOrder, k: int, how: Arithmetic) -> Sum:
    """Return the tree of additions by which NumPy's pairwise sum adds terms 0 to k - 1.

    More than `row.block` terms are halved, and so are the halves, until each part has at most `row.block` terms. A part
    is added in `row.lanes` lanes. Every chain starts at its first term, as if at -0. row: the SumOrder, with the number
    of lanes and the size of a block. how: the arithmetic of each addition.
    """

    def part(start: int, terms: int) -> Sum:
        if terms < row.lanes:
            return _chain(how, "first", [terms_run(start, terms)])
        if terms > row.block:
            half = terms // 2 - terms // 2 % row.lanes
            return _chain(how, "first", [part(start, half), part(start + half, terms - half)])
        turns, rest = divmod(terms, row.lanes)
        level = [_chain(how, "first", [terms_run(start + lane, turns, row.lanes)]) for lane in range(row.lanes)]
        joined = in_levels(level, "pairwise", lambda x, y: _chain(how, "first", [x, y]))
        return _chain(how, "first", [joined, terms_run(start + turns * row.lanes, rest)]) if rest else joined

    return part(0, k)


def _cascade(row: SumOrder, k: int, how: Arithmetic) -> Sum:
    """Return the root node of the tree of additions by which torch sums terms 0 .. k - 1 on the CPU.

    Term i belongs to lane i mod `row.lanes`; each lane is added up by itself. The terms after the last whole round of
    lanes are added first, from +0, then the lanes' sums in order. If k is smaller than `row.lanes`, all terms form one
    lane.

    row: the SumOrder, which gives the number of lanes. how: the arithmetic (format and rounding) of each addition.
    """
    if k < row.lanes:
        return _lane(0, k, 1, how)
    lanes, (turns, rest) = row.lanes, divmod(k, row.lanes)
    tail = [terms_run(turns * lanes, rest)] if rest else []
    return _chain(how, "zero", [*tail, *(_lane(lane, turns, lanes, how) for lane in range(lanes))])


def _lane(lane: int, turns: int, lanes: int, how: Arithmetic) -> Sum:
    """Return the sum of one lane in torch's order as a node: four chains, which are added from the first on.

    Term i of the lane belongs to chain i mod 4. Terms after the last whole round of four are added to the first chain
    before the other chains are. lane: index of the lane's first term. turns: number of its terms. lanes: distance
    between two of its terms. how: the arithmetic of each addition.
    """
    whole, apart = turns // CHAINS, lanes * CHAINS
    chains = [_totals(lane + chain * lanes, whole, apart, how) for chain in range(CHAINS if whole else 0)]
    left = turns - whole * CHAINS
    first = list(chains[0].inputs) if chains else []
    if left:
        first.append(terms_run(lane + whole * apart, left, lanes))
    return _chain(how, "zero", [*first, *chains[1:]])


def _totals(first: int, count: int, apart: int, how: Arithmetic) -> Sum:
    """Return the sum of `count` terms first, first + apart, ... through torch's cascade of four totals, as a node.

    Terms are added to total 0 from +0. After every s terms total 0 is added to total 1 and starts again, after every
    s**2 total 1 to total 2, after every s**3 total 2 to total 3; at the end totals 1, 2 and 3 are added to total 0, in
    this order. s is 16, or a larger power of two for more than 2**19 terms. how: the arithmetic of each addition.
    """
    power = _power(count)
    size, totals = 1 << power, [list[Node | Steps]() for _ in range(LEVELS)]
    done = 0
    while done + size <= count:
        totals[0].append(terms_run(first + done * apart, size, apart))
        done += size
        for level in range(1, LEVELS):
            totals[level].append(_chain(how, "zero", totals[level - 1]))
            totals[level - 1] = []
            if done & ((size - 1) << (level * power)):
                break
    if done < count:
        totals[0].append(terms_run(first + done * apart, count - done, apart))
    higher = [_chain(how, "zero", total) for total in totals[1:] if total]
    if not totals[0] and higher:  # +0 plus a sum that is not -0
        return _chain(how, "zero", [*higher[0].inputs, *higher[1:]])
    return _chain(how, "zero", [*totals[0], *higher])


def _power(count: int) -> int:
    """Return log2(s) for the cascade of `count` terms, where s is the number of terms that each of its totals takes.

    `_totals` explains the cascade. The result is 4, or more for more than 2**19 terms.
    """
    return max(LEAST_POWER, max(count - 1, 0).bit_length() // LEVELS)


def _windows(row: SumOrder, k: int, how: Arithmetic) -> Sum:
    """Return the tree of additions by which XLA adds terms 0 to k - 1: in windows of `row.block` consecutive terms.

    The sums of the windows are added in windows again, until one sum is left. Each window is a chain from +0. row: the
    SumOrder, with the size of a window. how: the arithmetic of each addition.
    """
    parts = [_chain(how, "zero", [terms_run(*span)]) for span in _cut(k, row.block)]
    while len(parts) > 1:
        parts = [_chain(how, "zero", parts[start : start + count]) for start, count in _cut(len(parts), row.block)]
    return parts[0]


def _cut(count: int, window: int) -> list[tuple[int, int]]:
    """Return (start, length) of consecutive windows of `window` terms that cover `count` terms.

    Only the first and the last window may be shorter: half of the missing terms are missing from each (of an odd
    number, one more from the last). Up to `window` terms are one window.
    """
    if count <= window:
        return [(0, count)]
    before = -count % window // 2
    stops = [*range(window - before, count, window), count]
    return [(start, stop - start) for start, stop in zip([0, *stops], stops, strict=False)]


RULES: dict[str, Callable[[SumOrder, int, Arithmetic], Sum]] = {
    "pairwise": _pairwise, "cascade": _cascade, "windows": _windows,
}  # fmt: skip
SUM_ROWS: tuple[SumOrder, ...] = (
    numpy_sum(), numpy_sum(16), numpy_sum(4), torch_sum(), torch_sum(16), torch_sum(4), jax_sum(),
)  # fmt: skip
