"""Conversion between formats, and between a format and integers, each value rounded once."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.keywords import Rounded, WantedFlags, rounded
from fpsim.arithmetic.operands import Fillable, Formats
from fpsim.arrays import Array, sticky_float
from fpsim.casts.cast import decode, encode
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.rounding import Rounding


@rounded
def convert(a: npt.ArrayLike, to: FormatLike, **keywords: Unpack[Rounded]) -> Any:
    """Convert values of one format to another, each rounded once; NaN keeps its sign, not its payload.

    The result has the shape of a. It holds unsigned codes if a does or if no dtype stores the format `to`; else it has
    the format's dtype.

    Args:
      a: array of a float dtype, float64 too, or unsigned codes with `fmt`.
      to: the format of the result, by name, dtype or object.
      keywords: options of formats, rounding and flags; `help(fpsim.convert)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.convert(np.uint8([0x38, 0x7E]), "e5m2", fmt="e4m3", flags=True)
      (array([60, 95], dtype=uint8), array([0, 0], dtype=uint8))
      >>> fp.convert(np.float16([448, 500]), "e4m3")
      array([448, nan], dtype='float8_e4m3fn')
    """
    return evaluate("convert", (a,), keywords, to)


@rounded
def from_int(n: npt.ArrayLike, fmt: FormatLike, **keywords: Any) -> Any:
    """Convert integers to a format, each rounded once, and return their unsigned codes.

    The result has the shape of n and the dtype in which the format's codes are stored, such as uint8.

    Args:
      n: array of any integer dtype, up to 64 bits.
      fmt: the format of the result, by name, dtype or object.
      keywords: options of formats, rounding and flags; `help(fpsim.from_int)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.decode(fp.from_int([1, 17, 1000], "e4m3", overflow="saturate"), "e4m3")
      array([  1.,  16., 448.], dtype=float32)
    """
    return evaluate("from_int", (n,), keywords, fmt)


def from_long_integers(n: Array, fmt: Format, keywords: dict[str, Any]) -> Array:
    """Return the codes of integers of any size, each rounded once.

    n: array of Python integers (dtype object). fmt: a format of up to 32 bits. keywords: the rounding mode, and if it
    is stochastic the seed and random_bits, as for `fpsim.encode`.
    """
    if fmt != FP32 or keywords["rounding"] is not Rounding.STOCHASTIC:
        return encode(np.array([sticky_float(integer) for integer in n.flat]).reshape(n.shape), fmt, **keywords)
    # float64 has too few bits: those of a float32, and the 32 that are compared with random ones
    places = np.array([max(integer.bit_length() - 63, 0) for integer in n.flat]).reshape(n.shape)
    short = np.array([_cut(integer) for integer in n.flat], np.int64).reshape(n.shape)
    rounded = decode(from_int(short, fmt, **keywords), fmt, np.float64)
    with np.errstate(over="ignore"):
        return encode(np.ldexp(rounded, np.minimum(places, FP64.bias)), fmt)


def _cut(integer: int) -> int:
    """Return the leading 63 bits of an integer, with its sign; the last one is also set if any bit after them is 1."""
    magnitude = abs(integer)
    lost = max(magnitude.bit_length() - 63, 0)
    kept = magnitude >> lost
    kept |= kept << lost != magnitude
    return -kept if integer < 0 else kept


def to_int(
    a: npt.ArrayLike, dtype: npt.DTypeLike = np.int64, *, fmt: Formats = None,
    rounding: str | Rounding = "nearest_even", input_subnormals: str = "keep", seed: int | None = None,
    random_bits: int = 32, flags: WantedFlags = False, out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Round values to integers of a dtype, elementwise.

    Args:
      a: array of a float dtype, float64 too, or unsigned codes with `fmt`.
      dtype: the integer dtype of the result.
      fmt: the format of a if a holds codes, by name, dtype or object; None if a has a float dtype.
      rounding, seed, random_bits: the rounding mode, and the seed and number of random bits of stochastic rounding, as
        in `fpsim.encode`.
      input_subnormals: "keep", or "flush" to read subnormal operands as zeros.
      flags: True to return (integers, uint8 flags per element), "any" for (integers, one `fpsim.Flags` of all). A value
        that is not an integer raises INEXACT; NaN and values that the dtype cannot hold raise INVALID.
      out: array of the integer dtype and a's shape to fill.

    Returns:
      Array of the integer dtype and a's shape, or `out`; values outside the dtype's range become its nearest bound, NaN
      its largest integer. With flags, a tuple (integers, flags).

    Raises:
      ValueError: dtype is not an integer dtype, or as for `fpsim.add`.

    Source: IEEE 754-2019, 5.8; results of invalid operations as in RISC-V.

    Example:
      >>> import fpsim as fp
      >>> fp.to_int(np.float16([2.5, -1.75, 300, np.nan]), np.int8, flags=True)
      (array([  2,  -2, 127, 127], dtype=int8), array([ 1,  1, 16, 16], dtype=uint8))
    """
    words = {
        "fmt": fmt, "rounding": rounding, "input_subnormals": input_subnormals, "seed": seed,
        "random_bits": random_bits, "flags": flags, "out": out,
    }  # fmt: skip
    return evaluate("to_int", (a,), words, dtype)
