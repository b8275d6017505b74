"""cos and powers of float64 numbers, correctly rounded by mpmath; results of C libraries may differ in the last bit."""

from __future__ import annotations

BITS = 160  # of a result before it is rounded to float64
NEAREST = "n"  # mpmath's name; without it, to_float truncates


def cosine(x: float) -> float:
    """Return cos(x), rounded to the nearest float64.

    Example:
      >>> from fpsim.recipes.portable import cosine
      >>> cosine(0.5)
      0.8775825618903728
    """
    from mpmath import libmp

    return float(libmp.to_float(libmp.mpf_cos(libmp.from_float(x), BITS), rnd=NEAREST))


def power(x: float, n: int) -> float:
    """Return x**n for an integer n, rounded to the nearest float64.

    Example:
      >>> from fpsim.recipes.portable import power
      >>> power(0.9, 3)
      0.7290000000000001
    """
    from mpmath import libmp

    return float(libmp.to_float(libmp.mpf_pow_int(libmp.from_float(x), n, BITS), rnd=NEAREST))
