"""Hypothesis strategies of arguments of casts: formats, rounding modes and policies."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fpsim.errors import require_integer
from fpsim.formats.named import FP32, NAMED, Format, p3109
from fpsim.formats.policies import OVERFLOWS, SUBNORMALS
from fpsim.formats.rounding import NAMES

STOCHASTIC = "stochastic"
SEEDS = st.integers(0, 2**32 - 1)


def formats(max_bits: int = 16) -> st.SearchStrategy[Format]:
    """Return a strategy of formats, named and P3109, that float32 can represent; examples shrink toward E4M3.

    Args:
      max_bits: width of the widest format, at least 3; 32 includes TF32 and FP32.

    Raises:
      ValueError, TypeError: max_bits is below 3, or is no integer.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.formats(), lambda fmt: not fmt.has_infinity).name
      'E4M3'
    """
    require_integer("max_bits", max_bits, 3)
    named = [fmt for fmt in NAMED.values() if fmt.bits <= max_bits and FP32.holds(fmt)]
    drawn = [
        fmt
        for bits in range(3, min(max_bits, 16) + 1)
        for precision in range(max(1, bits - 8), bits)
        for signed in (True, False)
        for extended in (True, False)
        if FP32.holds(fmt := p3109(bits, precision, signed=signed, extended=extended))
    ]
    return st.sampled_from(named + drawn) if not named or not drawn else st.sampled_from(named) | st.sampled_from(drawn)


def roundings(*, stochastic: bool = False) -> st.SearchStrategy[str]:
    """Return a strategy of names of rounding modes; examples shrink toward "nearest_even".

    Args:
      stochastic: whether to include "stochastic", which needs a seed; `policies` draws one with it.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.roundings(), lambda word: word.startswith("to"))
      'toward_zero'
    """
    return st.sampled_from([word for word in NAMES if stochastic or word != STOCHASTIC])


@st.composite
def _policy(draw: st.DrawFn, stochastic: bool) -> dict[str, Any]:
    """Draw the keywords of a cast: rounding, overflow, subnormals, and with the rounding "stochastic" a seed.

    stochastic: whether the rounding may be "stochastic".
    """
    keywords: dict[str, Any] = {
        "rounding": draw(roundings(stochastic=stochastic)),
        "overflow": draw(st.sampled_from(list(OVERFLOWS))),
        "subnormals": draw(st.sampled_from(SUBNORMALS)),
    }
    if keywords["rounding"] == STOCHASTIC:
        keywords["seed"] = draw(SEEDS)
    return keywords


def policies(*, stochastic: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of keywords for `fp.encode(x, fmt, **policy)`; examples shrink toward the defaults.

    Args:
      stochastic: whether to include stochastic rounding, with a seed.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.policies(), lambda words: words["overflow"] == "saturate")
      {'rounding': 'nearest_even', 'overflow': 'saturate', 'subnormals': 'keep'}
    """
    return _policy(stochastic)
