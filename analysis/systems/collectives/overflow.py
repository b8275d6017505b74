"""Errors of overflow in a reduction, which name the element and the rank whose contribution made the sum too large."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.analysis.systems.collectives.algorithms import Algorithm
from fpsim.analysis.systems.collectives.contributions import Contributions, Source
from fpsim.analysis.systems.collectives.orders import ExactSum, Hops, Order, first_rank, ranks_in
from fpsim.analysis.systems.collectives.rounding import SEND, Adder
from fpsim.arrays import Array
from fpsim.casts.cast import decode
from fpsim.formats.named import BF16, Format


def ways_out(fmt: Format) -> str:
    """Return the advice at the end of a CollectiveOverflowError; it proposes BF16 if `fmt` has a smaller range."""
    wider = ", or take a format with more range, such as BF16" if fmt.max < BF16.max else ""
    scaled = "Scale contributions down" + (", pass" if wider else " or pass") + " average='multiply_before'"
    return f"{scaled}{wider}; overflow='nonfinite' or 'saturate' returns the overflowed sums."


class CollectiveOverflowError(OverflowError, ValueError):
    """The error raised if a sum over ranks exceeds the range of the format of messages; it names the addition."""


class _Beyond(Exception):
    """Raised internally at the first sum beyond the format's range; its text is a clause that names the addition."""


def refuse_overflow(codes: Array, source: Source, rows: Contributions, algorithm: Algorithm, adder: Adder) -> None:
    """Raise a CollectiveOverflowError if a sum of finite contributions is not finite, or `adder.overflowed` is set.

    Args:
      codes: the sums (n,), as codes of `adder.fmt`.
      source, rows: the contributions, as unrounded values and as codes.
      algorithm, adder: the order of the additions, and their rounding.
    """
    values = decode(codes, adder.fmt, np.float64)
    beyond = np.flatnonzero(~np.isfinite(values))
    if adder.overflowed:
        beyond = np.argsort(-np.abs(values), kind="stable")  # the largest first, where an overflow is most likely
    if not beyond.size:
        return
    finite = np.ones(beyond.size, bool)
    for rank in range(source.count):
        finite &= np.isfinite(source.values(rank)[beyond].astype(np.float64))
    if not finite.any():
        return  # a contribution was infinite or NaN already
    if adder.overflowed:
        sentence = next(filter(None, (where(int(e), source, rows, algorithm, adder) for e in beyond[finite])), "")
        if sentence or finite.all() or adder.is_stochastic:  # else an element with an infinite contribution overflowed
            raise CollectiveOverflowError(f"{sentence or f'a sum overflowed {adder.fmt}.'} {ways_out(adder.fmt)}")
        return
    element = int(beyond[finite][0])
    share = int(finite.sum())
    sentence = where(element, source, rows, algorithm, adder)
    more = f" {share} of {codes.size} elements overflow." if share > 1 else ""
    raise CollectiveOverflowError(f"{sentence}{more} {ways_out(adder.fmt)}")


def where(element: int, source: Source, rows: Contributions, algorithm: Algorithm, adder: Adder) -> str:
    """Return a sentence that names the addition at which an element's sum overflowed, or "" if none overflowed.

    element: index in the buffer. source, rows: contributions, unrounded and as codes. algorithm, adder: the order of
    the additions, and their rounding. Changes `adder.overflowed`.
    """
    column = np.zeros(source.count, adder.fmt.storage)
    for rank in range(source.count):
        adder.overflowed = False
        value = float(source.values(rank)[element])
        column[rank] = rows.row(rank, element, element + 1)[0]
        if not _finite(column[rank : rank + 1], adder):
            return (
                f"element {element} overflowed {adder.fmt}: rank {rank}'s contribution {value:g} is out of its range."
            )
    order = algorithm.order(element, source.size, source.count)
    try:
        _followed(order, column, adder, (element, source.size))
    except _Beyond as place:
        return f"element {element} overflowed {adder.fmt} {place}."
    if adder.watches and not adder.overflowed:
        return ""
    return f"element {element} overflowed {adder.fmt} in its last rounding, of the sum of all {source.count} ranks."


def _followed(order: Order, column: Array, adder: Adder, place: tuple[int, int]) -> Array:
    """Add the contributions to one element of the buffer in an order, and return the sum as an array of one code.

    column: codes (ranks,) of the contributions to the element. adder: the rounding of the additions. place: index of
    the element, and number of elements of the buffer, which select random bits. Raises _Beyond, whose text names the
    addition, at the first addition that overflows.
    """
    if isinstance(order, int):
        return column[order : order + 1]
    if not isinstance(order, Hops):
        return _at_one_rank(order, column, adder, place)
    total = _followed(order[0], column, adder, place).copy()
    count = len(list(ranks_in(order[0])))
    for operand in order[1:]:
        codes = _followed(operand, column, adder, place)
        before, rank = total.copy(), first_rank(operand)
        adder.add_into(total, codes, *place, rank)
        joined = len(list(ranks_in(operand)))
        if not _finite(total, adder):
            mine, others = (float(decode(x, adder.fmt, np.float64)[0]) for x in (before, codes))
            who = f"rank {rank}'s contribution" if joined == 1 else f"the sum of {joined} ranks from rank {rank} on"
            ranks = "1 rank" if count == 1 else f"{count} ranks"
            raise _Beyond(f"when {who} ({others:g}) was added to the sum of {ranks} ({mine:g})")
        count += joined
    return total


def _at_one_rank(order: Order, column: Array, adder: Adder, place: tuple[int, int]) -> Array:
    """Return the sum of one element, as `_followed` does with the same arguments, if one rank adds all operands."""
    operands = [(first_rank(operand), _followed(operand, column, adder, place)) for operand in order]
    exact = math.fsum(float(decode(codes, adder.fmt, np.float64)[0]) for _, codes in operands)
    if isinstance(order, ExactSum) and adder.accumulate is None:
        element, size = place if adder.is_stochastic else (0, 1)
        sums = np.zeros(size)
        sums[element] = exact
        total = adder.rounded(sums, operands[0][0], SEND)[element : element + 1]
    else:
        total = adder.add_all(operands, *place)
    if not _finite(total, adder):
        ranks = len(list(ranks_in(order)))
        raise _Beyond(f"when one rank rounded the sum of {ranks} ({exact:g})")
    return total


def _finite(codes: Any, adder: Adder) -> bool:
    """Return whether all codes are finite numbers and `adder` has seen no overflow."""
    return not adder.overflowed and bool(np.isfinite(decode(codes, adder.fmt, np.float64)).all())
