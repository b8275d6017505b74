"""Short products of plain arrays: what calls have in common is one look-up, and few loops run. Loads numba.

A product of 32 x 32 x 32 would otherwise take most of its time to find that nothing special is asked for. What is not
plain, or not right, goes the long way (pipeline.py), which checks and refuses; results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np

from fpsim.arithmetic.operands import Formats, full_dtype
from fpsim.arrays import Array
from fpsim.casts.brief import Decoder, brief_decoder
from fpsim.casts.pipelines import BRIEF
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.matrix_units.catalogue import ROWS
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.fast_units import is_centred, is_fast, rows_of, source_of
from fpsim.products.kernels.fused_product import NAN_PATTERN
from fpsim.products.kernels.panel import PANEL_COLUMNS
from fpsim.products.kernels.row_vectors import VECTOR_COLUMNS
from fpsim.products.unit_product import ADD, NO_FACTORS, NOTHING, as_they_lie, bases_of, fused_facts, fused_loop
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.processor import keeps_ieee
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.brief import brief_sums

INT, FLOAT = np.dtype(np.int32), np.dtype(np.float32)
Reader = Callable[[Array], tuple[Array, bool | None]]  # from b to what the loop takes, as fused_facts says of it


def brief_product(
    a: Any, b: Any, accumulate: Any, fmt: Formats, promote: Any = None, out: Any = None
) -> Array | None:  # fmt: skip
    """a @ b of `fpsim.matmul` where no other argument is given; None for what is not short and plain."""
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    of_a, of_b = a.shape, b.shape
    if len(of_a) != 2 or len(of_b) != 2 or of_a[1] != of_b[0]:
        return None
    (m, k), n = of_a, of_b[1]
    if not (0 < m * k <= BRIEF and 0 < k * n <= BRIEF and m * n <= BRIEF and keeps_ieee()):
        return None
    if allows_general_loops():
        return None
    if out is not None and not _is_plain(out, (m, n), a, b):
        return None
    if type(accumulate) is str:
        accumulate = ROWS.get(accumulate)
    if isinstance(accumulate, MatrixUnit):
        usual = fmt is None and (promote is None or type(promote) is int)
        return _by_unit(a, b, accumulate, promote, out) if usual else None
    usual = promote is None and (fmt is None or type(fmt) is Format or type(fmt) is str)
    return brief_sums(a, b, accumulate, fmt, out) if usual and isinstance(accumulate, Accumulator) else None


def _is_plain(out: Any, shape: tuple[int, int], a: Array, b: Array) -> bool:
    """Whether loops can fill an array for the result as it is, its dtype aside."""
    if type(out) is not np.ndarray or out.shape != shape:
        return False
    flags = out.flags
    usual = flags.c_contiguous and flags.writeable and flags.aligned
    return usual and not np.may_share_memory(out, a) and not np.may_share_memory(out, b)


class BriefUnit(NamedTuple):
    """What a short product by a unit takes besides its operands."""

    of_a: dict[np.dtype[Any], Decoder]  # by the dtypes of a whose elements are all codes
    of_b: dict[np.dtype[Any], Reader]
    loop: Any
    columns: int  # of the result from which on vectors along its rows are as good as any
    formats: tuple[Format, Format]  # as the loop sees the operands
    facts: dict[bool | None, tuple[Array, Array, Array, Array]] | None  # None where they depend on the operands
    promotion: int  # steps from one promotion to the next, 0 for none


def _by_unit(a: Array, b: Array, unit: MatrixUnit, promote: int | None, out: Array | None) -> Array | None:
    """The product by a matrix unit."""
    plan = _brief_unit(unit, promote)
    (m, k), n = a.shape, b.shape[1]
    if plan is None or (m > n and n < plan.columns) or (out is not None and out.dtype != FLOAT):
        return None
    decode, read = plan.of_a.get(a.dtype), plan.of_b.get(b.dtype)
    if decode is None or read is None:
        return None
    left, (right, turned) = decode(a).view(INT), read(b)
    facts = plan.facts[turned] if plan.facts else fused_facts(unit, bases_of((left, right), plan.formats), turned)
    result = np.empty((m, n), FLOAT) if out is None else out
    result.fill(0)
    promotion = min(plan.promotion, k)  # beyond K all are alike
    plan.loop(
        left, right, result.view(INT), NO_FACTORS, NO_FACTORS, NOTHING, NOTHING, *facts, promotion, 0, ADD, 0, m, 0, n
    )  # fmt: skip
    return result


@lru_cache(maxsize=4096)
def _brief_unit(unit: MatrixUnit, promote: int | None) -> BriefUnit | None:
    """The plan of a unit, whose partial sums of `promote` terms join a float32 total.

    None where a chain of its steps is not one loop, whose results are those of the product, and for a promotion that
    the long way refuses.
    """
    if promote is not None and (promote < 1 or promote % unit.terms):
        return None
    is_one_loop = unit.rule is Rule.FUSED and is_fast(unit) and unit.d.fmt == FP32
    if not is_one_loop or unit.nan_code != NAN_PATTERN or unit.scale or numba.config.DISABLE_JIT:
        return None
    columns = PANEL_COLUMNS if rows_of(unit) == "plain" else VECTOR_COLUMNS // 2  # as many as are always worked on
    formats = unit.operand_format(unit.a), unit.operand_format(unit.b)
    facts: dict[bool | None, tuple[Array, Array, Array, Array]] = {
        turned: fused_facts(unit, (0, 0), turned) for turned in ((False, True) if _by_codes(unit) else (None,))
    }
    is_known = all(map(is_centred, formats))
    operands = _decoders(unit.a), _readers(unit)
    promotion = 0 if promote is None else promote // unit.terms
    return BriefUnit(*operands, fused_loop(unit), columns, formats, facts if is_known else None, promotion)


def _by_codes(unit: MatrixUnit) -> bool:
    """Whether the loop reads the codes of b."""
    return source_of(unit, rows_of(unit)) != "floats"


def _decoders(element: Element) -> dict[np.dtype[Any], Decoder]:
    """What decodes operands, by the dtypes that hold codes of an element alone."""
    fmt, found = element.carrier, {}
    for dtype in (full_dtype(fmt), DTYPES.get(fmt)):
        decoder = None if dtype is None else brief_decoder(fmt, np.dtype(dtype))
        if dtype is not None and decoder is not None:
            found[np.dtype(dtype)] = decoder
    return found


def _readers(unit: MatrixUnit) -> dict[np.dtype[Any], Reader]:
    """What reads b, by the dtypes that hold codes of its element alone."""
    storage = unit.b.carrier.storage
    if _by_codes(unit):
        return {dtype: lambda codes: as_they_lie(codes.view(storage)) for dtype in _decoders(unit.b)}
    return {dtype: _reader(decoder) for dtype, decoder in _decoders(unit.b).items()}


def _reader(decode: Decoder) -> Reader:
    return lambda codes: (decode(codes).view(INT), None)
