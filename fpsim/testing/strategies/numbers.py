"""Hypothesis strategies of codes, values, and inputs at which the result of a cast changes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from fpsim.casts.cast import decode, quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.named import FP32, Format
from fpsim.formats.named import format as find_format
from fpsim.testing.boundary_points import check_around, points
from fpsim.testing.strategies.printed import Bits, HexFloat

Doubles = npt.NDArray[np.float64]
TABLE_BITS = 16  # formats up to this width have a table to draw from
QUIET, SIGNALLING = 0x7FC00000, 0x7F800001  # NaNs of float32


def codes(fmt: FormatLike) -> st.SearchStrategy[int]:
    """Return a strategy of codes of a format: integers that print in hexadecimal; failing examples shrink toward 0.

    Args:
      fmt: the format, by name, dtype or object.

    Raises:
      ValueError: an unknown format, or an integer format.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.codes("e4m3"), lambda code: np.isnan(fp.E4M3.value_of(code)))
      0x7F
    """
    target_fmt = find_format(fmt)
    width, most = target_fmt.bits, (1 << target_fmt.bits) - 1
    normal = 1 << target_fmt.mantissa_bits
    seams = {0, 1, normal - 1, normal, target_fmt.max_code, target_fmt.max_code + 1, target_fmt.top_magnitude}
    edges = {side | target_fmt.sign_bit * negative for side in seams for negative in (0, 1)}
    edges = {edge for edge in edges if 0 <= edge <= most}
    return (st.integers(0, most) | st.sampled_from(sorted(edges))).map(lambda code: Bits(code, width))


def values(fmt: FormatLike, *, allow_nan: bool = True, allow_infinity: bool = True) -> st.SearchStrategy[float]:
    """Return a strategy of a format's values: floats that print in hexadecimal; failing examples shrink toward 0.0.

    Args:
      fmt: the format, by name, dtype or object.
      allow_nan, allow_infinity: whether NaN and Inf are drawn if the format has them.

    Raises:
      ValueError: an unknown format, or an integer format.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.values("e4m3"), lambda x: x > 16) in fp.E4M3.table()
      True
    """
    target_fmt = find_format(fmt)

    def allowed(x: float) -> bool:
        return bool(np.isfinite(x)) or (allow_nan if np.isnan(x) else allow_infinity)

    if target_fmt.bits <= TABLE_BITS:
        ordered = _floats(x for x in simplest_values(target_fmt) if allowed(x))
        often = [x for x in ordered if x == 0 or np.isnan(x)]  # -0 and NaN, which one in hundreds would be
        return st.sampled_from(ordered) | st.sampled_from(often or ordered[:1])
    edges = [target_fmt.max, target_fmt.smallest_normal, target_fmt.smallest_subnormal]
    wide = st.floats(allow_nan=allow_nan, allow_infinity=allow_infinity)
    rounded = wide.map(lambda x: float(quantize(x, target_fmt, overflow="saturate_finite")))
    return (rounded | st.sampled_from([*edges, *(-x for x in edges)])).filter(allowed).map(HexFloat)


def ties(fmt: FormatLike, *, around: int = 0, dtype: npt.DTypeLike | None = None) -> st.SearchStrategy[float]:
    """Return a strategy of midpoints of a format's neighbouring values: floats that print in hexadecimal.

    Args:
      fmt: the format, by name, dtype or object, of up to 32 bits.
      around: the largest distance from the midpoint, in floats of `dtype`; 1 is enough to find double rounding.
      dtype: dtype whose values are drawn, float32 or float64; None for float32 if it can represent the midpoints, else
        float64. The drawn objects are Python floats.

    Raises:
      ValueError: an unknown format, a dtype that cannot represent the midpoints, or an around that is not 0 to 65,536.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.ties("e4m3"), lambda x: x > 20) > 20
      True
      >>> twice = lambda x: fp.quantize(np.float16(x), "e4m3") != fp.quantize(np.float32(x), "e4m3")
      >>> find(fp.testing.strategies.ties("e4m3", around=1), twice) != 0
      True
    """
    target_fmt = find_format(fmt)
    check_around(around)
    source = source_of(target_fmt, dtype)
    if target_fmt.bits <= TABLE_BITS:
        middle: st.SearchStrategy[float] = st.sampled_from(_floats(_simplest_ties(target_fmt)))
    else:
        inner = values(target_fmt, allow_nan=False, allow_infinity=False)
        below = inner.filter(lambda x: abs(x) < target_fmt.max)
        middle = below.map(lambda x: HexFloat(x + float(np.copysign(target_fmt.ulp(x) / 2, x))))
    return _moved(middle, around, source)


def near_overflow(fmt: FormatLike, *, dtype: npt.DTypeLike | None = None) -> st.SearchStrategy[float]:
    """Return a strategy of floats around a format's largest value and its overflow threshold, of larger ones, and Inf.

    If the format is signed, the strategy also has their negatives. Failing examples shrink toward the largest value.

    Args:
      fmt: the format, by name, dtype or object, of up to 32 bits.
      dtype: dtype whose values are drawn, float32 or float64; None for float32 if it can represent the format's
        midpoints, else float64. The drawn objects are Python floats.

    Raises:
      ValueError: an unknown format, or a dtype that cannot represent its midpoints.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.near_overflow("e4m3"), lambda x: x > 464) > 464
      True
    """
    target_fmt = find_format(fmt)
    source = source_of(target_fmt, dtype)
    most, step = target_fmt.max, target_fmt.ulp(target_fmt.max)
    far = [most + step, 2 * most, float(np.finfo(source).max), np.inf]
    return _next_to([most, most + step / 2, most - step / 2, most - step], far, target_fmt, source)


def subnormal_seam(fmt: FormatLike, *, dtype: npt.DTypeLike | None = None) -> st.SearchStrategy[float]:
    """Return a strategy of floats around a format's smallest normal value, smallest value and half of it, and 0.

    If the format is signed, the strategy also has their negatives.

    Args:
      fmt: the format, by name, dtype or object, of up to 32 bits.
      dtype: dtype whose values are drawn, float32 or float64; None for float32 if it can represent the format's
        midpoints, else float64. The drawn objects are Python floats.

    Raises:
      ValueError: an unknown format, or a dtype that cannot represent its midpoints.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.subnormal_seam("e4m3"), lambda x: 0 < x < 2**-10) < 2**-10
      True
    """
    target_fmt = find_format(fmt)
    source = source_of(target_fmt, dtype)
    normal, small = target_fmt.smallest_normal, target_fmt.smallest_subnormal
    below = normal - small if target_fmt.subnormals else normal / 2
    centres = [normal, below, below + (normal - below) / 2, small, small * 1.5, small / 2, small * 0.75]
    far = [0.0, small / 4, float(np.finfo(source).smallest_subnormal)]
    return _next_to(centres, far, target_fmt, source)


def inputs(fmt: FormatLike, *, dtype: npt.DTypeLike | None = None) -> st.SearchStrategy[float]:
    """Return a strategy of inputs of a cast: the values of `fp.testing.points`, and any float of the dtype.

    Points at the ends of the format's range (0, subnormals, the largest value and above) are drawn more often than
    others.

    Args:
      fmt: the format, by name, dtype or object, of up to 32 bits.
      dtype: dtype whose values are drawn, float32 or float64; None for float32 if it can represent the format's
        midpoints, else float64. The drawn objects are Python floats.

    Raises:
      ValueError: an unknown format, or a dtype that cannot represent its midpoints.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.inputs("e4m3"), lambda x: True)
      float.fromhex('0x0p+0')
    """
    target_fmt = find_format(fmt)
    source = source_of(target_fmt, dtype)
    ordered = _points(target_fmt, source)
    with np.errstate(invalid="ignore"):
        inside = (np.abs(ordered) > target_fmt.smallest_normal) & (np.abs(ordered) < target_fmt.max)
    seams = near_overflow(target_fmt, dtype=source) | subnormal_seam(target_fmt, dtype=source)
    bits = float32_bits().map(lambda bits: HexFloat(np.uint32(bits).view(np.float32)))
    any_float = bits if source == np.float32 else st.floats().map(HexFloat)
    zeros = st.sampled_from([HexFloat(0.0), HexFloat(-0.0)])
    return _one_of(ordered) | _one_of(ordered[~inside]) | seams | any_float | zeros


def float32_bits() -> st.SearchStrategy[int]:
    """Return a strategy of float32 bit patterns, NaNs and subnormals included: integers that print in hexadecimal.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.float32_bits(), lambda bits: np.uint32(bits).view(np.float32) > 2) > 0x40000000
      True
    """
    readable = st.floats(width=32, allow_nan=False).map(lambda x: int(np.float32(x).view(np.uint32)))
    signs = st.sampled_from([0, 1 << 31])
    tiny = st.tuples(signs, st.integers(1, 0x7FFFFF)).map(sum)
    nans = st.tuples(signs, st.sampled_from([QUIET, SIGNALLING]) | st.integers(SIGNALLING, 0x7FFFFFFF)).map(sum)
    return st.one_of(readable, st.integers(0, 2**32 - 1), tiny, nans).map(lambda bits: Bits(bits, 32))


def source_of(fmt: Format, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the dtype of inputs of a cast to a format: `dtype`, or the narrowest one that has the format's midpoints.

    If `dtype` is None, the narrowest one, float32 or float64, is returned. A midpoint is halfway between two
    neighbouring values.

    Raises:
      ValueError: the format has more than 32 bits, or `dtype` cannot represent the midpoints or is neither float32 nor
        float64.
    """
    single = FP32.mantissa_bits > fmt.mantissa_bits and FP32.holds(fmt) and fmt.smallest_subnormal >= 2.0**-148
    if fmt.bits > 32:
        raise ValueError(f"fmt must have midpoints that float64 holds; got {fmt.name}. Use a format of up to 32 bits.")
    if dtype is None:
        return np.dtype(np.float32 if single else np.float64)
    source = dtype_of(dtype)
    if source not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64; got {shown(dtype)}.")
    if source == np.float32 and not single:
        raise ValueError(f"dtype must hold the midpoints of {fmt.name}, which float32 does not; use float64.")
    return np.dtype(source)


