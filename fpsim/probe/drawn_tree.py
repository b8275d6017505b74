"""Orders of additions found by a probe, as trees of `fp.schedules`, which can be drawn and compared."""

from __future__ import annotations

from fpsim.probe.programs.program import Program
from fpsim.schedules.plan import Span
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Round, Steps, Sum, add_steps
from fpsim.schedules.trees.tree import Tree


def tree_of(program: Program) -> Tree:
    """Return the additions of a program (an order with its arithmetic) as a tree of `fpsim.schedules`, for drawing.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.probe.drawn_tree import tree_of
      >>> tree_of(fp.probe.sum(lambda x: (x[0] + x[3]) + (x[1] + x[2]), 4).program).depth
      3
    """
    rule = program.rule
    how = Arithmetic(
        "fused" if rule.fraction_bits is not None else "ieee" if program.order.widest <= 2 else "once", rule.fmt,
        rule.rounding, rule.fraction_bits, result_bits=rule.result_bits,
        subnormals="flush" if "sums" in rule.flushes else "keep",
    )  # fmt: skip
    branch = program.order.branch
    sums: dict[int, Sum | int] = branch.folded(lambda n: None if n.children else n.lowest, lambda x: _sum(x, how))
    root = sums[id(branch)]
    if isinstance(root, int):
        root = Sum(how, "zero", "chain", (Steps(root, 1, 1, 0),))
    lost = sorted(set(range(program.n)) - {term for term in program.order.program if term >= 0})
    whole: Node = root if program.out == rule.fmt else Round(program.out, root)
    return Tree(program.n, whole, tuple(Span(k, k + 1) for k in lost))


def _sum(parts: list[Sum | int], how: Arithmetic) -> Sum:
    """Return the addition of several parts as a `Sum` node.

    parts: indices of terms, and sums. If exactly one part is a sum, the result is that running sum, to which the terms
    are added as further inputs. how: the arithmetic of the addition.
    """
    terms = [part for part in parts if isinstance(part, int)]
    sums = [part for part in parts if not isinstance(part, int)]
    if not sums:
        return Sum(how, "zero", "chain", _extended([], terms, how))
    if len(sums) == 1:
        return Sum(how, sums[0].start, "chain", _extended(list(sums[0].inputs), terms, how))
    first, *rest = sums
    inputs: list[Node | Steps | Gathered] = [first]
    if first.start == "first" and not terms:
        inputs = list(first.inputs)
    return Sum(how, "first", "chain", (*inputs, *rest, *(Steps(k, 1, 1, 0) for k in terms)))


def _extended(
    inputs: list[Node | Steps | Gathered], terms: list[int], how: Arithmetic
) -> tuple[Node | Steps | Gathered, ...]:
    """Return the inputs of a running sum followed by further terms, as the inputs of a longer running sum.

    inputs: nodes, or runs of terms (Steps, Gathered); the list may change in place. terms: indices of the terms,
    ascending. how: the arithmetic of the additions. With its rule "ieee" each term is added in a separate step; with
    other rules one step adds all terms.
    """
    side_by_side = terms == list(range(terms[0], terms[0] + len(terms)))
    new = [Steps(terms[0], len(terms), 1, 0)]
    if how.rule == "ieee":
        new = [Steps(k, 1, 1, 0) for k in terms]
    elif not side_by_side:
        return (*inputs, Gathered(tuple(Span(k, k + 1) for k in terms)))
    for addition in new:
        last: list[Steps | Gathered] = []
        if inputs and isinstance(inputs[-1], (Steps, Gathered)):
            last = [inputs.pop()]  # type: ignore[list-item]
        add_steps(last, addition)
        inputs += last
    return tuple(inputs)
