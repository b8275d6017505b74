"""Rounding modes: the names that callers pass, the integers that kernels get, and the properties of each mode."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from fpsim.errors import unknown
from fpsim.reload import reloadable


class Start(NamedTuple):
    """The point between two neighbouring magnitudes from which on a rounding mode takes the larger one.

    Attributes:
      at: the point as a share of the gap: 0.0 (the smaller magnitude), 0.5 or 1.0 (the larger one).
      included: True if the point itself is rounded to the larger magnitude.
    """

    at: float
    included: bool


ABOVE_ZERO, FROM_HALF, ABOVE_HALF, NEVER = Start(0.0, False), Start(0.5, True), Start(0.5, False), Start(1.0, True)


class RoundingFacts(NamedTuple):
    """The properties of a rounding mode; its arithmetic is in core/rounding.py.

    Attributes:
      sentence: a clause for explanations, with the mode as its subject.
      starts: function of two bools (the smaller magnitude is odd, the value is negative) -> the point from which on the
        larger magnitude is taken, a `Start`.
      inward: a pair of bools, for positive and for negative values; True if a value that is too large becomes the
        largest finite one instead of Inf.
      aliases: names in IEEE 754, IEEE P3109, gfloat, CUDA, PTX and C, separated by spaces.
    """

    sentence: str
    starts: Callable[[bool, bool], Start]
    inward: tuple[bool, bool]
    aliases: str


@reloadable
class Rounding(IntEnum):
    """Rounding modes: rules that choose between the two values of a format next to an exact value.

    Attributes:
      facts: a RoundingFacts, the properties of the mode, such as its names.
    """

    facts: RoundingFacts

    def __new__(cls, number: int, *facts: object) -> Rounding:
        assert 0 <= number < 32, f"{number} has no bit in the kernels' words of modes"
        mode = int.__new__(cls, number)
        mode._value_ = number
        mode.facts = RoundingFacts(*facts)  # type: ignore[arg-type]
        return mode

    NEAREST_EVEN = (  # IEEE 754 roundTiesToEven
        0, "nearest_even takes the nearer neighbour",
        lambda odd, negative: FROM_HALF if odd else ABOVE_HALF, (False, False),
        "rne rte rn rnte ties_to_even nearest_ties_to_even round_ties_to_even cuda_round_nearest round_nearest_even "
        "to_even",
    )  # fmt: skip
    NEAREST_AWAY = (  # IEEE 754 roundTiesToAway
        1, "nearest_away takes the nearer neighbour",
        lambda odd, negative: FROM_HALF, (False, False),
        "rna rnta rmm ties_to_away nearest_ties_to_away round_ties_to_away round_nearest_away to_away",
    )  # fmt: skip
    TOWARD_ZERO = (
        2, "toward_zero drops what does not fit",
        lambda odd, negative: NEVER, (True, True),
        "rtz rz truncate zero round_toward_zero cuda_round_zero round_zero",
    )  # fmt: skip
    UP = (  # toward +Inf
        3, "up takes the neighbour toward +Inf",
        lambda odd, negative: NEVER if negative else ABOVE_ZERO, (False, True),
        "rtp ru rp rup toward_positive round_toward_positive cuda_round_pos_inf ceil ceiling",
    )  # fmt: skip
    DOWN = (  # toward -Inf
        4, "down takes the neighbour toward -Inf",
        lambda odd, negative: ABOVE_ZERO if negative else NEVER, (True, False),
        "rtn rd rm rdn toward_negative round_toward_negative cuda_round_min_inf floor",
    )  # fmt: skip
    ODD = (  # of two neighbours the one with the odd significand (Boldo and Melquiond; von Neumann's jamming)
        5, "odd takes the neighbour with the odd significand",
        lambda odd, negative: NEVER if odd else ABOVE_ZERO, (True, True),
        "rto ro jam to_odd round_to_odd",
    )  # fmt: skip
    STOCHASTIC = (  # away from zero with the probability of the dropped fraction; it may always stay
        6, "stochastic goes away from zero with the probability of the dropped fraction",
        lambda odd, negative: NEVER, (False, False),
        "sr rs stochastic_rounding stochastic_fastest stochastica",
    )  # fmt: skip

    @property
    def is_nearest(self) -> bool:
        """True if the mode rounds to the nearer neighbour, whatever it does with ties."""
        return self.goes_away(odd=True, negative=False).at == FROM_HALF.at

    @property
    def is_directed(self) -> bool:
        """True if overflow becomes Inf for one sign and the largest finite value for the other."""
        return self.facts.inward[0] != self.facts.inward[1]

    def inward(self, negative: bool) -> bool:
        """Return whether this mode rounds a value that is too large to the largest finite one, not to Inf.

        negative: whether the value is negative.
        """
        return self.facts.inward[negative]

    def goes_away(self, odd: bool, negative: bool) -> Start:
        """Return the point between two neighbouring magnitudes from which on this mode rounds to the larger one.

        A Start is (at, included): the point as a share of the gap between the two, and whether a value at the point
        itself is rounded to the larger one. odd: whether the significand of the smaller magnitude is odd. negative:
        whether the value is negative.

        Example:
          >>> import fpsim as fp
          >>> fp.Rounding.NEAREST_EVEN.goes_away(odd=False, negative=False)
          Start(at=0.5, included=False)
        """
        return self.facts.starts(odd, negative)


NAMES = tuple(mode.name.lower() for mode in Rounding)


def _key(word: str) -> str:
    """Return `word`, the name of a mode, in lower case and without separators: "Toward-Zero" -> "towardzero"."""
    return word.lower().replace("_", "").replace("-", "").replace(" ", "")


ALIASES: dict[str, Rounding] = {_key(mode.name): mode for mode in Rounding}
ALIASES.update((_key(word), mode) for mode in Rounding for word in mode.facts.aliases.split())


def rounding_mode(word: str | Rounding) -> Rounding:
    """Return the rounding mode with the name `word`, in any of its spellings; return a Rounding unchanged.

    Raises:
      ValueError: no mode has that name; the message lists the modes and the nearest match.

    Example:
      >>> from fpsim.formats.rounding import rounding_mode
      >>> rounding_mode("RNE"), rounding_mode("cudaRoundZero").name
      (<Rounding.NEAREST_EVEN: 0>, 'TOWARD_ZERO')
    """
    if isinstance(word, Rounding):
        return word
    key = _key(word) if isinstance(word, str) else None
    if key in ALIASES:
        return ALIASES[key]
    raise unknown("rounding", word, NAMES, {alias: mode.name.lower() for alias, mode in ALIASES.items()})
