"""The fewest terms of K that show a difference if all others are zero, and the operation that first combines them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fpsim.runtime.clock import seconds
from fpsim.schedules.trees.nodes import Arithmetic, Extent, StackOperation, extent, extent_of, joint
from fpsim.schedules.trees.tree import Tree
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.products.black_box import CalledKernel
from fpsim.testing.products.promise import KernelInputs, Promise, operand_values

SECONDS = 4.0  # time of all calls, without compiling
ENOUGH = 2  # number of terms at which a search ends
ELEMENTS = 8  # number of elements that are tried


class TermFactors(NamedTuple):
    """A term of K: its index, and its factors from a and b as float64 values."""

    k: int
    a: float
    b: float

    def __str__(self) -> str:
        return f"term {self.k}: {self.a.hex()} * {self.b.hex()} ({self.a!r} * {self.b!r})"


class Fewest(NamedTuple):
    """The fewest terms of K with which an element of a product is wrong.

    Attributes:
      terms: the terms.
      got, want: the kernel's code of the element, and the promised one.
      element: (row, column).
      x: inputs with these terms alone in that row and column.
      minimal: whether no term can be left out; False if time ran out.
    """

    terms: tuple[TermFactors, ...]
    got: int
    want: int
    element: tuple[int, int]
    x: KernelInputs
    minimal: bool

    @property
    def paste(self) -> str:
        """Two lines of Python that make the operands, as float64 values, from zeros and these terms."""
        (row, column), (m, n, k) = self.element, self.x.shape
        places = [term.k for term in self.terms]
        return (
            f"a, b = np.zeros({(m, k)}), np.zeros({(k, n)})\n"
            f"a[{row}, {places}] = {[term.a for term in self.terms]}; b[{places}, {column}] = "
            f"{[term.b for term in self.terms]}"
        )


def fewest_of(
    kernel: CalledKernel, promise: Promise, elements: list[tuple[KernelInputs, tuple[int, int]]]
) -> Fewest | None:
    """Return the fewest terms with which a wrong element is still wrong; None if none is wrong in a second call.

    promise: the arithmetic that the kernel claims. elements: wrong elements, as (inputs, (row, column)). The first 8
    are tried, in order, until 4 s have passed or one needs at most 2 terms.
    """
    deadline = seconds() + SECONDS
    best: Fewest | None = None
    for x, element in elements[:ELEMENTS]:
        fewest = fewest_terms(kernel, promise, x, element, deadline)
        if fewest is not None and (best is None or len(fewest.terms) < len(best.terms)):
            best = fewest
        if seconds() > deadline or (best is not None and len(best.terms) <= ENOUGH):
            break
    return best


def fewest_terms(
    kernel: CalledKernel, promise: Promise, x: KernelInputs, element: tuple[int, int], deadline: float
) -> Fewest | None:  # fmt: skip
    """Return the fewest terms of K with which an element is still wrong, all other terms being zero.

    The search removes terms by Zeller's delta debugging. Return None if another call with the same operands does not
    show the difference, or if a call fails.

    Args:
      kernel: the kernel.
      promise: the arithmetic that it claims.
      x: the operands.
      element: (row, column).
      deadline: time of `fpsim.runtime.clock.seconds` at which the search stops.
    """
    row, column = element
    a_zero, b_zero = x.a.dtype.type(0), x.b.dtype.type(0)

    def cut(kept: list[int]) -> KernelInputs:
        gone = np.ones(x.shape[2], bool)
        gone[kept] = False
        a, b = x.a.copy(), x.b.copy()
        a[row, gone], b[gone, column] = a_zero, b_zero
        return replace(x, a=a, b=b)

    def codes(kept: list[int]) -> tuple[int, int]:
        small = cut(kept)
        return int(kernel.call(small)[row, column]), int(promise.bits(small)[row, column])

    tried: dict[tuple[int, ...], bool] = {}  # parts that finer cuts try again

    def differs(kept: list[int]) -> bool:
        if tuple(kept) in tried:
            return tried[tuple(kept)]
        if seconds() > deadline:
            return False
        got, want = codes(kept)
        tried[tuple(kept)] = got != want
        return got != want

    try:
        values_a, values_b = operand_values(x.a[row], promise.a), operand_values(x.b[:, column], promise.b)
        everything = [*range(x.shape[2])]
        if not differs(everything):
            return None
        some = [k for k in everything if values_a[k] != 0 and values_b[k] != 0]
        start = some if differs(some) else everything
        kept = _minimal(start, differs)
        got, want = codes(kept)
    except FunctionMisbehaved:
        return None
    terms = tuple(TermFactors(k, float(values_a[k]), float(values_b[k])) for k in kept)
    return Fewest(terms, got, want, element, cut(kept), seconds() < deadline)


def _minimal(kept: list[int], differs: Callable[[list[int]], bool]) -> list[int]:
    """Return a subset of the indices `kept` for which `differs` is true, but not after removal of any one index."""
    if differs([]):
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[i : i + size] for i in range(0, len(kept), size)]
        for chunk in chunks:
            if len(chunk) < len(kept) and differs(chunk):
                kept, parts = chunk, 2
                break
        else:
            for place in range(len(chunks)):
                others = [k for i, chunk in enumerate(chunks) if i != place for k in chunk]
                if len(chunks) > 2 and differs(others):
                    kept, parts = others, max(parts - 1, 2)
                    break
            else:
                if parts >= len(kept):
                    break
                parts = min(2 * parts, len(kept))
    return kept


def meeting(tree: Tree, terms: tuple[int, ...]) -> str:
    """Return, as text, the first operation of a tree after which one sum contains all the given terms of K.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.testing.products.terms import meeting
      >>> how = fp.schedules.tree(fp.schedules.cutlass_2xacc(128), 256)
      >>> meeting(how, (3, 40))
      'in the step that adds terms 32..63 to the running sum, cut at 13 fraction bits, rounded toward zero to 13
        mantissa bits in float32'
      >>> meeting(how, (3, 200))
      'where the sum of terms 128..255 joins the total, rounded nearest even to float32'
      >>> meeting(fp.schedules.tree(fp.schedules.cublas("sm_90", split_k=9), 11528), (3, 11527))
      'nowhere: term 11527 is never added'
    """
    for span in tree.lost:
        gone = [k for k in terms if span.start <= k < span.stop]
        if gone:
            return f"nowhere: term {gone[0]} is never added"
    wanted = set(terms)
    stack: list[set[int]] = []
    for operation in tree.operations():
        if operation.kind == "begin":
            stack.append(set())
        elif operation.kind in ("step", "push"):
            inside = {k for k in wanted if any(span.start <= k < span.stop for span in operation.spans)}
            if operation.kind == "push":
                stack.append(inside)
            else:
                stack[-1] |= inside
        elif operation.kind in ("join", "pairwise", "butterfly"):
            count = 2 if operation.kind == "join" else operation.numbers
            numbers = stack[len(stack) - count :]
            stack[len(stack) - count :] = [set().union(*numbers)]
        if stack and stack[-1] == wanted:
            return _met(operation)
    return "nowhere"


def _met(operation: StackOperation) -> str:
    """Return a clause that names an operation of a tree, such as "where the sum of terms 0..31 joins the total"."""
    how = operation.how
    words = f", {how.words}" if isinstance(how, Arithmetic) else ""
    if operation.kind in ("step", "push"):
        return f"in the step that adds {_terms(joint(map(extent_of, operation.spans)))} to the running sum{words}"
    said = _terms(extent(operation.node))
    if operation.kind == "join":
        return f"where the sum of {said} joins the total{words}"
    where = "in pairs" if operation.kind == "pairwise" else "by halves"
    return f"where {operation.numbers} sums of {said} are joined {where}{words}"


def _terms(about: Extent) -> str:
    """Return a range of terms of K, `about`, as text, such as "terms 32..63"."""
    return f"terms {about}" if about.terms > 1 else f"term {about}"
