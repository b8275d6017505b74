"""Casts between float32 and FP16 by the processor's own instructions, for options that these implement.

tests/casts/test_half.py compares these kernels with the integer ones bit by bit. Speed: docs/performance.md.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fpsim.core.encode import PLAIN
from fpsim.core.layouts import EncodePlan
from fpsim.formats.named import FP16, Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import kernel
from fpsim.runtime.stream import element_loop
from fpsim.runtime.target import assembly_of

u16, u32 = np.uint16, np.uint32
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)
SIGN, NAN = u32(0x8000), u32(FP16.nan_code or 0)
SIGN_SHIFT = u32(16)
HALF_MAGNITUDE, HALF_INFINITY, FLOAT_NAN = u32(0x7FFF), u32(FP16.infinity_code or 0), u32(0x7FC00000)


@lru_cache(maxsize=1)
def has_conversion() -> bool:
    """Return whether the processor for which numba compiles converts float32 to FP16 and back by an instruction each.

    Otherwise LLVM would call a function of a support library, and the process would crash where it is missing. The
    result is False if numba's compiler is disabled.
    """
    if numba.config.DISABLE_JIT:
        return False
    single, half = ir.FloatType(), ir.HalfType()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(single, [single]), "through_half")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.fpext(builder.fptrunc(function.args[0], half), single))
    return not re.search("sfhf|hfsf|f2h|h2f", assembly_of(module))  # __truncsfhf2, __gnu_h2f_ieee and the like


def serves(plan: EncodePlan, fmt: Format, rounding: Rounding) -> bool:
    """Return whether the processor's conversion from float32 to FP16 gives the results of a cast.

    plan: the cast's constants for one source width and one overflow policy. fmt, rounding: the cast's format and
    rounding mode. True only for float32 sources, FP16, nearest even, overflow to Inf, and subnormals that are not
    flushed, if the processor has the instruction.
    """
    if plan.width != 32 or fmt != FP16 or rounding is not Rounding.NEAREST_EVEN or not has_conversion():
        return False
    return plan.kind == PLAIN and plan.frozen.overflow == FP16.infinity_code


@intrinsic  # type: ignore[untyped-decorator]
def to_half(_typing: Any, bits: Any) -> Any:
    """Convert the uint32 bits of a float32 to the uint16 bits of the nearest float16, ties to even.

    Kernels call to_half(bits); numba adds its typing context, _typing.
    """

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        single = builder.bitcast(args[0], ir.FloatType())
        return builder.bitcast(builder.fptrunc(single, ir.HalfType()), ir.IntType(16))

    return types.uint16(types.uint32), build


@intrinsic  # type: ignore[untyped-decorator]
def from_half(_typing: Any, code: Any) -> Any:
    """Convert the uint16 bits of a float16 to the uint32 bits of the float32 of the same value.

    Kernels call from_half(code); numba adds its typing context, _typing.
    """

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        half = builder.bitcast(args[0], ir.HalfType())
        return builder.bitcast(builder.fpext(half, ir.FloatType()), ir.IntType(32))

    return types.uint32(types.uint16), build


@cache
def half_kernel(streamed: bool) -> Any:
    """Return the kernel (bits, codes, layout) -> None that rounds float32 to FP16, to nearest even.

    bits: 1-D uint32 float32 bits. codes: 1-D uint16 results; NaN becomes the canonical NaN of its sign. layout: not
    used; other kernels of casts read a format's constants from it. streamed: True writes the results without caching
    them.
    """

    def convert(bits: Any, _facts: Any) -> Any:
        nan = u16(NAN | u32(u32(bits >> SIGN_SHIFT) & SIGN))
        return nan if u32(bits & MAGNITUDE) > INFINITY else to_half(bits)

    loop = element_loop(convert, streamed)

    def encode_half(bits: Any, codes: Any, _layout: Any) -> None:
        loop(bits, codes, None)

    return kernel(encode_half)


@cache
def half_decode_kernel(streamed: bool) -> Any:
    """Return the kernel (codes, bits, layout) -> None that converts FP16 to float32.

    codes: 1-D uint16. bits: 1-D uint32 results, the float32 bits; NaN becomes the canonical NaN of its sign. layout:
    not used; other kernels of casts read a format's constants from it. streamed: True writes the results without
    caching them.
    """

    def convert(code: Any, _facts: Any) -> Any:
        nan = u32(FLOAT_NAN | u32(u32(code & SIGN) << SIGN_SHIFT))
        return nan if u32(code & HALF_MAGNITUDE) > HALF_INFINITY else from_half(code)

    loop = element_loop(convert, streamed)

    def decode_half(codes: Any, bits: Any, _layout: Any) -> None:
        loop(codes, bits, None)

    return kernel(decode_half)
