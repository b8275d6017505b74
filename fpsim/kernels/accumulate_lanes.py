"""CPU loops over the lanes of an accumulator: one product or sum of up to LANES outputs, each rounded once.

Three ways to hold a running sum, in 64-bit words: as the float64 that it is ("nearest", "any" and "stochastic", by the
modes that they are compiled for), as a sum in FP64 itself ("double"), and as a code for the integer core ("core"). All
have the same three loops, so that the orders of summation in `accumulate.py` are written once.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from fpsim.core import arithmetic
from fpsim.core.decode import decode_bits_64, decode_fields
from fpsim.core.encode import FULL, encode_bits_64, encode_fields
from fpsim.core.jit import kernel, scalar, shared
from fpsim.core.number import unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN, STOCHASTIC
from fpsim.kernels.float_arithmetic import real_width

f64, u64 = np.float64, np.uint64

LANES = 64
DECODING = 17  # where a target's fields to decode with begin: EncodeLayout has as many before
RULES = 27  # and the rules of `pack`, behind an UnpackLayout
TARGET_FIELDS = 28

FIXED_MODES = {"nearest": NEAREST_EVEN, "stochastic": STOCHASTIC}

_unpack, _pack = shared(unpack), shared(pack)
_add, _multiply = shared(arithmetic.add), shared(arithmetic.multiply)


class Lanes(NamedTuple):
    """The loops of one way, over n lanes. Words: random words, of which row `w` belongs to this step.

    multiply `(a, b, row, first, out, o, n, words, w, layouts of a, b, target, mode)`: out[o] = R(a * b[row, first:]).
    add `(t, i, x, j, n, words, w, target of x, of t, mode)`: t[i] = R(t[i] + x[j]).
    fused `(t, i, a, b, row, first, n, words, w, layouts of a, b, target, mode)`: t[i] = R(t[i] + a * b[row, first:]).
    """

    multiply: Any
    add: Any
    fused: Any


@cache
def lanes(way: str) -> Lanes:
    """The loops of a way."""
    if way == "core":
        return _core_lanes()
    return _double_lanes() if way == "double" else _float_lanes(way)


# ---- a format's values as float64


_w = real_width(64)
_add_odd, _without_sign = shared(_w.add), shared(_w.without_sign)
_encode, _decode = shared(encode_bits_64), shared(decode_bits_64)


def _float_lanes(way: str) -> Lanes:
    fixed = way in FIXED_MODES
    fixed_mode = FIXED_MODES.get(way, NEAREST_EVEN)

    def multiply(
        a: Any, b: Any, row: int, first: int, out: Any, o: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        f, g = encode_fields(target), decode_fields(target[DECODING:])
        how = fixed_mode if fixed else mode
        x = f64(u64(a).view(f64))
        for j in range(n):
            product = _without_sign(f64(x * u64(b[row, first + j]).view(f64)).view(u64))
            out[o, j] = _decode(u64(_encode(product, u64(words[w, j]), f, how, FULL)), g)

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, tx: Any, target: Any, mode: int) -> None:
        f, g = encode_fields(target), decode_fields(target[DECODING:])
        how = fixed_mode if fixed else mode
        for j in range(n):
            total = u64(_add_odd(t[i, j], x[k, j], how))
            t[i, j] = _decode(u64(_encode(total, u64(words[w, j]), f, how, FULL)), g)

    def fused(
        t: Any, i: int, a: Any, b: Any, row: int, first: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        f, g = encode_fields(target), decode_fields(target[DECODING:])
        how = fixed_mode if fixed else mode
        x = f64(u64(a).view(f64))
        for j in range(n):
            product = u64(f64(x * u64(b[row, first + j]).view(f64)).view(u64))
            total = u64(_add_odd(product, t[i, j], how))
            t[i, j] = _decode(u64(_encode(total, u64(words[w, j]), f, how, FULL)), g)

    return Lanes(kernel(multiply), kernel(add), kernel(fused))


# ---- FP64 by the processor


@intrinsic  # type: ignore[untyped-decorator]
def _fma_intrinsic(_typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z of three floats of one width, rounded once."""

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.fma(*args)

    return x(x, x, x) if isinstance(x, types.Float) else None, build


def _fma_in_fractions(x: Any, y: Any, z: Any) -> Any:
    """The same where nothing is compiled."""
    real = type(x)
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return x * y + z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return real(x * y + z)
    try:
        return real(float(exact))  # Python divides integers with one rounding
    except OverflowError:
        return real(math.copysign(math.inf, exact))


fma = _fma_in_fractions if numba.config.DISABLE_JIT else _fma_intrinsic


def _double_lanes() -> Lanes:
    def multiply(
        a: Any, b: Any, row: int, first: int, out: Any, o: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        x = f64(u64(a).view(f64))
        for j in range(n):
            out[o, j] = f64(x * u64(b[row, first + j]).view(f64)).view(u64)

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, tx: Any, target: Any, mode: int) -> None:
        for j in range(n):
            t[i, j] = f64(u64(t[i, j]).view(f64) + u64(x[k, j]).view(f64)).view(u64)

    def fused(
        t: Any, i: int, a: Any, b: Any, row: int, first: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        x = f64(u64(a).view(f64))
        for j in range(n):
            t[i, j] = f64(fma(x, u64(b[row, first + j]).view(f64), u64(t[i, j]).view(f64))).view(u64)

    return Lanes(kernel(multiply), kernel(add), kernel(fused))


# ---- codes, by the integer core


def _core_lanes() -> Lanes:
    @scalar
    def times(x: Any, y: Any, absent: Any) -> Any:
        """The exact product, or y alone, which may then have more than 31 bits."""
        if absent:
            return y
        product, _ = _multiply(x, y)
        return product

    times = shared(times)

    def multiply(
        a: Any, b: Any, row: int, first: int, out: Any, o: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb, f = unpack_fields(la), unpack_fields(lb), encode_fields(target)
        absent = la[0] == u64(0)
        x = _unpack(u64(a), fa)
        for j in range(n):
            product = times(x, _unpack(b[row, first + j], fb), absent)
            out[o, j], _ = _pack(product, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def add(t: Any, i: int, x: Any, k: int, n: int, words: Any, w: int, tx: Any, target: Any, mode: int) -> None:
        fx, ft, f = unpack_fields(tx[DECODING:]), unpack_fields(target[DECODING:]), encode_fields(target)
        for j in range(n):
            total, _ = _add(_unpack(t[i, j], ft), _unpack(x[k, j], fx), mode)
            t[i, j], _ = _pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    def fused(
        t: Any, i: int, a: Any, b: Any, row: int, first: int, n: int, words: Any, w: int,
        la: Any, lb: Any, target: Any, mode: int,
    ) -> None:  # fmt: skip
        fa, fb = unpack_fields(la), unpack_fields(lb)
        ft, f = unpack_fields(target[DECODING:]), encode_fields(target)
        absent = la[0] == u64(0)
        x = _unpack(u64(a), fa)
        for j in range(n):
            product = times(x, _unpack(b[row, first + j], fb), absent)
            total, _ = _add(product, _unpack(t[i, j], ft), mode)
            t[i, j], _ = _pack(total, NO_FLAG, u64(words[w, j]), f, mode, target[RULES])

    return Lanes(kernel(multiply), kernel(add), kernel(fused))
