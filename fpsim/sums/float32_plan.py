"""Plans of sums in float32: the accumulators that float32 reproduces, and the arguments of the kernels.

A panel is up to COLUMNS (128) columns of b, decoded. A strip is a block of the result, STRIP (16) rows of a by a panel;
it stays in the cache while it is computed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np

from fpsim.arrays import Array
from fpsim.casts.pipelines import decoding, encoding
from fpsim.core.layouts import decode_plan
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import DTYPES, FP32, Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime.pipeline import Stage, run_stages
from fpsim.runtime.processor import has_control, has_fma, rounding_control
from fpsim.runtime.vectors import widest_vectors
from fpsim.sums.accumulators import Accumulator, Chunked, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.sums.kernels import float32_rows as loops
from fpsim.sums.kernels.float32_pairs import GROUP, PAIRS, PLAIN_PAIRS, pairs_kernel
from fpsim.sums.kernels.float32_rows import BLOCK, COLUMNS, GRANULE, ROWS, STEPS

PRECISIONS = range(
    8, 12
)  # of formats that float32 rounds to: 24 >= 2 * 11 + 2, and a bound that grows by 1.3 in a block
TINY = -100  # products from 2**TINY on are normal float32 numbers, and so are their sums and errors
DIRECTED = Rounding.TOWARD_ZERO, Rounding.UP, Rounding.DOWN
IN_ANY_MODE = {loops.ROUNDED: loops.SIGNED} | {how: how for how in (loops.PLAIN, loops.FUSED, PAIRS, PLAIN_PAIRS)}
PLUS_ZERO = np.uint32(0)
WORD, FLOAT = np.dtype(np.uint32), np.dtype(np.float32)
MOST_TERMS = 1 << 62  # of a chunk; no sum has more
HUGE = 102  # numbers below 2**(HUGE + precision) can be rounded by adding a larger one


class StripWay(NamedTuple):
    """The arguments of the kernels that sum a strip (a block of the result, 16 rows by up to 128 columns) in float32.

    Attributes:
      how: number of the step that multiplies, adds and rounds, such as PLAIN of kernels/float32_rows.py.
      facts: uint64, constants of the accumulator (the fields of StripFacts), such as the limits within which float32 is
        exact.
      padding: bits of the zero, +0 or -0, that changes no sum when added.
    """

    how: int
    facts: Array
    padding: np.uint32


class Float32Sums(NamedTuple):
    """The plan by which float32 computes the sums of an accumulator, for operands of two formats.

    Attributes:
      way: arguments of the kernels.
      formats: formats of a and b; FP32 for an a that is all ones.
      storage: dtypes of the codes of a and b.
      layouts: for a and b, the constants by which kernels decode codes to float32 (the fields of DecodeLayout); None if
        codes of one become float32 by a table.
      result: format of the result.
      dtype: dtype of the result.
      cast: the compiled loop that converts float32 sums to codes of the result, as a Stage of runtime/pipeline.py; None
        for FP32.
    """

    way: StripWay
    formats: tuple[Format, Format]
    storage: tuple[np.dtype[Any], np.dtype[Any]]
    layouts: tuple[Array, Array] | None
    result: Format
    dtype: np.dtype[Any]  # of the result
    cast: Stage | None


@lru_cache(maxsize=4096)
def float32_sums(accumulator: Accumulator, formats: tuple[Format | None, Format]) -> Float32Sums | None:
    """Return the plan of an accumulator for operands of two formats; None if float32 cannot reproduce its sums.

    The result is cached. accumulator: one with its seed removed (`seedless`). formats: formats of a and b; None for a
    means that a is all ones.
    """
    way = None if accumulator.rounding is Rounding.STOCHASTIC else _strip_way(accumulator, formats)
    if way is None:
        return None
    present, result = (formats[0] or FP32, formats[1]), accumulator.result_format
    a, b = (float32_layout(fmt) for fmt in present)
    return Float32Sums(
        way,
        present,
        (present[0].storage, present[1].storage),
        None if a is None or b is None else (a, b),
        result,
        np.dtype(DTYPES.get(result, result.storage)),
        None if result == FP32 else encoding(FP32, exactly(result))[-1],
    )


@lru_cache(maxsize=4096)
def exactly(fmt: Format) -> CastOptions:
    """Return the options of a cast to `fmt` that rounds nothing, as its inputs are values of `fmt` already."""
    return CastOptions(fmt, Rounding.NEAREST_EVEN, "nonfinite", "keep", None, 32)


def _strip_way(accumulator: Accumulator, formats: tuple[Format | None, Format]) -> StripWay | None:
    """Return the arguments of the kernels that compute an accumulator's sums in float32; None if float32 cannot.

    formats: formats of a and b; None for a means that a is all ones.
    """
    fmt, outer = accumulator.fmt, accumulator.result_format
    usual = accumulator.overflow == "nonfinite" and accumulator.subnormals == "keep"
    nearest = accumulator.rounding is Rounding.NEAREST_EVEN
    kinds = (Sequential, FusedMultiplyAdd, Chunked, Pairwise)
    present = [operand for operand in formats if operand is not None]
    if not usual or not isinstance(accumulator, kinds) or numba.config.DISABLE_JIT:
        return None
    if not nearest and not (accumulator.rounding in DIRECTED and has_control()):
        return None
    if not all(map(FP32.holds, present)) or not (_can_round_to(fmt) and _can_round_to(outer)):
        return None
    join = _join(accumulator)
    how = _how(accumulator, sum(operand.precision for operand in present), len(present) < len(formats))
    coarse = fmt.min_exponent - fmt.mantissa_bits >= TINY  # so that products that are not normal there round to zero
    if nearest and how == loops.ROUNDED:
        fits = present[0].precision <= fmt.precision
        how = (loops.ROUNDED if coarse else loops.NORMAL) if fits else loops.WIDE
    if not nearest:
        how = None if how is None else IN_ANY_MODE.get(how)
        join = None if join == loops.OUTER_ROUNDED else join
    if how is None or join is None or (how != loops.PLAIN and not has_fma()):
        return None
    precision = min(fmt.precision, outer.precision)
    reach = min(fmt.max, outer.max, 2.0 ** (HUGE + precision))
    least = 0.0 if coarse and how != loops.ODD else 2.0**TINY
    scales = [2.0 ** (FP32.precision - total.precision) for total in (fmt, outer)]
    error = 2.0 ** (-precision if nearest else 1 - precision)
    numbers = np.array([(1 + error) ** (BLOCK + 2), reach, least, *scales, fmt.smallest_subnormal]).view(np.uint64)
    chunk = min(accumulator.chunk, MOST_TERMS) if isinstance(accumulator, Chunked) else loops.NO_CHUNK
    control = rounding_control(accumulator.rounding.name.lower()) if has_control() else 0
    padding = PLUS_ZERO if accumulator.rounding is Rounding.DOWN else loops.MINUS_ZERO
    facts = loops.StripFacts._make([*numbers.tolist(), _floor(fmt), _floor(outer), control, join, chunk])
    return StripWay(how, np.array(facts, np.uint64), padding)


def _can_round_to(fmt: Format) -> bool:
    """Return whether the float32 kernels can round sums to the format `fmt`.

    They can for FP32, and for signed formats of 8 to 11 significand bits whose values float32 holds and whose smallest
    exponent of normal values is not below float32's.
    """
    if fmt == FP32:
        return True
    return fmt.precision in PRECISIONS and fmt.signed and FP32.min_exponent <= fmt.min_exponent and FP32.holds(fmt)


def _how(accumulator: Accumulator, precision: int, terms: bool) -> int | None:
    """Return the number of the step in the float32 kernels that reproduces the accumulator; None if there is none.

    A step multiplies, adds and rounds; its number is PLAIN, FUSED, ROUNDED, WIDE, ODD, PAIRS or PLAIN_PAIRS. precision:
    significand bits of a product, or of a term. terms: True if a is all ones, so that b holds the terms.
    """
    if isinstance(accumulator, Pairwise):
        return PLAIN_PAIRS if accumulator.fmt == FP32 else PAIRS if precision <= FP32.precision else None
    fused = isinstance(accumulator, FusedMultiplyAdd)
    if accumulator.fmt == FP32:
        return loops.FUSED if fused and not terms else loops.PLAIN
    if precision <= FP32.precision:
        return loops.ODD if fused or terms else loops.ROUNDED
    return None if fused else loops.WIDE


def _join(accumulator: Accumulator) -> int | None:
    """Return how the kernels add a partial sum to the outer sum: NO_OUTER, OUTER_FP32 or OUTER_ROUNDED.

    NO_OUTER: the accumulator is not Chunked, so there is no outer sum. OUTER_FP32: a float32 addition. OUTER_ROUNDED: a
    float32 addition, rounded to the outer format. The result is None if the kernels cannot add chunks: the chunk is no
    multiple of 2 terms, or the outer format does not hold the values of the inner one.
    """
    if not isinstance(accumulator, Chunked):
        return loops.NO_OUTER
    if accumulator.chunk % STEPS:
        return None
    if accumulator.outer == FP32:
        return loops.OUTER_FP32
    return loops.OUTER_ROUNDED if accumulator.outer.holds(accumulator.fmt) else None


def _floor(fmt: Format) -> int:
    """Return the bits of the float32 that is 1.5 times the smallest normal value of `fmt`.

    To round a sum, loops add and subtract 2**(24 - precision) times this value or times 1.5 * 2**(exponent of the sum),
    whichever is larger.
    """
    return (fmt.min_exponent + FP32.bias) << FP32.mantissa_bits | 1 << (FP32.mantissa_bits - 1)


class Panels(NamedTuple):
    """The operands of the kernels as float32; a panel is `width` columns of b.

    Attributes:
      a: (rows, terms), padded with zeros of the sign that changes no sum.
      panels: (count, terms, width).
      ranges: (2, rows + count) uint32, one column per row of a, then one per panel. The first row has the bits of the
        largest magnitude. The second row has the bits of the smallest nonzero magnitude, as an integer less 1, so that
        a zero wraps around to the largest integer and is never the smallest.
    """

    a: Array
    panels: Array
    ranges: Array


def codes_of(codes: Array, fmt: Format) -> tuple[Array, Array]:
    """Return (codes in the dtype that the kernels read, in C order; the constants by which they decode these codes).

    The constants are the fields of a DecodeLayout. If the format has none (see `float32_layout`), codes are converted
    to float32 bit patterns here, and the constants are those of FP32.

    Args:
      codes: codes of `fmt`.
      fmt: a format whose values float32 holds.
    """
    layout = float32_layout(fmt)
    if layout is None:
        return codes_of(float_words(codes, fmt, FP32), FP32)
    return np.ascontiguousarray(codes, fmt.storage), layout


def float_words(codes: Array, fmt: Format, wide: Format) -> Array:
    """Return the values of codes of format `fmt` as bit patterns of `wide`, FP32 or FP64, in C order."""
    if fmt == wide:
        return np.ascontiguousarray(codes, wide.storage)
    words = np.empty(codes.shape, wide.storage)
    run_stages(decoding(fmt, wide, codes.dtype), codes, words)
    return words


@lru_cache(maxsize=1024)
def float32_layout(fmt: Format) -> Array | None:
    """Return the constants by which kernels decode codes of `fmt` to float32, the fields of a DecodeLayout; cached.

    None if codes of the format are converted by a table instead.
    """
    plan = decode_plan(fmt, 32)
    return None if plan is None else plan.layout


def panels_of(
    a: Array, b: Array, layouts: tuple[Array, Array], padding: np.uint32 = loops.MINUS_ZERO
) -> Panels:  # fmt: skip
    """Decode (M, K) and (K, N) codes into the padded float32 arrays that the kernels read.

    layouts: the constants by which codes of a and b are decoded (fields of DecodeLayout). padding: bits of the zero, +0
    or -0, with which a is padded.
    """
    (m, k), n = a.shape, b.shape[1]
    rows, terms = -(-m // ROWS) * ROWS, -(-k // GROUP) * GROUP
    width = min(COLUMNS, -(-n // GRANULE) * GRANULE)
    count = -(-n // width)
    floats, panels = np.empty((rows, terms), FLOAT), np.zeros((count, terms, width), FLOAT)
    ranges = np.empty((2, rows + count), WORD)
    loops.pack_kernel()(a, b, floats, panels, ranges, padding, *layouts)
    return Panels(floats, panels, ranges)


@lru_cache(maxsize=64)
def strips_kernel(how: int) -> Any:
    """Return the compiled kernel that computes strips of the result by the step number `how`.

    A strip is a block of 16 rows by a panel (up to 128 columns); strips are counted along rows of strips. The kernel is
    `(a, panels, c, out, given_up, ranges, first, stop, facts) -> lost` and computes strips first .. stop - 1.

    a, panels, ranges: as in Panels. c: (M, N) float32 bits that are added, or empty. out: (M, N) float32 bits, written.
    given_up: 1-D uint8, set to 1 for each strip that float32 cannot compute and whose part of `out` stays as it was,
    else to 0. lost: the number of ones. facts: constants of the accumulator, the fields of StripFacts.
    """
    if how in (PAIRS, PLAIN_PAIRS):
        return pairs_kernel(how)
    return loops.rows_kernel(how, widest_vectors() if how == loops.ROUNDED else "")


def run_strips(way: StripWay, operands: Panels, c: Array, out: Array, given_up: Array, first: int, stop: int) -> int:
    """Compute strips first .. stop - 1 of `out`, uint32 bits; return the number of strips that float32 cannot compute.

    A strip is a block of 16 rows by a panel (up to 128 columns); strips are counted along rows of strips. way:
    arguments of the kernels. operands: a and b, decoded. c: (M, N) float32 bits that are added, or empty. given_up: 1-D
    uint8, one element per strip, set to 1 if sums may leave the range in which float32 is exact, else to 0. The part of
    `out` of a strip marked 1 stays as it was.
    """
    a, panels, ranges = operands
    lost: int = strips_kernel(way.how)(a, panels, c, out, given_up, ranges, first, stop, way.facts)
    return lost
