"""Short sums and products by an accumulator in float32: what calls have in common is one look-up. Loads numba."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import full_dtype
from fpsim.arrays import FORMAT_OF, Array
from fpsim.casts.loops import encode_kernel
from fpsim.casts.pipelines import BRIEF
from fpsim.core.layouts import encode_plan, source_width
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.processor import keeps_ieee
from fpsim.sums.accumulate import NO_C, ONE, exactly
from fpsim.sums.accumulators import Accumulator, Chunked
from fpsim.sums.float32_plan import WORD, StripWay, fast_way, float32_layout, panels_of, run_strips, strips_of
from fpsim.sums.plan import seedless

BYTE = np.dtype(np.uint8)


class BriefSums(NamedTuple):
    """What short sums by an accumulator take besides their operands."""

    way: StripWay
    codes_a: np.dtype[Any]  # of the operands' codes
    codes_b: np.dtype[Any]
    layouts: tuple[Array, Array]  # of their formats
    encode: Any  # the loop from float32 to codes; None where sums are float32
    layout: Array  # of the result
    chunk: int  # terms of a run, 0 for all
    dtype: np.dtype[Any]  # of the result
    storage: np.dtype[Any]  # of its codes


def brief_sums(a: Array, b: Array, accumulator: Accumulator, fmt: Any, out: Array | None = None) -> Array | None:
    """a @ b of short matrices in the accumulator's dtype, where the processor keeps to IEEE 754.

    fmt: the format of what is no array of floats; out: takes the result, an array of its shape in C order, which may
    hold anything where none is returned. None for sums that leave the range of the loops in float32, and for
    operands whose elements would have to be looked at to know that they are codes.
    """
    plan = _brief_sums(seedless(accumulator), fmt, a.dtype, b.dtype)
    if plan is None or (out is not None and out.dtype != plan.dtype):
        return None
    return _summed(plan, out, _in_c_order(a, plan.codes_a), _in_c_order(b, plan.codes_b))


def brief_sum(x: Array, accumulator: Accumulator, fmt: Any) -> Any | None:
    """The sum of a short array's elements in C order, as a scalar of the accumulator's dtype; None as above."""
    plan = _brief_sums(seedless(accumulator), fmt, None, x.dtype)
    if plan is None or not (0 < x.size <= BRIEF and keeps_ieee()) or allows_general_loops():
        return None
    ones = np.empty((1, x.size), WORD)
    ones.fill(ONE)  # np.full takes three times as long
    found = _summed(plan, None, ones, _in_c_order(x.reshape(-1, 1), plan.codes_b))
    return None if found is None else found[0, 0]


def _in_c_order(x: Array, codes: np.dtype[Any]) -> Array:
    """Codes, or floats of their format, as codes in C order."""
    return np.ascontiguousarray(x if x.dtype is codes else x.view(codes))


def _summed(plan: BriefSums, target: Array | None, a: Array, b: Array) -> Array | None:
    """The sums of codes; None where some have to be made otherwise."""
    operands, shape = panels_of(a, b, plan.layouts, plan.way.padding), (a.shape[0], b.shape[1])
    terms, strips, encode = operands.a.shape[1], strips_of(operands), plan.encode
    result, chunk = np.empty(shape, plan.dtype) if target is None else target, min(plan.chunk or terms, terms)
    out = result.view(WORD) if encode is None else np.empty(shape, WORD)
    if run_strips(plan.way, operands, NO_C, out, np.empty(strips, BYTE), chunk, 0, strips):
        return None
    if encode is not None:
        encode(out.reshape(-1), result.view(plan.storage).reshape(-1), plan.layout)
    return result


@lru_cache(maxsize=4096)
def _brief_sums(
    accumulator: Accumulator, fmt: Any, of_a: np.dtype[Any] | None, of_b: np.dtype[Any]
) -> BriefSums | None:  # fmt: skip
    """The plan for operands of these dtypes; of_a: None for ones, which make b the terms of a sum."""
    a, b = None if of_a is None else _format_of(of_a, fmt), _format_of(of_b, fmt)
    if b is None or (a is None and of_a is not None):
        return None
    way, kept = fast_way(accumulator, (a, b)), accumulator.result_format
    left = FP32 if a is None else a
    layouts = float32_layout(left), float32_layout(b)
    if way is None or layouts[0] is None or layouts[1] is None or source_width(kept) > FP32.bits:
        return None
    _, mode, *policy, _, random_bits = exactly(kept)
    encoder = encode_plan(kept, 32, mode, *policy, random_bits)
    encode = None if kept == FP32 else encode_kernel(32, int(mode), encoder.kind, None, False, False)
    chunk = accumulator.chunk if isinstance(accumulator, Chunked) else 0
    dtype = np.dtype(DTYPES.get(kept, kept.storage))
    of_operands = left.storage, b.storage, (layouts[0], layouts[1])
    return BriefSums(way, *of_operands, encode, encoder.layout, chunk, dtype, kept.storage)


def _format_of(dtype: np.dtype[Any], fmt: Any) -> Format | None:
    """The format of an operand; None where its elements decide, or it is refused."""
    stored, wanted = FORMAT_OF.get(dtype), None if fmt is None else find_format(fmt)
    if stored is not None and wanted in (None, stored):
        return stored
    return wanted if wanted is not None and dtype is full_dtype(wanted) else None
