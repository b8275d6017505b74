"""Scalar core: the steps of a running sum that is held as a code, each rounded once. Integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core import exact_arithmetic, wide_products
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.number import NAN, Number, UnpackLayout, unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.sums.sum_order import LaneSteps
from fpsim.runtime.compile import scalar

u64 = np.uint64

# A target says how sums are rounded into a format and read again, in an array of words.
DECODING = len(EncodeLayout._fields)  # where the fields to decode with begin
RULES = DECODING + len(UnpackLayout._fields)  # and the rules of `pack`
TARGET_FIELDS = RULES + 1


@scalar
def _times(x: Number, y: Number, absent: Any) -> Any:
    """Return the product, or y alone, which may then have more than 31 bits; a NaN loses its sign."""
    if absent:
        return exact_arithmetic.nan() if y.kind >= u64(NAN) else y
    product, _ = exact_arithmetic.multiply(x, y)
    return product


@scalar
def _times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
    """Return x * y + z, exact but for a sticky bit."""
    total, _ = exact_arithmetic.add(_times(x, y, absent), z, mode)
    return total


@scalar
def _wide_times(x: Number, y: Number, absent: Any) -> Any:
    """Return the product of numbers of up to 53 bits, none of them absent."""
    product, _ = wide_products.multiply_double(x, y)
    return product


@scalar
def _wide_times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
    """Return x * y + z of numbers of up to 53 bits, none of them absent."""
    total, _ = wide_products.fma_double(x, y, z, mode)
    return total


def code_lanes(wide: bool = False) -> LaneSteps:
    """Return the steps of sums for codes.

    An a whose layout is all zero stands for one: terms are then those of b.

    Args:
      wide: products are of numbers with more than 31 significant bits, and terms are products.
    """
    times, times_plus = (_wide_times, _wide_times_plus) if wide else (_times, _times_plus)

    def multiply(
        a: Any, b: Any, row: int, first: int, out: Any, o: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb, f = unpack_fields(la), unpack_fields(lb), encode_fields(target)
        absent = la[0] == u64(0)
        x = unpack(u64(a), fa)
        for j in range(n):
            product = times(x, unpack(u64(b[row, first + j]), fb), absent)
            out[o, j], _ = pack(product, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, tx: Any, target: Any, mode: int) -> None:
        fx, ft, f = unpack_fields(tx[DECODING:]), unpack_fields(target[DECODING:]), encode_fields(target)
        for j in range(n):
            total, _ = exact_arithmetic.add(unpack(t[i, j], ft), unpack(x[k, j], fx), mode)
            t[i, j], _ = pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def fused(
        t: Any, i: int, a: Any, b: Any, row: int, first: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb = unpack_fields(la), unpack_fields(lb)
        ft, f = unpack_fields(target[DECODING:]), encode_fields(target)
        absent = la[0] == u64(0)
        x = unpack(u64(a), fa)
        for j in range(n):
            total = times_plus(x, unpack(u64(b[row, first + j]), fb), unpack(t[i, j], ft), absent, mode)
            t[i, j], _ = pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    return LaneSteps(multiply, add, fused)
