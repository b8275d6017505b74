"""Products of plain arrays by a unit, with no further argument of matmul but `promote`. Importing it loads numba.

All such calls by a unit share one cached plan, and skip the checks of other arguments. Those checks take most of the
time of a small product (32 x 32 x 32). A call that is not plain, or has a wrong argument, is left to pipeline.py, which
checks arguments, computes the same bits, and raises errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np

from fpsim.arithmetic.operands import Formats, full_dtype
from fpsim.arrays import Array
from fpsim.casts.pipelines import SHORT, Decoder, float32_decoder
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.matrix_units.catalogue import ROWS
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.add_product import add_product
from fpsim.products.fast_units import rows_of
from fpsim.products.fused import NO_FACTORS, FusedPlan, fused_plan, one_part
from fpsim.products.kernels.fused_product import NAN_PATTERN
from fpsim.products.kernels.panel import PANEL_COLUMNS, canonical_nan
from fpsim.products.kernels.row_vectors import VECTOR_COLUMNS
from fpsim.products.operand_floats import in_stored_order
from fpsim.products.unit_product import ADD, NO_SCALES, NOTHING, UnitProduct
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.processor import keeps_ieee
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.float32_sums import plain_sums

INT, FLOAT, WORD = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.uint32)
INFINITY, SIGN, NAN = (np.uint32(word) for word in (0x7F800000, 0x80000000, NAN_PATTERN))
Reader = Callable[[Array], tuple[Array, bool | None]]  # b -> (what the loop reads, whether that is transposed)


def plain_product(
    a: Any, b: Any, accumulate: Any, fmt: Formats, promote: Any = None, out: Any = None
) -> Array | None:  # fmt: skip
    """Return a @ b as `fpsim.matmul` computes it, or None if the arguments need the general code of pipeline.py.

    a, b, accumulate, fmt, promote, out: as for `fpsim.matmul`.
    """
    if type(a) is not np.ndarray or type(b) is not np.ndarray:
        return None
    of_a, of_b = a.shape, b.shape
    if len(of_a) != 2 or len(of_b) != 2 or of_a[1] != of_b[0]:
        return None
    (m, k), n = of_a, of_b[1]
    if not (m * k and k * n and keeps_ieee()) or allows_general_loops():
        return None
    if out is not None and not _is_plain(out, (m, n), a, b):
        return None
    is_short = m * k <= SHORT and k * n <= SHORT and m * n <= SHORT
    if type(accumulate) is str:
        accumulate = ROWS.get(accumulate)
    if isinstance(accumulate, MatrixUnit):
        usual = fmt is None and (promote is None or type(promote) is int)
        return _by_unit(a, b, accumulate, promote, out, is_short) if usual else None
    usual = is_short and promote is None and (fmt is None or type(fmt) is Format or type(fmt) is str)
    return plain_sums(a, b, accumulate, fmt, out) if usual and isinstance(accumulate, Accumulator) else None


def _is_plain(out: Any, shape: tuple[int, int], a: Array, b: Array) -> bool:
    """Return whether kernels can write a result of this shape directly into `out`.

    `out` must be a writable, aligned, C-contiguous NumPy array of the shape that does not overlap a or b. Its dtype is
    not checked.
    """
    if type(out) is not np.ndarray or out.shape != shape:
        return False
    flags = out.flags
    usual = flags.c_contiguous and flags.writeable and flags.aligned
    return usual and not np.may_share_memory(out, a) and not np.may_share_memory(out, b)


class PlainUnit(NamedTuple):
    """The cached plan of products of plain arrays by one matrix unit, for one value of matmul's argument `promote`.

    Attributes:
      loop: the compiled kernel of `fused_product` for the unit.
      facts: the kernel's integer parameters by key. The keys are True and False (whether b's codes are transposed) if
        the kernel reads codes of b, or None alone if it reads floats. `facts` itself is None if the parameters depend
        on the operands' values.
      fused: the plan of the unit's products in fused.py, from which `loop` and `facts` are taken.
      decoders: functions that decode an operand a of at most SHORT (16384) elements to float32, by dtype of a; only
        dtypes of which every element is a valid code.
      readers: functions, by dtype of b, from an operand b of at most SHORT elements, or a stack of such operands, to a
        pair: the codes or float32 patterns that the kernel reads; and whether codes are transposed, None for floats.
      columns: a result with at least this many columns, or with no more rows than columns, is computed with vectors
        along its rows. A narrower one is computed as its transpose.
      promotion: instructions after which a partial sum is added to the total; 0 for none.
    """

    loop: Any
    facts: dict[bool | None, Array] | None
    fused: FusedPlan
    decoders: dict[np.dtype[Any], Decoder]
    readers: dict[np.dtype[Any], Reader]
    columns: int
    promotion: int


def _by_unit(
    a: Array, b: Array, unit: MatrixUnit, promote: int | None, out: Array | None, is_short: bool
) -> Array | None:
    """Return a @ b by a matrix unit; None for a unit, a dtype or an `out` that needs the general code of pipeline.py.

    is_short: whether a, b and the result have at most SHORT elements each. promote: terms of K after which a partial
    sum is added to a float32 total; None for no promotion.
    """
    plan = plain_unit(unit, promote)
    if plan is None or (out is not None and out.dtype != FLOAT):
        return None
    decode, read = plan.decoders.get(a.dtype), plan.readers.get(b.dtype)
    if decode is None or read is None:
        return None
    (m, k), n = a.shape, b.shape[1]
    is_one_run = is_short and (m <= n or n >= plan.columns)
    if not is_one_run and not (a.flags.aligned and b.flags.aligned):
        return None
    result = np.empty((m, n), FLOAT) if out is None else out
    result.fill(0)
    promotion = min(plan.promotion, k)  # all lengths from K on have the same effect
    if is_one_run:
        left, (right, turned) = decode(a).view(INT), read(b)
        facts = plan.facts[turned] if plan.facts else plan.fused.facts_of((left, right), turned)
        plan.loop(
            left[None], right[None], result.view(INT)[None], one_part(0, m, 0, n, promotion, 0, ADD), NO_FACTORS,
            NO_FACTORS, NOTHING, NOTHING, facts,
        )  # fmt: skip
        return result
    codes = a.view(unit.a.carrier.storage), b.view(unit.b.carrier.storage)
    add_product(result, UnitProduct(unit, *codes, NO_SCALES, NO_SCALES, promotion * unit.terms))
    canonical_nan()(result.view(WORD).reshape(-1), INFINITY, SIGN, NAN)
    return result


@lru_cache(maxsize=4096)
def plain_unit(unit: MatrixUnit, promote: int | None) -> PlainUnit | None:
    """Return the plan of products of plain arrays by a unit; None if no single loop computes them in float32.

    promote: terms of K after which a partial sum is added to a float32 total; None for no promotion.
    """
    if promote is not None and (promote < 1 or promote % unit.terms):
        return None
    fused = fused_plan(unit)
    is_one_loop = fused is not None and unit.rule is Rule.FUSED and unit.d.fmt == FP32
    if fused is None or not is_one_loop or unit.nan_code != NAN_PATTERN or unit.scale or numba.config.DISABLE_JIT:
        return None
    columns = PANEL_COLUMNS if rows_of(unit) == "plain" else VECTOR_COLUMNS // 2  # columns that a loop always computes
    decoders, of_b, storage = _decoders(unit.a), _decoders(unit.b), unit.b.carrier.storage
    readers: dict[np.dtype[Any], Reader]
    if fused.by_codes:
        readers = {dtype: lambda codes: in_stored_order(codes.view(storage)) for dtype in of_b}
    else:
        readers = {dtype: _reader(decoder) for dtype, decoder in of_b.items()}
    promotion = 0 if promote is None else promote // unit.terms
    return PlainUnit(fused.loop, fused.facts, fused, decoders, readers, columns, promotion)


def _decoders(element: Element) -> dict[np.dtype[Any], Decoder]:
    """Return functions that decode an operand to float32, keyed by the operand's dtype.

    Keys are only those dtypes of which every bit pattern is a valid code. element: the operand's format in a matrix
    unit, with the format of the codes that hold it.
    """
    fmt, decoders = element.carrier, {}
    for dtype in (full_dtype(fmt), DTYPES.get(fmt)):
        decoder = None if dtype is None else float32_decoder(fmt, np.dtype(dtype))
        if dtype is not None and decoder is not None:
            decoders[np.dtype(dtype)] = decoder
    return decoders


def _reader(decode: Decoder) -> Reader:
    """Return a function from b to (float32 patterns of b as int32, None), for a kernel that reads floats.

    decode: a function from an array of codes to float32. The None says that the kernel reads floats; the readers for
    kernels that read codes return whether these are transposed instead.
    """
    return lambda codes: (decode(codes).view(INT), None)
