"""Rounding of magnitudes to the codes of any grid by any rule, right or wrong, in float64 with exact steps.

`fpsim.encode` decides what is right; this module computes the results of faulty quantizers, without compiling.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fpsim.arrays import float_array
from fpsim.casts.cast import decode
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP64
from fpsim.formats.rounding import Rounding

Doubles = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Made = TypeVar("Made")

NAN_WORD = np.uint64(0x7FF8000000000000)  # replaces every NaN in comparisons
FRACTION_BITS, BIAS, INFINITE = 52, 1023, 2047  # of float64; INFINITE is the exponent field of Inf

Rule = Callable[[Flags, Doubles, Flags], Flags]


def _rule_of(mode: Rounding) -> Rule:
    """Return the rule of a rounding mode: the function (odd, rest, negative) -> whether it rounds away from zero.

    odd: whether the code of the smaller neighbour is odd. rest: the dropped fraction of the spacing, from 0 to below 1.
    negative: whether the value is negative.
    """

    def goes_away(odd: Flags, rest: Doubles, negative: Flags) -> Flags:
        away = np.zeros_like(odd)
        for is_odd, is_negative in product((False, True), repeat=2):
            start = mode.goes_away(is_odd, is_negative)
            beyond = (rest > start.at) | ((rest == start.at) & start.included)
            away |= beyond & (odd == is_odd) & (negative == is_negative)
        return away

    return goes_away


# Name -> function that returns whether a magnitude is rounded up; its arguments: the smaller neighbour's code is odd,
# the dropped fraction of the spacing, the value is negative. Some modes' rules are written out because that is faster.
RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {mode.name.lower(): _rule_of(mode) for mode in Rounding if mode is not Rounding.STOCHASTIC}
    | {
        "nearest_even": lambda odd, rest, negative: (rest > 0.5) | ((rest == 0.5) & odd),
        "nearest_away": lambda odd, rest, negative: rest >= 0.5,
        "toward_zero": lambda odd, rest, negative: np.zeros_like(odd),
        "up": lambda odd, rest, negative: (rest > 0) & ~negative,
        "down": lambda odd, rest, negative: (rest > 0) & negative,
        "odd": lambda odd, rest, negative: (rest > 0) & ~odd,
        "nearest_zero": lambda odd, rest, negative: rest > 0.5,
        "nearest_up": lambda odd, rest, negative: (rest > 0.5) | ((rest == 0.5) & ~negative),
        "nearest_down": lambda odd, rest, negative: (rest > 0.5) | ((rest == 0.5) & negative),
        "nearest_odd": lambda odd, rest, negative: (rest > 0.5) | ((rest == 0.5) & ~odd),
        "away": lambda odd, rest, negative: rest > 0,
        "even": lambda odd, rest, negative: (rest > 0) & odd,
        "from_quarter": lambda odd, rest, negative: rest >= 0.25,
        "from_three_quarters": lambda odd, rest, negative: rest >= 0.75,
        # float32 rounds the float below a half, plus a half, to 1
        "half_added": lambda odd, rest, negative: rest >= 0.5 - 2.0**-25,
        "half_added_up": lambda odd, rest, negative: np.where(negative, rest > 0.5, rest >= 0.5 - 2.0**-25),
        "sticky_without_first_bit": lambda odd, rest, negative: (rest >= 0.5) & (odd | (rest % 0.25 > 0)),
        "sticky_without_two_bits": lambda odd, rest, negative: (rest >= 0.5) & (odd | (rest % 0.125 > 0)),
        "no_sticky": lambda odd, rest, negative: (rest >= 0.5) & odd,
        "next_bit_even": lambda odd, rest, negative: (rest > 0.5) | ((rest == 0.5) & odd),
    }
)
PARITY_BIT = MappingProxyType({"next_bit_even": 1})  # bit of a code that a rule takes as the lowest one, other than 0
TIES = MappingProxyType(
    {
        "nearest_even": "to the even code",
        "nearest_away": "away from zero",
        "nearest_zero": "toward zero",
        "nearest_up": "up, toward +Inf",
        "nearest_down": "down, toward -Inf",
        "nearest_odd": "to the odd code",
    }
)  # direction of ties, of rules that round to nearest
NEAREST = frozenset(TIES) | {mode.name.lower() for mode in Rounding if mode.is_nearest}
SENTENCES = MappingProxyType(
    {rule: f"rounds as {rule} does" for rule in RULES}
    | {
        "toward_zero": "rounds toward zero",
        "up": "rounds up, toward +Inf",
        "down": "rounds down, toward -Inf",
        "odd": "rounds to odd",
        "away": "rounds away from zero",
        "even": "takes of two neighbours the even one, also where the odd one is nearer",
        "from_quarter": "goes to the larger magnitude from a quarter of the way on",
        "from_three_quarters": "goes to the larger magnitude from three quarters of the way on only",
        "half_added": "adds half a unit in float32 and cuts: takes ties away, and the float below the first one",
        "half_added_up": "gives floor(y + 0.5) in float32: takes ties up, and the float below the first tie too",
        "sticky_without_first_bit": "leaves the first bit behind the half out of its sticky bit: 3/4 is a tie",
        "sticky_without_two_bits": "leaves two bits behind the half out of its sticky bit: 5/8, 3/4 and 7/8 are ties",
        "no_sticky": "has no sticky bit: takes everything from half of the way on for a tie",
        "next_bit_even": "takes ties by the bit above the last one, not by the last one",
    }
)


def rule_words(rule: str, promised: str) -> str:
    """Return what a quantizer that follows a rule does, as a clause such as "takes ties to the even code".

    promised: the rule that it should follow. If both round to nearest, the clause is on ties alone.
    """
    if rule not in TIES:
        return SENTENCES[rule]
    return f"takes ties {TIES[rule]}" if promised in NEAREST else f"rounds to nearest, ties {TIES[rule]}"


# beginnings of clauses on the rounding to the format, not on a rounding to another format first
ROUNDS = tuple(f"rounds {how}" for how in ("toward", "up", "down", "away", "as ", "to nearest", "to odd"))


def in_elements(clause: str) -> str:
    """Return a clause on a cast, reworded for the cast of the elements of a scaled array.

    Example:
      >>> from fpsim.testing.quantizers.rounder import in_elements
      >>> in_elements("takes ties up, toward +Inf"), in_elements("drops the sign")
      ('takes ties of elements up, toward +Inf', 'drops the sign, in its elements')
    """
    if clause.startswith("takes ties "):
        return clause.replace("ties", "ties of elements", 1)
    if clause.startswith(ROUNDS):
        return clause.replace("rounds", "rounds elements", 1)
    return f"{clause}, in its elements"


class FractionGrid(NamedTuple):
    """A grid of magnitudes: 2^mantissa_bits values in each binade, and constant spacing below 2^min_exponent.

    Attributes:
      mantissa_bits, min_exponent, ties_to_even_code: as for `fpsim.Format`.
      subnormals: whether there are zero and values below the smallest normal one.
    """

    mantissa_bits: int
    min_exponent: int
    subnormals: bool = True
    ties_to_even_code: bool = False


@lru_cache(maxsize=64)
def grid_of(fmt: Format) -> FractionGrid:
    """Return the magnitudes of a float format as a `FractionGrid`."""
    return FractionGrid(fmt.mantissa_bits, fmt.min_exponent, fmt.subnormals, fmt.ties_to_even_code)


KEPT_STEPS = 512  # results of steps that the cache of inputs holds


class SplitInputs(NamedTuple):
    """Inputs split into signs and magnitudes, flat.

    Attributes:
      negative: whether each input has a minus sign.
      magnitude: exact float64 magnitudes, Inf and NaN included.
      finite: whether each input is finite.
      payload: magnitudes that NaNs of float32 would have if their bits were read as numbers; None for other dtypes.
      steps: cache {parameters of a step of a model: result of the step for these inputs}, or None without a cache.
    """

    negative: Flags
    magnitude: Doubles
    finite: Flags
    payload: Doubles | None = None
    steps: dict[Any, Any] | None = None

    def with_steps(self) -> SplitInputs:
        """Return these inputs with an empty cache, so that steps which several models share are computed once."""
        return self._replace(steps={})

    def once(self, parameters: tuple[Any, ...], step: Callable[[SplitInputs], Made]) -> Made:
        """Return step(self), from the cache if it was computed before with the same `parameters` of the step."""
        if self.steps is None:
            return step(self)
        result: Made | None = self.steps.get(parameters)
        if result is None:
            if len(self.steps) >= KEPT_STEPS:
                self.steps.clear()  # which another thread may do at any time
            self.steps[parameters] = result = step(self)
        return result

    def part(self, chosen: Any) -> SplitInputs:
        """Return some of the inputs, which `chosen` selects by indices or a mask, without a cache."""
        payload = None if self.payload is None else self.payload[chosen]
        return SplitInputs(self.negative[chosen], self.magnitude[chosen], self.finite[chosen], payload)


def taken_apart(x: npt.ArrayLike) -> SplitInputs:
    """Return an array of floats as signs and exact magnitudes, flat."""
    source, fmt = float_array(x)
    values = source.ravel() if fmt == FP64 else decode(source.ravel().view(fmt.storage), fmt, np.float64)
    payload = None
    if source.dtype == np.float32:
        fraction = (source.ravel().view(np.uint32) & np.uint32((1 << 23) - 1)).astype(np.float64)
        payload = (1 + fraction * 2.0**-23) * 2.0**128
    return SplitInputs(np.signbit(source.ravel()), np.abs(values), np.isfinite(values), payload)


def round_to_codes(magnitude: Doubles, negative: Flags, grid: FractionGrid, rule: str) -> Codes:
    """Return the codes to which a rule rounds finite magnitudes; codes continue beyond a format's largest value.

    negative: mask of the values with a minus sign. grid: the format's magnitudes. rule: a name in RULES, such as
    "toward_zero".
    """
    if magnitude.size and not grid.subnormals:
        magnitude = np.maximum(magnitude, np.ldexp(1.0, grid.min_exponent))
    if _is_inner(grid):  # the exponent field, which is lower for zeros and subnormals
        exponents = np.maximum((magnitude.view(np.int64) >> FRACTION_BITS) - BIAS, grid.min_exponent)
        scaled = magnitude * ((BIAS + grid.mantissa_bits - exponents) << FRACTION_BITS).view(np.float64)
    else:
        exponents = np.maximum(np.frexp(magnitude)[1].astype(np.int64) - 1, grid.min_exponent)
        exponents = np.where(magnitude == 0, grid.min_exponent, exponents)
        scaled = np.ldexp(magnitude, grid.mantissa_bits - exponents)
    whole = np.floor(scaled)
    codes = whole.astype(np.int64) + ((exponents - grid.min_exponent) << grid.mantissa_bits)
    if not grid.subnormals:
        codes -= 1 << grid.mantissa_bits
    if grid.mantissa_bits == 0 and not grid.ties_to_even_code:
        odd = whole > 0
    else:
        odd = (codes >> PARITY_BIT.get(rule, 0) & 1).astype(np.bool_)
    moved: Codes = codes + RULES[rule](odd, scaled - whole, negative)
    return moved


def round_to_integers(values: Doubles, rule: str) -> Doubles:
    """Return values rounded to integers by a rule, a name in RULES."""
    magnitudes = np.abs(values)
    whole = np.floor(magnitudes)
    away = RULES[rule](whole % 2 == 1, magnitudes - whole, np.signbit(values))
    return np.asarray(np.copysign(whole + away, values))


def magnitudes_of(codes: Codes, grid: FractionGrid) -> Doubles:
    """Return the magnitudes that codes stand for in a grid; codes of Inf and NaN are read as numbers."""
    if _is_inner(grid):  # a code with the bias of float64 is a bit pattern of float64, but for subnormals
        lowest = grid.min_exponent + BIAS - (1 if grid.subnormals else 0)
        fields = np.minimum(codes + (lowest << grid.mantissa_bits), INFINITE << grid.mantissa_bits)
        values = (fields << (FRACTION_BITS - grid.mantissa_bits)).view(np.float64)
        if not grid.subnormals:
            return values
        smallest = 2.0 ** (grid.min_exponent - grid.mantissa_bits)
        return np.where(codes < 1 << grid.mantissa_bits, codes * smallest, values)
    fields, fractions = codes >> grid.mantissa_bits, codes & ((1 << grid.mantissa_bits) - 1)
    hidden = np.where(fields > 0, 1 << grid.mantissa_bits, 0) if grid.subnormals else 1 << grid.mantissa_bits
    places = np.maximum(fields, 1) - 1 if grid.subnormals else fields
    exponents = np.minimum(places + (grid.min_exponent - grid.mantissa_bits), 2000).astype(np.int32)
    with np.errstate(over="ignore"):  # a number above float64's largest becomes Inf
        return np.asarray(np.ldexp((hidden | fractions).astype(np.float64), exponents))


def _is_inner(grid: FractionGrid) -> bool:
    """Return whether float64 can represent the grid's spacings, and their inverses, as normal values."""
    return 0 < grid.mantissa_bits <= FRACTION_BITS and grid.mantissa_bits - grid.min_exponent <= BIAS - 1


@lru_cache(maxsize=1024)
def magnitude_of(code: int, grid: FractionGrid) -> float:
    """Return the magnitude that `code` stands for in a grid, such as the magnitudes of a format."""
    return float(magnitudes_of(np.array([code]), grid)[0])


def evenly_spread(places: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """Return at most `count` of the indices `places`, evenly spaced, with the first and the last."""
    if places.size <= count:
        return places
    return places[np.unique(np.linspace(0, places.size - 1, count).astype(np.intp))]


def words_of(values: Doubles) -> Words:
    """Return float64 values as bit patterns, with one pattern for all NaNs."""
    words: Words = np.array(values, np.float64, order="C").view(np.uint64)
    words[np.isnan(values)] = NAN_WORD
    return words
