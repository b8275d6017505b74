"""Shapes at which a matrix product changes its arithmetic, because libraries have other kernels for small products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, pairwise, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, differing
from fpsim.display.wording import plural
from fpsim.errors import require_integer, require_kind
from fpsim.formats.cast_options import FormatLike
from fpsim.probe.black_box import BlackBox, Function
from fpsim.probe.draws import drawn
from fpsim.probe.operands import ProbedCall, operand_of

TELLING = ("cancelling", "layers", "wide", "alike")  # kinds of operands whose sums depend on the order
ELEMENTS = 48  # least number of elements to compare for two shapes
SOME = (1, 2, 5, 16)  # fixed numbers of rows (or columns), with which that of columns (or rows) is varied
Shape = tuple[int, int, int]  # M, N, K

# Measures that may have a threshold, the likely ones first: name -> value for a shape.
MEASURES: dict[str, Callable[[Shape], int]] = {
    "M": lambda s: s[0], "N": lambda s: s[1], "M x N": lambda s: s[0] * s[1], "M x K": lambda s: s[0] * s[2],
    "N x K": lambda s: s[1] * s[2], "M x N x K": prod,
}  # fmt: skip


class ShapeEdge(NamedTuple):
    """Two shapes (M, N, K) of the same K that differ in M or N, such as neighbours between which bits change.

    Attributes:
      last: the smaller shape, whose product has the bits of smaller products.
      first: the larger shape, whose product may have other bits.
    """

    last: Shape  # the smaller one, with the bits of smaller products
    first: Shape  # the larger one, which may have other bits


class ShapeThresholds:
    """Shapes at which a matrix product changes its arithmetic, as `fp.probe.thresholds` returns them.

    Attributes:
      edges: pairs of shapes that differ by one row or column, between which bits change.
      measure: the size or product of sizes that decides where bits change, such as "M x N" if they change as soon as
        M x N exceeds a threshold; None if there is none, or no edges.
      largest: the largest value of the measure before a change; None without a measure.
      smallest: the smallest value of the measure after a change; None without a measure.
      single: ("M",), ("N",) or ("M", "N") if a change of that size from 1 to 2 changes bits and no threshold explains
        it; else ().
      lengths: the sizes K that were tried.
    """

    def __init__(self, edges: Iterable[ShapeEdge], same: list[ShapeEdge], lengths: tuple[int, ...]) -> None:
        self.edges, self.lengths = tuple(edges), lengths
        alone = {name: [edge for edge in self.edges if edge.last[at] == 1 and edge.first[at] == 2]
                 for at, name in enumerate("MN")}  # fmt: skip
        fits = self._fitting(list(self.edges), same)
        self.single: tuple[str, ...] = ()
        if fits is None:
            self.single = tuple(name for name, some in alone.items() if some)
            rest = [edge for edge in self.edges if not any(edge in some for some in alone.values())]
            fits = self._fitting(rest, [pair for pair in same if 1 not in (*pair[0][:2], *pair[1][:2])])
        self.measure = None if fits is None else fits[0]
        self.largest = None if fits is None else fits[1]
        self.smallest = None if fits is None else fits[2]

    @staticmethod
    def _fitting(edges: list[ShapeEdge], same: list[ShapeEdge]) -> tuple[str, int, int] | None:
        """Return (measure, its largest value before a change of bits, its smallest value after one), or None.

        A measure, such as "M x N", is a number computed from a shape. Return the first of MEASURES for which a
        threshold lies between the two shapes of each pair in `edges` (whose bits differ), and of no pair in `same`
        (whose bits are equal). Return None if there is no such measure, or no edge.
        """
        if not edges:
            return None
        for name, of in MEASURES.items():
            low, high = max(of(edge.last) for edge in edges), min(of(edge.first) for edge in edges)
            crossed = any(of(x) <= low and of(y) >= high for x, y in same)
            if low < high and not crossed:
                return name, low, high
        return None

    def explain(self) -> str:
        """Return a description of the thresholds in a few sentences."""
        tried = f"K = {', '.join(map(str, self.lengths))}"
        if not self.edges:
            return f"No shape that was tried changes the bits ({tried})."
        lines = [f"Products of one {name} add in another order or arithmetic." for name in
                 ({"M": "row", "N": "column"}[letter] for letter in self.single)]  # fmt: skip
        if self.measure is not None:
            exactly = f"<= {self.largest:,}" if self.largest == (self.smallest or 0) - 1 else (
                f"<= a number from {self.largest:,} to {(self.smallest or 0) - 1:,}")  # fmt: skip
            lines.append(
                f"Products with {self.measure} {exactly} add in another order or arithmetic than larger ones ({tried})."
            )
        elif not self.single:
            shown = "; ".join(f"{edge.last} and {edge.first}" for edge in self.edges[:3])
            lines.append(f"Bits change between {plural(len(self.edges), 'pair')} of shapes, such as {shown} ({tried}).")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"ShapeThresholds({self.explain().splitlines()[0]})"


def thresholds(
    fn: Function, lengths: Iterable[int] = (8, 33, 128), *, a: FormatLike = np.float32, b: FormatLike | None = None,
    largest: int = 64, layout: str = "nn",
) -> ShapeThresholds:  # fmt: skip
    """Find the shapes at which a matrix product changes its order or arithmetic, without a model of either.

    Products of two shapes are computed from the same rows and columns, and their common elements are compared in bits.
    M or N is doubled up to `largest` with the other sizes fixed, and a change is then located by bisection.

    Args:
      fn: fn(a, b) of (M, K) and (K, N) arrays, of any M and N.
      lengths: sizes K to try. With a single K, a threshold of N cannot be told from one of N x K.
      a, b, layout: formats and memory layouts of the operands, as for `fp.probe.matmul`, for floats only.
      largest: the largest number of rows and columns to try.

    Returns:
      A ShapeThresholds with the pairs of shapes in `.edges`, and a `.measure` such as "M x N x K" with `.largest` and
      `.smallest`.

    Raises:
      ValueError: lengths is empty, a format or size is invalid, or fn raises, returns another shape, returns other bits
        for the same operands, or writes into operands.
      TypeError: fn is not a function, or its results are not floats.

    Source: docs/probe.md.

    Example:
      >>> import fpsim as fp
      >>> def fn(a, b):
      ...     how = fp.Pairwise("fp32") if a.shape[0] * b.shape[1] <= 32 else fp.Sequential("fp32")
      ...     return fp.matmul(a, b, accumulate=how)
      >>> print(fp.probe.thresholds(fn, [9, 20]))
      Products with M x N <= 32 add in another order or arithmetic than larger ones (K = 9, 20).
    """
    require_integer("largest", largest, 2)
    largest = int(largest)
    require_kind("lengths", lengths, Iterable, "sizes K, such as [8, 128]")
    lengths = tuple(lengths)
    for k in lengths:
        require_integer("a length", k, 1)
    lengths = tuple(dict.fromkeys(lengths))
    if not lengths:
        raise ValueError("lengths must have one K at least, such as [8, 128]; got none.")
    operands = (operand_of(a, "a"), operand_of(a if b is None else b, "b"))
    boxes = _Boxes(fn, operands, largest, layout)
    edges: list[ShapeEdge] = []
    same: list[ShapeEdge] = []
    for k, other, axis in product(lengths, [size for size in SOME if size <= largest], (1, 0)):
        for edge, is_change in _changes(boxes, int(k), other, axis, largest):
            (edges if is_change else same).append(edge)
    return ShapeThresholds(dict.fromkeys(edges), same, lengths)


class _Boxes:
    """Products that a function computes in several shapes, from the first rows and columns of the same matrices.

    Args:
      fn: the function, fn(a, b) of (M, K) and (K, N) arrays.
      operands: both ProbedOperands.
      largest: the largest number of rows and columns of the matrices.
      layout: memory layouts of a and b, as for `fp.probe.matmul`.
    """

    def __init__(self, fn: Function, operands: Any, largest: int, layout: str) -> None:
        self.fn, self.operands, self.largest, self.layout = fn, operands, largest, layout
        self._boxes: dict[Shape, BlackBox] = {}
        self._drawn: dict[tuple[int, str, int], tuple[Array, ...]] = {}

    def differ(self, one: Shape, two: Shape) -> bool:
        """Return whether the products of two shapes of the same K differ in the bits of their common elements."""
        m, n = min(one[0], two[0]), min(one[1], two[1])
        compared = 0
        for seed in count():
            for kind in TELLING:
                first, second = (self._product(shape, kind, seed)[:m, :n] for shape in (one, two))
                if differing(first, second).any():
                    return True
                compared += first.size
            if compared >= ELEMENTS:
                return False
        return False

    def _product(self, shape: Shape, kind: str, seed: int) -> Array:
        """Return the function's product (M, N) for operands of a shape (M, N, K), drawn with a kind and a seed."""
        m, n, k = shape
        if shape not in self._boxes:
            self._boxes[shape] = BlackBox(self.fn, ProbedCall("matmul", k, self.operands, (m, n), layout=self.layout))
        key = k, kind, seed
        if key not in self._drawn:
            frame = ProbedCall("matmul", k, self.operands, (self.largest, self.largest))
            self._drawn[key] = drawn(kind, frame, seed + 1)
        a, b = self._drawn[key]
        return self._boxes[shape].whole(a[:m], b[:, :n])


def _changes(boxes: _Boxes, k: int, other: int, axis: int, largest: int) -> Iterator[tuple[ShapeEdge, bool]]:
    """Yield (pair of shapes, whether bits change between them), while M or N grows: 1, 2, 4, ... up to `largest`.

    A pair has successive sizes of this list if bits do not change between them. If they change, the pair has two
    neighbouring sizes between which bits change, found by bisection. boxes: the function's products. k: the size K.
    axis: 0 to vary M, 1 to vary N. other: the fixed size, N or M.
    """

    def shape(size: int) -> Shape:
        return (size, other, k) if axis == 0 else (other, size, k)

    sizes = [*(1 << i for i in range((largest - 1).bit_length())), largest]
    for start, stop in pairwise(sizes):
        if not boxes.differ(shape(start), shape(stop)):
            yield ShapeEdge(shape(start), shape(stop)), False
            continue
        low, high = start, stop
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if boxes.differ(shape(start), shape(middle)) else (middle, high)
        yield ShapeEdge(shape(low), shape(high)), True
