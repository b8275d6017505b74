"""The processor's rounding mode and flushing of subnormals in this thread, and whether it has a fused multiply-add."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fpsim.runtime.compile import kernel
from fpsim.runtime.host import host_features
from fpsim.runtime.pipeline import AS_IT_IS
from fpsim.runtime.vectors import call

Function = TypeVar("Function", bound=Callable[..., Any])


HALF_ULP = 2.0**-53  # of 1; a variable, so that the sums below are not computed in advance


def rounds_to_nearest() -> bool:
    """Return whether this thread's processor rounds float64 to nearest even."""
    return 1.0 + HALF_ULP == 1.0 and -1.0 - HALF_ULP == -1.0 and 1.0 + 1.5 * HALF_ULP > 1.0


SMALLEST = 2.0**-1022  # the smallest normal float64, a variable for the same reason


def keeps_ieee() -> bool:
    """Return whether this thread's processor rounds to nearest even and flushes no subnormal operands or results."""
    half, subnormal = HALF_ULP, SMALLEST / 2  # `rounds_to_nearest` written out: every call asks
    to_nearest = 1.0 + half == 1.0 and -1.0 - half == -1.0 and 1.0 + 1.5 * half > 1.0
    return to_nearest and subnormal > 0 and subnormal * 2 == SMALLEST


def ieee_arithmetic() -> contextlib.AbstractContextManager[None]:
    """Return a context in which this thread's processor rounds to nearest even and keeps subnormals.

    Entering it raises a RuntimeError if the processor is in another mode that this process cannot change.
    """
    return AS_IT_IS if keeps_ieee() else _set_to_ieee()


@contextlib.contextmanager
def _set_to_ieee() -> Iterator[None]:
    """Set the processor to IEEE arithmetic inside a `with` block, then restore its mode; RuntimeError if it cannot."""
    if not has_control() or numba.config.DISABLE_JIT:
        raise RuntimeError(
            "the processor must round to nearest and keep subnormals; it is set to another mode. "
            "Undo it (torch.set_flush_denormal(False), or what else changed it)."
        )
    saved = _exchange_control()(rounding_control("nearest_even"))
    try:
        yield
    finally:
        _exchange_control()(saved)


def under_ieee(function: Function) -> Function:
    """Return `function` wrapped so that it runs while this thread's processor keeps IEEE 754's defaults.

    These are rounding to nearest even, and subnormals that are not flushed. It is a decorator.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        with ieee_arithmetic():
            return function(*arguments, **keywords)

    return run  # type: ignore[return-value]


def _machine() -> str:
    """Return LLVM's name of the processor's architecture, such as "x86_64" or "aarch64"."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


class Control(NamedTuple):
    """The control register of a processor's float unit: its width, and values that select rounding modes.

    Attributes:
      width: bits of the register.
      ieee: value for IEEE arithmetic to nearest even with all exceptions masked.
      directed: by name of another mode, "up", "down" or "toward_zero", the bits to set in addition.
    """

    width: int
    ieee: int
    directed: dict[str, int]


# Sources: Intel SDM, 10.2.3, MXCSR; Arm ARM, FPCR.
CONTROL = {
    "x86_64": Control(32, 0x1F80, {"down": 1 << 13, "up": 2 << 13, "toward_zero": 3 << 13}),
    "aarch64": Control(64, 0, {"up": 1 << 22, "down": 2 << 22, "toward_zero": 3 << 22}),
}


def has_control() -> bool:
    """Return whether fpsim can set this processor's rounding mode and flushing of subnormals."""
    return _machine() in CONTROL


@cache
def has_fma() -> bool:
    """Return whether this processor has a fused multiply-add instruction; cached."""
    if _machine() == "aarch64":
        return True
    return "fma" in host_features()


def rounding_control(mode: str) -> int:
    """Return the control register's value for IEEE arithmetic; mode: nearest_even, up, down or toward_zero.

    Only for processors for which `has_control` is True.
    """
    control = CONTROL[_machine()]
    return control.ieee | (0 if mode == "nearest_even" else control.directed[mode])


@intrinsic  # type: ignore[untyped-decorator]
def exchange_control(_typing: Any, value: Any) -> Any:
    """Write `value` to the control register of the processor's float unit, and return its former value.

    Both are uint64. Only for processors for which `has_control` is True. _typing: numba's typing context, not used.
    """

    def build(_context: Any, builder: Any, _sig: Any, args: Any) -> Any:
        width = CONTROL[_machine()].width
        word, void = ir.IntType(width), ir.VoidType()
        new = builder.trunc(args[0], word) if width < 64 else args[0]
        if width == 32:
            with builder.goto_entry_block():  # once, not in each pass of a loop
                space = builder.alloca(word)
            pointer = builder.bitcast(space, ir.IntType(8).as_pointer())
            call(builder, "llvm.x86.sse.stmxcsr", void, pointer)
            old = builder.load(space)
            builder.store(new, space)
            call(builder, "llvm.x86.sse.ldmxcsr", void, pointer)
            return builder.zext(old, ir.IntType(64))
        old = call(builder, "llvm.aarch64.get.fpcr", word)
        call(builder, "llvm.aarch64.set.fpcr", void, new)
        return old

    return types.uint64(types.uint64), build


@cache
def _exchange_control() -> Any:
    """Return the compiled function `(value)`, which sets the control register and returns its former value.

    Both are integers below 2**64.
    """

    def exchange(value: Any) -> Any:
        return exchange_control(np.uint64(value))

    return kernel(exchange)
