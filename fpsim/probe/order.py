"""Orders of additions: the terms and partial sums of each node, in a form without the order of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

Nested = int | tuple[Any, ...]
Value = TypeVar("Value")


class Branch:
    """A term, or a sum of several branches.

    Attributes:
      lowest: its smallest term.
      size: its number of terms.
      children: the branches that it adds, sorted by their smallest terms; none for a term.
    """

    __slots__ = ("children", "lowest", "size")

    def __init__(self, lowest: int, size: int = 1, children: tuple[Branch, ...] = ()) -> None:
        self.lowest, self.size, self.children = lowest, size, children

    def folded(self, leaf: Callable[[Branch], Value | None], join: Callable[[list[Value]], Value]) -> dict[int, Value]:
        """Return a value for each branch by its id: `leaf` of it, or if that is None `join` of its children's values.

        Nothing recurses, since the nesting of a chain is as deep as the chain has terms.
        """
        values: dict[int, Value] = {}
        stack = [(self, False)]
        while stack:
            branch, is_ready = stack.pop()
            value = leaf(branch)
            if value is not None:
                values[id(branch)] = value
            elif is_ready:
                values[id(branch)] = join([values[id(child)] for child in branch.children])
            else:
                stack.append((branch, True))
                stack.extend((child, False) for child in branch.children)
        return values


def joined(children: Iterable[Branch]) -> Branch:
    """Return the branch that adds several branches; return a single branch unchanged."""
    parts = tuple(sorted(children, key=lambda branch: branch.lowest))
    return parts[0] if len(parts) == 1 else Branch(parts[0].lowest, sum(branch.size for branch in parts), parts)


class Order:
    """An order of additions as a program in reverse Polish notation: a term pushes itself, -c adds c numbers.

    The operands of every addition are sorted by their smallest terms, so that equal orders are equal tuples.

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
        """Return the order of nested tuples of terms, or of a branch.

        Raises:
          ValueError: the tuples have other elements than integers and tuples of two or more.
        """
        return cls(list(_program(tree if isinstance(tree, Branch) else _branch(tree))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order) and self.program == other.program

    def __hash__(self) -> int:
        return hash(self.program)

    @property
    def terms(self) -> int:
        """Number of terms that are added."""
        return sum(1 for step in self.program if step >= 0)

    @property
    def widest(self) -> int:
        """Number of operands of the widest addition, the running sum included; 1 without additions."""
        return max((-step for step in self.program if step < 0), default=1)

    @property
    def terms_at_once(self) -> int:
        """Largest number of terms of one addition; 1 if additions take two numbers."""
        if self.widest <= 2:
            return 1
        best, stack = 1, [self.branch]
        while stack:
            node = stack.pop()
            best = max(best, sum(1 for child in node.children if not child.children))
            stack.extend(node.children)
        return best

    def are_siblings(self, terms: Iterable[int]) -> bool:
        """Return whether a single addition adds all the given terms.

        Example:
          >>> from fpsim.probe.order import Order
          >>> order = Order.of(((0, 1), (2, 3)))
          >>> order.are_siblings([0, 1]), order.are_siblings([1, 2])
          (True, False)
        """
        return len({self._additions.get(term, -1 - term) for term in terms}) == 1

    @cached_property
    def _additions(self) -> dict[int, int]:
        """Index in the program, for each term, of the addition that takes it."""
        stack, additions = list[int](), dict[int, int]()
        for place, step in enumerate(self.program):
            if step >= 0:
                stack.append(step)
            else:
                additions |= {term: place for term in stack[step:] if term >= 0}
                stack[step:] = [-1]
        return additions

    @property
    def chain(self) -> tuple[int, ...]:
        """The terms in the order of the chain that adds them, the first ones ascending; () if the order is no chain.

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
        """The order as nested tuples of terms."""
        run: Callable[..., Nested] = self._run
        return run(int, tuple)

    @cached_property
    def branch(self) -> Branch:
        """The order as a branch, the root of its tree."""
        return self._run(Branch, joined)

    def _run(self, term: Callable[[int], Value], add: Callable[[list[Value]], Value]) -> Value:
        """Run the program with `term` for each term and `add` for each sum, and return the value left on its stack."""
        stack: list[Value] = []
        for step in self.program:
            if step >= 0:
                stack.append(term(step))
            else:
                stack[step:] = [add(stack[step:])]
        return stack[0]

    def __str__(self) -> str:
        return " ".join(str(step) if step >= 0 else "+" if step == -2 else f"+{-step}" for step in self.program)

    @classmethod
    def parsed(cls, text: str) -> Order:
        """Return the order whose `str` is the given text.

        Raises:
          ValueError: the text is not an order.

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
    """Return the branch of nested tuples, without recursion, since a chain of n terms is n levels deep."""
    stack: list[tuple[Any, list[Branch]]] = [((tree,), [])]
    while True:
        node, done = stack[-1]
        if len(done) == len(node):
            stack.pop()
            if not stack:
                return done[0]
            stack[-1][1].append(joined(done))
            continue
        child = node[len(done)]
        if isinstance(child, tuple) and len(child) > 1:
            stack.append((child, []))
        elif isinstance(child, int) and not isinstance(child, bool):
            done.append(Branch(child))
        else:
            raise ValueError(f"a tree is a term or a tuple of two or more trees; got {child!r}.")


def _program(branch: Branch) -> Iterator[int]:
    """Yield the terms and additions of a branch in reverse Polish notation."""
    stack: list[Branch | int] = [branch]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            yield node
        elif node.children:
            stack.append(-len(node.children))
            stack.extend(reversed(node.children))
        else:
            yield node.lowest
