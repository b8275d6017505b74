"""Overflow policies as data: results of casts for values that a format cannot hold, and the source of each policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from fpsim.errors import unknown
from fpsim.formats.named import E4M3, E8M0, MX, P3109, Format
from fpsim.reload import reloadable

Beyond = Literal["infinity", "nan", "max"]
Below = Literal["nan", "lowest", "magnitude"]


@reloadable
@dataclass(frozen=True)
class Outcome:
    """The results of a cast to one format for inputs that the format cannot represent.

    In `overflow` and `infinite`, "infinity", "nan" and "max" (the largest finite value) have the sign of the input.

    Attributes:
      overflow: the result for a finite value beyond the largest finite one. "infinity" and "nan" are replaced by "max"
        in the rounding modes that round such a value toward zero.
      infinite: the result for an infinite input.
      below: for unsigned formats, the result for a negative input, and for zero if the format has no zero: "nan",
        "lowest" (the lowest value of the format) or "magnitude" (the input is rounded with its sign, then the sign is
        dropped).
      nan: the result for a NaN input to a format without NaN: "max" (+max) or "zero" (a zero whose sign is opposite to
        that of the NaN).
    """

    overflow: Beyond
    infinite: Beyond
    below: Below
    nan: Literal["max", "zero"] = "max"


def _special(fmt: Format) -> Beyond:
    """Return the result for values too large for `fmt`: "infinity"; "nan" if it has no Inf; "max" if it has neither."""
    return "infinity" if fmt.has_infinity else "nan" if fmt.has_nan else "max"


def _nonfinite(fmt: Format) -> Outcome:
    """Return the results of casts to `fmt`, for inputs it cannot represent, if too large values become Inf (IEEE 754).

    They become NaN in a format without Inf, and the largest finite value in one without both.
    """
    return Outcome(_special(fmt), _special(fmt), "nan" if fmt.has_nan else "lowest")


def _torch(fmt: Format) -> Outcome:
    """Return the results of casts to `fmt` by torch 2.12 and later, for inputs that the format cannot represent."""
    before = _torch_before_2_12(fmt)
    return replace(before, overflow="max", infinite="max") if fmt == E4M3 else before


def _torch_before_2_12(fmt: Format) -> Outcome:
    """Return the results of casts to `fmt` by torch up to 2.11, for inputs that the format cannot represent."""
    return replace(_nonfinite(fmt), below="magnitude") if fmt == E8M0 else _nonfinite(fmt)


def _p3109_infinity(fmt: Format) -> Beyond:
    """Return the result for Inf in a cast to `fmt` by IEEE P3109: "infinity", or "max" if the format has no Inf."""
    return "infinity" if fmt.has_infinity else "max"


# Value of `overflow=` -> function from a format to its Outcome.
OVERFLOWS: Mapping[str, Callable[[Format], Outcome]] = MappingProxyType(
    {
        "nonfinite": _nonfinite,
        "saturate": lambda fmt: Outcome("max", "max", "lowest"),
        "saturate_finite": lambda fmt: Outcome("max", _special(fmt), "lowest"),
        "ml_dtypes": lambda fmt: replace(_nonfinite(fmt), nan="zero"),
        "torch": _torch,
        "torch<2.12": _torch_before_2_12,
        "p3109_satpropagate": lambda fmt: Outcome("max", _p3109_infinity(fmt), "lowest"),
        "p3109_ovfinf": lambda fmt: Outcome(_p3109_infinity(fmt), _p3109_infinity(fmt), "lowest"),
    }
)

# Other names of these policies, which error messages translate.
MEANT = {
    **dict.fromkeys(("clip", "clamp", "sat", "satfinite", "max", "finite"), "saturate"),
    **dict.fromkeys(("inf", "infinity", "nan", "overflow", "wrap"), "nonfinite"),
}

SUBNORMALS = ("keep", "flush")
AVX10 = "Intel AVX10.2 Architecture Specification, VCVT[2]PH2BF8 and VCVT[2]PH2HF8; not measured"


@reloadable
@dataclass(frozen=True)
class Policy:
    """A named convention of casts: the cast keywords that reproduce it, and the source that states it.

    Attributes:
      keywords: the values of rounding, overflow and subnormals.
      source: a publication or a library.
    """

    keywords: Mapping[str, str]
    source: str


def _row(overflow: str, source: str) -> Policy:
    """Return a policy that rounds to nearest even and keeps subnormals.

    overflow: name of its overflow mode, a key of OVERFLOWS. source: the publication or library that states it.
    """
    words = {"rounding": "nearest_even", "overflow": overflow, "subnormals": "keep"}
    return Policy(MappingProxyType(words), source)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "ieee": _row("nonfinite", "IEEE 754-2019, 7.4"),
        "ml_dtypes": _row("ml_dtypes", "ml_dtypes 0.6.0, run on float32 inputs"),
        "torch": _row("torch", "torch 2.13.0 CPU, run; pytorch pull request 178817"),
        "torch<2.12": _row("torch<2.12", "torch before pull request 178817"),
        "cuda_satfinite": _row("saturate", "CUDA Math API, __NV_SATFINITE; PTX ISA, cvt.satfinite"),
        "ocp_saturating": _row("saturate", "OCP OFP8 v1.0, conversion with saturation; " + MX),
        "ocp_nonsaturating": _row("nonfinite", "OCP OFP8 v1.0, conversion without saturation"),
        "x86_avx10_2": _row("nonfinite", AVX10),
        "x86_avx10_2_sat": _row("saturate", AVX10 + ", the forms that end in S"),
        "p3109_satfinite": _row("saturate", P3109 + ", SatFinite"),
        "p3109_satpropagate": _row("p3109_satpropagate", P3109 + ", SatPropagate"),
        "p3109_ovfinf": _row("p3109_ovfinf", P3109 + ", OvfInf"),
    }
)


def policy(name: str) -> dict[str, Any]:
    """Return the cast keywords of a named convention.

    Args:
      name: "ieee", "ml_dtypes", "torch" (2.12 and later), "torch<2.12", "cuda_satfinite", "ocp_saturating",
        "ocp_nonsaturating", "x86_avx10_2", "x86_avx10_2_sat" (from FP16), "p3109_satfinite", "p3109_satpropagate" or
        "p3109_ovfinf".
    Returns:
      A new dict with the keys rounding, overflow and subnormals, to pass on as `**policy(name)`.
    Raises:
      ValueError: no policy has that name.

    Source: `fpsim.policies.POLICIES` names one for each.

    Example:
      >>> import fpsim as fp
      >>> fp.policy("cuda_satfinite")
      {'rounding': 'nearest_even', 'overflow': 'saturate', 'subnormals': 'keep'}
      >>> x = np.float32([500, np.inf])
      >>> fp.cast(x, fp.E4M3, **fp.policy("torch")), fp.cast(x, fp.E4M3, **fp.policy("torch<2.12"))
      (array([448, 448], dtype='float8_e4m3fn'), array([nan, nan], dtype='float8_e4m3fn'))
    """
    if not isinstance(name, str) or name not in POLICIES:
        raise unknown("policy", name, list(POLICIES))
    return dict(POLICIES[name].keywords)


def overflow_outcome(word: str, fmt: Format) -> Outcome:
    """Return the results of a cast to `fmt` under the overflow policy named `word`.

    Raises:
      ValueError: `word` is not a key of OVERFLOWS; it may be a name for `fpsim.policy`, which sets other keywords too.
    """
    if isinstance(word, str) and word in POLICIES and word not in OVERFLOWS:
        valid = ", ".join(OVERFLOWS)
        raise ValueError(f"overflow must be one of {valid}; {word!r} is a policy: pass **fp.policy({word!r}).")
    if not isinstance(word, str) or word not in OVERFLOWS:
        raise unknown("overflow", word, list(OVERFLOWS), MEANT)
    return OVERFLOWS[word](fmt)
