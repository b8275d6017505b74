"""Counts small terms that survive in a sum with a huge term M and with -M; chooses M and the small terms."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.probe.black_box import BlackBox
from fpsim.probe.masks import NoOrderError

# Exponents of M that are tried, the largest first, and of the small terms, the smallest first: those of wide formats
# are far enough apart for sums in float64, those of narrow formats are at the ends of FP16 and E4M3.
LARGE = (200, 60, 30, 20, 16, 15, 14, 12, 10, 8, 6, 4, 2, 0)
SMALL = (-200, -60, -48, -40, -32, -30, -24, -20, -18, -16, -14, -12, -10, -9, -8, -6, -4, -3, -2, -1, 0)
HIDDEN = 27  # binades between M and the sum of all small terms, with which float32 and all matrix units lose these
ROWS = 1 << 20  # most terms in memory at a time


class HiddenOrderError(Exception):
    """Raised for operands whose range is too small for one term to hide another in a sum."""


class Counter:
    """Counts the small terms that survive in a black box's sums with a large term M and its negative -M.

    Terms that are added to M before -M cancels it are lost, so counts reveal the order of additions.

    Args:
      box: the black box: a function that adds n terms in an unknown order.
      sign: the sign of the small terms; -1 for sums that are rounded up, in which M hides no positive term.

    Attributes:
      alive: indices of the terms that the black box includes in its sum.
      large, small: exponents of M and of the small terms, which are powers of two.
      capacity: number of small terms that can be nonzero at once: the result counts them all, and M hides their sum.
      bits: precision in bits with which the result shows the sum of two terms.

    Raises:
      HiddenOrderError: the terms' format has too few exponents for an M that hides small terms.
      NoOrderError: results are not those of a plain sum.
    """

    def __init__(self, box: BlackBox, sign: float = 1.0) -> None:
        self.box, self.sign = box, sign
        self.alive = self._alive()
        self.small = self._smallest()
        self.large = self._largest()
        self.bits = self._bits()
        between = self.large - self.small
        if between < HIDDEN:
            raise HiddenOrderError(
                f"the terms reach from 2**{self.small} to 2**{self.large}, too near for one of them to hide another; "
                "operands of a wider range would reveal the order"
            )
        self.capacity = 1 << min(between - HIDDEN, self._hidden(), 30)

    def survivors(self, first: Array, second: Array, small: Array) -> Array:
        """Return, for each pair (first[p], second[p]), how many of the terms `small` survive in a sum, int64 (pairs,).

        In that sum term first[p] is M = 2**self.large, term second[p] is -M, each other term of `small` is
        self.sign * 2**self.small, and all further terms are 0.

        Args:
          first, second: int64 (pairs,), indices of terms.
          small: int64 (S,), indices of terms; those of the pair don't count.

        Raises:
          NoOrderError: a sum is not a whole number of small terms.
        """
        box = self.box
        places = np.array([[0.0, self.sign * 2.0**self.small, 2.0**self.large, -(2.0**self.large)]])
        columns = [operand.passed(x)[0] for operand, x in zip(box.operands, box.split(places), strict=True)]
        sums = []
        step = max(ROWS // box.n, 1)
        for start in range(0, first.size, step):
            i, j = first[start : start + step], second[start : start + step]
            lines = np.arange(i.size)
            rows = []
            for zero, one, large, minus in columns:
                line = np.full(box.n, zero)
                line[small] = one
                block = np.repeat(line[None], i.size, axis=0)
                block[lines, i], block[lines, j] = large, minus
                rows.append(block)
            sums.append(box.results(*rows).astype(np.float64))
        counts = np.concatenate(sums) / (self.sign * 2.0**self.small)
        good = np.isfinite(counts) & (counts == np.rint(counts)) & (counts >= 0) & (counts <= small.size)
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            raise NoOrderError(
                f"with M = 2**{self.large} at term {int(first[at])}, -M at {int(second[at])} and {small.size} terms of "
                f"2**{self.small} the result is {float(counts[at]) * 2.0**self.small!r}"
            )
        return counts.astype(np.int64)

    # ---- exponents

    def _alive(self) -> Array:
        """Return the indices of the terms that the black box includes in its sum, int64, ascending.

        Raises:
          NoOrderError: a 1 among zeros gives a sum other than 0 and 1, or no term is in the sum.
        """
        n, sums = self.box.n, []
        step = max(ROWS // n, 1)
        for start in range(0, n, step):
            rows = np.eye(min(step, n - start), n, start)
            sums.append(self.box.values(rows))
        alone = np.concatenate(sums)
        if not np.isin(alone, (0.0, 1.0)).all():
            at = int(np.flatnonzero(~np.isin(alone, (0.0, 1.0)))[0])
            raise NoOrderError(f"a 1 at term {at} and zeros elsewhere give {float(alone[at])!r}: this is no plain sum")
        if not alone.any():
            raise NoOrderError("no term is in the result")
        return np.flatnonzero(alone)

    def _ends(self) -> tuple[int, int, int]:
        """Return the indices of the first, a middle and the last included term."""
        return int(self.alive[0]), int(self.alive[self.alive.size // 2]), int(self.alive[-1])

    def _smallest(self) -> int:
        """Return the smallest tried exponent for which one power of two and zeros elsewhere sum to that power.

        The power is put at the first, a middle and the last included term, one after another.

        Raises:
          NoOrderError: for each tried exponent, a sum differs from the power.
        """
        low, high = self.box.exponents
        tried = np.array([e for e in SMALL if low <= e <= high] or [low])
        places = np.array(sorted(set(self._ends())))
        rows = np.zeros((tried.size * places.size, self.box.n))
        rows[np.arange(rows.shape[0]), np.tile(places, tried.size)] = np.repeat(2.0**tried, places.size)
        sums = self.box.values(rows).reshape(tried.size, places.size)
        good = (sums == 2.0 ** tried[:, None]).all(axis=1)
        if not good.any():
            raise NoOrderError(f"2**{int(tried[-1])} with zeros gives {float(sums[-1, 0])!r}: this is no plain sum")
        return int(tried[np.flatnonzero(good)[0]])

    def _largest(self) -> int:
        """Return the largest tried exponent with which M = 2**exponent and -M cancel at every tested pair of terms.

        They cancel if the sum with M at one term of the pair, -M at the other and zeros elsewhere is 0. Up to three
        pairs of included terms are tested: the first and the second, the first and the last, a middle one and the last.
        The tried exponents are those of LARGE from `small` to the largest that a term can have, or only that one if
        LARGE has none of them. With a single included term nothing is tested.

        Raises:
          NoOrderError: for each tried exponent, M and -M do not cancel at some pair.
        """
        n, high = self.box.n, self.box.exponents[1]
        first, middle, last = self._ends()
        tried = [e for e in LARGE if self.small <= e <= high] or [high]
        if self.alive.size == 1:
            return tried[0]
        pairs = sorted({(first, int(self.alive[1])), (first, last), (middle, last)} - {(last, last)})
        rows = np.zeros((len(pairs) * len(tried), n))
        for r, exponent in enumerate(np.repeat(tried, len(pairs))):
            i, j = pairs[r % len(pairs)]
            rows[r, i], rows[r, j] = 2.0**exponent, -(2.0**exponent)
        cancels = (self.box.values(rows) == 0).reshape(len(tried), len(pairs)).all(axis=1)
        if not cancels.any():
            raise NoOrderError("M and -M with zeros do not cancel, for any M that was tried")
        return tried[int(np.flatnonzero(cancels)[0])]

    def _bits(self) -> int:
        """Return the precision, in bits, with which the result shows the sum of the first and the last included term.

        It is d + 1 for the largest d up to which the sum of 2**(self.small + d) and 2**self.small is exact. With a
        single included term, return the precision of the results' format.
        """
        if self.alive.size == 1:
            return self.box.fmt.precision
        most = max(min(self.large - self.small, 60), 1)
        rows = np.zeros((most, self.box.n))
        first, _, last = self._ends()
        rows[:, first], rows[:, last] = 2.0 ** (self.small + np.arange(1, most + 1)), 2.0**self.small
        exact = self.box.values(rows) - rows[:, first] == 2.0**self.small
        return int(np.argmin(exact)) + 1 if not exact.all() else most

    def _hidden(self) -> int:
        """Return the largest d <= `self.bits` for which the term 2**(self.small + d) is lost in a sum with M and -M.

        M, -M and the term are put at the first, a middle and the last index of `alive`, in three arrangements; the term
        must be lost in each. An arrangement in which even 2**self.small is not lost is ignored: there -M cancels M
        before the term is added. For sums in float64, d is small, since they keep more bits below M than float32 sums.
        With fewer than three terms in `alive`, return `self.bits`.
        """
        places, most = sorted(set(self._ends())), self.bits
        if len(places) < 3:
            return most
        for order in (places, places[1:] + places[:1], places[2:] + places[:2]):
            smallest, largest = self._lost(order, np.array([0, most]))
            if smallest and not largest:
                most = int(np.argmin(self._lost(order, np.arange(most + 1)))) - 1
        return most

    def _lost(self, places: list[int], d: Array) -> Array:
        """Return, for each integer in `d`, whether the term 2**(self.small + d) is lost in a sum with a huge M and -M.

        The sum of the three is 0 then. places: indices of these three terms. The result is bool (d.size,).
        """
        rows = np.zeros((d.size, self.box.n))
        rows[:, places[0]] = self.sign * 2.0 ** (self.small + d)
        rows[:, places[1]], rows[:, places[2]] = 2.0**self.large, -(2.0**self.large)
        lost: Array = self.box.values(rows) == 0
        return lost
