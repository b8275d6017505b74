"""The loops that compute an operation, and the choice among them: integers, a table, or floats. Loads numba.

Exact integer arithmetic (fpsim/core) serves every operation, format, mode and flag. It also fills the tables, which
hold the result for every combination of operands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numba
import numpy as np

from fpsim.arithmetic.elementary import float32, tables
from fpsim.arithmetic.float_plan import float_plan, tiny_below
from fpsim.arithmetic.kernels import elementary, exact, float_arithmetic, nearest, nearest_fma, order, table
from fpsim.arithmetic.operation import ELEMENTARY, Operation
from fpsim.arrays import Array
from fpsim.casts.loops import random_words
from fpsim.core.layouts import order_layout, pack_plan, unpack_layout
from fpsim.core.operations import BINARY, COMPARISONS
from fpsim.core.pack import LOSES_INFINITY
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding
from fpsim.runtime.elementwise import Run
from fpsim.runtime.pipeline import PIECE, wrapping
from fpsim.runtime.processor import keeps_ieee
from fpsim.runtime.records import as_rows
from fpsim.runtime.stream import STREAM_BYTES

u64 = np.uint64
WORD, BYTE = np.dtype(u64), np.dtype(np.uint8)
EXACT_PIECE = 1 << 12  # elements that pass through the integer core at a time, as 64-bit words
TABLE_BITS = 16
FLOAT_FROM = 1 << 13  # elements from which a float kernel repays its compilation, one per mode
NO_RANDOM = np.zeros(0, np.uint32)
NO_FLAGS = np.zeros(0, np.uint8)

# (operands as words, random words, results as words, flags)
Call = Callable[[list[Array], Array, Array, Array], None]


def route(operation: Operation, size: int) -> Run:
    """Return the fastest loop that computes `size` results of an operation.

    The loop is run(operands, targets, first) -> None. operands: tuple of 1-D arrays of codes, unsigned integers.
    targets: (results,), or (results, uint8 flags), which it fills. first: flat index of the arrays' first element, on
    which random numbers depend. If the operation is stochastic without a seed, the loop has a keyword argument `seed`.
    """
    if operation.result.seed is not None:
        return with_seed(route(operation.with_seed(None), size), operation)
    tabulated, floats_first = _preference(operation)
    if operation.name in ELEMENTARY and not tabulated:
        return by_core(operation)
    if size >= FLOAT_FROM and floats_first:
        return _by_float(operation)
    if tabulated and size >= _table_from(operation):
        return _by_table(operation)
    if size >= FLOAT_FROM and not tabulated and not numba.config.DISABLE_JIT:
        return _by_float(operation)
    return by_core(operation)


def core_below(operation: Operation) -> int:
    """Return the number of results of `operation` below which `route` always chooses exact integer arithmetic."""
    tabulated, _ = _preference(operation)
    return min(FLOAT_FROM, _table_from(operation)) if tabulated else FLOAT_FROM


def _table_from(operation: Operation) -> int:
    """Return from how many results on a table of all possible results of `operation` saves time.

    It is a quarter of the number of combinations of the operands' codes, rounded up.
    """
    return -(-(1 << operation.operand_bits) // 4)


@lru_cache(maxsize=4096)
def _preference(operation: Operation) -> tuple[bool, bool]:
    """Return (whether a table can hold all possible results, whether a float loop is faster than that table); cached.

    operation: the operation with its formats and options. A table has at most 2**16 entries: one or two operands of 16
    bits together, and no stochastic rounding.
    """
    few = operation.operand_bits <= TABLE_BITS and len(operation.formats) <= 2
    return few and not operation.is_stochastic, operation.name == "sqrt" and _nearest(operation) is not None


# ---- the integer core


def by_core(operation: Operation) -> Run:
    """Return the loop of `operation` in exact integer arithmetic; in float64 for an elementary function of float32.

    The loop is run(operands, targets, first) -> None. operands: tuple of 1-D arrays of codes. targets: (results,), or
    (results, uint8 flags), which it fills. first: flat index of the arrays' first element.
    """
    if operation.name in ELEMENTARY and operation.formats == (FP32,):
        return float32.loop(operation)
    if operation.result.seed is not None:
        return with_seed(_by_core(operation.with_seed(None)), operation)
    return _by_core(operation)


def with_seed(run: Run, operation: Operation) -> Run:
    """Return the loop `run` with the operation's seed as its argument `seed`; unchanged if nothing is stochastic."""
    draw: Any = run
    return partial(draw, seed=operation.result.seed) if operation.is_stochastic else run


