"""Inputs at which the result of a cast can change: values, ties, their neighbours, edges of ranges, and specials."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.arrays import FORMAT_OF, Array, distinct, words
from fpsim.errors import require_integer, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.float64_numbers import exact_float
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.formats.named import format as find_format

Doubles = npt.NDArray[np.float64]
ANY = 512  # random inputs of each sort
MOST_AROUND = 1 << 16  # neighbours of a point on either side

SOURCES = tuple(np.dtype(dtype) for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
BEHIND = (FP16, BF16, FP32)  # formats that casts often go through; their edges are points too
INTEGERS = (7, 8, 15, 16, 24, 31, 32, 63, 64)  # powers of two at which conversions through integers break


def check_around(around: int) -> None:
    """Raise a TypeError or ValueError unless `around`, a number of neighbouring floats, is an integer 0 .. 65,536."""
    require_integer("around", around, 0)
    if around > MOST_AROUND:
        raise ValueError(f"around must be at most {MOST_AROUND:,}; got {shown(around)}.")


def points(fmt: FormatLike, dtype: npt.DTypeLike = "float32", around: int = 1) -> Array:
    """Return the inputs at which the result of a cast can change, with which every check of a cast begins.

    These are every finite value of the format and every tie between two of them (among the ties: half the smallest
    value, and the edge of overflow), each with its neighbours in `dtype`. Added are zeros, infinities, and NaNs of both
    signs and with a payload. Also added are the smallest and largest values of `dtype` and of FP16, BF16 and FP32,
    through which casts often go, and the powers of two at which ranges of integers end.

    Args:
      fmt: the format, by name, dtype or object. For a format with more than 16 bits, only some of its values are used:
        in every binade the mantissas at both ends, in the middle, and those with a single bit set or cleared.
      dtype: dtype of the points: float16, bfloat16, float32 or float64. Values that it cannot represent are rounded.
      around: number of neighbours of each value or tie, in `dtype`, on either side.

    Returns:
      Array of shape (n,) and dtype `dtype`, each bit pattern once, in the order negative NaNs, -Inf, ..., -0, 0, ...,
      Inf, positive NaNs. It depends on the arguments alone; for E4M3 in float32, n is 1,686.

    Raises:
      ValueError: the format is unknown or an integer format, the dtype is another one, or around is not 0 to 65,536.
      TypeError: around is not an integer.

    Example:
      >>> import fpsim as fp
      >>> x = fp.testing.points("e4m3")
      >>> x.size, bool(np.isin(np.float32([464, 2.0**-10, -448]), x).all())
      (1686, True)
      >>> fp.testing.points("e2m1", "bfloat16", around=0)[-4:]
      array([inf, nan, nan, nan], dtype=bfloat16)
    """
    target_fmt, source = find_format(fmt), _source(dtype)
    check_around(around)
    with np.errstate(all="ignore"):
        centres = np.concatenate([_values_and_ties(target_fmt), _seams(FORMAT_OF[source])])
        magnitudes = words(np.unique(centres).astype(source))
    unsigned = magnitudes.dtype.type
    infinity = int(words(np.array(np.inf, source)))
    steps = np.arange(-around, around + 1)
    near = magnitudes.astype(np.int64)[:, None] + steps
    near = distinct(np.clip(near, 0, infinity)).astype(unsigned)
    quiet = FORMAT_OF[source].nan_code
    assert quiet is not None
    sign = unsigned(1 << (8 * source.itemsize - 1))
    # a cast that rounds by adding to the pattern carries from the last NaN, all ones, into the sign
    positive = np.concatenate([near, np.array([quiet, quiet | 0x15, sign - 1], unsigned)])
    return np.concatenate([(positive | sign)[::-1], positive]).view(source)


def _source(dtype: npt.DTypeLike) -> np.dtype[np.generic]:
    """Return `dtype` as a NumPy dtype; raise a ValueError unless it is float16, bfloat16, float32 or float64."""
    known = dtype_of(BF16.dtype if isinstance(dtype, str) and dtype.lower() in ("bfloat16", "bf16") else dtype)
    if known is None or known not in SOURCES:
        names = ", ".join(source.name for source in SOURCES)
        raise ValueError(f"dtype must be one of {names}; got {shown(dtype)}.")
    return known


def _values_and_ties(fmt: Format) -> Doubles:
    """Return a format's magnitudes, the ties between them, and fractions of the smallest ones, as float64 (n,).

    The magnitudes are all finite ones, and two above the largest: those of the next two codes if these were finite
    too. The fractions are 1/4, 1/2 and 3/4 of the smallest subnormal, and 1/2 of the smallest normal value. Of a format
    with more than 16 bits, only some mantissas of each binade are used (see `points`).
    """
    places = fmt.min_exponent - fmt.mantissa_bits
    if fmt.bits <= 16:
        codes = np.arange(fmt.max_code + 3)
    else:
        ones = (1 << fmt.mantissa_bits) - 1
        single = {1 << bit for bit in range(fmt.mantissa_bits)}
        kept = {0, 1, 2, ones // 2, ones // 2 + 1, ones - 1, ones} | single | {ones ^ bit for bit in single}
        fields = np.arange((fmt.max_code >> fmt.mantissa_bits) + 1) << fmt.mantissa_bits
        codes = np.append(np.add.outer(fields, sorted(kept)).ravel(), fmt.max_code + np.arange(1, 3))
    twice = 2 * codes.astype(np.uint64)  # those of FP64 exceed int64
    halves = distinct(np.concatenate([twice, twice + np.uint64(1)]))  # odd ones are ties
    fields = (halves >> np.uint64(fmt.mantissa_bits + 1)).astype(np.int64)
    fractions = (halves & np.uint64((2 << fmt.mantissa_bits) - 1)).astype(np.int64)
    if fmt.subnormals:
        hidden = np.where(fields > 0, 2 << fmt.mantissa_bits, 0)
        exponents = np.maximum(fields, 1) - 1 + places - 1
    else:
        hidden, exponents = np.full(fields.shape, 2 << fmt.mantissa_bits), fields + places - 1
    magnitudes = np.ldexp((hidden | fractions).astype(np.float64), exponents.astype(np.int32))
    smallest = fmt.smallest_subnormal
    tiny = [smallest / 2, smallest / 4, smallest / 2 * 1.5, fmt.smallest_normal / 2]
    return np.append(magnitudes, tiny)


def _seams(source: Format) -> Doubles:
    """Return float64 magnitudes at which casts from `source` often break: 0, 1, Inf, limits of formats, powers of two.

    The powers of two, such as 2**31, are those at which conversions through integer types overflow. The limits are
    those of `source`, and of FP16, BF16 and FP32 if `source` can represent all their values: the largest value, the
    overflow threshold, the smallest normal value, the smallest subnormal, and half of each of these two.
    """
    edges = [0.0, 1.0, source.max, math.inf]
    for fmt in (source, *BEHIND):
        if source.holds(fmt):
            half = exact_float(1, fmt.min_exponent - fmt.mantissa_bits - 1) if fmt.min_exponent > -1000 else 0.0
            edges += [fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, half, fmt.smallest_normal / 2]
            edges += [fmt.max + fmt.ulp(fmt.max) / 2] if fmt.max < 1e300 else []
    return np.array(edges + [2.0**power for power in INTEGERS if 2.0**power < source.max])


def further_points(fmt: FormatLike, dtype: npt.DTypeLike = "float32", seed: int = 0) -> Array:
    """Return inputs that checks add to `points`: values near ties, which show lost sticky bits, and random values.

    Args:
      fmt, dtype: the target format and the dtype of the inputs, as for `points`.
      seed: seed of the random values.

    Returns:
      Array of shape (n,) and dtype `dtype`, in no order, to be used in addition to `points`; some patterns may repeat.
      n is 1,840 for float64 and 1,376 for others. 512 values are random in the format's range, 512 random bit patterns.

    Example:
      >>> from fpsim.testing.boundary_points import further_points
      >>> further_points("e4m3", "float16").dtype
      dtype('float16')
    """
    target_fmt, source = find_format(fmt), _source(dtype)
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 1 << 8 * source.itemsize, ANY, dtype=np.dtype(f"u{source.itemsize}"))
    middle = math.sqrt(target_fmt.smallest_normal) * math.sqrt(target_fmt.max)
    with np.errstate(all="ignore"):
        spread = np.exp2(rng.uniform(-1, 1, ANY) * (target_fmt.exponent_bits**2 + 4)) * middle
        near = (spread * rng.choice([-1, 1], ANY)).astype(source)
        ladders = _ladders(target_fmt, FORMAT_OF[source]).astype(source)
    return np.concatenate([ladders, -ladders, near, patterns.view(source)])


def _ladders(fmt: Format, source: Format) -> Doubles:
    """Return float64 values (n,) around four ties of `fmt`: the first two above 1, and above the smallest subnormal.

    Their distances from a tie are 1/4, 1/8, ..., 2**-(p - 1) of the spacing of `fmt` there, where p is the number of
    significand bits of `source`, the format of the inputs, or 24 if that is more.
    """
    values = []
    smallest = max(FP32.mantissa_bits, source.mantissa_bits) + 1
    for start in (1.0, fmt.smallest_subnormal):
        unit = fmt.ulp(start)
        for step in range(2):
            tie = start + unit * (step + 0.5)
            offsets = unit * 2.0 ** -np.arange(2, smallest, dtype=np.float64)
            values += [tie - offsets, tie + offsets]
    return np.concatenate(values)
