"""Trees from orders written by hand: nested tuples of terms, added by an accumulator or by a matrix unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from fpsim.errors import is_integer, require_integer, shown
from fpsim.formats.named import FP32, FP64
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.schedules.plan import Span
from fpsim.schedules.trees.levels import in_levels
from fpsim.schedules.trees.nodes import FLOAT32, Arithmetic, Gathered, Node, Start, Steps, Sum, add_steps
from fpsim.schedules.trees.parts import accumulator_arithmetic, arithmetic_of, by_accumulator
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd, Pairwise, Sequential

Nested = int | tuple[Any, ...]
DEEPEST = 200  # levels of nodes, through which functions of trees recurse
FLOAT32_SUMS = Pairwise(FP32)  # the default additions of an order
# rules whose results do not depend on the order of the terms of an instruction (or that read scales in their order)
AT_ONCE = Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.SEPARATE


class OpenSum:
    """A sum under construction: a chain to which further terms and sums can be added.

    Attributes:
      how: the arithmetic of the chain.
      start: "zero" if it starts at +0, "first" if at its first input.
      inputs: its products and sums so far.
      size: number of terms.
      depth: levels of nodes, from the sum down to the products.
    """

    __slots__ = ("depth", "how", "inputs", "size", "start")

    def __init__(self, how: Arithmetic, start: Start) -> None:
        self.how, self.start = how, start
        self.inputs: list[Any] = []
        self.size, self.depth = 0, 2

    def take(self, terms: Sequence[int]) -> None:
        """Append one addition of the products of the given terms of K, in their order."""
        runs = [(i == 0 or terms[i - 1] + 1 != term, term) for i, term in enumerate(terms)]
        starts = [term for is_first, term in runs if is_first]
        if len(starts) == 1:
            add_steps(self.inputs, Steps(terms[0], len(terms), 1, 0))
        else:
            stops = [before + 1 for before, after in pairwise(terms) if before + 1 != after]
            self.inputs.append(Gathered(tuple(map(Span, starts, [*stops, terms[-1] + 1]))))
        self.size += len(terms)

    def join(self, other: OpenSum, product: Arithmetic | None) -> None:
        """Append the addition of the finished sum `other`.

        product: the arithmetic that rounds the products in `other`, or None if they are exact.

        Raises:
          ValueError: sums are nested more than DEEPEST (200) levels deep.
        """
        self.inputs.append(other.closed(product))
        self.size += other.size
        self.depth = max(self.depth, other.depth + 1)
        if self.depth > DEEPEST:
            raise ValueError(
                f"an order must have at most {DEEPEST} sums inside one another that chains cannot take in; got more. "
                "Let a matrix unit's chains be longer, or add in an accumulator such as fp.Pairwise(fp.FP32)."
            )

    def closed(self, product: Arithmetic | None) -> Sum:
        """Return this sum as a node; product: the arithmetic that rounds its products, or None if they are exact."""
        return Sum(self.how, self.start, "chain", tuple(self.inputs), product)


def written_root(order: Nested, k: int | None, how: Accumulator | MatrixUnit) -> tuple[int, Node]:
    """Return (number of terms, root node of the tree) for an order of additions given as nested tuples of terms.

    k: the number of terms; None to take it from the order. how: Sequential, FusedMultiplyAdd or Pairwise, which add two
    numbers at a time; or a unit: an instruction adds the terms of a tuple and at most one sum, and a tuple of two sums
    is one addition in float32 (float64 for units of FP64).

    Raises:
      ValueError: terms are missing, repeated or out of range, the accumulator or unit cannot add a tuple, or the
        accumulator is stochastic or none of the above.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.schedules.trees.written_order import written_root
      >>> written_root(((0, 1), 2), 3, fp.Sequential("fp32"))[1].inputs
      (Steps(start=0, terms=1, count=3, stride=1),)
    """
    program = program_of(order)
    terms = check_terms(program, k)
    if isinstance(how, MatrixUnit):
        return terms, _root(program, _by_unit(how), None)
    if not isinstance(how, (Sequential, FusedMultiplyAdd, Pairwise)):
        raise ValueError(
            f"an order is added by fp.Sequential, fp.FusedMultiplyAdd, fp.Pairwise or a matrix unit; {how} has an "
            "order of its own."
        )
    if how.rounding is Rounding.STOCHASTIC:
        raise ValueError(f"{how} numbers its random words by its own order. Take another rounding for an order.")
    if isinstance(how, Pairwise) and program == in_levels(
        [[term] for term in range(terms)], "pairwise", lambda x, y: [*x, *y, -2]
    ):
        return terms, by_accumulator(how, terms).node
    arithmetic = accumulator_arithmetic(how, how.fmt, terms)
    product = None if isinstance(how, FusedMultiplyAdd) else arithmetic
    start: Start = "first" if isinstance(how, Pairwise) else "zero"
    return terms, _root(program, _by_twos(how, arithmetic, start, product), product)


Joiner = Callable[[list["int | OpenSum"]], OpenSum]


def _root(program: Sequence[int], join: Joiner, product: Arithmetic | None) -> Sum:
    """Return the root node of a program of additions in reverse Polish notation.

    program: n >= 0 pushes term n, and -c adds the last c numbers. join: function from the list of terms and sums of one
    addition to their sum. product: the arithmetic that rounds products, or None if they are exact.
    """
    stack: list[int | OpenSum] = []
    for step in program:
        if step >= 0:
            stack.append(step)
        else:
            stack[step:] = [join(stack[step:])]
    (top,) = stack
    return (join([top]) if isinstance(top, int) else top).closed(product)


def _by_twos(how: Accumulator, arithmetic: Arithmetic, start: Start, product: Arithmetic | None) -> Joiner:
    """Return the function (list of one or two terms or sums) -> sum that adds them as an accumulator does.

    Of two sums, the one with fewer terms is added to the other. The function raises a ValueError for a list of more
    than two. how: the accumulator, only named in that error. arithmetic: the arithmetic of each addition. start: "zero"
    if sums start at +0, "first" if they start at their first input. product: the arithmetic that rounds products; None
    if products are exact.
    """

    def join(parts: list[int | OpenSum]) -> OpenSum:
        if len(parts) > 2:
            raise ValueError(
                f"{how} adds two numbers at a time; got a tuple of {len(parts)}. Nest it as pairs, or take a matrix "
                "unit, whose instructions add several products at once."
            )
        sums = sorted((part for part in parts if isinstance(part, OpenSum)), key=lambda part: -part.size)
        total = sums[0] if sums else OpenSum(arithmetic, start)
        for part in parts:
            if isinstance(part, int):
                total.take([part])
        for other in sums[1:]:
            total.join(other, product)
        return total

    return join


def _by_unit(unit: MatrixUnit) -> Joiner:
    """Return the function (list of terms and sums) -> sum that adds the members of one tuple by a matrix unit.

    An order of additions is written as nested tuples of numbers of terms, such as ((0, 1), 2). The list has the members
    of one such tuple: numbers of terms, and the sums of its inner tuples. Terms are added by one instruction, to at
    most one sum. Two sums without terms are added in float32 (float64 for units of FP64). The function raises a
    ValueError for other lists.
    """
    arithmetic = arithmetic_of(unit)
    any_order = unit.rule in AT_ONCE or (unit.rule is Rule.EXACT and unit.terms > 1)

    def join(parts: list[int | OpenSum]) -> OpenSum:
        terms = [part for part in parts if isinstance(part, int)]
        terms = sorted(terms) if any_order else terms  # equal instructions are equal nodes
        sums = [part for part in parts if isinstance(part, OpenSum)]
        if len(sums) > 2 or (terms and len(sums) > 1):
            raise ValueError(
                f"an instruction of {unit.name} adds products to one sum, and two sums are added in float32; got a "
                f"tuple of {len(sums)} sums and {len(terms)} terms. Nest it."
            )
        if len(terms) > max(unit.terms, 2 if unit.terms == 1 and not sums else 1):
            raise ValueError(
                f"an instruction of {unit.name} adds up to {unit.terms} products; got a tuple of {len(terms)} terms. "
                "Nest it."
            )
        if terms and sums and sums[0].how.fmt != unit.d.fmt:
            raise ValueError(
                f"an instruction of {unit.name} adds products to a sum in {unit.d.fmt.name}; got the sum of two, which "
                "are added in float32. Nest them without further terms."
            )
        if len(sums) == 2:
            return _added(sums[0], sums[1], Arithmetic("ieee", FP64) if unit.d.fmt == FP64 else FLOAT32)
        total = sums[0] if sums and sums[0].how == arithmetic else OpenSum(arithmetic, "first" if sums else "zero")
        if sums and total is not sums[0]:
            total.join(sums[0], None)
        for group in [[term] for term in terms] if unit.terms == 1 else [terms]:
            total.take(group)
        return total

    return join


def _added(x: OpenSum, y: OpenSum, how: Arithmetic) -> OpenSum:
    """Return the sum of two partial sums, x and y, as `how` adds them.

    If one of them is a chain of partial sums itself, the other is appended to it in place.
    """
    chains = sorted((part for part in (x, y) if part.how == how and part.start == "first"), key=lambda z: -z.size)
    if chains:
        total = chains[0]
        total.join(y if total is x else x, None)
        return total
    total = OpenSum(how, "first")
    total.join(x, None)
    total.join(y, None)
    return total


# ---- nested tuples


def program_of(order: Nested) -> list[int]:
    """Return `order`, nested tuples of terms, in reverse Polish notation: n >= 0 pushes term n, -c adds the last c.

    The tuples of a chain are nested as deep as it has terms, so they are walked without recursion, from the end.

    Raises:
      ValueError: the tuples have other elements than terms and tuples of two or more.

    Example:
      >>> from fpsim.schedules.trees.written_order import program_of
      >>> program_of((0, (2, 1)))
      [0, 2, 1, -2, -2]
    """
    program: list[int] = []
    todo: list[Any] = [order]
    while todo:
        item = todo.pop()
        if isinstance(item, tuple) and len(item) > 1:
            program.append(-len(item))
            todo.extend(item)
        elif is_integer(item):
            if item < 0:
                raise ValueError(f"terms are counted from 0; got {shown(item)}.")
            require_integer("a term", item)
            program.append(int(item))
        else:
            raise ValueError(
                f"an order is a term or a tuple of two or more orders, such as ((0, 1), 2); got {shown(item)}."
            )
    return program[::-1]


def check_terms(program: Sequence[int], k: int | None) -> int:
    """Return the number of terms of an order, after checking that each occurs exactly once.

    Args:
      program: the order as `program_of` returns it: numbers >= 0 are terms, negative ones are additions.
      k: the required number of terms; None for one more than the largest.

    Raises:
      ValueError: a term is repeated, missing, or not below k.
    """
    terms = [step for step in program if step >= 0]
    size = max(terms) + 1 if k is None else k
    beyond = next((term for term in terms if term >= size), None)
    if beyond is not None:
        raise ValueError(f"an order of {size} terms has the terms 0 .. {size - 1}; got {beyond}.")
    if len(terms) > size or len(set(terms)) < len(terms):
        seen = set[int]()
        twice = next(term for term in terms if term in seen or seen.add(term))  # type: ignore[func-returns-value]
        raise ValueError(f"an order must have every term once; term {twice} is repeated.")
    if len(terms) < size:
        known = set(terms)
        missing = next(term for term in range(size) if term not in known)
        raise ValueError(
            f"an order of {size} terms must have every term once; {len(terms)} are there, and term {missing} is "
            "missing."
        )
    return size
