"""Scalar arithmetic of FP16, BF16 and FP32, and fma of E4M3 and E5M2, to nearest even by float32, for the GPU.

Rounding a result to float32 and then to FP16 or BF16 equals rounding the exact result once: 24 significant bits are
enough for sums, products, quotients and roots of operands with 11 (Figueroa 1995), in float32's normal range. BF16
products and quotients below that range are computed scaled up, and a fused multiply-add is rounded to odd first, as on
the CPU. GPUs keep float32's subnormals except with `.ftz`, which numba writes for fast-math alone, and their sum,
product, quotient and root are those of IEEE 754 (CUDA programming guide, "Floating-Point Standard").
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from fpsim.arithmetic.kernels.float_arithmetic import real_width
from fpsim.arithmetic.kernels.nearest import OPERATIONS
from fpsim.casts.loops import constants_of
from fpsim.core.decode import DecodeLayout, decode_bits_32
from fpsim.core.layouts import decode_plan, encode_plan
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.gpu.core.nearest_even import nearest_encoder
from fpsim.runtime.compile import scalar

u32, u64, f32, f64 = np.uint32, np.uint64, np.float32, np.float64

MAGNITUDE, INFINITY, SIGN = u32(0x7FFFFFFF), u32(0x7F800000), u32(0x80000000)
NAN_32 = u32(FP32.nan_code or 0)
ZERO, ONE = u32(0), u32(1)
# FP16 as float32: the fields shifted into place are 2**112 times too small, and the product with that is exact.
HALF_MAGNITUDE, HALF_INFINITY, HALF_SHIFT = u32(0x7FFF), u32(0x7C00), u32(13)
HALF_SCALE = f32(2.0**112)

OPERANDS = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "sqrt": 1, "fma": 3}
EIGHTHS = (E4M3, E5M2)  # whose operations of two operands are looked up
FORMATS = (FP16, BF16, FP32, *EIGHTHS)


def serves(fmt: Format, name: str) -> bool:
    """Return whether `float_function` has the operation `name` for operands and a result of the format `fmt`.

    That is "fma" for FP16, BF16, E4M3 and E5M2; "add", "subtract", "multiply", "divide" and "sqrt" for FP16, BF16 and
    FP32.
    """
    if name == "fma":
        return fmt in FORMATS and fmt != FP32
    return fmt in FORMATS and fmt not in EIGHTHS and name in OPERANDS


@scalar
def bits_of(x: Any) -> Any:
    """Return the bits of a float32 as uint32."""
    return u32(f32(x).view(np.uint32))


@scalar
def load_half(code: Any) -> Any:
    """Return the float32 value of an FP16 code, an unsigned integer of any width."""
    magnitude = u32(code & HALF_MAGNITUDE)
    bits = bits_of(f32(u32(magnitude << HALF_SHIFT).view(np.float32) * HALF_SCALE))
    bits = u32(bits | INFINITY) if magnitude >= HALF_INFINITY else bits
    return u32(bits | u32(u32(code << u32(16)) & SIGN)).view(np.float32)


@scalar
def load_bfloat(code: Any) -> Any:
    """Return the float32 value of a BF16 code, an unsigned integer of any width."""
    return u32(code << u32(16)).view(np.float32)


@scalar
def _load_single(code: Any) -> Any:
    """Return the float32 value of an FP32 code, an unsigned integer: the float with the same 32 bits."""
    return u32(code).view(np.float32)


@scalar
def _store_single(bits: Any) -> Any:
    """Return the FP32 code of a float32 given by its uint32 bits: the same bits, or the canonical NaN for a NaN."""
    return NAN_32 if u32(bits & MAGNITUDE) > INFINITY else bits


def layout_of(fmt: Format) -> DecodeLayout:
    """Return the integer constants by which codes of a format are decoded to float32."""
    plan = decode_plan(fmt, 32)
    assert plan is not None
    return plan.frozen


@cache
def _load_byte(fmt: Format) -> Any:
    """Return a compiled scalar function from a code of the 8-bit format `fmt`, an integer, to its float32 value."""
    g = constants_of(DecodeLayout, u32, layout_of(fmt))

    @scalar
    def load(code: Any) -> Any:
        return u32(decode_bits_32(u32(code), g)).view(np.float32)

    return load


@cache
def _store(fmt: Format) -> Any:
    """Return a compiled scalar function that rounds a float32 to a code of the format `fmt`, to nearest even.

    The function takes the bits of the float32 as uint32, and returns the code as uint32. NaN with either sign gives the
    same code.
    """
    if fmt == FP32:
        return _store_single
    plan = encode_plan(fmt, 32, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32)
    encode = nearest_encoder(plan.frozen, plan.kind)

    @scalar
    def store(bits: Any) -> Any:
        magnitude = u32(bits & MAGNITUDE)
        return encode(magnitude if magnitude > INFINITY else bits)

    return store


@scalar
def _root(x: Any, y: Any) -> Any:
    """Return the square root of x as float32, NaN for negative numbers; y is not used."""
    return f32(math.sqrt(x)) if x >= f32(0) else f32(np.nan)  # plain Python refuses what is negative


SIMPLE: Any = {**OPERATIONS, "sqrt": _root}


@cache
def float_function(fmt: Format, name: str) -> Any:
    """Return a compiled scalar function (a, b, c, table) -> code of the operation `name` on codes of the format `fmt`.

    `serves(fmt, name)` must be True. a, b, c: codes of the operands, as unsigned integers; those that the operation
    does not have are ignored. table: ignored; functions that look results up in a table have the same signature. The
    code returned, a uint32, is that of the result rounded once to nearest even.
    """
    if fmt == BF16 and name in ("multiply", "divide"):
        from fpsim.arithmetic.kernels.short_floats import divide_bfloat, multiply_bfloat

        scaled = multiply_bfloat if name == "multiply" else divide_bfloat

        @scalar
        def by_scaling(a: Any, b: Any, c: Any, table: Any) -> Any:
            return scaled(a, b)

        return by_scaling
    load = {FP16: load_half, BF16: load_bfloat, FP32: _load_single}.get(fmt) or _load_byte(fmt)
    store = _store(fmt)
    if name == "fma":
        return _fused(fmt, load, store)
    operation = SIMPLE[name]

    @scalar
    def compute(a: Any, b: Any, c: Any, table: Any) -> Any:
        return store(bits_of(operation(load(a), load(b))))

    return compute


def _fused(fmt: Format, load: Any, store: Any) -> Any:
    """Return a compiled scalar function (a, b, c, table) -> code of a * b + c, rounded once; `table` is not used.

    a, b, c: codes of the format `fmt`. load: scalar function from a code to its float32 value. store: scalar function
    from float32 bits to a code, rounded to nearest even. The product is computed in float64 for BF16 and in float32 for
    the other formats, where it is exact.
    """
    if fmt != BF16:
        fused_32 = real_width(32).fused

        @scalar
        def by_float32(a: Any, b: Any, c: Any, table: Any) -> Any:
            bits, _ = fused_32(bits_of(load(a)), bits_of(load(b)), bits_of(load(c)), NEAREST_EVEN)
            return store(u32(bits))

        return by_float32
    from fpsim.arithmetic.kernels.short_floats import narrow_to_odd

    fused_64 = real_width(64).fused

    @scalar
    def wide(x: Any) -> Any:
        return u64(f64(x).view(np.uint64))

    @scalar
    def by_float64(a: Any, b: Any, c: Any, table: Any) -> Any:
        bits, _ = fused_64(wide(load(a)), wide(load(b)), wide(load(c)), NEAREST_EVEN)
        return store(u32(narrow_to_odd(u64(bits).view(np.float64))))

    return by_float64
