"""The nodes of a tree of additions, built in a normal form: equal trees have equal bits for all inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

from fpsim.formats.named import FP32, Format
from fpsim.schedules.plan import Span

Order = Literal["chain", "pairwise", "butterfly"]
Start = Literal["zero", "first"]


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of one addition: alignment, rounding and format of the result.

    Args:
      rule: "ieee" (the exact sum, rounded once; zeros have the signs of IEEE 754), "once" (the exact sum of all terms
        together, rounded once, without a +0 at the start), or the rule of a matrix unit (docs/matrix-units.md), such as
        "fused".
      fmt: the format of the result.
      rounding: a rounding of `fp.encode`.
      fraction_bits: bits kept below the largest exponent when terms are aligned; None if nothing is cut.
      floor_exponent: the exponent of a zero term when terms are aligned; None if they are not.
      result_bits: mantissa bits of the result, None for all.
      width: terms of a full instruction, if one with fewer terms rounds differently; else 0.
      operands: the change of operands before they are multiplied: "tf32" drops their low bits.
      scale, block: the format of block scales and the number of terms that share one; "" and 0 without.
      then: the format into which the result is rounded once more, to nearest even.
      overflow, subnormals: as for `fp.encode`.
      stream: text that identifies the random numbers of stochastic rounding; "" without. Equal texts: equal numbers.
    """

    rule: str
    fmt: Format
    rounding: str = "nearest_even"
    fraction_bits: int | None = None
    floor_exponent: int | None = None
    result_bits: int | None = None
    width: int = 0
    operands: str = ""
    scale: str = ""
    block: int = 0
    then: Format | None = None
    overflow: str = "nonfinite"
    subnormals: str = "keep"
    stream: str = ""

    @property
    def words(self) -> str:
        """Description of the arithmetic as a phrase.

        Example:
          >>> import fpsim as fp
          >>> fp.schedules.tree("hopper_e4m3_f32", 32).root.how.words
          'cut at 13 fraction bits, rounded toward zero to 13 mantissa bits in float32'
        """
        plain = self.rule in ("fused", "ieee", "once", "exact")
        rule = "" if plain else f"by the rule {self.rule.upper()}, "
        cut = f"{rule}cut at {self.fraction_bits} fraction bits, " if self.fraction_bits is not None else rule
        full = self.result_bits is None or self.result_bits >= self.fmt.mantissa_bits
        bits = "" if full else f"{self.result_bits} mantissa bits in "
        twice = f", then to {in_words(self.then)}" if self.then is not None else ""
        return f"{cut}rounded {self.rounding.replace('_', ' ')} to {bits}{in_words(self.fmt)}{twice}"


FLOAT32 = Arithmetic("ieee", FP32)


def in_words(fmt: Format) -> str:
    """Return the name of the format `fmt` in sentences: "float32" for FP32, else its own name."""
    return "float32" if fmt == FP32 else fmt.name


@dataclass(frozen=True)
class Steps:
    """A run of `count` additions, each of the products of `terms` consecutive terms of K.

    Addition i adds the terms from start + i * stride on; stride is 0 if count is 1.
    """

    start: int
    terms: int
    count: int
    stride: int


def terms_run(start: int, count: int, stride: int = 1) -> Steps:
    """Return the Steps that add the products of `count` terms, start, start + stride, ..., one by one."""
    return Steps(start, 1, count, stride if count > 1 else 0)


@dataclass(frozen=True)
class Gathered:
    """One addition of the products of terms that are not contiguous; spans: the ranges of these terms."""

    spans: tuple[Span, ...]
    count: ClassVar[int] = 1

    @property
    def terms(self) -> int:
        """Number of terms that are added."""
        return sum(span.terms for span in self.spans)


@dataclass(frozen=True)
class Round:
    """The node `input` rounded to the format `fmt`, to nearest even; FP8 saturates, like NVIDIA's conversion."""

    fmt: Format
    input: Node

    @property
    def depth(self) -> int:
        """Number of levels of nodes, from this one down to the products."""
        return 1 + self.input.depth


@dataclass(frozen=True)
class ScaledSum:
    """The partial sum `input` times both operands' scales of its block; the result is then added to a total.

    order: "product": (scale_a * scale_b) * sum; "a_first": (sum * scale_a) * scale_b; "b_first": (sum * scale_b) *
    scale_a; "cublas": "a_first" if both operands have scales per 1x128, else "product". fuses: True if the second
    multiplication and the addition are one fused multiply-add; False if the product is rounded first.
    """

    order: str
    input: Node
    fuses: bool = True
    fmt: ClassVar[Format] = FP32  # of the total

    @property
    def words(self) -> str:
        """Description of the order in which both scales multiply the sum, and whether the scaled sum is rounded."""
        return self.order.replace("_", " ") + ("" if self.fuses else ", rounded before the addition")

    @property
    def depth(self) -> int:
        """Number of levels of nodes, from this one down to the products."""
        return 1 + self.input.depth


