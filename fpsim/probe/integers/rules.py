"""Rules for adding integers: how many terms are added before a sum wraps or saturates, and in which dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.display.wording import plural
from fpsim.probe.black_box import BlackBox

GROUPS = (1, 2, 4, 8, 16, 32, 64)  # tried numbers of terms after which running sums saturate
INNER_GROUPS = (1, 2, 4)  # tried numbers of terms whose sum has fewer bits than the running sum
INNER = ("int8", "uint8", "int16", "uint16", "int32")
KINDS = ("small", "uniform", "extremes", "runs", "pairs")  # kinds of operands that are drawn
ROWS = 48  # sums to draw of a kind, if each is a call
Shape = tuple[int, ...]


class IntegerRule(NamedTuple):
    """A rule for adding integers: groups of consecutive terms are summed exactly, and then added to a running sum.

    Attributes:
      out: the dtype of the running sum and of the result.
      group: number of terms in a group; 0 for all terms.
      saturates: True if the running sum saturates to `out` after each group; False if it wraps.
      inner: the dtype to which a group's sum is brought first; "" for none.
      inner_saturates: True if a group's sum saturates to `inner`; False if it wraps.
      backwards: True if the last group is added first.
    """

    out: str
    group: int = 0
    saturates: bool = False
    inner: str = ""
    inner_saturates: bool = False
    backwards: bool = False

    @property
    def name(self) -> str:
        """The rule as text, such as "exact sums that wrap in int32 at the end"."""
        cut = "saturate" if self.saturates else "wrap"
        if self.inner:
            of_groups = "products" if self.group == 1 else f"sums of {self.group} terms"
            inner = "saturate" if self.inner_saturates else "wrap"
            return f"{of_groups} that {inner} in {self.inner}, added to sums that {cut} in {self.out}"
        if not self.group:
            return f"exact sums that {cut} in {self.out} at the end"
        turned = ", from the last to the first" if self.backwards else ""
        terms = "term" if self.group == 1 else plural(self.group, "term")
        return f"sums that {cut} in {self.out} after every {terms}{turned}"

    @property
    def name_within_range(self) -> str:
        """The rule as text for sums that stay in the range of `out`, so that wrapping and saturating do not differ."""
        if not self.inner:
            return f"exact sums in {self.out}"
        return f"{self.name.partition(', added to')[0]}, added up in {self.out}"

    def sums(self, terms: Array) -> Array:
        """Return the sums (...) of terms (..., n), int64 or Python integers, by the rule, in the dtype `out`."""
        n = terms.shape[-1]
        group = self.group or n
        starts = list(range(0, n, group))
        total = np.zeros_like(terms[..., 0])
        for start in starts[::-1] if self.backwards else starts:
            part = np.asarray(terms[..., start : start + group].sum(axis=-1), terms.dtype)
            if self.inner:
                part = cut(part, self.inner, self.inner_saturates)
            total = np.asarray(total + part, terms.dtype)
            if self.saturates:
                total = cut(total, self.out, saturates=True)
        return np.asarray(cut(total, self.out, self.saturates), self.out)


def cut(sums: Array, dtype: str, saturates: bool) -> Array:
    """Return integers brought into the range of a dtype, by clipping if `saturates`, else modulo 2**bits.

    The result keeps the dtype of `sums`.

    Example:
      >>> from fpsim.probe.integers.rules import cut
      >>> cut(np.array([300, -5]), "uint8", True).tolist(), cut(np.array([300, -5]), "uint8", False).tolist()
      ([255, 0], [44, 251])
    """
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    wide = sums.astype(object) if high > np.iinfo(np.int64).max or high - low > np.iinfo(np.int64).max else sums
    if saturates:
        return np.asarray(np.minimum(np.maximum(wide, low), high))
    return np.asarray((wide - low) % (high - low + 1) + low)


def terms_of(kind: str, values: tuple[Array, ...]) -> Array:
    """Return the terms of each sum, (..., n), or for "matmul" the products of each element, (M, N, n).

    They are int64, or Python integers (dtype object) if sums might exceed int64. values: the operands, integer arrays:
    one of a sum, or two that are multiplied. kind: "sum", "dot" or "matmul".
    """
    most = [max(-int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)) for x in values]
    wide = values[0].shape[-1] * prod(most) >= 2**62
    x, *others = (operand.astype(object if wide else np.int64) for operand in values)
    if not others:
        return x
    if kind != "matmul":
        return np.asarray(x * others[0])
    return np.asarray(x[:, None, :] * others[0].T[None, :, :])


def bounds(box: BlackBox) -> tuple[int, int]:
    """Return the smallest and the largest possible sum for operands of the black box's dtypes."""
    ends = [(int(np.iinfo(operand.integer).min), int(np.iinfo(operand.integer).max)) for operand in box.operands]
    corners = [x * y for x, y in product(*ends)] if len(ends) == 2 else list(ends[0])
    return box.n * min(corners), box.n * max(corners)


