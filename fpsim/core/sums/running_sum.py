"""Scalar core: additions of a running sum that is stored as a code and rounded at each step. Integers only."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core import exact_arithmetic, wide_products
from fpsim.core.encode import EncodeLayout, encode_fields
from fpsim.core.number import NAN, Number, UnpackLayout, unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.sums.sum_order import AdditionTargets, LaneSteps, Rows, SumTile, Targets
from fpsim.runtime.compile import scalar

u64 = np.uint64

# A target is an array of words: layouts by which sums are rounded into a format and read again.
DECODING = len(EncodeLayout._fields)  # index of the first field of the layout for decoding
RULES = DECODING + len(UnpackLayout._fields)  # index of the rules of `pack`
TARGET_FIELDS = RULES + 1


@scalar
def _times(x: Number, y: Number, absent: Any) -> Any:
    """Return the Number x * y, or y if `absent` is True, which means that there is no factor x.

    x and y must have at most 31 significant bits; y may have more if `absent`. A NaN becomes the quiet NaN without a
    sign. A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    if absent:
        return exact_arithmetic.nan() if y.kind >= u64(NAN) else y
    product, _ = exact_arithmetic.multiply(x, y)
    return product


@scalar
def _times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
    """Return the Number x * y + z, or y + z if `absent` is True, which means that there is no factor x.

    The result is exact, except that bit 0 of its significand is also set if any bit after it was 1 and was dropped. x
    and y must have at most 31 significant bits; y may have more if `absent`. An exact zero from a product and a z of
    unlike signs is -0 if the mode, a Rounding, is DOWN, else +0.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    total, _ = exact_arithmetic.add(_times(x, y, absent), z, mode)
    return total


@scalar
def _wide_times(x: Number, y: Number, absent: Any) -> Any:
    """Return the Number x * y; its bit 0 is also set if any bit that was dropped is 1.

    x and y may have all 62 significant bits. `absent` is ignored: it is there because `_times` has this argument.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    product, _ = wide_products.multiply_double(x, y)
    return product


@scalar
def _wide_times_plus(x: Number, y: Number, z: Number, absent: Any, mode: int) -> Any:
    """Return the Number x * y + z, for Numbers of up to 53 significant bits.

    The result is exact, except that bit 0 of its significand is also set if any bit after it was 1 and was dropped. An
    exact zero from a product and a z of unlike signs is -0 if the mode, a Rounding, is DOWN, else +0. `absent` is
    ignored: callers pass it because `_times_plus` has this argument.
    A Number is an exact value: sign, exponent, significand of 62 bits, and kind (finite, Inf, NaN).
    """
    total, _ = wide_products.fma_double(x, y, z, mode)
    return total


def code_lanes(wide: bool = False) -> LaneSteps:
    """Return the LaneSteps (functions multiply, add and fused) for running sums that are stored as codes of any format.

    The sums of a tile are computed at once, one in each lane. If the layout of operand a is all zero, a stands for the
    factor 1, and the terms are the elements of b.

    Args:
      wide: True if factors have more than 31 significant bits; then operand a must have a format.
    """
    times, times_plus = (_wide_times, _wide_times_plus) if wide else (_times, _times_plus)

    def multiply(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, target, absent = x.b, tile.i * x.step + k, f.inner, f.a[0] == u64(0)
        of_b, to = unpack_fields(f.b), encode_fields(target)
        factor = unpack(u64(x.a[tile.i, k]), unpack_fields(f.a))
        for j in range(tile.n):
            product = times(factor, unpack(u64(b[row, tile.j + j]), of_b), absent)
            t[i, j], _ = pack(product, NO_FLAG, u64(words[w, j]), to, mode, target[RULES])

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, targets: AdditionTargets, mode: int) -> None:
        source, target = targets
        of_k, of_i = unpack_fields(source[DECODING:]), unpack_fields(target[DECODING:])
        to = encode_fields(target)
        for j in range(n):
            total, _ = exact_arithmetic.add(unpack(t[i, j], of_i), unpack(x[k, j], of_k), mode)
            t[i, j], _ = pack(total, NO_FLAG, u64(words[w, j]), to, mode, target[RULES])

    def fused(
        x: Rows, k: int, tile: SumTile, t: Any, i: int, words: Any, w: int, f: Targets, mode: int
    ) -> None:  # fmt: skip
        b, row, target, absent = x.b, tile.i * x.step + k, f.inner, f.a[0] == u64(0)
        of_b, of_sum, to = unpack_fields(f.b), unpack_fields(target[DECODING:]), encode_fields(target)
        factor = unpack(u64(x.a[tile.i, k]), unpack_fields(f.a))
        for j in range(tile.n):
            total = times_plus(factor, unpack(u64(b[row, tile.j + j]), of_b), unpack(t[i, j], of_sum), absent, mode)
            t[i, j], _ = pack(total, NO_FLAG, u64(words[w, j]), to, mode, target[RULES])

    return LaneSteps(multiply, add, fused)
