"""The first difference between two trees of additions, as a sentence."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from fpsim.formats.named import Format
from fpsim.schedules.trees.nodes import (
    Arithmetic,
    Extent,
    Gathered,
    Node,
    Round,
    ScaledSum,
    StackOperation,
    Steps,
    Sum,
    extent,
    extent_of,
    in_words,
    joint,
    operations,
    steps_of,
)

Level = Literal["", "instruction", "partial sum", "merge", "scale", "rounding", "terms"]
LEVELS: dict[str, Level] = {
    "begin": "partial sum", "step": "instruction", "push": "instruction", "join": "merge", "pairwise": "merge",
    "butterfly": "merge", "scale": "scale", "round": "rounding",
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two trees: whether they are equal, or their first difference.

    Attributes:
      equal: whether the trees, and so the bits of their results, are equal.
      sentence: the first difference as text; `str()` gives it.
      terms: the range of K at the first difference; None if the trees are equal, or if only their numbers of terms
        differ.
      level: "instruction", "partial sum", "merge", "scale", "rounding" or "terms"; "" if the trees are equal.
    """

    equal: bool
    sentence: str
    terms: Extent | None = None
    level: Level = ""

    def __str__(self) -> str:
        return self.sentence


def difference(x: Any, y: Any, names: tuple[str, str]) -> Comparison:
    """Return the first difference between two `Tree`s, in the order in which terms are added; or that they are equal.

    names: the names of x and y in the sentence.
    """
    if x == y:
        return Comparison(True, "The trees are equal, and so are the bits before the epilogue.")
    scaled = [_first_scaled(side.root) for side in (x, y)]
    if (scaled[0] is None) != (scaled[1] is None):
        return _scales(scaled[0], scaled[1], names)
    in_x, in_y = _first_unequal(x.root, y.root)
    if in_x is None and in_y is None:
        lost = [sum(span.terms for span in side.lost) for side in (x, y)]
        words = f"{names[0]} has {x.k} terms and loses {lost[0]}, {names[1]} has {y.k} and loses {lost[1]}."
        return Comparison(False, words, None, "terms")
    if in_x is None or in_y is None:
        return _one_ends(in_x, in_y, names)
    if in_x.kind == in_y.kind and in_x.kind in ("step", "push") and in_x.spans == in_y.spans:
        return _arithmetics(in_x, in_y, names)
    if in_x.kind == in_y.kind == "step":
        return _steps(in_x, in_y, names)
    if in_x.kind == in_y.kind == "begin":
        words = f"{names[0]} adds in {_value(in_x.how)}, {names[1]} in {_value(in_y.how)}."
        return _differ(_about(in_x), words, "partial sum")
    # an operation that begins a separate sum is described by all the terms of that sum
    opens = [operation for operation in (in_x, in_y) if operation.kind == "begin"]
    about = _about(opens[0] if len(opens) == 1 else max((in_x, in_y), key=lambda operation: _about(operation).terms))
    said = [_said(operation, about) for operation in (in_x, in_y)]
    if said[0] == said[1]:
        said = [f"{words} ({tree.depth} levels of additions)" for words, tree in zip(said, (x, y), strict=True)]
    level = LEVELS[in_x.kind if in_x.kind in ("round", "scale", "begin") else in_y.kind]
    return _differ(about, f"{names[0]} {said[0]}, {names[1]} {said[1]}.", level)


def _first_unequal(x: Node, y: Node) -> tuple[StackOperation | None, StackOperation | None]:
    """Return the first operations of two nodes that differ, None for a node that has no further one.

    Equal runs of additions are compared at once, since a run may have billions of them.
    """
    streams = operations(x, whole=True), operations(y, whole=True)
    in_x, in_y = (next(stream, None) for stream in streams)
    while in_x is not None and in_y is not None:
        runs = _run_of(in_x), _run_of(in_y)
        count = 1
        if runs[0] is not None and runs[1] is not None and runs[0].stride == runs[1].stride:
            count = min(runs[0].count, runs[1].count)
        if _one(in_x).key != _one(in_y).key:
            break
        in_x, in_y = (
            next(stream, None) if run is None or run.count == count else operation._replace(spans=(_later(run, count),))
            for stream, run, operation in zip(streams, runs, (in_x, in_y), strict=True)
        )
    return None if in_x is None else _one(in_x), None if in_y is None else _one(in_y)


def _run_of(operation: StackOperation) -> Steps | None:
    """Return the run of additions that an operation stands for; None if it is a single operation."""
    first: Any = operation.spans[0] if operation.spans else None
    return first if isinstance(first, Steps) else None


def _one(operation: StackOperation) -> StackOperation:
    """Return the first addition of the run that an operation stands for; a single operation is returned unchanged."""
    run = _run_of(operation)
    return operation if run is None else operation._replace(spans=next(steps_of(run)))


def _later(run: Steps, count: int) -> Any:
    """Return a run of additions without its first `count` ones, which are fewer than all."""
    return Steps(run.start + count * run.stride, run.terms, run.count - count, run.stride)


def _differ(about: Extent, words: str, level: Level) -> Comparison:
    """Return the Comparison of two trees whose first difference is in the terms `about`.

    words: a sentence on the difference. level: where it is, as in `Comparison.level`.
    """
    return Comparison(False, f"{_terms(about)}: {words}", about, level)


def _first_scaled(node: Node) -> ScaledSum | None:
    """Return the first partial sum below a node that is multiplied by block scales; None if there is none."""
    if isinstance(node, ScaledSum):
        return node
    inner = node.inputs[0] if isinstance(node, Sum) and node.inputs else getattr(node, "input", None)
    return None if inner is None or isinstance(inner, (Steps, Gathered)) else _first_scaled(inner)


