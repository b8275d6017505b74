"""Casts: values to codes and back, each value rounded once from its exact value."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import FORMAT_OF, Array, code_array, float_array, output, words
from fpsim.errors import shown
from fpsim.formats.cast_options import CastKeywords, FormatLike, options_of, table_options, with_cast_keywords
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.named import DTYPES, FP32, FP64, Format
from fpsim.formats.named import format as find_format
from fpsim.formats.table_format import TableFormat, refuse_without_tiles, table_format
from fpsim.lazy import deferred
from fpsim.runtime.pipeline import run_stages

pipelines = deferred("fpsim.casts.pipelines")  # the stages of casts, which import numba
tables = deferred("fpsim.casts.tables")


@with_cast_keywords
def encode(x: npt.ArrayLike, fmt: FormatLike, *, out: Array | None = None, **keywords: Unpack[CastKeywords]) -> Array:
    """Round floats to a format, and return the results as codes.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape, or Python numbers, also in
        nested lists. Each value is rounded once from its exact value, float64 too. Arrays of integers, which may be
        codes, are refused: `fpsim.from_int` rounds them.
      fmt: the format, by name, dtype or object.
      rounding: "nearest_even", "nearest_away", "toward_zero", "up", "down", "odd" or "stochastic"; RNE, RTZ, SR,
        and the spellings of IEEE 754, CUDA and gfloat work as well.
      overflow: for values beyond the largest finite one, after rounding with an unbounded exponent:
        "nonfinite" (Inf; NaN if the format has no Inf; the largest finite value if it has neither, and in a
        mode that rounds toward zero), "saturate" (the largest finite value, for infinite input too) or
        "saturate_finite" (the same for finite input only). `fpsim.policies.OVERFLOWS` lists the conventions of
        libraries, which are accepted too.
      subnormals: "keep" or "flush", which turns a subnormal result into a zero of the same sign.
      seed: key of the stochastic mode, 0 to 2**64 - 1.
      random_bits: how many random bits the stochastic mode compares with the dropped fraction, 1 to 32: a value
        is rounded away from zero with probability floor(fraction * 2**random_bits) / 2**random_bits.
      out: unsigned array of x's shape and the format's storage dtype to fill; saves the page faults of a new one.

    Returns:
      Codes of x's shape: uint8 for formats of up to 8 bits, uint16 up to 16, uint32 up to 32, uint64 for FP64.
      NaN becomes the format's canonical NaN with its sign, +max in a format without NaN. The stochastic result is a
      function of (value, seed, flat index) alone.

    Raises:
      ValueError: unknown format or option, no seed, or an `out` that does not fit.
      TypeError: x is not an array of floats.

    Source: IEEE 754-2019, 4.3 and 7.4; OCP OFP8 v1.0; random numbers by Philox4x32-10.

    Example:
      >>> import fpsim as fp
      >>> fp.encode(np.float32([1.0, 0.3, 500.0]), "e4m3")
      array([ 56,  42, 127], dtype=uint8)
      >>> fp.encode(np.float32([500.0]), fp.E4M3, overflow="saturate")
      array([126], dtype=uint8)
      >>> fp.decode(fp.encode(np.full(4, 1.03), fp.E4M3, rounding="stochastic", seed=1), fp.E4M3)
      array([1.125, 1.125, 1.   , 1.   ], dtype=float32)
    """
    options: Any
    if type(fmt) is not Format and (table := table_format(fmt)) is not None:  # no look-up for the usual class
        options, stages = table_options(encode, table, keywords), tables
    else:
        options, stages = options_of(encode, fmt, keywords), pipelines
    source, source_fmt = float_array(x)
    target = output(out, source.shape, options.fmt.storage, source)
    run_stages(stages().encoding(source_fmt, options), words(source), target)
    return target


def decode(codes: npt.ArrayLike, fmt: FormatLike, dtype: npt.DTypeLike = np.float32, out: Array | None = None) -> Array:
    """Return the exact values of codes, as floats.

    Args:
      codes: unsigned integers of any shape, or an array of the format's own dtype. An array of signed integers with as
        many bits as the format, such as int8 for E4M3, is read as bit patterns.
      fmt: the format, by name, dtype or object.
      dtype: a float dtype that holds every value of the format.
      out: array of that dtype and of the codes' shape to fill.

    Returns:
      Array of `dtype` and the codes' shape. NaN codes become a quiet NaN with the code's sign; the only
      NaN of a FNUZ or P3109 format becomes a positive one.

    Raises:
      ValueError: a code is not a code of the format, the dtype cannot hold the format, or `out` does not fit.
      TypeError: codes are not integers.

    Example:
      >>> import fpsim as fp
      >>> fp.decode(np.uint8([0x38, 0x7E, 0x7F]), fp.E4M3)
      array([  1., 448.,  nan], dtype=float32)
    """
    real = dtype_of(dtype)
    target_fmt = None if real is None else FORMAT_OF.get(real)
    if target_fmt is None:
        raise ValueError(f"dtype must be a float dtype such as np.float32 or np.float64; got {shown(dtype)}.")
    source_fmt: Any
    if type(fmt) is not Format and (table := table_format(fmt)) is not None:  # no look-up for the usual class
        refuse_without_tiles(table)
        source_fmt, refuse, stages = table, _refuse_unless_table_held, tables
    else:
        source_fmt, refuse, stages = find_format(fmt), refuse_unless_held, pipelines
    refuse(source_fmt, target_fmt, "use dtype=np.float64")
    source = code_array(codes, source_fmt)
    target = output(out, source.shape, DTYPES[target_fmt], source)
    run_stages(stages().decoding(source_fmt, target_fmt, source.dtype), source, words(target))
    return target


@with_cast_keywords
def quantize(x: npt.ArrayLike, fmt: FormatLike, *, out: Array | None = None, **keywords: Unpack[CastKeywords]) -> Array:
    """Round floats to the values of a format, and return these as floats: `decode(encode(x))` in one pass.

    Args: as for `encode`; `out` has the dtype of the result.

    Returns:
      float64 for float64 input, else float32, of x's shape.

    Raises:
      ValueError: as for `encode`, or the dtype of the result cannot hold the format.
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> fp.quantize(np.float32([0.3, 3.14159, 500.0]), fp.E5M2)
      array([3.125e-01, 3.000e+00, 5.120e+02], dtype=float32)
    """
    options: Any
    if type(fmt) is not Format and (table := table_format(fmt)) is not None:  # no look-up for the usual class
        options, refuse, stages = table_options(quantize, table, keywords), _refuse_unless_table_held, tables
    else:
        options, refuse, stages = options_of(quantize, fmt, keywords), refuse_unless_held, pipelines
    source, source_fmt = float_array(x)
    target_fmt = FP64 if source_fmt == FP64 else FP32
    refuse(options.fmt, target_fmt, "pass x.astype(np.float64)")
    target = output(out, source.shape, DTYPES[target_fmt], source)
    run_stages(stages().quantizing(source_fmt, target_fmt, options), words(source), words(target))
    return target


@with_cast_keywords
def cast(x: npt.ArrayLike, fmt: FormatLike, *, out: Array | None = None, **keywords: Unpack[CastKeywords]) -> Array:
    """Round floats to a format, and return an array of the NumPy or ml_dtypes dtype of that format.

    Args: as for `encode`; `out` has the format's dtype.

    Returns:
      Array of `fmt.dtype` and x's shape.

    Raises:
      ValueError: as for `encode`, or the format has no dtype.
      TypeError: x is not an array of floats.

    Example:
      >>> import fpsim as fp
      >>> fp.cast(np.float64([1.0, 0.3]), fp.E4M3)
      array([1, 0.3125], dtype='float8_e4m3fn')
    """
    if type(fmt) is not Format and (table := table_format(fmt)) is not None:  # no look-up for the usual class
        raise ValueError(f"{table} has no NumPy or ml_dtypes dtype to cast to. Use fpsim.encode or quantize.")
    options = options_of(cast, fmt, keywords)
    dtype = options.fmt.dtype
    if dtype is None:
        raise ValueError(f"{options.fmt} has no NumPy or ml_dtypes dtype to cast to. Use fpsim.encode or quantize.")
    source, _ = float_array(x)
    target = output(out, source.shape, dtype, source)
    encode(source, fmt, out=words(target), **keywords)
    return target


@lru_cache(maxsize=1024)
def _refuse_unless_table_held(fmt: TableFormat, wide: Format, remedy: str) -> None:
    """Raise a ValueError unless the dtype of format `wide` holds every value of the table format `fmt`.

    remedy: the end of the message, which says what to do.
    """
    values = fmt.table()
    exact = quantize(values, wide)
    if not np.array_equal(exact, values, equal_nan=True):
        raise ValueError(f"{DTYPES[wide].name} cannot hold every value of {fmt}; {remedy}.")


@lru_cache(maxsize=4096)
def refuse_unless_held(narrow: Format, wide: Format, remedy: str) -> None:
    """Raise a ValueError unless the dtype of format `wide` holds every value of `narrow`.

    remedy: the end of the message, which says what to do.
    """
    if not wide.holds(narrow):
        raise ValueError(
            f"{DTYPES[wide].name} cannot hold every value of {narrow} "
            f"(smallest {narrow.smallest_subnormal:g}, largest {narrow.max:g}, {narrow.precision} bits); {remedy}."
        )