@lru_cache(maxsize=4096)
def _by_core(operation: Operation) -> Run:
    """Return the loop that computes an operation in exact integer arithmetic; cached.

    The loop is run(operands, targets, first, seed=None) -> None. operands: tuple of 1-D code arrays. targets:
    (results,), or (results, uint8 flags), which it fills. first: flat index of the arrays' first element, on which
    random numbers depend. seed: seed of a stochastic operation, 0 to 2**64 - 1, else None.
    """
    call, stochastic = _core_call(operation), operation.is_stochastic

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int, seed: Any = None) -> None:
        size = targets[0].size
        if size <= EXACT_PIECE:
            run_piece(sources, targets, first, seed)
            return
        for start in range(0, size, EXACT_PIECE):
            piece = slice(start, start + EXACT_PIECE)
            run_piece(tuple(x[piece] for x in sources), tuple(y[piece] for y in targets), first + start, seed)

    def run_piece(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int, seed: Any) -> None:
        size = targets[0].size
        random = random_words(seed, first, size) if stochastic else NO_RANDOM
        results = np.empty(size, WORD)
        flags = targets[1] if len(targets) > 1 else np.empty(size, BYTE)
        call([source.astype(WORD) for source in sources], random, results, flags)
        targets[0][...] = results

    return run


def _core_call(operation: Operation) -> Call:
    """Return the kernel of an operation in exact integer arithmetic, as (operands, random, results, flags) -> None.

    It fills results, uint64, and flags, uint8. operands: list of 1-D uint64 arrays of codes (of integers for from_int).
    random: a uint32 per element, empty unless stochastic.
    """
    name, formats, result, input_subnormals, tininess, integer = operation
    fmt, rounding, overflow, subnormals, _, random_bits = result
    layouts = tuple(unpack_layout(operand, input_subnormals) for operand in formats)
    plan = pack_plan(fmt, rounding, overflow, subnormals, random_bits, tininess)
    out, rules, mode = plan.layout, u64(plan.rules), int(rounding)
    if name in COMPARISONS:
        compare = exact.comparison_kernel(name)
        return lambda x, random, y, flags: compare(*x, y, flags, *layouts)
    if name == "from_int":
        assert integer is not None
        convert, signed = exact.from_integer_kernel(), u64(integer.kind == "i")
        return lambda x, random, y, flags: convert(*x, random, y, flags, signed, out, mode, rules)
    if name == "to_int":
        assert integer is not None
        limits, mask = np.iinfo(integer), u64(((1 << random_bits) - 1) << (32 - random_bits))
        lowest, highest = u64(-int(limits.min)), u64(limits.max)
        to_integer = exact.to_integer_kernel()
        return lambda x, random, y, flags: to_integer(*x, random, y, flags, *layouts, lowest, highest, mask, mode)
    if name in ELEMENTARY:
        entries = tables.exact_table(name, formats[0], input_subnormals)
        look_up, target = elementary.tabulated_kernel(), np.append(out, rules)
        return lambda x, random, y, flags: look_up(*x, random, y, flags, *entries, target, mode)
    if name in ("next_up", "next_down"):
        neighbour, downward = exact.neighbour_kernel(), u64(name == "next_down")
        return lambda x, random, y, flags: neighbour(*x, downward, y, flags, *layouts, out)
    if name == "classify":
        classify = exact.classify_kernel()
        return lambda x, random, y, flags: classify(*x, y, *layouts)
    if name in ("negative", "absolute"):
        sign = exact.sign_kernel(name)
        return lambda x, random, y, flags: sign(*x, y, *layouts, out)
    rows = as_rows(*layouts, out)
    if name == "fma":
        loop = exact.fma_kernel()
    else:
        loop = exact.binary_kernel(name) if name in BINARY else exact.unary_kernel(name)
    return lambda x, random, y, flags: loop(*x, random, y, flags, rows, mode, rules)


