"""float32 -> FP16 by the processor's own conversion, where it has one and the policy is the one that it implements.

The integer body needs two dozen instructions for sixteen values and the processor one, so this is the only cast where
memory, not arithmetic, is the limit. tests/casts/test_half.py compares the two bit by bit. Measured:
docs/performance.md.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from fpsim.core.encode import PLAIN
from fpsim.core.layouts import EncodePlan
from fpsim.formats.named import FP16, Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import kernel
from fpsim.runtime.stream import element_loop

u16, u32 = np.uint16, np.uint32
MAGNITUDE, INFINITY = u32(0x7FFFFFFF), u32(0x7F800000)
SIGN, NAN = u32(0x8000), u32(FP16.nan_code or 0)
SIGN_SHIFT = u32(16)


@lru_cache(maxsize=1)
def has_conversion() -> bool:
    """Whether numba's target, which may be told to be another processor, converts between the two in one instruction.

    Without it LLVM calls a function of the compiler's library, which need not be there: the call would end the process.
    """
    if numba.config.DISABLE_JIT:
        return False
    single, half = ir.FloatType(), ir.HalfType()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(single, [single]), "through_half")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.fpext(builder.fptrunc(function.args[0], half), single))
    parsed = binding.parse_assembly(str(module))
    parsed.triple = binding.get_process_triple()
    assembly = cpu_target.target_context.codegen()._tm.emit_assembly(parsed)
    return not re.search("sfhf|hfsf|f2h|h2f", assembly)  # __truncsfhf2, __gnu_h2f_ieee and the like


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


def _encode_half(bits: Any, _facts: Any) -> Any:
    """The FP16 code of one float32; NaN becomes the canonical one, where the processor keeps payloads."""
    nan = u16(NAN | u32(u32(bits >> SIGN_SHIFT) & SIGN))
    return nan if u32(bits & MAGNITUDE) > INFINITY else to_half(bits)


@cache
def half_kernel(streamed: bool) -> Any:
    """The loop `(bits, codes, layout)`; the layout goes unread."""

    loop = element_loop(_encode_half, streamed)

    def encode_half(bits: Any, codes: Any, _layout: Any) -> None:
        loop(bits, codes, None)

    return kernel(encode_half)
