"""Elementwise operations on the GPU in one of three ways: integer arithmetic, a table of results, or float32."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.arithmetic.elementary.tables import exact_table
from fpsim.arithmetic.operation import ELEMENTARY, Operation
from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.core.operations import COMPARISONS
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding
from fpsim.gpu.arithmetic import exact_kernels as kernels
from fpsim.gpu.arithmetic.elementary_kernels import float32_kernel, tabulated_kernel
from fpsim.gpu.arithmetic.operands import GpuOperands
from fpsim.gpu.arithmetic.pair_kernels import elements_at_once, elementwise_kernel, looks_up
from fpsim.gpu.core import float_arithmetic
from fpsim.gpu.device.copies import broadcast
from fpsim.gpu.device.device import device_number
from fpsim.gpu.device.failures import one_sentence
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.groups import as_groups
from fpsim.gpu.device.launch import launch, launch_shared, scratch, uploaded, uploaded_rows

u64 = np.uint64

TABLE_BITS = 16  # bits of all operands together up to which results come from a table
SIGNS = ("negative", "absolute", "classify")  # operations on a single code
# Operations that always run on the integer core.
CORE_ONLY = (*SIGNS, "next_up", "next_down", "from_int", "to_int")
NO_WORDS = np.zeros(1, np.uint32)


def compute(operation: Operation, inputs: GpuOperands, results: Any, flags: Any) -> None:
    """Write the results of an elementwise operation to `results`, and its flags to `flags` unless that is empty.

    operation: the operation with its formats and rounding. inputs: its operands. results: 1-D unsigned integers: codes,
    truth values, classes or integers. flags: 1-D uint8.

    Three implementations give the same bits. If neither flags nor stochastic rounding are required, a table of all
    results is used for narrow operands (see `_suits_table`), and float32 arithmetic for some others (see
    `_suits_float32`). Integer arithmetic computes the rest.
    """
    if inputs.size == 0:
        return
    if flags.size == 0 and not operation.is_stochastic and operation.name not in CORE_ONLY:
        if _suits_table(operation, inputs) and results.dtype.itemsize <= 2:
            _by_table(operation, inputs, results)
            return
        if _suits_float32(operation):
            function = float_arithmetic.float_function(operation.result.fmt, operation.name)
            _run_groups(function, inputs, results, None)
            return
    by_core(operation, inputs, results, flags)


def by_core(operation: Operation, inputs: GpuOperands, results: Any, flags: Any) -> None:
    """Write the results and flags of an elementwise operation by kernels for every format and rounding mode.

    The kernels compute in integers. Those of elementary functions use float arithmetic for float32, and round exact
    results from a table for other formats.

    operation: the operation with its formats and rounding. inputs: its operands. results: 1-D unsigned integers: codes,
    truth values, classes or integers. flags: 1-D uint8, not written if empty.
    """
    name, integer = operation.name, operation.integer

    def queue(kernel: Any, *arguments: Any) -> None:
        launch(kernel, inputs.like, inputs.size, *inputs.words, *arguments)

    if name in ELEMENTARY and operation.formats == (FP32,):
        queue(float32_kernel(name), results, flags, np.uint32(operation.tininess == "before"))
        return
    layouts = [unpack_layout(operand, operation.input_subnormals) for operand in inputs.formats]
    if name in COMPARISONS:
        queue(kernels.comparison_kernel(name), *inputs.steps, results, flags, *map(uploaded, layouts))
        return
    fmt, rounding, overflow, subnormals, seed, random_bits = operation.result
    plan = pack_plan(fmt, rounding, overflow, subnormals, random_bits, operation.tininess)
    mode, key = int(rounding), seed or 0
    keys = u64(key & 0xFFFFFFFF), u64(key >> 32)
    if name in ("next_up", "next_down"):
        kernel = kernels.neighbour_kernel(int(name == "next_down"))
        queue(kernel, results, flags, *map(uploaded, [*layouts, plan.layout]))
    elif name in ELEMENTARY:
        table = exact_table(name, operation.formats[0], operation.input_subnormals)
        entries = uploaded(table.significands), uploaded(table.fields), uploaded(table.states)
        queue(tabulated_kernel(mode), results, flags, *entries, uploaded(plan.layout), u64(plan.rules), keys)
    elif name in SIGNS:
        queue(kernels.sign_kernel(name), results, *map(uploaded, [*layouts, plan.layout]))
    elif name == "from_int":
        assert integer is not None
        sign = 1 << (8 * inputs.words[0].dtype.itemsize - 1) if integer.kind == "i" else 0
        kernel = kernels.from_integer_kernel(mode)
        queue(kernel, results, flags, u64(sign), uploaded(plan.layout), u64(plan.rules), keys)
    elif name == "to_int":
        assert integer is not None
        limits, random_mask = np.iinfo(integer), ((1 << random_bits) - 1) << (32 - random_bits)
        queue(
            kernels.to_integer_kernel(mode), results, flags, *map(uploaded, layouts), u64(-int(limits.min)),
            u64(limits.max), u64(random_mask), u64((1 << 8 * integer.itemsize) - 1), keys,
        )  # fmt: skip
    else:
        words, steps = _three(inputs)
        layouts += layouts[:1] * (3 - len(layouts))
        launch(
            kernels.rounding_kernel(name, mode), inputs.like, inputs.size, *words, steps, results, flags,
            uploaded_rows(*layouts, plan.layout), u64(plan.rules), keys,
        )  # fmt: skip


def no_flags() -> Any:
    """Return an empty uint8 array on the GPU, which tells kernels to write no flags.

    Each GPU has one such array, so that CUDA graphs can record calls.
    """
    return _nothing(device_number(), "u1")


@cache
def _nothing(device: int, dtype: str) -> Any:
    """Return an empty array of `dtype` on the current GPU, whose number is `device`; cached for each GPU and dtype."""
    return scratch(0, dtype)


def _three(inputs: GpuOperands) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return (arrays, steps) of the one to three operands `inputs`, filled up to three by repeating the first.

    arrays: 1-D unsigned integers. steps: the distance from one element to the next: 1, or 0 for a single element or a
    repeated operand.
    """
    missing = 3 - len(inputs.words)
    return inputs.words + inputs.words[:1] * missing, inputs.steps + (0,) * missing


