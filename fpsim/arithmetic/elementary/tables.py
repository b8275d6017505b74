"""Tables of a function's exact results for every code of a format of up to 16 bits, kept in the kernels' cache folder.

One table serves every rounding mode, result format, policy and flag: an entry has 61 bits of the result and a sticky
bit, and is then rounded like the results of other operations. At most 56 bits are needed: 24 of the rounded result, and
32 that stochastic rounding compares with random bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.core.number import BIAS, FIELD_OF_INFINITY, FIELD_OF_ZERO, FINITE, INFINITE, NAN, TOP
from fpsim.formats.ieee import Flags
from fpsim.formats.named import Format
from fpsim.runtime.kernel_files import TABLE_SUFFIX, base_folder, read_whole, tidy, write_whole

CONTENT = 1  # version of the files: raise it when their content or an entry changes
ON_DISK_FROM = 10  # bits of a format: smaller tables take less than a tenth of a second
NEGATIVE, KIND_SHIFT, RAISED_SHIFT = 1, 1, 3  # bits of a state

ODD = ("sin", "tan", "tanh", "erf", "cbrt", "reciprocal")  # f(-x) = -f(x)
EVEN = ("cos",)
# Limits at +Inf and at -Inf; NaN where there is none, an invalid operation. IEEE 754-2019, 9.2.1, has those of most.
AT_INFINITY = {
    "exp": (math.inf, 0.0), "exp2": (math.inf, 0.0), "expm1": (math.inf, -1.0), "log": (math.inf, math.nan),
    "log2": (math.inf, math.nan), "log1p": (math.inf, math.nan), "sin": (math.nan, math.nan),
    "cos": (math.nan, math.nan), "tan": (math.nan, math.nan), "tanh": (1.0, -1.0), "sigmoid": (1.0, 0.0),
    "erf": (1.0, -1.0), "erfc": (0.0, 2.0), "rsqrt": (0.0, math.nan), "reciprocal": (0.0, -0.0),
    "cbrt": (math.inf, -math.inf), "softplus": (math.inf, 0.0), "gelu": (math.inf, -0.0), "silu": (math.inf, -0.0),
}  # fmt: skip
KEEPS_ZERO = ("expm1", "log1p", "sin", "tan", "tanh", "erf", "cbrt", "gelu", "silu")
POLE_AT_ZERO = ("log", "log2", "rsqrt", "reciprocal")
SIGNED_AT_ZERO = (*KEEPS_ZERO, "rsqrt", "reciprocal")  # f(-0) has a sign, and is -f(+0)
DOMAIN_FROM = {"log": 0.0, "log2": 0.0, "rsqrt": 0.0, "log1p": -1.0}


class ExactTable(NamedTuple):
    """Exact results of a function for every code of a format, and the flags that they raise.

    The three attributes are 1-D arrays indexed by code. A finite result is +-significand * 2**(field - BIAS - TOP),
    with BIAS 2**14 and TOP 61, as a `fpsim.core.number.Number`.

    Attributes:
      significands: 0, or 62 bits of which the highest is set, and the lowest also if any bit after it is 1.
      fields: exponents plus BIAS.
      states: bit 0 is set for a negative result; bits 1 and 2 are 0 for a finite result, 1 for Inf, 2 for NaN; bits
        from 3 on are the flags of the exact result (INVALID, DIVIDE_BY_ZERO).
    """

    significands: npt.NDArray[np.uint64]
    fields: npt.NDArray[np.uint16]
    states: npt.NDArray[np.uint8]


@lru_cache(maxsize=128)
def exact_table(name: str, fmt: Format, input_subnormals: str) -> ExactTable:
    """Return the exact results of function `name` for every code of a format, from memory, from disk, or computed.

    A computed table of a format of 10 bits or more is stored on disk, in the kernels' cache folder. fmt: a format of up
    to 16 bits. input_subnormals: "keep", or "flush", which gives subnormal codes the results of zeros of their sign.
    """
    if input_subnormals == "flush" and fmt.has_zero:
        codes = np.arange(1 << fmt.bits)
        subnormal = ((codes & fmt.top_magnitude) < 1 << fmt.mantissa_bits) & (codes != fmt.nan_code)
        index = np.where(subnormal, codes & fmt.sign_bit if fmt.negative_zero else 0, codes)
        significands, fields, states = exact_table(name, fmt, "keep")
        states = states[index]
        if not fmt.negative_zero and name in SIGNED_AT_ZERO:  # no code has the result for -0
            states[subnormal & (codes & fmt.sign_bit != 0)] ^= NEGATIVE
        return ExactTable(significands[index], fields[index], states)
    path = _path(name, fmt) if fmt.bits >= ON_DISK_FROM else None
    stored = None if path is None else read_whole(path)
    if stored is not None and len(stored) == 11 << fmt.bits:
        size = 1 << fmt.bits
        return ExactTable(
            np.frombuffer(stored, "<u8", size).astype(np.uint64),
            np.frombuffer(stored, "<u2", size, 8 * size).astype(np.uint16),
            np.frombuffer(stored, np.uint8, size, 10 * size).copy(),
        )
    table = _computed(name, fmt)
    if path is not None:
        with contextlib.suppress(Exception):  # a full or read-only disk costs time, not results
            write_whole(path, b"".join(np.ascontiguousarray(column).astype(column.dtype).tobytes() for column in table))
            tidy(path.parent)
    return table


def _path(name: str, fmt: Format) -> Path | None:
    """Return the path of the file for the table of function `name` and format `fmt`; None without a cache folder."""
    folder = base_folder()
    if folder is None:
        return None
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((CONTENT, name, BIAS, TOP, fmt.bits, fmt.nan, fmt.mantissa_bits)).encode())
    digest.update(fmt.table().astype("<f8").tobytes())
    return folder / f"arithmetic.elementary.{name}-{digest.hexdigest()}{TABLE_SUFFIX}"


def _computed(name: str, fmt: Format) -> ExactTable:
    """Compute the exact results of function `name` for every code of the format `fmt`."""
    from fpsim.arithmetic.elementary.entries import exact_result

    values = fmt.table().tolist()
    quiet_bit = 1 << (fmt.mantissa_bits - 1) if fmt.nan == "ieee" else 0
    rows: list[tuple[int, int, int]] = []
    for code, x in enumerate(values):
        mirrored = code & fmt.sign_bit and (name in ODD or name in EVEN) and not math.isnan(x)
        if mirrored and code != fmt.sign_bit:
            significand, field, state = rows[code ^ fmt.sign_bit]
            is_nan = state >> KIND_SHIFT & 3 == NAN
            rows.append((significand, field, state ^ NEGATIVE if name in ODD and not is_nan else state))
        elif math.isnan(x):
            signals = quiet_bit and not code & quiet_bit
            rows.append(_special(math.nan, Flags.INVALID if signals else Flags.NONE))
        else:
            row = _limit(name, x)
            if row is None:
                result = exact_result(name, x)
                row = result.significand, result.exponent + BIAS, int(result.negative)
            rows.append(row)
    significands, fields, states = zip(*rows, strict=True)
    return ExactTable(np.array(significands, np.uint64), np.array(fields, np.uint16), np.array(states, np.uint8))


def _limit(name: str, x: float) -> tuple[int, int, int] | None:
    """Return the entry of an ExactTable, (significand, field, state), of function `name` at a special x, else None.

    Special are infinities, zeros, poles and values outside the domain: their results need no evaluation.
    """
    if math.isinf(x):
        limit = AT_INFINITY[name][x < 0]
        return _special(limit, Flags.INVALID if math.isnan(limit) else Flags.NONE)
    if x < DOMAIN_FROM.get(name, -math.inf):
        return _special(math.nan, Flags.INVALID)
    if name == "log1p" and x == -1:
        return _special(-math.inf, Flags.DIVIDE_BY_ZERO)
    if name in ("log", "log2") and x == 1:
        return _special(0.0)
    if x != 0:
        return None
    if name in KEEPS_ZERO:
        return _special(x)
    if name in POLE_AT_ZERO:
        pole = -math.inf if name in ("log", "log2") else math.copysign(math.inf, x)
        return _special(pole, Flags.DIVIDE_BY_ZERO)
    return None


def _special(value: float, raised: Flags = Flags.NONE) -> tuple[int, int, int]:
    """Return the entry of an ExactTable, (significand, field, state), for a result that float64 holds exactly.

    value: the result. raised: the flags of the operation.
    """
    state = int(math.copysign(1.0, value) < 0) | int(raised) << RAISED_SHIFT
    if math.isnan(value):
        return 0, FIELD_OF_ZERO, NAN << KIND_SHIFT | int(raised) << RAISED_SHIFT
    if math.isinf(value):
        return 1 << TOP, FIELD_OF_INFINITY, state | INFINITE << KIND_SHIFT
    if value == 0:
        return 0, FIELD_OF_ZERO, state | FINITE << KIND_SHIFT
    mantissa, exponent = math.frexp(abs(value))
    return int(Fraction(mantissa) * (2 << TOP)), exponent - 1 + BIAS, state
