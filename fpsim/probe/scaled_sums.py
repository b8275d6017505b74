"""Sums that are multiplied by a factor, such as means: probed as if there were no factor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import Format
from fpsim.probe.arithmetic import usual_programs
from fpsim.probe.black_box import BlackBox
from fpsim.probe.counter import Counter
from fpsim.probe.order import Order
from fpsim.probe.programs.program import Program
from fpsim.probe.programs.rules import SumScale

PLACES = 9  # terms at which the factor is measured
CLOSE = 2.0**-14  # relative distance below that of any two numbers of FEW_BITS
SMALLEST = 2.0**-40  # for smaller factors no divisor is searched
FEW_BITS = 12  # precision that the counts of surviving terms need
BITS = (FEW_BITS, 24, 53)  # precisions of an unscaled sum to try


def factor_of(box: BlackBox) -> float | None:
    """Return the factor by which a black box multiplies its sum: its result for one 1 among zeros.

    Return None if the factor is 1, is not finite, or differs between the tried terms, which are nine at most.
    """
    places = np.unique(np.linspace(0, box.n - 1, PLACES).astype(int))
    ones = np.zeros((places.size, box.n))
    ones[np.arange(places.size), places] = 1.0
    factors = {float(x) for x in box.values(ones) if x != 0}
    factor = factors.pop() if len(factors) == 1 else 1.0
    return factor if np.isfinite(factor) and factor != 1 else None


def divisor_of(factor: float, fmt: Format, n: int) -> int | None:
    """Return the first of n, -n and round(1 / factor) whose reciprocal, rounded to `fmt`, equals the factor.

    Return None if none of the three fits. n: number of terms of the sum.
    """
    nearest = round(1 / factor) if abs(factor) > SMALLEST else 0
    for divisor in (n, -n, nearest):
        if abs(divisor) > 1 and float(decode(encode(np.array([1 / divisor]), fmt), fmt, np.float64)[0]) == factor:
            return divisor
    return None


class UnscaledBox(BlackBox):
    """A black box whose results are divided by its factor, so that sums of few bits are exact again, in float64.

    box: the black box whose results have the factor. factor: the number by which it multiplies sums, such as 1 / n.
    """

    def __init__(self, box: BlackBox, factor: float) -> None:
        self.__dict__ |= box.__dict__
        self.box, self.factor, self.divisor = box, factor, divisor_of(factor, box.fmt, box.n)

    def results(self, *rows: Array) -> Array:
        """Return the black box's sums (R,) divided by its factor, as float64, for rows (R, n) of each operand.

        If several sums have the same result after scaling, the one with the fewest significant bits is returned.
        """
        got = self.box.results(*rows)
        self.calls = self.box.calls
        with np.errstate(all="ignore"):
            scaled = got.astype(np.float64)
            near = scaled / self.factor
            # if terms were multiplied before they were added, each addition has an error
            sums = _shortened(near, FEW_BITS)
            close = np.abs(sums - near) <= np.abs(near) * min(self.n * 2.0**-self.fmt.precision, CLOSE)
            waiting = np.isfinite(near) & ~close
            sums = np.where(close, sums, near)
            for bits in BITS:
                tried = _shortened(near, bits)
                forms = [tried * self.factor, *([tried / self.divisor] if self.divisor else [])]
                same = np.any([form.astype(got.dtype).astype(np.float64) == scaled for form in forms], axis=0)
                sums = np.where(waiting & same, tried, sums)
                waiting &= ~same
        return sums


def _shortened(x: Array, bits: int) -> Array:
    """Return float64 values rounded to `bits` significant bits, ties to even."""
    mantissas, exponents = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissas, bits)), exponents - bits))


def scaled_programs(counter: Counter, order: Order, plain: Iterable[Program], factor: float) -> Iterator[Program]:
    """Yield programs whose sum is multiplied or divided by a factor, then programs whose terms are multiplied by it.

    The programs of the first kind are made from `plain`, programs without a factor. Each rounds the scaled sum to the
    format of its sums, or to that of the results. It divides by an integer if `divisor_of` finds one, unless the factor
    is a power of two. Programs of the second kind have sums in the result's format, FP32 or FP64, rounded to nearest
    even. counter: its attribute `box` is the black box; order: the order of the black box's additions.
    """
    exact = float(np.frexp(factor)[0]) in (0.5, -0.5)
    for program in plain:
        divisor = None if exact else divisor_of(factor, program.out, program.n)
        forms = [("times", factor)] if divisor is None else [("over", float(divisor)), ("times", factor)]
        for fmt, (how, by) in product(dict.fromkeys((program.rule.fmt, program.out)), forms):
            yield replace(program, scale=SumScale(how, by, fmt))
    for program in usual_programs(counter, order):
        yield replace(program, scale=SumScale("terms", factor, program.rule.fmt))
