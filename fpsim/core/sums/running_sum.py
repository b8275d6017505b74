"""Scalar core: the steps of a running sum that is held as a code, each rounded once. Integers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.core import exact_arithmetic, wide_products
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.number import NAN, Number, UnpackLayout, unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.sums.sum_order import Function, Lanes
from fpsim.runtime.compile import scalar

u64 = np.uint64

# A target says how sums are rounded into a format and read again, in an array of words.
DECODING = len(EncodeLayout._fields)  # where the fields to decode with begin
RULES = DECODING + len(UnpackLayout._fields)  # and the rules of `pack`
TARGET_FIELDS = RULES + 1


def _products(compiled: Callable[[Function], Function]) -> tuple[Function, Function]:
    """(x * y, x * y + z), exact but for a sticky bit in the sum."""
    multiply, add = compiled(exact_arithmetic.multiply), compiled(exact_arithmetic.add)

    @scalar
    def times(x: Number, y: Number, absent: Any) -> Any:
        """The product, or y alone, which may then have more than 31 bits; a NaN loses its sign."""
        if absent:
            return exact_arithmetic.nan() if y.kind >= u64(NAN) else y
        product, _ = multiply(x, y)
        return product

    one_product = compiled(times)

    @scalar
    def times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
        total, _ = add(one_product(x, y, absent), z, mode)
        return total

    return one_product, compiled(times_plus)


def _wide_products(compiled: Callable[[Function], Function]) -> tuple[Function, Function]:
    """The same for numbers of up to 53 bits, none of them absent."""
    multiply, fma = compiled(wide_products.multiply_double), compiled(wide_products.fma_double)

    @scalar
    def times(x: Number, y: Number, absent: Any) -> Any:
        product, _ = multiply(x, y)
        return product

    @scalar
    def times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
        total, _ = fma(x, y, z, mode)
        return total

    return compiled(times), compiled(times_plus)


def code_lanes(compiled: Callable[[Function], Function], wide: bool = False) -> Lanes:
    """The steps for codes.

    An a whose layout is all zero stands for one: terms are then those of b.

    Args:
      compiled: what is done to the functions inside: `shared` for CPU kernels, nothing elsewhere.
      wide: products are of numbers with more than 31 significant bits, and terms are products.
    """
    one_unpack, one_pack, plus = compiled(unpack), compiled(pack), compiled(exact_arithmetic.add)
    times, times_plus = _wide_products(compiled) if wide else _products(compiled)

    def multiply(
        a: Any, b: Any, row: int, first: int, out: Any, o: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb, f = unpack_fields(la), unpack_fields(lb), encode_fields(target)
        absent = la[0] == u64(0)
        x = one_unpack(u64(a), fa)
        for j in range(n):
            product = times(x, one_unpack(u64(b[row, first + j]), fb), absent)
            out[o, j], _ = one_pack(product, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, tx: Any, target: Any, mode: int) -> None:
        fx, ft, f = unpack_fields(tx[DECODING:]), unpack_fields(target[DECODING:]), encode_fields(target)
        for j in range(n):
            total, _ = plus(one_unpack(t[i, j], ft), one_unpack(x[k, j], fx), mode)
            t[i, j], _ = one_pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def fused(
        t: Any, i: int, a: Any, b: Any, row: int, first: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb = unpack_fields(la), unpack_fields(lb)
        ft, f = unpack_fields(target[DECODING:]), encode_fields(target)
        absent = la[0] == u64(0)
        x = one_unpack(u64(a), fa)
        for j in range(n):
            total = times_plus(x, one_unpack(u64(b[row, first + j]), fb), one_unpack(t[i, j], ft), absent, mode)
            t[i, j], _ = one_pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    return Lanes(multiply, add, fused)
