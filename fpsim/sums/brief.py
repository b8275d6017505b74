"""Short sums and products by an accumulator in float32: what calls have in common is one look-up. Loads numba."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import full_dtype
from fpsim.arrays import FORMAT_OF, Array, words
from fpsim.casts.brief import Decoder, brief_decoder
from fpsim.casts.pipelines import BRIEF, encoding
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.runtime.processor import keeps_ieee
from fpsim.sums.accumulate import NO_C, ONE, exactly
from fpsim.sums.accumulators import Accumulator, Chunked
from fpsim.sums.float32_plan import Panels, StripWay, fast_way, panels_of, run_strips, strips_of
from fpsim.sums.kernels.float32_pairs import GROUP
from fpsim.sums.kernels.float32_rows import ROWS
from fpsim.sums.plan import seedless


class BriefSums(NamedTuple):
    """What short sums by an accumulator take besides their operands."""

    way: StripWay
    decode_a: Decoder | None  # None for ones
    decode_b: Decoder
    encode: Any  # the stage from float32 to codes; None where sums are float32
    chunk: int  # terms of a run, 0 for all
    dtype: np.dtype[Any]  # of the result


def brief_sums(a: Array, b: Array, accumulator: Accumulator, fmt: Any) -> Array | None:
    """a @ b of short matrices in the accumulator's dtype, where the processor keeps to IEEE 754.

    fmt: the format of what is no array of floats. None for sums that leave the range of the loops in float32, and for
    operands whose elements would have to be looked at to know that they are codes.
    """
    plan = _brief_sums(seedless(accumulator), fmt, a.dtype, b.dtype)
    if plan is None or plan.decode_a is None:
        return None
    operands = panels_of(plan.decode_a(a), plan.decode_b(b), plan.way.padding)
    return _summed(plan, operands, (a.shape[0], b.shape[1]))


def brief_sum(x: Array, accumulator: Accumulator, fmt: Any) -> Any | None:
    """The sum of a short array's elements in C order, as a scalar of the accumulator's dtype; None as above."""
    plan = _brief_sums(seedless(accumulator), fmt, None, x.dtype)
    if plan is None or not (0 < x.size <= BRIEF and keeps_ieee()):
        return None
    terms = -(-x.size // GROUP) * GROUP
    ones = np.full((ROWS, terms), ONE)
    ones[:, x.size :] = plan.way.padding
    found = _summed(plan, panels_of(ones, plan.decode_b(x).reshape(-1, 1)), (1, 1))
    return None if found is None else found[0, 0]


def _summed(plan: BriefSums, operands: Panels, shape: tuple[int, int]) -> Array | None:
    """The sums of operands as they are laid out; None where some have to be made otherwise."""
    result, terms, strips = np.empty(shape, plan.dtype), operands.a.shape[1], strips_of(operands)
    out = result.view(np.uint32) if plan.encode is None else np.empty(shape, np.uint32)
    chunk, given_up = min(plan.chunk or terms, terms), np.empty(strips, np.uint8)
    if run_strips(plan.way, operands, NO_C, out, given_up, chunk, 0, strips):
        return None
    if plan.encode is not None:
        plan.encode(out.reshape(-1), words(result).reshape(-1), 0)
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
    decode_a, decode_b = None if a is None else brief_decoder(a), brief_decoder(b)
    stages = () if kept == FP32 else encoding(FP32, exactly(kept))
    if way is None or decode_b is None or (a is not None and decode_a is None) or len(stages) > 1:
        return None
    chunk = accumulator.chunk if isinstance(accumulator, Chunked) else 0
    dtype = np.dtype(DTYPES.get(kept, kept.storage))
    return BriefSums(way, decode_a, decode_b, stages[0].run if stages else None, chunk, dtype)


def _format_of(dtype: np.dtype[Any], fmt: Any) -> Format | None:
    """The format of an operand; None where its elements decide, or it is refused."""
    stored, wanted = FORMAT_OF.get(dtype), None if fmt is None else find_format(fmt)
    if stored is not None and wanted in (None, stored):
        return stored
    return wanted if wanted is not None and dtype is full_dtype(wanted) else None
