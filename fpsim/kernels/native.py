"""float32 -> FP16 by the processor's own conversion, where it has one and the policy is the one that it implements.

The integer body needs two dozen instructions for sixteen values and the processor one, so this is the only cast where
memory, not arithmetic, is the limit. tests/test_native.py compares the two bit by bit. Measured: docs/performance.md.
"""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fpsim.core.encode import PLAIN
from fpsim.core.jit import kernel, scalar
from fpsim.formats import FP16, Format
from fpsim.kernels.layout import EncodePlan
from fpsim.kernels.stream import BLOCK, aligned_empty, prefetch_block, stream_block, stream_fence, streamable
from fpsim.rounding import Rounding

Function = TypeVar("Function", bound=Callable[..., Any])
u16, u32 = np.uint16, np.uint32
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)
SIGN, NAN = u32(0x8000), u32(FP16.nan_code or 0)
SIGN_SHIFT = u32(16)


@lru_cache(maxsize=1)
def has_conversion() -> bool:
    """Whether this processor converts float32 to float16 in one instruction."""
    if numba.config.DISABLE_JIT:
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return True
    return bool(binding.get_host_cpu_features().get("f16c", False))


HALF_ULP = 2.0**-53  # of 1; a variable, so that the sums below are made when they are asked for


def rounds_to_nearest() -> bool:
    """Whether this thread's processor is set to nearest even, which the conversion obeys and the integers do not."""
    return 1.0 + HALF_ULP == 1.0 and -1.0 - HALF_ULP == -1.0 and 1.0 + 1.5 * HALF_ULP > 1.0


SMALLEST = 2.0**-1022  # the smallest normal float64, a variable for the same reason


def keeps_ieee() -> bool:
    """Whether this thread's processor is set to nearest even and keeps subnormals, operands and results."""
    subnormal = SMALLEST / 2
    return rounds_to_nearest() and subnormal > 0 and subnormal * 2 == SMALLEST


@contextlib.contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """A block in which this thread's processor rounds to nearest even and keeps subnormals, whatever it is set to.

    Raises:
      RuntimeError: it is set otherwise, and this processor's setting cannot be changed from here.
    """
    if keeps_ieee():
        yield
        return
    if not has_control() or numba.config.DISABLE_JIT:
        raise RuntimeError(
            "the processor must round to nearest and keep subnormals; it is set to another mode. "
            "Undo it (torch.set_flush_denormal(False), or what else changed it)."
        )
    saved = _exchange_control()(CONTROL[_machine()][1])
    try:
        yield
    finally:
        _exchange_control()(saved)


def under_ieee(function: Function) -> Function:
    """The same function, run within `ieee_arithmetic`."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        with ieee_arithmetic():
            return function(*arguments, **keywords)

    return run  # type: ignore[return-value]


def _machine() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


# Machine -> width of its control register, its value for IEEE arithmetic with all exceptions masked, and the names of
# the instructions that read and write it (Intel SDM, 10.2.3; Arm ARM, FPCR).
CONTROL = {
    "x86_64": (32, 0x1F80),
    "aarch64": (64, 0),
}


def has_control() -> bool:
    """Whether the processor's control register can be exchanged here."""
    return _machine() in CONTROL


@intrinsic  # type: ignore[untyped-decorator]
def _exchange(_typing: Any, value: Any) -> Any:
    """Write the control register of the processor's float unit; returns what it held."""

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        width, _ = CONTROL[_machine()]
        word, void = ir.IntType(width), ir.VoidType()
        new = builder.trunc(args[0], word) if width < 64 else args[0]
        if width == 32:
            space = cgutils.alloca_once(builder, word)
            pointer = builder.bitcast(space, ir.IntType(8).as_pointer())
            signature = ir.FunctionType(void, [ir.IntType(8).as_pointer()])
            store = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.sse.stmxcsr")
            load = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.sse.ldmxcsr")
            builder.call(store, [pointer])
            old = builder.load(space)
            builder.store(new, space)
            builder.call(load, [pointer])
            return builder.zext(old, ir.IntType(64))
        read = cgutils.get_or_insert_function(builder.module, ir.FunctionType(word, []), "llvm.aarch64.get.fpcr")
        write = cgutils.get_or_insert_function(builder.module, ir.FunctionType(void, [word]), "llvm.aarch64.set.fpcr")
        old = builder.call(read, [])
        builder.call(write, [new])
        return old

    return types.uint64(types.uint64), build


@cache
def _exchange_control() -> Any:
    """The function `(value)` that sets the control register and returns what it held."""

    def exchange(value: Any) -> Any:
        return _exchange(np.uint64(value))

    return kernel(exchange)


def serves(plan: EncodePlan, fmt: Format, rounding: Rounding) -> bool:
    """Whether the conversion does what a plan asks for: nearest even to FP16, with Inf and subnormals."""
    if plan.width != 32 or fmt != FP16 or rounding is not Rounding.NEAREST_EVEN or not has_conversion():
        return False
    return plan.kind == PLAIN and plan.frozen.overflow == FP16.infinity_code


@intrinsic  # type: ignore[untyped-decorator]
def to_half(_typing: Any, bits: Any) -> Any:
    """Pattern of a float32 to the pattern of its nearest float16."""

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        single = builder.bitcast(args[0], ir.FloatType())
        return builder.bitcast(builder.fptrunc(single, ir.HalfType()), ir.IntType(16))

    return types.uint16(types.uint32), build


@scalar
def _encode_half(bits: Any) -> Any:
    """The FP16 code of one float32; NaN becomes the canonical one, where the processor keeps payloads."""
    nan = u16(NAN | u32(u32(bits >> SIGN_SHIFT) & SIGN))
    return nan if u32(bits & MAGNITUDE) > INFINITY else to_half(bits)


@cache
def half_kernel(streamed: bool) -> Any:
    """The loop `(bits, codes, layout)`; the layout goes unread."""

    def encode_half(bits: Any, codes: Any, _layout: Any) -> None:
        for i in range(bits.size):
            codes[i] = _encode_half(bits[i])

    def encode_half_streamed(bits: Any, codes: Any, _layout: Any) -> None:
        begin, end = streamable(codes)
        block = aligned_empty(BLOCK, codes)
        for i in range(begin):
            codes[i] = _encode_half(bits[i])
        for start in range(begin, end, BLOCK):
            prefetch_block(bits, start)
            source = bits[start : start + BLOCK]
            for i in range(BLOCK):
                block[i] = _encode_half(source[i])
            stream_block(codes, start, block)
        stream_fence()
        for i in range(end, bits.size):
            codes[i] = _encode_half(bits[i])

    return kernel(encode_half_streamed if streamed else encode_half)