def _scales(in_x: ScaledSum | None, in_y: ScaledSum | None, names: tuple[str, str]) -> Comparison:
    """Return the difference of two trees of which only one multiplies partial sums by scales.

    in_x, in_y: the first scaled partial sum of each tree, None for the tree without. names: their names in the text.
    """
    about = extent(in_x or in_y)  # type: ignore[arg-type]
    scales, without = names if in_y is None else names[::-1]
    words = f"{scales} multiplies their sum by its scales before it joins the total, {without} does not."
    return _differ(about, words, "scale")


def _about(operation: StackOperation) -> Extent:
    """Return the range of terms of K that an operation on a tree's sums adds, scales or rounds."""
    if operation.kind in ("step", "push"):
        return joint(extent_of(span) for span in operation.spans)
    return extent(operation.node)


def _terms(about: Extent) -> str:
    """Return the range of terms `about` as text, such as "terms 0..31"."""
    return f"terms {about}" if about.terms > 1 else f"term {about}"


def _said(operation: StackOperation, about: Extent) -> str:
    """Return an operation of a tree as a clause that begins with a verb, such as "adds them to the running sum".

    about: the range of K that the sentence names, so that the clause can say "them".
    """
    terms = _about(operation)
    named = "them" if terms == about or (operation.kind == "step" and terms.start == about.start) else _terms(terms)
    if operation.kind == "begin":
        adds_sums = any(isinstance(item, (Sum, Round, ScaledSum)) for item in operation.node.inputs)
        if not adds_sums:
            return f"adds {named} up from +0 for a sum of their own"
        return f"starts a {in_words(operation.node.how.fmt)} total of partial sums at +0 for {named}"
    if operation.kind == "step":
        return f"adds {named} to the running sum"
    if operation.kind == "push":
        return f"takes the product of {_terms(terms)} for itself"
    if operation.kind == "join":
        assert isinstance(operation.how, Arithmetic)
        then = f" and rounds that to {in_words(operation.how.then)}" if operation.how.then else ""
        return f"adds the sum of {named} to a {in_words(operation.how.fmt)} total{then}"
    if operation.kind == "scale":
        return f"multiplies the sum of {named} by its scales ({str(operation.how).replace('_', ' ')})"
    if operation.kind == "round":
        assert isinstance(operation.how, Format)
        return f"rounds the sum of {named} to {in_words(operation.how)}"
    return f"joins {operation.numbers} sums of {named} as a {operation.kind} tree"


def _one_ends(in_x: StackOperation | None, in_y: StackOperation | None, names: tuple[str, str]) -> Comparison:
    """Return the difference of two trees of which one has further operations where the other has ended (None).

    in_x, in_y: the next operation of each tree, None for the one that has ended. names: the trees' names in the text.
    """
    goes, done = (names[0], names[1]) if in_y is None else (names[1], names[0])
    operation = in_x or in_y
    assert operation is not None
    about = _about(operation)
    return _differ(about, f"{goes} {_said(operation, about)}, where {done} is done.", LEVELS[operation.kind])


def _steps(in_x: StackOperation, in_y: StackOperation, names: tuple[str, str]) -> Comparison:
    """Return the difference of two trees whose instructions in_x and in_y add different terms.

    names: the names of the trees in the sentence.
    """
    spans = [_about(in_x), _about(in_y)]
    about = max(spans, key=lambda span: span.terms)
    same_size = spans[0].terms == spans[1].terms
    hows = [f" ({operation.how.words})" if in_x.how != in_y.how else "" for operation in (in_x, in_y)]  # type: ignore[union-attr]
    words = (
        f"{names[0]} adds {spans[0]} {'next' if same_size else 'in one step'}{hows[0]}, {names[1]} {spans[1]}{hows[1]}."
    )
    return _differ(about, words, "instruction")


WORDS = {
    "rule": "adds by the rule {}", "rounding": "rounds {}", "fraction_bits": "keeps {} fraction bits",
    "floor_exponent": "counts zeros as 2^{}", "result_bits": "keeps {} mantissa bits", "then": "rounds again to {}",
    "fmt": "adds in {}", "operands": "reads operands as {}", "scale": "takes scales in {}",
}  # fmt: skip


def _arithmetics(in_x: StackOperation, in_y: StackOperation, names: tuple[str, str]) -> Comparison:
    """Return the difference of two trees whose instructions in_x and in_y add equal terms with different arithmetic.

    names: the names of the trees in the sentence.
    """
    about = _about(in_x)
    pair = (in_x.how, in_y.how) if in_x.how != in_y.how else (in_x.product, in_y.product)
    if not all(isinstance(arithmetic, Arithmetic) for arithmetic in pair):
        said = [
            "rounds every product first" if arithmetic is not None else "adds exact products" for arithmetic in pair
        ]
    else:
        name = next(f.name for f in fields(Arithmetic) if getattr(pair[0], f.name) != getattr(pair[1], f.name))
        said = [WORDS.get(name, name + " {}").format(_value(getattr(arithmetic, name))) for arithmetic in pair]
    return _differ(about, f"{names[0]} {said[0]}, {names[1]} {said[1]}.", "instruction")


def _value(value: object) -> str:
    """Return text for the value of a field of an Arithmetic: "toward zero" for "toward_zero", "all" for None."""
    if isinstance(value, Format):
        return in_words(value)
    return "all" if value is None else str(value).replace("_", " ")
