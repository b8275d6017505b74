"""Orders of additions as trees of terms and partial sums; a + b and b + a are the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, TypeVar

Nested = int | tuple[Any, ...]
Value = TypeVar("Value")


class Branch:
    """A node of a tree of additions: a term, or the sum of several branches.

    Attributes:
      lowest: the smallest index of its terms.
      size: its number of terms.
      children: the branches that it adds, sorted by `lowest`; () for a term.
    """

    __slots__ = ("children", "lowest", "size")

    def __init__(self, lowest: int, size: int = 1, children: tuple[Branch, ...] = ()) -> None:
        self.lowest, self.size, self.children = lowest, size, children

    def nodes(self) -> Iterator[Branch]:
        """Yield the branch and all nodes below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)

    def folded(self, leaf: Callable[[Branch], Value | None], join: Callable[[list[Value]], Value]) -> dict[int, Value]:
        """Compute a value for each node bottom-up, and return {id(node): value}.

        A node's value is `leaf(node)`; where that is None, it is `join` of the list of its children's values. If `leaf`
        gives a node a value, the nodes below that node are left out. The code does not recurse, because a chain of n
        terms is nested n levels deep.
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


def chained(parts: Iterable[Branch]) -> Branch:
    """Return the branch that adds several branches (one at least) one after another."""
    return reduce(lambda total, part: joined([total, part]), parts)


def joined(children: Iterable[Branch]) -> Branch:
    """Return the branch that adds several branches in one node; return a single branch unchanged."""
    parts = tuple(sorted(children, key=lambda branch: branch.lowest))
    return parts[0] if len(parts) == 1 else Branch(parts[0].lowest, sum(branch.size for branch in parts), parts)


class Order:
    """An order of additions, as a program in reverse Polish notation.

    The operands of every addition are sorted by their smallest terms, so that equal orders have equal programs.

    Args:
      program: integers; k >= 0 pushes term k, -c adds the c numbers on top of the stack.

    Example:
      >>> from fpsim.probe.order import Order
      >>> Order.of(((3, 2), (1, 0))).nested, Order.of(((0, 1), 2)) == Order.of((2, (1, 0)))
      (((0, 1), (2, 3)), True)
    """

    def __init__(self, program: Sequence[int]) -> None:
        self.program = tuple(program)

    @classmethod
    def of(cls, tree: Nested | Branch) -> Order:
        """Return the order that nested tuples of terms, or a branch, describe.

        Raises:
          ValueError: a tuple has an element that is neither an integer nor a tuple of two or more.
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
        """Largest number of operands of an addition, a running sum included; 1 without additions."""
        return max((-step for step in self.program if step < 0), default=1)

    @property
    def terms_at_once(self) -> int:
        """Largest number of terms that one addition takes; 1 if all additions take two numbers."""
        if self.widest <= 2:
            return 1
        return max([1, *(sum(not child.children for child in node.children) for node in self.branch.nodes())])

    def are_siblings(self, terms: Iterable[int]) -> bool:
        """Return whether one addition takes all the given terms directly.

        Example:
          >>> from fpsim.probe.order import Order
          >>> order = Order.of(((0, 1), (2, 3)))
          >>> order.are_siblings([0, 1]), order.are_siblings([1, 2])
          (True, False)
        """
        return len({self._additions.get(term, -1 - term) for term in terms}) == 1

    @cached_property
    def _additions(self) -> dict[int, int]:
        """Dict {term: position in `program` of the addition that adds this term directly}."""
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
        """Indices of terms in the order in which a single running sum adds them; () if an addition adds two sums.

        Terms that one addition takes are ascending.

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
    def is_descending(self) -> bool:
        """True if a single running sum adds its terms, three or more, one by one from the last to the first."""
        chain = self.chain
        return len(chain) > 2 and all(x > y for x, y in pairwise((chain[1], chain[0], *chain[2:])))

    @property
    def nested(self) -> Nested:
        """The order as nested tuples of terms' indices, such as ((0, 1), 2)."""
        run: Callable[..., Nested] = self._run
        return run(int, tuple)

    @cached_property
    def branch(self) -> Branch:
        """The order as a tree: the Branch at its root."""
        return self._run(Branch, joined)

    def _run(self, term: Callable[[int], Value], add: Callable[[list[Value]], Value]) -> Value:
        """Evaluate the program on a stack, and return the value left on it.

        term: the function that computes the value of a term from its index. add: the function that computes the value
        of an addition from the list of its operands' values.
        """
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
        """Return the order whose `str` is the given text, such as "0 1 + 2 3 +3".

        Raises:
          ValueError: the text does not describe an order.

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
    """Return the branch that nested tuples describe, without recursion: a chain of n terms is n levels deep.

    Raises:
      ValueError: an element is neither an integer nor a tuple of two or more.
    """
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
