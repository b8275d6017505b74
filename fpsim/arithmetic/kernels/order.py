"""CPU loops that compare codes of one format as integers, by their position in the order of its values.

The position is the code without its sign bit, negated for negative values: it grows with the value.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.layouts import OrderLayout
from fpsim.formats.ieee import Flags
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.records import fields_of

u32, i32 = np.uint32, np.int32
ZERO = u32(0)
INVALID = u32(Flags.INVALID)
COMPARISONS = ("equal", "less", "less_equal")
EXTREMA = ("minimum", "maximum", "minimum_number", "maximum_number")

_fields = fields_of(OrderLayout)


@scalar
def _read(code: Any, f: OrderLayout) -> Any:
    """Return (position in the order of the format's values, whether it is NaN, whether it is a signalling NaN).

    The position is int32: negative for negative values, 0 for both zeros, without meaning for NaN. code: uint32, the
    code that is read. f: an OrderLayout, constants of its format.
    """
    magnitude = u32(code & f.magnitude_mask)
    nan = ((magnitude > f.max_code) & (magnitude != f.infinity)) | (code == f.own_nan)
    counted = ZERO if magnitude < f.flush_below else magnitude
    place = i32(u32(ZERO - counted)) if u32(code & f.sign_bit) != ZERO else i32(counted)
    return place, nan, nan & (magnitude < f.quiet_from)


@cache
def comparison_kernel(name: str, flagged: bool) -> Any:
    """Return the kernel (a, b, results, flags, layout) -> None that compares codes.

    name: "equal", "less" or "less_equal". It writes results, and flags if `flagged`. a, b: 1-D codes of one format,
    unsigned integers. results: bool; a NaN makes it False. flags: uint8, bits of `fp.Flags`. layout: fields of the
    format's OrderLayout, uint32.
    """
    equals, orders, quiet = name != "less", name != "equal", name == "equal"

    def comparison(a: Any, b: Any, results: Any, flags: Any, layout: Any) -> None:
        f = _fields(layout)
        for i in range(results.size):
            x, x_nan, x_signals = _read(u32(a[i]), f)
            y, y_nan, y_signals = _read(u32(b[i]), f)
            nan = x_nan | y_nan
            holds = (equals & (x == y)) | (orders & (x < y))
            results[i] = holds & (not nan)
            if flagged:
                flags[i] = INVALID if (x_signals | y_signals if quiet else nan) else ZERO

    return kernel(comparison)


@cache
def extremum_kernel(name: str, flagged: bool) -> Any:
    """Return the kernel (a, b, codes, flags, layout) -> None that takes the minimum or maximum; -0 is less than +0.

    name: "minimum", "maximum", or "minimum_number", "maximum_number", which ignore a single NaN.
    The kernel writes codes, and flags if `flagged`. a, b, codes: 1-D codes of one format, unsigned integers; codes may
    be a or b. flags: uint8, bits of `fp.Flags`. layout: fields of the format's OrderLayout, uint32.
    """
    largest, number = name.startswith("maximum"), name.endswith("number")

    def extremum(a: Any, b: Any, codes: Any, flags: Any, layout: Any) -> None:
        f = _fields(layout)
        for i in range(codes.size):
            p, q = u32(a[i]), u32(b[i])
            x, x_nan, x_signals = _read(p, f)
            y, y_nan, y_signals = _read(q, f)
            # of two zeros the one with the sign is the smaller
            first = (x < y) | ((x == y) & (u32(p & f.sign_bit) > u32(q & f.sign_bit)))
            chosen = p if first != largest else q
            nan = (x_nan & y_nan) if number else (x_nan | y_nan)
            if number:
                chosen = q if x_nan else p if y_nan else chosen
            codes[i] = f.own_nan if nan else chosen
            if flagged:
                flags[i] = INVALID if x_signals | y_signals else ZERO

    return kernel(extremum)