# ---- the processor's float operations


@lru_cache(maxsize=4096)
def _by_float(operation: Operation) -> Run:
    """Return the fastest loop of float operations, or the loop in exact integer arithmetic if there is none; cached.

    The loop is run(operands, targets, first, **seed) -> None. operands: tuple of 1-D arrays of codes. targets:
    (results,), or (results, uint8 flags), which it fills. first: flat index of the arrays' first element; with the
    keyword `seed`, it decides the random numbers of a stochastic operation. The loop computes with integers after all
    if the processor does not round to nearest even and keep subnormals, or if float operations cannot give the flags.
    """
    exact: Any = by_core(operation)
    fast = _ordered(operation) or _nearest(operation) or _general(operation)
    if fast is None:
        return exact  # type: ignore[no-any-return]

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int, **seed: int) -> None:
        if not keeps_ieee() or not fast(sources, targets):
            exact(sources, targets, first, **seed)

    return run


def _nearest(operation: Operation) -> Callable[[tuple[Array, ...], tuple[Array, ...]], bool] | None:
    """Return a function (operands, targets) -> True that computes an operation on FP16 or BF16 to nearest even.

    Return None for other operations, formats and modes. operands: tuple of 1-D uint16 arrays of codes. targets:
    (results,), or (results, uint8 flags), which the function fills; results may be an operand's array. It always
    returns True.
    """
    name, formats, result, input_subnormals, tininess, _ = operation
    fmt = result.fmt
    ieee = result[1:4] == (Rounding.NEAREST_EVEN, "nonfinite", "keep") and input_subnormals == "keep"
    if not ieee or set(formats) != {fmt} or not nearest.serves(fmt, name):
        return None
    edge = tiny_below(fmt, tininess, scaled=name != "fma")

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...]) -> bool:
        address = targets[0].__array_interface__["data"][0]
        if any(source.__array_interface__["data"][0] == address for source in sources):
            for start in range(0, targets[0].size, PIECE):  # the loops read operands after they wrote results
                piece = slice(start, start + PIECE)
                run(tuple(source[piece].copy() for source in sources), tuple(target[piece] for target in targets))
        elif name == "fma" and len(targets) > 1:
            nearest_fma.flagged_fma_kernel(fmt)(*sources, *targets, edge)
        elif name == "fma":
            nearest_fma.fma_kernel(fmt, targets[0].nbytes >= STREAM_BYTES)(*sources, *targets)
        elif name == "sqrt" and len(targets) > 1:
            nearest.flagged_sqrt_kernel(fmt)(*sources, *targets)
        elif name == "sqrt":
            nearest.sqrt_kernel(fmt)(*sources, *targets)
        elif len(targets) > 1:
            nearest.flagged_binary_kernel(fmt, name)(*sources, *targets, edge)
        else:
            nearest.binary_kernel(fmt, name, targets[0].nbytes >= STREAM_BYTES)(*sources, *targets)
        return True

    return run


def _ordered(operation: Operation) -> Callable[[tuple[Array, ...], tuple[Array, ...]], bool] | None:
    """Return a function (operands, targets) -> True that computes comparisons, minima and maxima on codes as integers.

    Return None for other operations, and where integers do not suffice, as for operands in two formats. operands: tuple
    of 1-D arrays of codes. targets: (results,), or (results, uint8 flags), which the function fills. It always returns
    True.
    """
    name, formats, result, input_subnormals, _, _ = operation
    compares = name in order.COMPARISONS
    layout = order_layout(formats[0], input_subnormals) if formats else None
    if layout is None or len(set(formats)) > 1 or not (compares or name in order.EXTREMA):
        return None
    keeps_codes = result.fmt == formats[0] and result.subnormals == input_subnormals == "keep"
    plan = pack_plan(result.fmt, *result[1:4], result.random_bits, "after")
    loses_infinity = plan.rules & int(LOSES_INFINITY) and result.fmt.has_infinity
    if not compares and (not keeps_codes or loses_infinity):
        return None
    loop = order.comparison_kernel if compares else order.extremum_kernel

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...]) -> bool:
        flags = targets[1] if len(targets) > 1 else NO_FLAGS
        loop(name, len(targets) > 1)(*sources, targets[0], flags, layout)
        return True

    return run


