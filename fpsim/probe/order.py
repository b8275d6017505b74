"""Orders of additions: which terms and partial sums meet in which node, in one form however their operands stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

Nested = int | tuple[Any, ...]


class Branch:
    """A term, or a sum of several branches.

    Attributes:
      lowest: its smallest term.
      size: how many terms it has.
      children: what is added, by their smallest terms; none for a term.
    """

    __slots__ = ("children", "lowest", "size")

    def __init__(self, lowest: int, size: int = 1, children: tuple[Branch, ...] = ()) -> None:
        self.lowest, self.size, self.children = lowest, size, children


def joined(children: Iterable[Branch]) -> Branch:
    """The sum of some branches, whose order among each other does not matter; of one, itself."""
    parts = tuple(sorted(children, key=lambda each: each.lowest))
    return parts[0] if len(parts) == 1 else Branch(parts[0].lowest, sum(each.size for each in parts), parts)


class Order:
    """An order of additions as a program in reverse Polish notation: a term pushes itself, -c adds c numbers.

    The operands of every addition stand by their smallest terms, so that equal orders are equal tuples.

    Args:
      program: terms, and additions of c numbers as -c.

    Example:
      >>> from fpsim.probe.order import Order
      >>> Order.of(((3, 2), (1, 0))).nested, Order.of(((0, 1), 2)) == Order.of((2, (1, 0)))
      (((0, 1), (2, 3)), True)
    """

    def __init__(self, program: Sequence[int]) -> None:
        self.program = tuple(program)

    @classmethod
    def of(cls, tree: Nested | Branch) -> Order:
        """The order of nested tuples of terms, or of a branch.

        Raises:
          ValueError: something else than integers and tuples of two or more.
        """
        return cls(list(_program(tree if isinstance(tree, Branch) else _branch(tree))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self.program == other.program

    def __hash__(self) -> int:
        return hash(self.program)

    @property
    def terms(self) -> int:
        """The number of terms that are added."""
        return sum(1 for each in self.program if each >= 0)

    @property
    def widest(self) -> int:
        """Numbers that the widest addition takes, the running sum included; 1 where there is none."""
        return max((-each for each in self.program if each < 0), default=1)

    @property
    def terms_at_once(self) -> int:
        """Terms that the addition with the most of them takes; 1 where additions take two numbers."""
        if self.widest <= 2:
            return 1
        best, stack = 1, [self.branch]
        while stack:
            node = stack.pop()
            best = max(best, sum(1 for child in node.children if not child.children))
            stack.extend(node.children)
        return best

    def are_siblings(self, terms: Iterable[int]) -> bool:
        """Return whether one addition takes all of some terms.

        Example:
          >>> from fpsim.probe.order import Order
          >>> order = Order.of(((0, 1), (2, 3)))
          >>> order.are_siblings([0, 1]), order.are_siblings([1, 2])
          (True, False)
        """
        return len({self._additions.get(term, -1 - term) for term in terms}) == 1

    @cached_property
    def _additions(self) -> dict[int, int]:
        """The addition that takes each term, as its place in the program."""
        stack, found = list[int](), dict[int, int]()
        for place, each in enumerate(self.program):
            if each >= 0:
                stack.append(each)
            else:
                found |= {term: place for term in stack[each:] if term >= 0}
                stack[each:] = [-1]
        return found

    @property
    def chain(self) -> tuple[int, ...]:
        """The terms in the order in which one chain adds them, the first ones ascending; none where it is no chain.

        Example:
          >>> from fpsim.probe.order import Order
          >>> Order.of((0, (1, (2, 3)))).chain, Order.of(((0, 1), (2, 3))).chain
          ((2, 3, 1, 0), ())
        """
        node, added = self.branch, []
        while node.children:
            inner = [child for child in node.children if child.children]
            if len(inner) > 1:
                return ()
            added.append([child.lowest for child in node.children if not child.children])
            node = inner[0] if inner else Branch(0)
        return tuple(term for step in reversed(added) for term in step)

    @property
    def nested(self) -> Nested:
        """Nested tuples of terms."""
        stack: list[Nested] = []
        for each in self.program:
            if each >= 0:
                stack.append(each)
            else:
                stack[each:] = [tuple(stack[each:])]
        return stack[0]

    @cached_property
    def branch(self) -> Branch:
        """The branch at the top."""
        stack: list[Branch] = []
        for each in self.program:
            if each >= 0:
                stack.append(Branch(each))
            else:
                stack[each:] = [joined(stack[each:])]
        return stack[0]

    def __str__(self) -> str:
        return " ".join(str(each) if each >= 0 else "+" if each == -2 else f"+{-each}" for each in self.program)

    @classmethod
    def parsed(cls, text: str) -> Order:
        """Parse a text that `str` of an order returned.

        Raises:
          ValueError: the text describes no order.

        Example:
          >>> from fpsim.probe.order import Order
          >>> Order.parsed("0 1 + 2 3 +3").nested
          ((0, 1), 2, 3)
        """
        program, depth = [], 0
        for word in text.split():
            adds = word.startswith("+")
            count = int(word[1:] or 2) if adds else 1
            program.append(-count if adds else int(word))
            depth += 1 - count if adds else 1
            if depth < 1 or (adds and count < 2):
                break
        if depth != 1:
            raise ValueError(f"an order of additions in reverse Polish notation is needed; got {text[:60]!r}.")
        return cls(program)


def _branch(tree: Nested) -> Branch:
    """The branch of nested tuples, without recursion, for a chain is as deep as it is long."""
    stack: list[tuple[Any, list[Branch]]] = [((tree,), [])]
    while True:
        node, done = stack[-1]
        if len(done) == len(node):
            stack.pop()
            if not stack:
                return done[0]
            stack[-1][1].append(joined(done))
            continue
        each = node[len(done)]
        if isinstance(each, tuple) and len(each) > 1:
            stack.append((each, []))
        elif isinstance(each, int) and not isinstance(each, bool):
            done.append(Branch(each))
        else:
            raise ValueError(f"a tree is a term or a tuple of two or more trees; got {each!r}.")


def _program(branch: Branch) -> Iterator[int]:
    """Its terms and additions, terms first."""
    stack: list[Branch | int] = [branch]
    while stack:
        each = stack.pop()
        if isinstance(each, int):
            yield each
        elif each.children:
            stack.append(-len(each.children))
            stack.extend(reversed(each.children))
        else:
            yield each.lowest
