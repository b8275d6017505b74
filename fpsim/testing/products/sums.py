"""Sums that no schedule describes: partial sums joined in unusual orders, and operands multiplied by scales first."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.runtime.general_loops import general_loops
from fpsim.sums.accumulators import Accumulator
from fpsim.testing.products.changes import rounded
from fpsim.testing.products.promise import BLOCK, Adding, KernelInputs, Promise, float32_values, operand_values, product
from fpsim.testing.products.term_changes import exchanged

KEPT = 400  # number of additions whose partial sums are cached

# Rule of cutting K into slices -> its words in names.
CUTS = {
    "ceiling": "",
    "last_longer": " (the last ones longer)",
    "first_longer": " (the first ones longer)",
    "rounded_up": " (of equal length, rounded up)",
    "halving": " (halved again and again)",
}


def _ends(k: int, parts: int, cut: str, grain: int) -> list[int]:
    """Return the indices of K at which slices end; K itself may be missing, and the last index may exceed K.

    k: number of terms. parts: number of slices. grain: number of terms of which the ends are multiples; "first_longer"
    and "halving" ignore it. cut: the rule. "ceiling": equal slices, the last one shorter. "last_longer" and
    "first_longer": equal slices, but the last or the first ones are longer if K is not divisible. "rounded_up": equal
    slices, each end rounded up to a multiple of `grain`. "halving": halves of halves, that is 2, 4, 8, ... slices.
    """
    if cut == "ceiling":
        size = -(-max(-(-k // parts), 1) // grain) * grain
        return [i * size for i in range(1, parts + 1)]
    if cut == "last_longer":
        return [i * k // parts // grain * grain for i in range(1, parts)]
    if cut == "rounded_up":
        return [-(-(i * k // parts) // grain) * grain for i in range(1, parts)]
    if cut == "first_longer":
        return [i * (k // parts) + min(i, k % parts) for i in range(1, parts)]
    ends = [0, k]  # halving
    while len(ends) <= parts:
        middles = [(start + end) // 2 for start, end in pairwise(ends)]
        ends = sorted(ends + middles)
    return ends


class JoinedParts(NamedTuple):
    """An arithmetic that no schedule describes: sums over parts of K, by a unit or an accumulator, added in some order.

    Attributes:
      inner: the arithmetic within each part.
      terms: number of terms of a part; 0 if `parts` is given.
      parts: number of parts; 0 if `terms` is given.
      first: number of terms of the first part if that is not `terms`, else 0.
      fmt: format of the total.
      order: order of adding parts: "forward" or "backward" (one after the other, from the first or last), "pairwise"
        (neighbours, then neighbouring sums) or "halves" (part i and part i + half, again and again).
      rounding: rounding of the sum of two parts.
      strided: whether part i consists of the terms k with k mod parts = i.
      twice: whether sums are rounded to float32 before they are rounded to fmt.
      rule: how K is cut if `terms` is given. "": parts of `terms`. CPU libraries have three rules. "halved": one
        part if K is at most `terms`, two halves if it is below 4 * terms, else parts of 2 * terms. "last_halved": parts
        of `terms`, but if `terms` + 1 to 2 * terms - 1 terms are left, two halves of these. "doubled": parts of 2 *
        terms if K exceeds that, else of `terms`.
      odd_first: whether, of each two neighbouring terms, the second is added first.
      cut: how K is cut if `parts` is given: "ceiling" (the last part is the shortest), "last_longer", "first_longer",
        "rounded_up" (equal lengths, each end rounded up to `grain`) or "halving" (halves of halves).
      grain: number of terms of which the ends of parts are multiples.
    """

    inner: Adding
    terms: int = 0
    parts: int = 0
    first: int = 0
    fmt: Format = FP32
    order: str = "forward"
    rounding: str = "nearest_even"
    strided: bool = False
    twice: bool = False
    rule: str = ""
    odd_first: bool = False
    cut: str = "ceiling"
    grain: int = 1

    @property
    def name(self) -> str:
        """Clause that describes the arithmetic in reports, such as "2 slices of K by ..., joined in FP32"."""
        sort = f"sums over every {self.parts}th term" if self.strided else "slices of K"
        size = f"{self.parts} {sort}" if self.parts else f"partial sums of {self.terms} terms"
        size = RULES[self.rule].format(self.terms, 2 * self.terms, 4 * self.terms) if self.rule else size
        size = "K as a whole" if self.parts == 1 else size
        size += ", the odd term of each pair first," if self.odd_first else ""
        first = f", the first of {self.first}" if self.first > 0 else CUTS[self.cut]
        first += f" in multiples of {self.grain}" if self.grain > 1 else ""
        order = {"forward": "", "backward": " from the last to the first", "pairwise": " in pairs",
                 "halves": " by halves"}[self.order]  # fmt: skip
        rounding = "" if self.rounding == "nearest_even" else f", rounded {self.rounding.replace('_', ' ')},"
        twice = "float32, then rounded to " if self.twice else ""
        if self.parts == 1:
            return f"{size} by {self.inner.name}"
        return f"{size}{first} by {self.inner.name}, joined{order} in {twice}{self.fmt}{rounding}"

    def cuts(self, k: int) -> list[slice]:
        """Return, for each part of a sum of k terms, the slice of the indices 0 to k - 1 that it adds."""
        if self.strided:
            return [slice(i, k, self.parts) for i in range(min(self.parts, k))]
        if self.rule:
            ends = list(accumulate(_sizes(self.rule, self.terms, k), initial=0))
        elif self.terms:
            ends = [0, *range(self.first or self.terms, k, self.terms), k]
        else:
            ends = sorted({0, *(min(end, k) for end in _ends(k, self.parts, self.cut, self.grain)), k})
        return [slice(*pair) for pair in pairwise(ends)]


# How CPU libraries cut K: name -> words, with one, two and four times the terms of a part.
RULES = {
    "halved": "K in halves above {0} terms, in parts of {1} from {2} on",
    "last_halved": "parts of {0} terms, the last {1} or fewer in halves",
    "doubled": "parts of {0} terms, of {1} where K is above {1}",
}


def _sizes(rule: str, terms: int, k: int) -> list[int]:
    """Return how many terms each part of a sum of `k` terms has.

    terms: the usual number of terms of a part. rule: "halved", "last_halved" or "doubled", as in `JoinedParts`.
    """
    if rule == "halved" and terms < k < 4 * terms:
        return [-(-k // 2), k // 2]
    if rule == "last_halved":
        whole = max(k // terms - 1, 0)
        rest = k - whole * terms
        return [terms] * whole + ([-(-rest // 2), rest // 2] if rest > terms else [rest])
    size = {"halved": k if k <= terms else 2 * terms, "doubled": 2 * terms if k > 2 * terms else terms}[rule]
    return [min(size, k - start) for start in range(0, k, size)]


class Dequantised(NamedTuple):
    """An arithmetic that multiplies operands by their scales and rounds them before it multiplies and adds them.

    Attributes:
      fmt: the format to which the operands are rounded.
      how: the unit or accumulator that multiplies and adds them.
    """

    fmt: Format
    how: Accumulator | MatrixUnit

    @property
    def name(self) -> str:
        """Clause that describes the arithmetic in reports, "operands times scales, rounded to BF16, added by ..."."""
        how = self.how.name if isinstance(self.how, MatrixUnit) else repr(self.how)
        return f"operands times scales, rounded to {self.fmt}, added by {how}"


Addition = Adding | JoinedParts | Dequantised


def raw_sums(promise: Promise, x: KernelInputs, adding: Adding) -> Array:
    """Return the sums (M, N) of the product of x by the arithmetic `adding`, float32, without scales and bias."""
    bare = replace(x, scale_a=None, scale_b=None, bias=None)
    plain = replace(promise, scale_a="", scale_b="", bias=False)
    return float32_values(product(plain, bare, adding, None), adding.own_format)


class PartialSums:
    """Cache of the partial sums of products.

    Two `JoinedParts` that cut K alike, and add alike within the parts, share the partial sums of the same operands.
    """

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        self._kept: dict[Any, tuple[Array, Array, list[Array]]] = {}  # with the operands, so that their ids stay taken

    def joined(self, x: KernelInputs, how: JoinedParts) -> Array:
        """Return the sums (M, N) of the product of x by the arithmetic `how`, without scales and bias.

        The dtype is float64 or float32; it represents every sum exactly.
        """
        cuts = how.cuts(x.shape[2])
        key = id(x.a), id(x.b), how.inner, how.odd_first, *((cut.start, cut.stop, cut.step) for cut in cuts)
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            places = [np.arange(x.shape[2])[terms] for terms in cuts]
            if how.odd_first:
                places = [terms[exchanged(np.arange(terms.size), 1)] for terms in places]
            parts = [replace(x, a=np.ascontiguousarray(x.a[:, terms]), b=np.ascontiguousarray(x.b[terms]))
                     for terms in places]  # fmt: skip
            sums = [raw_sums(self.promise, part, how.inner).astype(np.float64) for part in parts]
            self._kept[key] = x.a, x.b, sums
        return _joined(self._kept[key][2], how)


def _joined(parts: list[Array], how: JoinedParts) -> Array:
    """Return the sum (M, N) of `parts`, partial sums (M, N), added in the order, format and rounding of `how`."""

    def add(x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            total = (x + y).astype(np.float32) if how.twice else x + y
            return total if how.fmt == FP64 else rounded(total, how.fmt, how.rounding)

    if how.order == "halves":
        while len(parts) > 1:
            half = 1 << (len(parts) - 1).bit_length() - 1
            parts = [add(parts[i], parts[i + half]) if i + half < len(parts) else parts[i] for i in range(half)]
        return parts[0]
    if how.order == "pairwise":
        while len(parts) > 1:
            parts = [add(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
        return parts[0]
    if how.order == "backward":
        parts = parts[::-1]
    total = np.zeros_like(parts[0])
    for part in parts:
        total = add(total, part)
    return total


def dequantised_sums(promise: Promise, x: KernelInputs, how: Dequantised) -> Array:
    """Return the float64 sums (M, N) of the product of x by the arithmetic `how`, with scales and without bias.

    promise: the kernel's claim, for the formats of the operands.
    """
    sides = []
    for side, (codes, operand) in enumerate(((x.a, promise.a), (x.b, promise.b))):
        scale = (x.scale_a, x.scale_b)[side]
        values = operand_values(codes, operand)
        with np.errstate(all="ignore"):
            sides.append(rounded(values if scale is None else values * _spread(scale, values.shape), how.fmt))
    dtype = np.float32 if how.fmt == FP32 or how.fmt.dtype is None else how.fmt.dtype
    with np.errstate(all="ignore"), general_loops():
        sums = matmul(*(side.astype(dtype) for side in sides), accumulate=how.how)
    return np.asarray(sums, np.float64)


def _spread(scale: Array, shape: tuple[int, int]) -> Array:
    """Return an array with the scale of each element of an operand, of the operand's shape `shape`.

    scale: 2-D array; along each axis it has one scale for all elements, one for each, or one for each block of 128.
    """
    rows, columns = (np.arange(size) // (BLOCK if of not in (1, size) else max(size // of, 1))
                     for size, of in zip(shape, scale.shape, strict=True))  # fmt: skip
    return np.asarray(scale[np.minimum(rows, scale.shape[0] - 1)[:, None], np.minimum(columns, scale.shape[1] - 1)])