@lru_cache(maxsize=32)
def simplest_values(fmt: Format) -> Doubles:
    """Return every value of a format once, float64, the simplest first, since examples shrink toward the first values.

    Values with fewer binary digits after the point come first. Among values with equally many, those of smaller
    magnitude come first, and a positive value before its negative. Inf, -Inf and NaN are last.
    """
    table = np.asarray(fmt.table(), np.float64)
    finite = table[np.isfinite(table)]
    _, first = np.unique(finite.view(np.uint64), return_index=True)
    specials = [x for x in (np.inf, -np.inf) if x in table]
    specials += [] if fmt.nan_code is None else [table[fmt.nan_code]]
    return np.concatenate([in_order(finite[first]), specials])


@lru_cache(maxsize=32)
def codes_by_value(fmt: Format) -> npt.NDArray[Any]:
    """Return every code of a format, sorted by the number of binary digits after the point of its value.

    Examples shrink toward the first codes. Codes whose values have equally many of these digits are sorted by
    magnitude, positive first. Inf and NaN are last. The dtype is the unsigned integer in which codes are stored.
    """
    table = np.asarray(decode(np.arange(1 << fmt.bits).astype(fmt.storage), fmt, np.float64))
    order = np.argsort(~np.isfinite(table), kind="stable")
    finite = int(np.isfinite(table).sum())
    return np.concatenate([order[:finite][_order(table[order[:finite]])], order[finite:]]).astype(fmt.storage)