def can_leave(box: BlackBox, dtype: str) -> bool:
    """Return whether the sum of a black box's terms can exceed the range of the integer dtype `dtype`, such as "int32".

    box: a function that adds `box.n` terms: the elements of one integer operand, or products of the elements of two.
    The dtypes of the operands limit the terms.
    """
    low, high = bounds(box)
    ends = np.iinfo(dtype)
    return low < int(ends.min) or high > int(ends.max)


def rules(box: BlackBox, out: str) -> Iterator[IntegerRule]:
    """Yield every rule to try for a black box: first rules that sum all terms in the dtype of the result.

    out: the name of the dtype of the black box's results, such as "int32".
    """
    ends, reachable = np.iinfo(out), can_leave(box, out)
    yield IntegerRule(out)
    if reachable:
        yield IntegerRule(out, saturates=True)
        for group, backwards in product((g for g in GROUPS if g < box.n), (False, True)):
            yield IntegerRule(out, group, saturates=True, backwards=backwards)
    low, high = (end // box.n for end in bounds(box))
    for group, inner, saturates in product((g for g in INNER_GROUPS if g <= box.n), INNER, (True, False)):
        narrow = np.iinfo(inner)
        same = narrow.bits == ends.bits and not saturates  # equal to a single cut at the end
        if narrow.bits <= ends.bits and not same and (low * group < int(narrow.min) or high * group > int(narrow.max)):
            for outer in (False, True) if reachable else (False,):
                yield IntegerRule(out, group, outer, inner, saturates)


def drawn_integers(kind: str, box: BlackBox, seed: int) -> tuple[Array, ...]:
    """Return random integer operands in their dtypes: two matrices (m, n) and (n, columns), or 48 rows of each operand.

    kind: "small" (-4 .. 4), "uniform" (the whole range), or ends of the range alone: "extremes" (at random), "runs"
    (sums leave the range and come back) or "pairs" (few nonzero terms). box: the black box, for the shapes and dtypes
    of its operands. seed: the seed of the draws.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    values = []
    for place, operand in enumerate(box.operands):
        lines = box.shape[place] if box.kind == "matmul" else ROWS
        x = _lines(rng, kind, np.iinfo(operand.integer), (lines, box.n), place)
        x = x.astype(operand.integer)
        values.append(x.T.copy() if box.kind == "matmul" and place == 1 else x)
    return tuple(values)


def _lines(rng: np.random.Generator, kind: str, ends: np.iinfo[np.integer], shape: Shape, place: int) -> Array:
    """Return random rows (L, n) of integers within a dtype's range.

    Args:
      rng: the generator.
      kind: "small" for -4 .. 4, "uniform" for the whole range; all others consist of the range's two ends: "extremes"
        at random, "runs" with sums that leave the range and come back, "pairs" with zeros for all but a few terms.
      ends: the range of the dtype.
      shape: (L, n).
      place: the operand's number, 0 or 1. In "runs" the terms of operand 0 change from the highest to the lowest value
        at a random term, and those of operand 1 are all the highest value.
    """
    low, high = int(ends.min), int(ends.max)
    if kind == "small":
        return np.asarray(rng.integers(max(low, -4), 5, shape))
    if kind == "uniform":
        return np.asarray(rng.integers(low, high, shape, dtype=ends.dtype, endpoint=True))
    corner = np.array([low, high], ends.dtype)
    share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], (shape[0], 1))
    lines = corner[(rng.random(shape) < share).astype(int)]
    if kind == "runs":
        seam = rng.integers(0, shape[1] + 1, (shape[0], 1))
        before = np.arange(shape[1]) < seam
        return np.asarray(np.where(before, corner[1], corner[0] if place == 0 else corner[1]))
    if kind == "pairs":  # few terms, whose sums need one bit more than they
        lines = np.where(rng.random(shape) < 4 / shape[1], lines, 0)
    return np.asarray(lines)
