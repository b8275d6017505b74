"""Counts small terms that survive beside M and -M: how large M is, how small the others are, how many are counted."""

from __future__ import annotations

import numpy as np

from fpsim.arrays import Array
from fpsim.probe.black_box import BlackBox
from fpsim.probe.masks import NoOrderError

# Exponents of M that are tried, the largest first, and of the small terms, the smallest first: those of wide formats
# lie far enough apart for sums in float64, and those of narrow ones where FP16 and E4M3 end.
LARGE = (200, 60, 30, 20, 16, 15, 14, 12, 10, 8, 6, 4, 2, 0)
SMALL = (-200, -60, -48, -40, -32, -30, -24, -20, -18, -16, -14, -12, -10, -9, -8, -6, -4, -3, -2, -1, 0)
HIDDEN = 27  # bits between M and the sum of all small terms, from which float32 and every matrix unit hides them
ROWS = 1 << 20  # terms that are laid out at a time


class HiddenOrderError(Exception):
    """The operands do not reach far enough for one term to hide another; the text says which would."""


class Counter:
    """The masks of a black box.

    Args:
      box: the black box.
      sign: of the small terms; -1 for sums that are rounded up, where nothing positive is lost beside M.

    Attributes:
      alive: terms that are added at all.
      large, small: exponents of M and of the small terms.
      capacity: small terms that may be set at once.
      bits: of a sum that the result shows.
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
                "operands of a wider range would tell the order"
            )
        self.capacity = 1 << min(self.bits, between - HIDDEN, 30)

    def survivors(self, first: Array, second: Array, small: Array) -> Array:
        """Return how many terms of `small`, but i and j, are in the result with M at i and -M at j, for each pair."""
        box = self.box
        places = np.array([[0.0, self.sign * 2.0**self.small, 2.0**self.large, -(2.0**self.large)]])
        columns = [operand.passed(x)[0] for operand, x in zip(box.operands, box.split(places), strict=True)]
        found = []
        step = max(ROWS // box.n, 1)
        for start in range(0, first.size, step):
            i, j = first[start : start + step], second[start : start + step]
            each = np.arange(i.size)
            rows = []
            for zero, one, large, minus in columns:
                line = np.full(box.n, zero)
                line[small] = one
                block = np.repeat(line[None], i.size, axis=0)
                block[each, i], block[each, j] = large, minus
                rows.append(block)
            found.append(box.results(*rows).astype(np.float64))
        counts = np.concatenate(found) / (self.sign * 2.0**self.small)
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
        """The terms that are in the sum at all."""
        n, found = self.box.n, []
        step = max(ROWS // n, 1)
        for start in range(0, n, step):
            rows = np.eye(min(step, n - start), n, start)
            found.append(self.box.values(rows))
        alone = np.concatenate(found)
        if not np.isin(alone, (0.0, 1.0)).all():
            at = int(np.flatnonzero(~np.isin(alone, (0.0, 1.0)))[0])
            raise NoOrderError(f"a 1 at term {at} beside zeros gives {float(alone[at])!r}: this is no plain sum")
        if not alone.any():
            raise NoOrderError("no term is in the result")
        return np.flatnonzero(alone)

    def _ends(self) -> tuple[int, int, int]:
        """The first, a middle and the last term."""
        return int(self.alive[0]), int(self.alive[self.alive.size // 2]), int(self.alive[-1])

    def _single(self, exponents: Array) -> Array:
        """The results for one term of these exponents at the first, a middle and the last place."""
        places = np.array(sorted(set(self._ends())))
        rows = np.zeros((exponents.size * places.size, self.box.n))
        rows[np.arange(rows.shape[0]), np.tile(places, exponents.size)] = np.repeat(2.0**exponents, places.size)
        return self.box.values(rows).reshape(exponents.size, places.size)

    def _smallest(self) -> int:
        low, high = self.box.exponents
        tried = np.array([e for e in SMALL if low <= e <= high] or [low])
        found = self._single(tried)
        good = (found == 2.0 ** tried[:, None]).all(axis=1)
        if not good.any():
            raise NoOrderError(f"2**{int(tried[-1])} beside zeros gives {float(found[-1, 0])!r}: this is no plain sum")
        return int(tried[np.flatnonzero(good)[0]])

    def _largest(self) -> int:
        """The largest exponent whose M and -M cancel, whichever terms they are."""
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
            raise NoOrderError("M and -M beside zeros do not cancel, for no M that was tried")
        return tried[int(np.flatnonzero(cancels)[0])]

    def _bits(self) -> int:
        """Bits between the first and the last one of a sum of two terms that the result still shows."""
        most = max(min(self.large - self.small, 60), 1)
        if self.alive.size == 1:
            return most
        rows = np.zeros((most, self.box.n))
        first, _, last = self._ends()
        rows[:, first], rows[:, last] = 2.0 ** (self.small + np.arange(1, most + 1)), 2.0**self.small
        exact = self.box.values(rows) - rows[:, first] == 2.0**self.small
        return int(np.argmin(exact)) + 1 if not exact.all() else most
