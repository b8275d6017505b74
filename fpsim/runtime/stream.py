"""Stores that bypass the caches, and prefetched loads, for arrays too large for the caches (docs/performance.md)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fpsim.runtime import vectors as v
from fpsim.runtime.compile import scalar
from fpsim.runtime.host import host_name

STREAM_BYTES = 1 << 23  # results from this size on would not stay in the caches
BLOCK = 128  # elements per block
# Bytes between the block that is computed and the block that is fetched, as measured on Zen 5 and on an Intel Xeon with
# AMX (docs/performance.md, "Memory").
AHEAD = 8192 if host_name().startswith("znver") else 1024
LINE = 64  # bytes of a cache line; the target of a block starts on one

if numba.config.DISABLE_JIT:

    def stream_block(out: Any, start: int, block: Any) -> None:
        """Set out[start : start + BLOCK] to `block`."""
        out[start : start + BLOCK] = block

    def prefetch_block(sources: Any, start: int) -> None:
        """Do nothing, whatever the arguments: plain Python cannot prefetch."""

    def prefetch_line(source: Any, index: int) -> None:
        """Do nothing, whatever the arguments: plain Python cannot prefetch."""

    def stream_fence() -> None:
        """Do nothing: stores of plain Python do not bypass the caches."""

else:

    def _prefetch(builder: Any, address: Any) -> None:
        """Emit LLVM code that loads the cache line at `address`, an LLVM pointer, into the L1 cache.

        builder: llvmlite's IRBuilder.
        """
        read, keep, data = v.WORD(0), v.WORD(3), v.WORD(1)
        place = builder.bitcast(address, v.BYTE.as_pointer())
        v.call(builder, "llvm.prefetch.p0", ir.VoidType(), place, read, keep, data)

    @intrinsic  # type: ignore[untyped-decorator]
    def stream_block(_typing: Any, out: Any, start: Any, block: Any) -> Any:
        """Set out[start : start + BLOCK], which must begin a cache line, to `block`, bypassing the caches.

        _typing: numba's typing context, not used.
        """
        signature = types.void(out, types.intp, block)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target = context.make_array(sig.args[0])(context, builder, args[0])
            source = context.make_array(sig.args[2])(context, builder, args[2])
            line = ir.VectorType(ir.IntType(8), LINE)
            to = builder.bitcast(builder.gep(target.data, [args[1]]), line.as_pointer())
            come_from = builder.bitcast(source.data, line.as_pointer())
            temporal = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            for i in range(BLOCK * (sig.args[0].dtype.bitwidth // 8) // LINE):
                value = builder.load(builder.gep(come_from, [v.LONG(i)]), align=1)
                store = builder.store(value, builder.gep(to, [v.LONG(i)]), align=LINE)
                store.set_metadata("nontemporal", temporal)
            return context.get_dummy_value()

        return signature, build

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch_block(_typing: Any, sources: Any, start: Any) -> Any:
        """Prefetch BLOCK (128) elements, AHEAD bytes after element `start`, of each source.

        sources: a 1-D array or a tuple of such arrays. _typing: numba's typing context, not used.
        """
        signature = types.void(sources, types.intp)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            several = not isinstance(sig.args[0], types.Array)
            kinds = sig.args[0].types if several else [sig.args[0]]
            for i, kind in enumerate(kinds):
                value = builder.extract_value(args[0], i) if several else args[0]
                array = context.make_array(kind)(context, builder, value)
                first = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(8).as_pointer())
                for offset in range(0, BLOCK * kind.dtype.bitwidth // 8, LINE):
                    _prefetch(builder, builder.gep(first, [ir.Constant(ir.IntType(64), AHEAD + offset)]))
            return context.get_dummy_value()

        return signature, build

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch_line(_typing: Any, source: Any, index: Any) -> Any:
        """Prefetch the cache line of source[index]; the index may be beyond the array's end.

        source: a 1-D array. _typing: numba's typing context, not used.
        """
        signature = types.void(source, types.intp)

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            array = context.make_array(sig.args[0])(context, builder, args[0])
            _prefetch(builder, builder.gep(array.data, [args[1]]))
            return context.get_dummy_value()

        return signature, build

    @intrinsic  # type: ignore[untyped-decorator]
    def stream_fence(_typing: Any) -> Any:
        """Make stores that bypassed the caches visible to other threads; _typing: numba's typing context, not used."""

        def build(context: Any, builder: Any, _sig: Any, _args: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return types.void(), build


@scalar
def aligned_empty(size: Any, like: Any) -> Any:
    """Return an uninitialised 1-D array of `size` elements, of the dtype of the array `like`.

    It starts at a cache line (64 bytes), so that no vector of 64 bytes spans two lines.
    """
    space = np.empty(size + LINE // like.itemsize, like.dtype)
    start = (-space.ctypes.data) % LINE // like.itemsize
    return space[start : start + size]


@scalar
def streamable(out: Any) -> Any:
    """Return (start, stop) of the part of `out`, a contiguous 1-D array, to which stores may bypass the caches.

    It consists of whole blocks of BLOCK (128) elements, the first of which starts at a cache line.
    """
    start = min((-out.ctypes.data) % LINE // out.itemsize, out.size)
    return start, start + (out.size - start) // BLOCK * BLOCK


def block_loop(fill: Any, streamed: bool, block: int = 0) -> Any:
    """Return a function `(sources, target, facts)` for kernels, which fills an array block by block by calling `fill`.

    sources: a 1-D array or a tuple of 1-D arrays. target: 1-D array, written in place. facts: constants of the
    computation, such as a layout, which are passed on to `fill`.

    Args:
      fill: function `(sources, start, count, target, facts, state) -> state`, which writes the results of elements
        start .. start + count - 1 to target[:count]. state: the value that the previous call returned, 0 at first.
      streamed: results bypass the caches, BLOCK at a time.
      block: if not streamed, elements per call of `fill`; 0 for all at once.
    """
    fill = scalar(fill)

    @scalar
    def plain(sources: Any, target: Any, facts: Any) -> None:
        state, step = 0, block if block > 0 else max(target.size, 1)
        for start in range(0, target.size, step):
            count = min(step, target.size - start)
            state = fill(sources, start, count, target[start : start + step], facts, state)

    @scalar
    def around_caches(sources: Any, target: Any, facts: Any) -> None:
        begin, end = streamable(target)
        results, state = aligned_empty(BLOCK, target), 0
        for start, stop in ((0, begin), (end, target.size)):  # one call for both ends: each is a copy of the code
            state = fill(sources, start, stop - start, target[start:stop], facts, state)
        for start in range(begin, end, BLOCK):
            prefetch_block(sources, start)
            state = fill(sources, start, BLOCK, results, facts, state)
            stream_block(target, start, results)
        stream_fence()

    return around_caches if streamed else plain


def element_loop(convert: Any, streamed: bool) -> Any:
    """Return a function `(source, target, facts)` that kernels call to set each target[i] to convert(source[i], facts).

    source, target: 1-D arrays. convert: function of one element and of `facts`, constants such as a layout. streamed:
    whether results bypass the caches.
    """
    convert = scalar(convert)

    @scalar
    def plain(source: Any, target: Any, facts: Any) -> None:
        for i in range(target.size):
            target[i] = convert(source[i], facts)

    def fill(source: Any, start: int, count: int, target: Any, facts: Any, state: int) -> int:
        piece = source[start : start + count]
        for i in range(count):
            target[i] = convert(piece[i], facts)
        return state

    return block_loop(fill, streamed) if streamed else plain