def in_order(x: Doubles) -> Doubles:
    """Return finite floats sorted by the number of binary digits after the point, then by magnitude, positive first."""
    return x[_order(x)]


def _order(x: Doubles) -> npt.NDArray[np.intp]:
    """Return the indices that sort floats by number of binary digits after the point, then magnitude, then sign."""
    mantissas, exponents = np.frexp(np.abs(x))
    integers = np.ldexp(mantissas, 53).astype(np.int64)
    zeros = np.where(integers == 0, 53, np.frexp((integers & -integers).astype(np.float64))[1] - 1)
    places = np.maximum(53 - exponents - zeros, 0)
    return np.lexsort((np.signbit(x), np.abs(x), places))


@lru_cache(maxsize=32)
def _simplest_ties(fmt: Format) -> Doubles:
    """Return the midpoints of a format's neighbouring finite values as float64.

    Those with few binary digits after the point come first.
    """
    finite = np.unique(np.abs(fmt.table()[np.isfinite(fmt.table())]))
    middles = finite[:-1] + (finite[1:] - finite[:-1]) / 2
    return in_order(np.concatenate([middles, -middles]) if fmt.signed else middles)


@lru_cache(maxsize=8)
def _points(fmt: Format, source: np.dtype[Any]) -> Doubles:
    """Return the boundary points of a format as float64, those with few binary digits after the point first.

    Examples shrink toward the first points. All points are values of the dtype `source`; Inf and NaN are last.
    """
    x = points(fmt, source).astype(np.float64)
    return np.concatenate([in_order(x[np.isfinite(x)]), x[~np.isfinite(x)]])


def _one_of(table: Doubles) -> st.SearchStrategy[float]:
    """Return a strategy of the elements of an array; examples shrink toward the first one."""
    return st.integers(0, table.size - 1).map(lambda place: HexFloat(table[place]))


def _moved(middle: st.SearchStrategy[float], around: int, source: np.dtype[Any]) -> st.SearchStrategy[float]:
    """Return a strategy of the floats of `middle`, each moved up or down by at most `around` floats of a dtype.

    source: the dtype. Examples shrink toward floats that are not moved.
    """
    if not around:
        return middle
    steps = sorted(range(-around, around + 1), key=lambda step: (abs(step), step < 0))

    def move(x: float, step: int) -> float:
        near = source.type(x)
        for _ in range(abs(step)):
            with np.errstate(all="ignore"):
                near = np.nextafter(near, source.type(np.inf if (step > 0) == (x >= 0) else -np.inf))
        return HexFloat(near)

    return st.builds(move, middle, st.sampled_from(steps))


def _next_to(
    centres: list[float], far: list[float], fmt: Format, source: np.dtype[Any]
) -> st.SearchStrategy[float]:  # fmt: skip
    """Return a strategy of the floats `centres` with their neighbours in the dtype `source`, and of the floats `far`.

    The floats `far` are drawn without neighbours. If `fmt` is signed, the negatives of all these floats are included.
    """
    with np.errstate(all="ignore"):
        near = np.array(centres).astype(source)
        outward = np.nextafter(near, source.type(np.inf))
        inward = np.nextafter(near, source.type(0))
        floats = np.concatenate([near, outward, inward, np.array(far).astype(source)]).astype(np.float64)
    return st.sampled_from(_floats(np.concatenate([floats, -floats]) if fmt.signed else floats))


def _floats(x: Any) -> list[float]:
    """Return an iterable's floats as a list without duplicates, in the same order; 0.0 and -0.0 are distinct."""
    return [HexFloat(kept) for kept in {float(number).hex(): number for number in x}.values()]
