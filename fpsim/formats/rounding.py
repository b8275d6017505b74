"""Rounding modes: words at the door, small integers inside."""

from __future__ import annotations

from enum import IntEnum

from fpsim.errors import unknown


class Rounding(IntEnum):
    """How the exact value chooses between its two neighbours in the format."""

    NEAREST_EVEN = 0  # IEEE 754 roundTiesToEven
    NEAREST_AWAY = 1  # IEEE 754 roundTiesToAway
    TOWARD_ZERO = 2
    UP = 3  # toward +Inf
    DOWN = 4  # toward -Inf
    ODD = 5  # of two neighbours the one with the odd significand (Boldo and Melquiond; von Neumann's jamming)
    STOCHASTIC = 6  # away from zero with the probability of the dropped fraction


NAMES = tuple(mode.name.lower() for mode in Rounding)

# Spellings of IEEE 754, IEEE P3109, gfloat, CUDA, PTX and C, in the form that _key() gives.
ALIASES: dict[str, Rounding] = {
    **{name.replace("_", ""): Rounding[name.upper()] for name in NAMES},
    **dict.fromkeys(
        ("rne", "rte", "rn", "rnte", "tiestoeven", "nearesttiestoeven", "roundtiestoeven", "cudaroundnearest",
         "roundnearesteven", "toeven"),
        Rounding.NEAREST_EVEN,
    ),
    **dict.fromkeys(
        ("rna", "rnta", "rmm", "tiestoaway", "nearesttiestoaway", "roundtiestoaway", "roundnearestaway", "toaway"),
        Rounding.NEAREST_AWAY,
    ),
    **dict.fromkeys(
        ("rtz", "rz", "truncate", "zero", "roundtowardzero", "cudaroundzero", "roundzero"), Rounding.TOWARD_ZERO
    ),
    **dict.fromkeys(
        ("rtp", "ru", "rp", "rup", "towardpositive", "roundtowardpositive", "cudaroundposinf", "ceil", "ceiling"),
        Rounding.UP,
    ),
    **dict.fromkeys(
        ("rtn", "rd", "rm", "rdn", "towardnegative", "roundtowardnegative", "cudaroundmininf", "floor"), Rounding.DOWN
    ),
    **dict.fromkeys(("rto", "ro", "jam", "toodd", "roundtoodd"), Rounding.ODD),
    **dict.fromkeys(("sr", "rs", "stochasticrounding", "stochasticfastest", "stochastica"), Rounding.STOCHASTIC),
}  # fmt: skip


def rounding_mode(word: str | Rounding) -> Rounding:
    """The mode that a word names.

    Raises:
      ValueError: no mode has that name; the message lists the modes and the nearest match.

    Example:
      >>> from fpsim.formats.rounding import rounding_mode
      >>> rounding_mode("RNE"), rounding_mode("cudaRoundZero").name
      (<Rounding.NEAREST_EVEN: 0>, 'TOWARD_ZERO')
    """
    if isinstance(word, Rounding):
        return word
    key = word.lower().replace("_", "").replace("-", "").replace(" ", "") if isinstance(word, str) else None
    if key in ALIASES:
        return ALIASES[key]
    raise unknown("rounding", word, NAMES, {alias: mode.name.lower() for alias, mode in ALIASES.items()})
