"""Machine limits of a format, under the names of numpy.finfo."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format
from fpsim.formats.table_format import TableFormat, table_format


@dataclass(frozen=True)
class FloatInfo:
    """Machine limits of a format under the names of numpy.finfo, as Python numbers.

    Attributes:
      fmt, bits, dtype: the format, the width of a code, and the NumPy or ml_dtypes dtype or None.
      max, min: largest and lowest finite value.
      smallest_normal, smallest_subnormal, tiny: smallest positive values; tiny is another name of smallest_normal.
      eps, epsneg: distance from 1 to the next larger and the next smaller value, whether or not the largest value
        exceeds 1.
      machep, negep: log2 of eps and of epsneg.
      nmant, nexp, iexp: bits of the mantissa, and bits of the exponent field under two names.
      minexp, maxexp: exponents of the smallest normal value and of the smallest power of two that overflows.
      precision: decimal digits, floor(-log10(eps)); for every format by numpy's rule, from which ml_dtypes deviates.
      resolution: 10**-precision.
    """

    fmt: Format
    bits: int
    dtype: np.dtype[Any] | None
    eps: float
    epsneg: float
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float
    tiny: float
    nmant: int
    nexp: int
    iexp: int
    machep: int
    negep: int
    minexp: int
    maxexp: int
    precision: int
    resolution: float


@dataclass(frozen=True)
class TableInfo:
    """Limits of a table format, under those names of numpy.finfo that apply to it.

    Attributes:
      fmt, bits, dtype: the format, the width of a code, and None, as there is no dtype.
      eps, epsneg: distances from 1 to the next larger and the next smaller value; NaN if 1 or that neighbour is no
        value of the format.
      max, min: largest and lowest finite value.
      tiny: smallest nonzero magnitude.
    """

    fmt: TableFormat
    bits: int
    dtype: None
    eps: float
    epsneg: float
    max: float
    min: float
    tiny: float


@overload
def finfo(fmt: TableFormat) -> TableInfo: ...


@overload
def finfo(fmt: str | Format | npt.DTypeLike) -> FloatInfo: ...


def finfo(fmt: str | Format | TableFormat | npt.DTypeLike) -> FloatInfo | TableInfo:
    """Return the machine limits of a format.

    Args:
      fmt: the format, by name, dtype or object.

    Returns:
      A frozen FloatInfo. `precision` and `resolution` follow numpy's rule for every format. For a table format, such as
      fp.NF4, a TableInfo, which has only the names that apply to a table.

    Raises:
      ValueError: unknown format.

    Example:
      >>> import fpsim as fp
      >>> info = fp.finfo("e4m3")
      >>> info.max, info.smallest_normal, info.smallest_subnormal, info.eps
      (448.0, 0.015625, 0.001953125, 0.125)
    """
    table = table_format(fmt)
    if table is not None:
        values = [value for value, _ in table.finite]
        at = values.index(1.0) if 1.0 in values else -1
        eps = values[at + 1] - 1 if 0 <= at < len(values) - 1 else math.nan
        epsneg = 1 - values[at - 1] if at > 0 else math.nan
        return TableInfo(table, table.bits, None, eps, epsneg, table.max, table.min, table.smallest)
    spec = find_format(fmt)
    step = math.ldexp(1.0, spec.min_exponent - spec.mantissa_bits) if spec.has_zero else 0.0  # of subnormals
    eps, epsneg = max(spec.eps, step), max(spec.eps / 2, step)
    precision = max(int(-math.log10(eps)), 0)
    same = ("bits", "dtype", "max", "min", "smallest_normal", "smallest_subnormal")
    return FloatInfo(
        fmt=spec,
        **{name: getattr(spec, name) for name in same},
        eps=eps,
        epsneg=epsneg,
        tiny=spec.smallest_normal,
        nmant=spec.mantissa_bits,
        nexp=spec.exponent_bits,
        iexp=spec.exponent_bits,
        machep=round(math.log2(eps)),
        negep=round(math.log2(epsneg)),
        minexp=spec.min_exponent,
        maxexp=math.frexp(spec.max)[1],
        precision=precision,
        resolution=10.0**-precision,
    )