def _general(operation: Operation) -> Callable[[tuple[Array, ...], tuple[Array, ...]], bool] | None:
    """Return a function (operands, targets) -> bool that computes an operation by floats, in any mode and policy.

    Return None if no float is precise enough. operands: tuple of 1-D arrays of codes. targets: (results,), or (results,
    uint8 flags), which it fills. It returns False, without results, if it cannot compute the flags, else True.
    """
    plan = float_plan(operation)
    if plan is None:
        return None
    width, layouts, limits = plan
    mode, to_nearest = int(operation.result.rounding), operation.result.rounding is Rounding.NEAREST_EVEN
    name = "add" if operation.name == "subtract" else operation.name
    word = np.uint32 if width == 32 else np.uint64
    flip = word(1 << (width - 1)) if operation.name == "subtract" else word(0)

    def run(sources: tuple[Array, ...], targets: tuple[Array, ...]) -> bool:
        flagged = len(targets) > 1
        if flagged and limits is None:
            return False
        results, flags = targets if flagged else (targets[0], NO_FLAGS)
        marks = layouts[-1] if limits is None else limits  # not used without flags
        if name == "sqrt":
            float_arithmetic.sqrt_kernel(width, flagged)(*sources, results, flags, layouts, marks, mode)
        elif name == "fma":
            float_arithmetic.fma_kernel(width, to_nearest, flagged)(*sources, results, flags, layouts, marks, mode)
        else:
            loop = float_arithmetic.binary_kernel(name, width, to_nearest, flagged)
            loop(*sources, results, flags, layouts, marks, mode, flip)
        return True

    return run


# ---- tables of every result


@lru_cache(maxsize=256)
def _by_table(operation: Operation) -> Run:
    """Return the loop run(operands, targets, first) -> None that looks up all results of `operation`; cached.

    The table of the results for all codes is computed first. operands: tuple of one or two 1-D arrays of codes.
    targets: (results,), or (results, uint8 flags), which the loop fills. first is not used.
    """
    results, flags = _tables(operation)
    if len(operation.formats) == 1:

        def run_single(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int) -> None:
            if len(targets) > 1:
                table.flagged_single_kernel()(sources[0], results, flags, *targets)
            else:
                table.single_kernel(targets[0].nbytes >= STREAM_BYTES)(sources[0], results, *targets)

        return run_single
    bits = np.uint16(operation.formats[1].bits)

    def run_pair(sources: tuple[Array, ...], targets: tuple[Array, ...], first: int) -> None:
        if len(targets) > 1:
            table.flagged_pair_kernel()(*sources, bits, results, flags, *targets)
        else:
            table.pair_kernel(targets[0].nbytes >= STREAM_BYTES)(*sources, bits, results, *targets)

    return run_pair


def _tables(operation: Operation) -> tuple[Array, Array]:
    """Return (results, uint8 flags) for every combination of the operands' codes, by exact integer arithmetic.

    Both arrays are 1-D. They are indexed by the code, or by (code of a) << (bits of b) | (code of b). The dtype of the
    results is that of the operation's results.
    """
    index = np.arange(1 << operation.operand_bits)
    if len(operation.formats) == 1:
        sources: tuple[Array, ...] = (index,)
    else:
        low = operation.formats[1].bits
        sources = (index >> low, index & ((1 << low) - 1))
    results, flags = np.empty(index.size, operation.word), np.empty(index.size, np.uint8)
    with wrapping():
        by_core(operation)(sources, (results, flags), 0)
    return results, flags
