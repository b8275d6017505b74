"""Files of vectors that several tests read."""

from __future__ import annotations

import sys
from pathlib import Path

# An implementation that shares nothing with the package: it was written from docs/conformance.md and docs/casts.md.
FOREIGN = """
import sys
from fractions import Fraction
from functools import cache

FORMATS = {
    "E4M3": (4, 3, 7, 0x7E, None, 0x7F), "E5M2": (5, 2, 15, 0x7B, 0x7C, 0x7E),
    "FP16": (5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
}
SKIP = "?"

@cache
def value(code, bits, bias):
    field, fraction = code >> bits, code & ((1 << bits) - 1)
    significand = fraction + ((1 << bits) if field else 0)
    return Fraction(significand) * Fraction(2) ** (max(field, 1) - bias - bits)

def cast(word, fmt, rounding, overflow):
    exponents, bits, bias, top, infinity, nan = FORMATS[fmt]
    negative, magnitude = word >> 31, word & 0x7FFFFFFF
    sign = negative << (exponents + bits)
    beyond = infinity if infinity is not None else nan
    if magnitude > 0x7F800000:
        return sign | nan
    if magnitude == 0x7F800000:
        return sign | (beyond if overflow != "saturate" else top)
    x = value(magnitude, 23, 127)
    low, high = 0, top + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle, bits, bias) <= x else (low, middle)
    rest, step = x - value(low, bits, bias), value(low + 1, bits, bias) - value(low, bits, bias)
    if rounding == "nearest_even":
        up = 2 * rest > step or (2 * rest == step and low & 1)
    elif rounding == "nearest_away":
        up = 2 * rest >= step
    elif rounding == "toward_zero":
        up = False
    elif rounding == "odd":
        up = rest > 0 and not low & 1
    else:
        up = rest > 0 and (rounding == "down") == bool(negative)
    code = low + bool(up)
    inward = rounding in ("toward_zero", "odd") or rounding == ("up" if negative else "down")
    if x >= value(top + 1, bits, bias) and not inward:
        code = top + 1
    if code > top:
        code = top if overflow != "nonfinite" or inward else beyond
    return sign | code

for line in sys.stdin:
    kind, *words = line.split()
    if kind == "set":
        fields = dict(word.split("=") for word in words[1:])
        known = words[0] == "cast" and fields["format"] in FORMATS and fields["subnormals"] == "keep"
    elif known:
        code = cast(int(kind, 16), fields["format"], fields["rounding"], fields["overflow"])
        print(f"{code:0{len(kind) // 4 if fields['format'] != 'FP16' else 4}x}")
    else:
        print(SKIP)
"""


def command(folder: Path, program: str = FOREIGN) -> str:
    (folder / "mine.py").write_text(program)
    return f"{sys.executable} {folder / 'mine.py'}"
