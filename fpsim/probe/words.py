"""Descriptions of models of black boxes, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from fpsim.display.wording import listed, plural
from fpsim.probe.candidates import spine
from fpsim.probe.order import Order
from fpsim.probe.programs.program import Program
from fpsim.probe.structure import structure_of
from fpsim.schedules.trees.nodes import in_words

NOUNS = {"sum": "sum", "dot": "dot product", "matmul": "product of matrices"}  # kind of a black box -> noun
WORDS = {
    "zeros": "the sign of a sum of zeros", "large": "sums beyond the largest number",
    "subnormal": "sums of subnormals", "vanishing": "products below the smallest subnormal",
    "special": "infinities, NaN and the largest numbers",
}  # fmt: skip
TOWARDS = {"truncate": " toward zero", "floor": " downwards", "nearest": " to nearest"}
FEW = 4  # most names in a sentence


def sentences(model: Any) -> Iterator[str]:
    """Yield the description of a `Model`, sentence by sentence: its order, its arithmetic, and what is unknown."""
    noun = NOUNS[model.kind]
    with_tensors = " with tensors" if any(operand.tensors for operand in model.operands) else ""
    sides = [name for name, letter in zip("ab", model.layout, strict=True) if letter == "t"]
    with_tensors += f", {' and '.join(sides)} transposed in memory" if sides else ""
    calls = f"seen in {plural(model.calls, 'call')}{with_tensors}"
    if not model.found:
        yield f"A {noun} of {plural(model.n, 'term')}: nothing that fits, {calls}."
    else:
        plain = model.arithmetic
        if plain is not None:
            yield f"A {noun} of {plural(model.n, 'term')}, {calls}: {plain}."
            yield f"The same as {listed(model.names, FEW, '; ')}."
        else:
            named = f"that equals {listed(model.names, FEW, '; ')}" if model.names else f"in {_order_name(model, FEW)}"
            yield f"A {noun} of {plural(model.n, 'term')}{_factor(model.program)} {named}, {calls}."
        yield from _arithmetic(model)
        if model.lost:
            are = "is" if len(model.lost) == 1 else "are"
            runs = [f"{start}..{stop - 1}" if stop - start > 1 else str(start) for start, stop in in_ranges(model.lost)]
            yield f"{plural(len(model.lost), 'term')} {are} never added: {', '.join(runs)}."
        if plain is None and model.order is not None:
            yield from _order(model.order)
    for sentence in model.unknown:
        yield f"Unknown: {sentence}."


def _factor(program: Program | None) -> str:
    """Return a phrase on a program's factor, such as " divided by 64", to follow "A sum of 64 terms"; "" for none."""
    if program is None or program.scale is None:
        return ""
    how, by, _ = program.scale
    if how == "over":
        return f" divided by {by:.0f}"
    power = float(1 / by).is_integer() and abs(by) < 1
    words = f"1/{1 / by:.0f}" if power else repr(float(by))
    return f" times {words}" if how == "times" else f", each multiplied by {words} first,"


def called(model: Any) -> str:
    """Return a short name for a `Model`: its arithmetic, else its first Python expression, else a phrase."""
    if model.arithmetic is not None:
        return str(model.arithmetic)
    if model.names:
        return str(model.names[0])
    return _order_name(model, 1) if model.found else "nothing that fits"


def _order_name(model: Any, most: int) -> str:
    """Return the name of a `Model`'s order as a phrase, such as "the order of fp.schedules.numpy_sum()".

    most: the number of names that are listed; others are counted. For a chain, or an order of no library, the phrase is
    "an order without a name".
    """
    rows = () if model.order is None or model.order.chain else model.sum_rows
    return f"the order of fp.schedules.{listed(rows, most, '; ')}" if rows else "an order without a name"


def _arithmetic(model: Any) -> Iterator[str]:
    """Yield sentences on a `Model`'s additions (their number of terms and rounding), and on the results' format."""
    traits, program = model.traits, model.program
    if program is not None and program.formats:
        counts = Counter(in_words(fmt) for fmt in program.formats)
        listing = ", ".join(f"{count} in {name}" for name, count in counts.most_common())
        yield f"Additions have different formats: {listing}, each rounded to nearest even."
        yield from _products(model)
        return
    if traits.accumulator is None or traits.rounding is None:
        return
    takes = "An addition takes two numbers and"
    if traits.terms_per_step != 1:
        count = "several terms" if traits.terms_per_step is None else plural(traits.terms_per_step, "term")
        towards = TOWARDS.get(traits.alignment or "")
        cut = "adds them exactly" if towards is None else f"cuts them at {traits.fraction_bits} fraction bits{towards}"
        takes = f"An addition takes {count} at once, {cut}, and"
        if traits.alignment == "rounded":  # units whose step is several additions
            takes = f"A step takes {count}; each of its additions"
    flush = f"; subnormal {listed(traits.flushes)} become zero" if traits.flushes else ""
    flush += "; sums beyond the largest number stay there" if traits.saturates else ""
    rounding = traits.rounding.replace("_", " ")
    yield f"{takes} rounds {rounding} to {in_words(traits.accumulator)}{flush}."
    yield from _products(model)
    if traits.accumulator != model.out:
        passed = "" if model.returned == model.out else f", and passed in {in_words(model.returned)}"
        yield f"The result is cast to {in_words(model.out)}{passed}."


def _products(model: Any) -> Iterator[str]:
    """Yield a sentence on how many products of a model's program are added unrounded, if some are."""
    program = model.program
    if program is not None and program.exact and program.rule.fraction_bits is None:
        rest = model.n - len(program.exact) - len(model.lost)
        rounded = f"; {rest} {'is' if rest == 1 else 'are'} rounded first" if rest else ""
        products = plural(len(program.exact), "product")
        yield f"{products} of {model.n} join unrounded, as in fused multiply-adds{rounded}."


def _order(order: Order) -> Iterator[str]:
    """Yield a sentence on the order of additions, if it can be described."""
    structure = structure_of(order)
    if structure is not None and not order.chain and order.widest < order.terms:
        yield f"{structure[0].upper()}{structure[1:]}."
        return
    parts = spine(order.branch)
    if len(parts) > 1:
        sizes = f"{len(parts)} of {parts[0]}" if len(set(parts)) == 1 else ", ".join(map(str, parts[:FEW]))
        more = ", ..." if len(set(parts)) > 1 and len(parts) > FEW else ""
        yield f"Partial sums are added one after the other: {sizes}{more} terms."
        return
    chain = order.chain
    if order.widest == order.terms > 2:
        yield "One addition takes all of them."
    elif chain:
        ascending = all(x < y for x, y in pairwise(chain))
        falls = order.is_descending
        goes = "" if ascending else ", from the last to the first" if falls else ", in another order than theirs"
        yield f"One chain adds its terms one step after the other{goes}."


def in_ranges(terms: Iterable[int]) -> list[list[int]]:
    """Return integers as ascending half-open ranges [start, stop].

    Example:
      >>> from fpsim.probe.words import in_ranges
      >>> in_ranges({1, 2, 3, 7})
      [[1, 4], [7, 8]]
    """
    ranges: list[list[int]] = []
    for number in sorted(terms):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] = number + 1
        else:
            ranges.append([number, number + 1])
    return ranges
