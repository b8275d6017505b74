"""Computes the coefficients of fpsim/core/elementary/coefficients.py by mpmath: `python -m tests.core.elementary.make_coefficients`.

Every polynomial interpolates its function in the Chebyshev nodes of its interval, with 80 digits, and the coefficients
are rounded to float64 last. `tests.core.elementary.test_coefficients` computes them again and compares.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mpmath import mp

from tests.kit.processes import ROOT

FILE = ROOT / "fpsim" / "core" / "elementary" / "coefficients.py"
DIGITS = 80
HEADER = '''\
"""Coefficients of polynomials in float64, constant terms first, and constants split into two or three floats.

Written by `python -m tests.core.elementary.make_coefficients`, which names the functions and intervals.
"""

'''


class Fit(NamedTuple):
    """A function to approximate on an interval by a polynomial of a degree."""

    name: str
    about: str
    function: Callable[[Any], Any]
    start: float
    stop: float
    degree: int


def _of_root(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of z = x**2 that a function of x is."""
    return lambda z: function(mp.sqrt(z))


def scaled_erfc(t: Any) -> Any:
    """Return exp(x**2) * erfc(x) * (1 + 2 * x) at the x with t = (x - 4) / (x + 4)."""
    x = 4 * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (1 + 2 * x)


FITS = (
    Fit("EXP", "(exp(r) - 1) / r for |r| <= 0.347", lambda r: mp.expm1(r) / r, -0.347, 0.347, 11),
    Fit("EXP2", "(2**r - 1) / r for |r| <= 0.5", lambda r: mp.expm1(r * mp.ln2) / r, -0.5, 0.5, 12),
    Fit(
        "LOG", "(log(1 + f) / s - 2) / s**2 at z = s**2, s = f / (2 + f), for 1 + f from sqrt(1/2) to sqrt(2)",
        _of_root(lambda s: (2 * mp.atanh(s) / s - 2) / s**2), 0.0, 0.02945, 8,
    ),
    Fit(
        "SINE", "(sin(r) / r - 1) / r**2 at z = r**2, |r| <= 0.786", _of_root(lambda r: (mp.sin(r) / r - 1) / r**2),
        0.0, 0.618, 7,
    ),
    Fit(
        "COSINE", "(cos(r) - 1 + r**2 / 2) / r**4 at z = r**2, |r| <= 0.786",
        _of_root(lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4), 0.0, 0.618, 7,
    ),
    Fit(
        "ERF", "erf(x) / x - 2 / sqrt(pi) at z = x**2, over z, for |x| <= 1",
        _of_root(lambda x: (mp.erf(x) / x - 2 / mp.sqrt(mp.pi)) / x**2), 0.0, 1.0, 14,
    ),
    Fit(
        "ERFC", "exp(x**2) * erfc(x) * (1 + 2 * x) at t = (x - 4) / (x + 4), for x from 0 to 10.25",
        scaled_erfc, -1.0, 6.25 / 14.25, 26,
    ),
    Fit("CBRT", "cbrt(m) for m from 1 to 2, to 2**-14", mp.cbrt, 1.0, 2.0, 4),
)  # fmt: skip


def coefficients(fit: Fit) -> list[float]:
    """Return the coefficients of the polynomial that interpolates a function in Chebyshev nodes."""
    with mp.workdps(DIGITS):
        middle, half = (mp.mpf(fit.stop) + fit.start) / 2, (mp.mpf(fit.stop) - fit.start) / 2
        count = fit.degree + 1
        nodes = [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
        nodes = [node if node != 0 else mp.mpf(10) ** -30 for node in nodes]
        matrix = mp.matrix([[node**power for power in range(count)] for node in nodes])
        solution = mp.lu_solve(matrix, mp.matrix([fit.function(node) for node in nodes]))
        return [float(solution[i]) for i in range(count)]


def parts(value: Any, bits: tuple[int, ...]) -> list[float]:
    """Return floats that add up to a value: each but the last is cut to its number of bits."""
    result = []
    for count in bits:
        exponent = mp.floor(mp.log(abs(value), 2)) + 1 - count
        part = mp.floor(value / mp.mpf(2) ** exponent) * mp.mpf(2) ** exponent
        result.append(float(part))
        value -= part
    return [*result, float(value)]


def text() -> str:
    """Return the whole file."""
    lines = [HEADER]
    for fit in FITS:
        lines.append(f"# {fit.about}\n{fit.name} = (\n")
        lines += [f"    {coefficient!r},\n" for coefficient in coefficients(fit)]
        lines.append(")\n")
    with mp.workdps(DIGITS):
        constants = {
            "LOG2_E": [float(1 / mp.ln2)],
            "LN2": parts(mp.ln2, (40,)),
            "INVERSE_LN2": parts(1 / mp.ln2, (26,)),
            "TWO_OVER_PI": [float(2 / mp.pi)],
            "HALF_PI": parts(mp.pi / 2, (33, 33)),
            "HALF_PI_PAIR": [float(mp.pi / 2), float(mp.pi / 2 - mp.mpf(float(mp.pi / 2)))],
            "TWO_OVER_SQRT_PI": parts(2 / mp.sqrt(mp.pi), (28,)),
            "SQRT_HALF": [float(mp.sqrt(0.5))],
            "CBRT_2": [float(mp.cbrt(2))],
            "CBRT_4": [float(mp.cbrt(4))],
        }
        for name, numbers in constants.items():
            value = repr(numbers[0]) if len(numbers) == 1 else f"({', '.join(map(repr, numbers))})"
            lines.append(f"{name} = {value}\n")
        bits = int(mp.floor(2 / mp.pi * mp.mpf(2) ** 256))
    lines.append("# 2 / pi: 32 zeros, and its first 256 bits, in words of 32\n")
    lines.append("TWO_OVER_PI_WORDS = (\n    0x00000000,\n")
    lines += [f"    0x{bits >> (224 - 32 * i) & 0xFFFFFFFF:08X},\n" for i in range(8)]
    lines.append(")\n")
    return "".join(lines)


if __name__ == "__main__":
    FILE.write_text(text())