@dataclass(frozen=True)
class Sum:
    """A sum of products and of other nodes.

    Args:
      how: the arithmetic of every addition.
      start: "zero": the running sum starts at +0; "first": at the first input, unrounded.
      order: "chain": inputs are added to the running sum one after the other. "pairwise": neighbours are added, then
        the sums of neighbours, level by level; an odd last one moves up. "butterfly": with h half of the smallest power
        of two that is not below the number of inputs, input l + h is added to input l where there is one; then the same
        with h / 2, ...
      inputs: nodes, and runs of additions of products. A pairwise sum takes every product separately.
      product: the arithmetic that rounds a product before it is added; None if the product is exact.
    """

    how: Arithmetic
    start: Start
    order: Order
    inputs: tuple[Node | Steps | Gathered, ...]
    product: Arithmetic | None = None

    @property
    def fmt(self) -> Format:
        """Format of the sum."""
        return self.how.then or self.how.fmt

    @property
    def depth(self) -> int:
        """Number of levels of nodes, from this one down to the products."""
        return 1 + max((1 if isinstance(x, (Steps, Gathered)) else x.depth for x in self.inputs), default=0)


Node = Sum | Round | ScaledSum


class Extent(NamedTuple):
    """The range of K that a node covers, start .. stop - 1, and its number of terms."""

    start: int
    stop: int
    terms: int

    def __str__(self) -> str:
        """Return the terms as text, the last one included.

        Example:
          >>> from fpsim.schedules.trees.nodes import Extent
          >>> str(Extent(0, 128, 128)), str(Extent(5, 6, 1)), str(Extent(0, 97, 4))
          ('0..127', '5', '4 of 0..96')
        """
        few = f"{self.terms} of " if 1 < self.terms < self.stop - self.start else ""
        return str(self.start) if self.terms == 1 else f"{few}{self.start}..{self.stop - 1}"


def extent_of(span: Span) -> Extent:
    """Return the Extent of a span: its range of K, and its number of terms."""
    return Extent(span.start, span.stop, span.terms)


def extent(node: Node | Steps | Gathered) -> Extent:
    """Return the range of K that a node covers, and its number of terms.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.schedules.trees.nodes import extent
      >>> extent(fp.schedules.tree(fp.schedules.FLAT, 100).root)
      Extent(start=0, stop=100, terms=100)
    """
    if isinstance(node, Steps):
        return Extent(node.start, node.start + (node.count - 1) * node.stride + node.terms, node.count * node.terms)
    if isinstance(node, Gathered):
        return joint(extent_of(span) for span in node.spans)
    return joint(extent(item) for item in node.inputs) if isinstance(node, Sum) else extent(node.input)


def joint(extents: Iterator[Extent]) -> Extent:
    """Return the smallest Extent that covers all `extents`, with the sum of their numbers of terms."""
    some = [part for part in extents if part.terms] or [Extent(0, 0, 0)]
    return Extent(min(x.start for x in some), max(x.stop for x in some), sum(x.terms for x in some))


class TrackedNode(NamedTuple):
    """A node of a tree; never_minus_zero: whether its value is known never to be -0, whatever the operands are."""

    node: Node
    never_minus_zero: bool


@cache
def zero(fmt: Format) -> Sum:
    """Return the node of +0 in the format `fmt`: the sum of no terms."""
    return Sum(Arithmetic("ieee", fmt), "zero", "chain", ())


def add_steps(steps: list[Steps | Gathered], new: Steps) -> None:
    """Append `new` to `steps` in place, or lengthen its last run by it, so that equal orders give equal lists."""
    start, terms, count, stride = new.start, new.terms, new.count, new.stride
    while count:
        last = steps[-1] if steps else None
        if (
            not isinstance(last, Steps)
            or last.terms != terms
            or (last.count > 1 and start != last.start + last.count * last.stride)
        ):
            steps.append(Steps(start, terms, count, stride if count > 1 else 0))
            return
        if last.count == 1:
            steps[-1] = Steps(last.start, terms, 2, start - last.start)
        else:
            goes_on = count > 1 and stride == last.stride
            steps[-1] = Steps(last.start, terms, last.count + (count if goes_on else 1), last.stride)
            if goes_on:
                return
        start, count = start + stride, count - 1


def add_instructions(steps: list[Steps | Gathered], start: int, length: int, step: int) -> None:
    """Append to `steps`, in place, the instructions that add `length` consecutive terms from `start` on.

    Each adds `step` terms; the last one adds the terms that remain.
    """
    whole, rest = divmod(length, step)
    add_steps(steps, Steps(start, step, whole, step))
    add_steps(steps, Steps(start + whole * step, rest, 1 if rest else 0, 0))


def sum_of_terms(how: Arithmetic, steps: Sequence[Steps | Gathered], never_minus_zero: bool) -> TrackedNode:
    """Return the node of a sum that starts at +0 and adds `steps` in order with the arithmetic `how`.

    never_minus_zero: whether its value is known never to be -0.
    """
    node = Sum(how, "zero", "chain", tuple(steps)) if steps else zero(how.fmt)
    return TrackedNode(node, never_minus_zero or not steps)


