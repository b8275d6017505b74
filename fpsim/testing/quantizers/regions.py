"""Description of wrong results: the kinds, signs, binades and neighbours that their inputs have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.float_format import Format
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.rounder import Flags, SplitInputs, Words, grid_of, magnitudes_of, round_to_codes, words_of

KINDS = ("NaN", "Inf", "zeros", "too large", "values of the format", "ties", "below a tie", "above a tie")


def where(inputs: SplitInputs, differ: Flags, fmt: Format, got: Words) -> str:
    """Return sentences on the inputs with wrong results: kinds, binades, signs, and whether results are neighbours.

    differ: bool mask of the inputs with wrong results. got: results for all inputs, as bit patterns of float64.
    """
    kinds, odd = kinds_of(inputs, fmt)
    parts = []
    for kind, name in enumerate(KINDS):
        here = differ & (kinds == kind)
        if here.any():
            parts.append(f"{here.sum():,} of {(kinds == kind).sum():,} {name}{_alike(here, kinds == kind, odd, kind)}")
    text = f"They are {', '.join(parts)}"
    chosen = inputs.part(differ)
    if chosen.finite.any():
        finite = chosen.magnitude[chosen.finite & (chosen.magnitude > 0)]
        if finite.size:
            low, high = (int(np.frexp(end)[1]) - 1 for end in (finite.min(), finite.max()))
            text += f"; between 2**{low} and 2**{high + 1}"
        tiny = chosen.finite & (chosen.magnitude < np.ldexp(1.0, fmt.min_exponent))
        if tiny.sum() in (0, int(chosen.finite.sum())):
            text += ", all below the smallest normal value" if tiny.any() else ", none below the smallest normal value"
    signs = chosen.negative
    if signs.all() or not signs.any():
        text += f"; all {'negative' if signs.all() else 'positive'}"
    return f"{text}. {_faithful(inputs, differ, fmt, got)}".rstrip()


def kinds_of(inputs: SplitInputs, fmt: Format) -> tuple[npt.NDArray[np.int64], Flags]:
    """Return, for each input, the index of its kind in KINDS, int64, and whether the code below it is odd, bool.

    The code below is that of the format's value that is nearest toward zero; codes count on beyond the largest value. A
    tie is a midpoint of two neighbouring values. Kinds: 0 NaN, 1 Inf, 2 zeros, 3 too large (above the largest value), 4
    values of the format, 5 ties, 6 between a value and the tie above it (in magnitude), 7 between a tie and the value
    above it.

    inputs: the inputs, flat, as signs and exact float64 magnitudes. fmt: the format of the quantizer's results.
    """
    grid = grid_of(fmt)
    magnitude = np.where(inputs.finite, inputs.magnitude, 0.0)
    with np.errstate(all="ignore"):
        below = round_to_codes(magnitude, inputs.negative, grid, "toward_zero")
        low = magnitudes_of(below, grid)
        tie = low + (magnitudes_of(below + 1, grid) - low) / 2
    kinds = np.select(
        [
            np.isnan(inputs.magnitude), np.isinf(inputs.magnitude), magnitude == 0,
            magnitude > fmt.max, magnitude == low, magnitude == tie, magnitude < tie,
        ],
        [0, 1, 2, 3, 4, 5, 6],
        7,
    )  # fmt: skip
    return kinds, (below & 1).astype(np.bool_)


def _alike(here: Flags, kind: Flags, odd: Flags, number: int) -> str:
    """Return a remark if the smaller neighbours of all wrong inputs of a kind are odd, or even; else "".

    The smaller neighbour of an input is the value of the format toward zero from it. The remark is also "" if all
    inputs of the kind are wrong, and for kinds of inputs that are not rounded.

    Args:
      here: mask of the wrong inputs.
      kind: mask of all inputs of the kind.
      odd: mask of the inputs whose smaller neighbour has an odd code.
      number: index of the kind in KINDS.
    """
    if number < 4 or here.sum() == kind.sum():
        return ""
    if odd[here].all():
        return " with an odd smaller neighbour"
    return "" if odd[here].any() else " with an even smaller neighbour"


def _faithful(inputs: SplitInputs, differ: Flags, fmt: Format, got: Words) -> str:
    """Return the sentence on whether each wrong result is one of the two values of the format next to its input.

    differ: mask of the inputs with wrong results. got: results for all inputs, as bit patterns of float64. The sentence
    is "" if no finite input within the format's range has a wrong result.
    """
    inside = differ & inputs.finite & (inputs.magnitude <= fmt.max)
    chosen = inputs.part(inside)
    if not chosen.finite.size:
        return ""
    within = "" if inside.sum() == differ.sum() else "Within the format's range, "
    down, up = (words_of(QuantizerModel(fmt, rule, "max", "max").values(chosen)) for rule in ("toward_zero", "away"))
    results = got[inside]
    neighbours = (results == down) | (results == up)
    if neighbours.all():
        return f"{within}{'each' if within else 'Each'} result is one of the two neighbours of its input."
    return f"{within}{(~neighbours).sum():,} of the results are neither of the two neighbours of their input."


def smallest(inputs: SplitInputs, differ: Flags) -> int:
    """Return the index of the wrong result whose input has the smallest magnitude; of x and -x, the index of x.

    NaN and Inf come after all numbers. differ: mask of the inputs with wrong results.
    """
    places = np.flatnonzero(differ)
    part = inputs.part(places)
    order: Any = np.lexsort((part.negative, part.magnitude, ~part.finite))
    return int(places[order[0]])
