"""Stores that bypass the caches, for results too large to be found there again.

An ordinary store first reads the line that it overwrites; for a cast that is a third to a half of all traffic. Blocks
are computed into a buffer in the L1 cache and sent from there. Measured: docs/performance.md.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

BLOCK = 512  # elements per block
LINE = 64  # bytes of a cache line; the target of a block starts on one

if numba.config.DISABLE_JIT:

    def stream_block(out: Any, start: int, block: Any) -> None:
        """out[start : start + BLOCK] = block."""
        out[start : start + BLOCK] = block

    def stream_fence() -> None:
        """Nothing to wait for."""

else:

    @intrinsic  # type: ignore[untyped-decorator]
    def stream_block(_typing: Any, out: Any, start: Any, block: Any) -> Any:
        """out[start : start + BLOCK] = block, around the caches. The target must start on a cache line."""
        signature = types.void(out, types.intp, block)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target = context.make_array(sig.args[0])(context, builder, args[0])
            source = context.make_array(sig.args[2])(context, builder, args[2])
            line = ir.VectorType(ir.IntType(8), LINE)
            to = builder.bitcast(builder.gep(target.data, [args[1]]), line.as_pointer())
            come_from = builder.bitcast(source.data, line.as_pointer())
            temporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            lines = BLOCK * (sig.args[0].dtype.bitwidth // 8) // LINE
            with cgutils.for_range(builder, ir.Constant(ir.IntType(64), lines)) as loop:
                value = builder.load(builder.gep(come_from, [loop.index]), align=1)
                store = builder.store(value, builder.gep(to, [loop.index]), align=LINE)
                store.set_metadata("nontemporal", temporal)
            return context.get_dummy_value()

        return signature, build

    @intrinsic  # type: ignore[untyped-decorator]
    def stream_fence(_typing: Any) -> Any:
        """Make the streamed stores visible to other threads."""

        def build(context: Any, builder: Any, _sig: Any, _args: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), build


def streamable(out: np.ndarray[Any, Any]) -> slice:
    """The part of a contiguous array that streams: from its first cache line on, a whole number of blocks."""
    head = -out.ctypes.data % LINE // out.itemsize
    blocks = max(out.size - head, 0) // BLOCK
    return slice(head, head + blocks * BLOCK)