def add(
    how: Arithmetic, parts: Sequence[TrackedNode], *, from_zero: bool = False, order: Order = "chain"
) -> TrackedNode:
    """Return the node that adds the nodes `parts`, without additions that change no bit.

    An addition of +0 to a value that is never -0 is left out; a single part is returned as it is. how: the arithmetic
    of additions. from_zero: True if the sum starts at +0. order: "chain", "pairwise" or "butterfly", as in `Sum`.
    """
    plain = (how.rounding, how.subnormals, how.then) == ("nearest_even", "keep", None)
    same = plain and all(part.node.fmt == how.fmt for part in parts)
    if not parts:
        return TrackedNode(zero(how.fmt), True)
    from_zero = from_zero and not (same and parts[0].never_minus_zero)
    if same:
        # +0s at the end are left out unless the sum before them may be -0
        safe = from_zero or all(part.never_minus_zero for part in (parts[:1] if order == "chain" else parts))
        count, nothing = len(parts), zero(how.fmt)
        while safe and count > 1 and parts[count - 1].node == nothing:
            count -= 1
        if count == 1 and not from_zero:
            return parts[0]
        parts = parts[:count]
    if len(parts) == 2:
        order = "chain"
    # a sum of float32 numbers is -0 only if both are
    never = same and (from_zero or any(part.never_minus_zero for part in parts))
    return TrackedNode(Sum(how, "zero" if from_zero else "first", order, tuple(part.node for part in parts)), never)


def rounded(part: TrackedNode, fmt: Format | None) -> TrackedNode:
    """Return the node `part` rounded to the format `fmt`, or unchanged if it has that format or fmt is None."""
    if fmt is None or part.node.fmt == fmt:
        return part
    if isinstance(part.node, Sum) and part.node == zero(part.node.fmt):
        return TrackedNode(zero(fmt), True)
    return TrackedNode(Round(fmt, part.node), False)


Kind = Literal["begin", "step", "push", "join", "pairwise", "butterfly", "scale", "round"]


class StackOperation(NamedTuple):
    """One operation of a program that computes a tree with a stack of running sums.

    kind: "begin" pushes +0; "step" adds products to the top; "push" pushes one product; "join" pops the top and adds it
    to the next one; "pairwise" and "butterfly" replace `numbers` numbers by their sum; "scale" multiplies the top by
    the scales of its block; "round" rounds it. how: arithmetic of a sum, format of "begin" and "round", or order of the
    multiplications of "scale" as text. spans: terms of K whose products are added. product: their rounding, None if
    exact. node: the node of the tree that the operation belongs to, which is not compared.
    """

    kind: Kind
    how: Arithmetic | Format | str
    spans: tuple[Span, ...] = ()
    product: Arithmetic | None = None
    numbers: int = 0
    node: Any = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields on which the bits of the result depend: all but `node`."""
        return self[:5]


def operations(node: Node, whole: bool = False) -> Iterator[StackOperation]:
    """Yield the operations, on a stack of sums, that compute a node; nodes with equal operations are equal.

    whole: True yields one "step" for a run of additions (Steps), with the run instead of spans.
    """
    if isinstance(node, ScaledSum):
        yield from operations(node.input, whole)
        yield StackOperation("scale", node.order if node.fuses else node.words, node=node)
    elif isinstance(node, Round):
        yield from operations(node.input, whole)
        yield StackOperation("round", node.fmt, node=node)
    elif node.order == "chain":
        yield from _chain(node, whole)
    else:
        for item in node.inputs:
            if isinstance(item, (Steps, Gathered)):
                for spans in steps_of(item):
                    yield StackOperation("push", node.how, spans, node.product, node=node)
            else:
                yield from operations(item, whole)
        count = sum(item.count if isinstance(item, (Steps, Gathered)) else 1 for item in node.inputs)
        yield StackOperation(node.order, node.how, numbers=count, node=node)


def _chain(node: Sum, whole: bool) -> Iterator[StackOperation]:
    """Yield the operations that compute a chain, a sum whose inputs are added in order; whole: as for `operations`."""
    if node.start == "zero":
        yield StackOperation("begin", node.how.fmt, node=node)
    for i, item in enumerate(node.inputs):
        begins = i == 0 and node.start == "first"
        if isinstance(item, (Steps, Gathered)):
            every: Any = [(item,)] if whole and isinstance(item, Steps) and not begins else steps_of(item)
            for number, spans in enumerate(every):
                kind: Kind = "push" if begins and number == 0 else "step"
                yield StackOperation(kind, node.how, spans, node.product, node=node)
        else:
            yield from operations(item, whole)
            if not begins:
                yield StackOperation("join", node.how, node=item)


def steps_of(steps: Steps | Gathered) -> Iterator[tuple[Span, ...]]:
    """Yield for each addition in `steps` a tuple of the spans of terms that it adds.

    Example:
      >>> from fpsim.schedules.trees.nodes import Steps, steps_of
      >>> list(steps_of(Steps(0, 16, 2, 16)))
      [(Span(start=0, stop=16),), (Span(start=16, stop=32),)]
    """
    if isinstance(steps, Gathered):
        yield steps.spans
        return
    for start in (steps.start + i * steps.stride for i in range(steps.count)):
        yield (Span(start, start + steps.terms),)
