"""Sets this thread's floating-point unit to a state that other code may have left. For x86 with glibc."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

IS_SUPPORTED = platform.machine() == "x86_64" and sys.platform == "linux" and platform.libc_ver()[0] == "glibc"

# Bits of MXCSR, the register that SSE and AVX obey (Intel SDM, volume 1, 10.2.3).
ROUND = 0x6000
FLUSH_TO_ZERO, DENORMALS_ARE_ZEROS = 0x8000, 0x0040
STATES = {
    "round down": 0x2000,
    "round up": 0x4000,
    "round toward zero": 0x6000,
    "flush results": FLUSH_TO_ZERO,
    "flush operands": DENORMALS_ARE_ZEROS,
    "flush both": FLUSH_TO_ZERO | DENORMALS_ARE_ZEROS,
    "round down and flush both": 0x2000 | FLUSH_TO_ZERO | DENORMALS_ARE_ZEROS,
}

_Environment = ctypes.c_uint32 * 8  # fenv_t: 28 bytes of the x87 unit, then MXCSR


def set_state(bits: int) -> int:
    """Set the rounding and flushing bits of this thread's MXCSR, and return the earlier ones."""
    libm = ctypes.CDLL("libm.so.6")
    environment = _Environment()
    assert libm.fegetenv(ctypes.byref(environment)) == 0
    mask = ROUND | FLUSH_TO_ZERO | DENORMALS_ARE_ZEROS
    before = environment[7] & mask
    environment[7] = environment[7] & ~mask | bits
    assert libm.fesetenv(ctypes.byref(environment)) == 0
    return before


@contextmanager
def processor_state(bits: int) -> Iterator[None]:
    """Inside the block, set this thread's processor to another state."""
    before = set_state(bits)
    try:
        yield
    finally:
        set_state(before)
