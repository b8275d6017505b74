"""ozaki_matmul: float64 products from exact products of 8-bit integers, by the Ozaki scheme."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, float_array
from fpsim.errors import require_integer, shown
from fpsim.lazy import deferred

processor = deferred("fpsim.runtime.processor")  # imports numba

MOST_SLICES = 16
MOST_BITS = 7  # bits of an 8-bit slice without the sign
SUM_BITS = 31  # bits of a 32-bit accumulator without the sign


def slice_bits(k: int) -> int:
    """Return the number of bits, without the sign, of the slices (integers) into which `ozaki_matmul` cuts numbers.

    It is min(7, (31 - ceil(log2(k))) // 2), as in ozIMMU: sums of k products of two slices fit in 32 bits.

    Raises:
      ValueError: k exceeds 2**29, so that even slices of one bit are too wide.

    Example:
      >>> from fpsim.splits.ozaki import slice_bits
      >>> slice_bits(4096), slice_bits(2**17), slice_bits(2**18)
      (7, 7, 6)
    """
    bits = min(MOST_BITS, (SUM_BITS - math.ceil(math.log2(max(k, 1)))) // 2)
    if bits < 1:
        raise ValueError(f"K must be at most 2**29 for 32-bit accumulators; got {k}. Cut the product along K.")
    return bits


def ozaki_matmul(a: npt.ArrayLike, b: npt.ArrayLike, *, slices: int = 9) -> npt.NDArray[np.float64]:
    """Return a @ b in float64, computed from products of 8-bit integers with 32-bit sums, which are exact.

    Each row of a and column of b is divided by a power of two above its largest magnitude, and cut into slices of
    `slice_bits(K)` bits, toward zero, the leading one first. Products of slice i of a and slice j of b, counted from 1,
    with i + j <= slices + 1 are added in float64, to nearest even, in ascending order of i + j and then of i.

    Args:
      a, b: (M, K) and (K, N), finite, of any float dtype of up to 64 bits.
      slices: number of slices of each operand, 1 to 16; slices * (slices + 1) / 2 products are computed.

    Returns:
      float64 (M, N).

    Raises:
      TypeError, ValueError: operands that are not such arrays or not finite, shapes that do not match, or a wrong
        number of slices.

    Source:
      Ootomo, Ozaki and Yokota, "DGEMM on Integer Matrix Multiplication Unit" (arXiv:2306.11975); the products are added
      in the order of its library ozIMMU, src/config.cu. docs/splits.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> a, b = np.random.default_rng(0).standard_normal((2, 32, 32))
      >>> [float(np.abs(fp.ozaki_matmul(a, b, slices=n) - a @ b).max()) < bound
      ...  for n, bound in ((3, 1e-3), (5, 1e-7), (9, 1e-12))]
      [True, True, True]
    """
    require_integer("slices", slices, 1)
    if slices > MOST_SLICES:
        raise ValueError(f"slices must be 1 to {MOST_SLICES}; got {slices}.")
    left, right = _finite(a, "a"), _finite(b, "b")
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"a must be (M, K) and b (K, N); got shapes {left.shape} and {right.shape}.")
    bits = slice_bits(left.shape[1])
    with processor().ieee_arithmetic(), np.errstate(all="ignore"):
        of_a, rows = _slices(left, 1, slices, bits)
        of_b, columns = _slices(right, 0, slices, bits)
        total = np.zeros((left.shape[0], right.shape[1]))
        for weight in range(2, slices + 2):
            for i in range(1, weight):
                sums = (
                    of_a[i - 1] @ of_b[weight - i - 1]
                )  # integers below 2**31: float64 adds them exactly in any order
                total += sums * 2.0 ** (-bits * weight)
        product: npt.NDArray[np.float64] = np.ldexp(total, rows + columns)
    return product


def _finite(x: npt.ArrayLike, name: str) -> Array:
    """Return x, an array of floats, as float64; raise a ValueError with x's `name` if an element is Inf or NaN."""
    array, _ = float_array(x, name)
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(
            f"{name} must be finite, because slices are integers; got {shown(float(wide[~np.isfinite(wide)][0]))}."
        )
    return wide


def _slices(x: Array, axis: int, count: int, bits: int) -> tuple[list[Array], npt.NDArray[Any]]:
    """Return (the slices of x, float64 integers; the exponents of the powers of two that divide its rows or columns).

    x: float64 matrix. axis: the axis of K; numbers along it share an exponent. count: number of slices. bits: bits of a
    slice without the sign. The list has `count` arrays of x's shape, the leading slice first; exponents are an int
    array with length 1 along `axis`.
    """
    largest = np.abs(x).max(axis=axis, initial=0.0, keepdims=True)
    exponents = np.frexp(largest)[1]
    rest, slices = np.ldexp(x, -exponents), []
    for _ in range(count):
        rest = rest * 2.0**bits
        slices.append(np.trunc(rest))
        rest = rest - slices[-1]
    return slices, exponents