def _suits_table(operation: Operation, inputs: GpuOperands) -> bool:
    """Return whether an operation's results are to be looked up in a table of its results for all codes.

    That is the case for one or two operands whose codes have up to 16 bits together, if the result has at least a
    quarter as many elements as the table. operation: the operation with its formats. inputs: its operands; if there are
    two, their codes must have the same width in memory, since a thread loads groups of equally wide elements.
    """
    bits, widths = operation.operand_bits, {x.dtype.itemsize for x in inputs.words}
    small = bits <= TABLE_BITS and len(inputs.words) <= 2 and len(widths) == 1
    return small and 1 << bits <= 4 * inputs.size


def _suits_float32(operation: Operation) -> bool:
    """Return whether float32 arithmetic gives the exact bits of an operation's results.

    It does for the operations and formats of `float_arithmetic.serves`, with one format for all operands and the
    result, rounding to nearest even, overflow to Inf or NaN, and subnormals that are kept.
    """
    fmt = operation.result.fmt
    rounds_as_ieee = operation.result[1:4] == (Rounding.NEAREST_EVEN, "nonfinite", "keep")
    ieee = rounds_as_ieee and operation.input_subnormals == "keep"
    return ieee and set(operation.formats) == {fmt} and float_arithmetic.serves(fmt, operation.name)


def _run_groups(function: Any, inputs: GpuOperands, results: Any, table: Any) -> None:
    """Write function(a, b, c, table) of every element of the operands to `results`, 1-D unsigned integers.

    inputs: one to three operands a, b, c. function: a scalar function of their codes. table: the 1-D GPU array that it
    reads, or None. A thread loads several neighbouring elements at once.
    """
    bits, target_bits = (8 * array.dtype.itemsize for array in (inputs.words[0], results))
    groups, count = elements_at_once(bits, target_bits), len(inputs.words)
    # an operand of one element becomes one group of equal elements, which every thread reads
    same = tuple(
        broadcast(inputs.owner._replace(words=x, shape=(1,)), (groups.length,)).words if step == 0 else x
        for x, step in zip(inputs.words, inputs.steps, strict=True)
    )
    words, steps = _three(inputs._replace(words=same))
    full = [x for x, step in zip(same, inputs.steps, strict=True) if step]
    whole = iter(as_groups((*full, results), groups.length))
    wide = tuple(
        next(whole) if step else as_groups((x,), groups.length)[0] for x, step in zip(same, inputs.steps, strict=True)
    )
    wide_results = next(whole)
    wide += wide[:1] * (3 - count)
    entries = _nothing(device_number(), np.dtype(results.dtype).str) if table is None else table
    source = uploaded(NO_WORDS) if table is None else table.view(np.uint32)
    arguments = (*words, results, *wide, wide_results, *map(u64, steps), source, entries)
    if table is not None:
        kernel = elementwise_kernel(function, bits, target_bits, count, source.size)
        if launch_shared(kernel, inputs.like, inputs.size, source.size * 4, *arguments, each=groups.each):
            return
    kernel = elementwise_kernel(function, bits, target_bits, count, 0)
    launch(kernel, inputs.like, inputs.size, *arguments, each=groups.each)


def _by_table(operation: Operation, inputs: GpuOperands, results: Any) -> None:
    """Write the results of an operation to `results`, 1-D unsigned integers, from a table of all its results.

    operation: the operation with its formats and rounding. inputs: its operands.
    """
    if operation.result.seed is not None:  # the operation is deterministic
        operation = operation.with_seed(None)
    table = _table(operation, results.dtype.str, device_number())
    bits = tuple(fmt.bits for fmt in operation.formats)
    _run_groups(looks_up(bits, 8 * inputs.words[0].dtype.itemsize), inputs, results, table)


@lru_cache(maxsize=64)
def _table(operation: Operation, dtype: str, device: int) -> Any:
    """Return the table of an operation's results for all codes of its operands, 1-D on the GPU, computed there.

    The index of a pair of codes (a, b) is a * 2**(bits of b) + b. dtype: NumPy dtype string of the results. device:
    number of the current GPU, so that each GPU has its own cached table.
    """
    index, low = np.arange(1 << operation.operand_bits), operation.formats[-1].bits
    sources = (index,) if len(operation.formats) == 1 else (index >> low, index & ((1 << low) - 1))
    words = tuple(uploaded(source.astype(fmt.storage)) for source, fmt in zip(sources, operation.formats, strict=True))
    table, shape = scratch(index.size, dtype), (index.size,)
    owner = GpuArray(words[0], shape, None, words[0])
    by_core(operation, GpuOperands(words, (1,) * len(words), operation.formats, shape, owner, False), table, no_flags())
    with one_sentence("a table of results"):
        cuda.synchronize()  # other streams may read it
    return table
