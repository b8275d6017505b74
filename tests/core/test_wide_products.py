"""The wide products of the core give what exact fractions, rounded once, give."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.core.encode import encode_fields
from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.number import unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.wide_products import fma_double, multiply_double
from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import kernel, scalar
from fpsim.runtime.pipeline import wrapping
from fpsim.testing import assert_bits_equal

Doubles = npt.NDArray[np.float64]
PLAN = pack_plan(fp.FP64, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32, "after")
EDGES = [0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, math.inf, -math.inf, math.nan]


@cache
def by_core() -> Any:
    """Return the loop `(a, b, c, products, fused sums, layout of operands, of the result)`."""
    product, fused = scalar(multiply_double), scalar(fma_double)
    one_unpack, one_pack = scalar(unpack), scalar(pack)

    def loop(a: Any, b: Any, c: Any, products: Any, sums: Any, la: Any, to: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(to)
        for i in range(a.size):
            x, y, z = one_unpack(a[i], fa), one_unpack(b[i], fa), one_unpack(c[i], fa)
            exact, raised = product(x, y)
            products[i], _ = one_pack(exact, raised, np.uint64(0), f, NEAREST_EVEN, np.uint64(0))
            exact, raised = fused(x, y, z, NEAREST_EVEN)
            sums[i], _ = one_pack(exact, NO_FLAG, np.uint64(0), f, NEAREST_EVEN, np.uint64(0))

    return kernel(loop)


def in_fractions(x: float, y: float, z: float | None) -> float:
    """Return x * y + z, or x * y alone, rounded once."""
    with np.errstate(all="ignore"):
        in_floats = np.float64(x) * np.float64(y) + (np.float64(-0.0) if z is None else np.float64(z))
    if z is not None and math.isfinite(x) and math.isfinite(y) and not math.isfinite(z):
        return z  # the exact product is finite, however large
    if not all(map(math.isfinite, (x, y, z or 0.0))):
        return float(in_floats)
    exact = Fraction(x) * Fraction(y) + Fraction(z or 0.0)
    if exact == 0:
        return float(in_floats) if 0 in (x, y) else 0.0  # +0 for what cancels
    try:
        got = float(exact)
    except OverflowError:
        got = math.inf
    return math.copysign(got, 1 if exact > 0 else -1)


def drawn(count: int) -> tuple[Doubles, Doubles, Doubles]:
    """Factors and terms of every size, many of them close to the negative product, and each edge with each other."""
    rng = np.random.default_rng(7)

    def numbers(span: int) -> Doubles:
        bits = rng.integers(1, 54, count)
        integers = rng.integers(0, 1 << 53, count) >> (53 - bits) | 1
        return np.asarray(np.ldexp(rng.choice([-1.0, 1.0], count) * integers, rng.integers(-span, span, count)))

    with np.errstate(all="ignore"):
        a, b = (np.concatenate([numbers(40), numbers(560)]) for _ in range(2))
        close = -(a * b) * (1 + rng.integers(-2, 3, 2 * count) * 2.0**-52)
        near = np.ldexp(np.concatenate([numbers(40), numbers(560)]), np.frexp(a * b)[1] - 53)
        c = np.where(rng.random(2 * count) < 0.5, close, near)
    x, y, z = np.meshgrid(EDGES, EDGES, EDGES)
    return np.append(a, x), np.append(b, y), np.append(c, z)


def test_products_and_fused_sums_of_doubles_are_rounded_once() -> None:
    a, b, c = drawn(2000)
    products, sums = np.empty_like(a), np.empty_like(a)
    words = (x.view(np.uint64) for x in (a, b, c, products, sums))
    with wrapping():
        by_core()(*words, unpack_layout(fp.FP64, "keep"), PLAN.layout)
    rows = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    assert_bits_equal(products, np.array([in_fractions(x, y, None) for x, y, _ in rows]))
    assert_bits_equal(sums, np.array([in_fractions(*row) for row in rows]))
