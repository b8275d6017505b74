"""Inputs and formats shared by tests."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import reject
from hypothesis import strategies as st

import fpsim as fp
from fpsim.formats.float_format import NanEncoding
from fpsim.formats.named import NAMED
from tests.oracles import casts

Array = npt.NDArray[Any]

NAN_ENCODINGS: tuple[NanEncoding, ...] = ("ieee", "top", "negative_zero", "none")

NARROW = [fmt for fmt in NAMED.values() if fmt.bits <= 16]
P3109 = [
    fp.format(f"p3109_{name}")
    for name in ("k3p1se", "k4p2sf", "k5p5ue", "k6p2uf", "k8p1se", "k8p1sf", "k8p1ue", "k8p3se", "k8p4sf", "k8p3ue",
                 "k8p7uf", "k8p8ue", "k9p4ue", "k12p5sf", "k16p9ue", "k16p11se")
]  # fmt: skip
# Layouts that no standard has: powers of two with and without zero, every value subnormal, specials in odd places.
STRANGE = [
    fp.Format("powers", 5, 0, infinities=False, nan="top"),
    fp.Format("powers_with_inf", 4, 0, infinities=True, nan="none"),
    fp.Format("all_subnormal", 1, 4),
    fp.Format("binades", 4, 3, signed=False, infinities=True, nan="top", subnormals=False),
    fp.Format("binades_without_nan", 3, 2, signed=False, infinities=False, nan="none", subnormals=False),
    fp.Format("unsigned_ieee", 4, 3, signed=False),
    fp.Format("unsigned_integers", 1, 7, bias=-6, signed=False, infinities=False, nan="none"),
    fp.Format("inf_without_nan", 4, 3, infinities=True, nan="none"),
    fp.Format("below_float32", 8, 7, bias=200),
    fp.Format("above_float32", 6, 5, bias=-130),
    fp.Format("deep_in_float64", 5, 10, bias=1060),
    fp.Format("top_of_float64", 5, 10, bias=-992, infinities=False, nan="top"),
    fp.Format("all_of_float64", 11, 4, bias=1024),
    # its lowest code is 0, so the even codes are those of every other power of two from the smallest on
    fp.Format("even_powers", 4, 0, signed=False, infinities=False, nan="top", subnormals=False, ties_to_even_code=True),
]


def p3109_names(*, within_float64: bool) -> list[str]:
    """Return the names of the P3109 formats of 3 to 16 bits whose values float64 holds, or doesn't.

    Their bias is half the number of exponent fields, so that is a matter of the exponent bits alone: float64 has 11.
    """
    return [
        f"p3109_k{k}p{p}{sign}{domain}"
        for k in range(3, 17)
        for sign in "su"
        for p in range(1, k + (sign == "u"))
        for domain in "ef"
        if (k - p + (sign == "u") <= 11) == within_float64
    ]


def all_float16() -> Array:
    """Return every float16."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def exactly(x: Array) -> Array:
    """Return the same values in float64, without a warning for signalling NaNs."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def float32_patterns(seed: int, count: int) -> Array:
    """Return random bit patterns of float32: every exponent, NaN payloads too."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def float64_patterns(seed: int, count: int) -> Array:
    """Return random bit patterns of float64."""
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64).view(np.float64)


def edges(fmt: fp.Format) -> Array:
    """Return every value and midpoint of a format with their float64 neighbours, and values beyond its range."""
    finite = casts.values(fmt)
    finite = np.unique(np.abs(finite[np.isfinite(finite)]))
    unit = float(casts.spacing(fmt, casts.largest(fmt)))
    with np.errstate(all="ignore"):
        beyond = finite[-1] + unit * np.arange(0.5, 3.1, 0.5)
        finite = np.append(finite, beyond[np.isfinite(beyond)])
        middles = finite[:-1] + np.diff(finite) / 2
        centres = np.concatenate([finite, middles, finite[:2] / 2, finite[:2] / 3, finite[-2:] * 1.5])
    around = [np.nextafter(centres, -np.inf), centres, np.nextafter(centres, np.inf)]
    positive = np.concatenate([*around, [math.inf, math.nan, 5e-324, 1.7e308]])
    return np.concatenate([positive, -positive])


@st.composite
def formats(draw: st.DrawFn) -> fp.Format:
    """Draw any format that a user can define, with values anywhere in float64's range.

    Signed formats without zero are left out: what their negative smallest value becomes is not defined.
    """
    signed = draw(st.booleans())
    exponent_bits = draw(st.integers(1, 11))
    mantissa_bits = draw(st.integers(0, 16 - signed - exponent_bits))
    subnormals = signed or draw(st.integers(0, 3)) > 0
    nan = draw(st.sampled_from(NAN_ENCODINGS))
    infinities = True if nan == "ieee" else draw(st.booleans())
    usual = 2 ** (exponent_bits - 1) - 1
    lowest = 2**exponent_bits - 1 - 1023
    highest = 1074 - mantissa_bits
    bias = draw(st.sampled_from([usual, usual + 1]) | st.integers(lowest, highest) | st.sampled_from([lowest, highest]))
    try:
        return fp.Format(
            "drawn", exponent_bits, mantissa_bits, bias=bias, signed=signed, infinities=infinities, nan=nan,
            subnormals=subnormals, ties_to_even_code=draw(st.booleans()),
        )  # fmt: skip
    except ValueError:
        reject()


@st.composite
def floats_near(draw: st.DrawFn, fmt: fp.Format) -> float:
    """Draw a float64 near a value or a tie of a format, below its smallest value, or above its largest one."""
    most = casts.code_of_kind(fmt, "finite")
    assert most is not None
    code = draw(st.integers(0, most) | st.integers(max(0, most - 2), most) | st.integers(0, min(most, 3)))
    low = casts.magnitude_value(fmt, code)
    unit = casts.spacing(fmt, low)
    exact = low + unit * draw(st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1, 4), Fraction(5, 8)]))
    scale = Fraction(2) ** draw(st.sampled_from([0, 0, 0, 0, 1, -1, -20]))
    x = float(min(exact * scale, Fraction(np.finfo(np.float64).max)))
    for _ in range(abs(steps := draw(st.integers(-2, 2)))):
        x = math.nextafter(x, math.inf * steps)
    return -x if draw(st.booleans()) else x


def any_float(fmt: fp.Format) -> st.SearchStrategy[float]:
    """Draw floats near the values and ties of a format, and any others, Inf and NaN included."""
    return floats_near(fmt) | floats_near(fmt) | floats_near(fmt) | st.floats(width=64)
