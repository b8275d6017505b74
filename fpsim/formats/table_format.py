"""Table formats: the value of each code is listed, with a rule for ties (NF4, HiF8, FP4 of bitsandbytes)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fpsim.errors import require_word, shown
from fpsim.reload import reloadable

TIES = ("away", "toward_zero", "down", "even")
WIDEST = 16  # bits


@reloadable
@dataclass(frozen=True, repr=False, eq=False)
class TableFormat:
    """A format that lists the value of each code, in any order and at any spacing.

    `fpsim.encode` and the other casts round to the nearest value by exact comparison with the exact midpoint.

    Args:
      name: the name that `repr` and tables show.
      values: the value of each code, in float64. Inf, one NaN, and one of each zero may be among them.
      ties: the neighbour to which a value halfway between two is rounded: "away" (the larger magnitude), "toward_zero",
        "down" (the lower value) or "even" (the even code, or the larger magnitude if not exactly one is even).
      beyond: in a format with Inf, the magnitude that would follow the largest one: values from halfway between the two
        on become Inf. None: the largest magnitude plus its distance to the second largest.
      source: the document that defines the format.

    Raises:
      ValueError: there are not 2**bits values for 2 to 16 bits, two codes have one value, fewer than two values are
        finite, all finite ones are 0, or another field has a value that is not described above.

    Example:
      >>> import fpsim as fp
      >>> thirds = fp.TableFormat("thirds", (0.0, 1 / 3, 2 / 3, 1.0))
      >>> fp.encode(np.float64([0.1, 0.2, 0.9]), thirds)
      array([0, 1, 3], dtype=uint8)
    """

    name: str
    values: tuple[float, ...]
    ties: str = "away"
    beyond: float | None = None
    source: str = "user"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name must be a text that is not empty, of one line; got {shown(self.name)}.")
        if not isinstance(self.source, str) or not self.source.isprintable():
            raise ValueError(f"{self.name}: source must be a text of one line; got {shown(self.source)}.")
        require_word("ties", self.ties, TIES)
        object.__setattr__(self, "values", self._checked_values())
        if self.beyond is None:
            return
        beyond: Any = self.beyond
        is_number = isinstance(beyond, (int, float, np.integer, np.floating)) and not isinstance(beyond, bool)
        if not is_number or not self.largest < beyond <= sys.float_info.max or not self.has_infinity:
            raise ValueError(
                f"{self.name}: beyond must be a number above the largest magnitude of a format with Inf; "
                f"got {shown(beyond)}."
            )
        object.__setattr__(self, "beyond", float(beyond))

    def _checked_values(self) -> tuple[float, ...]:
        """Return the values of the format's codes as a tuple of Python floats, after checking them.

        Raises:
          ValueError: their number is no power of two from 4 to 65536, a value occurs twice, fewer than two are
            finite, or all finite ones are 0.
        """
        values = self.values
        no_list = (str, bytes, np.ma.MaskedArray)  # masked values would become NaN
        listed = values if isinstance(values, Iterable) and not isinstance(values, no_list) else ()
        try:
            numbers = tuple(float(value) for value in listed)
        except (TypeError, ValueError, OverflowError):
            numbers = ()
        bits = len(numbers).bit_length() - 1
        if not 2 <= bits <= WIDEST or len(numbers) != 1 << bits:
            raise ValueError(
                f"{self.name}: values must be 4 to 65536 numbers, a power of two of them; got {shown(values)}."
            )
        seen: set[str] = set()
        for number in numbers:
            if number.hex() in seen:  # the text differs for 0 and -0, but not for different NaNs
                raise ValueError(f"{self.name}: each value has one code; got {number!r} twice.")
            seen.add(number.hex())
        finite = [number for number in numbers if math.isfinite(number)]
        if len(finite) < 2 or not any(finite):
            raise ValueError(
                f"{self.name}: there must be two finite values at least, one of them not 0; got {shown(values)}."
            )
        return numbers

    def __eq__(self, other: object) -> bool:
        """Return whether name, values, ties and `beyond` are the same; a NaN equals a NaN."""
        return self is other or (isinstance(other, TableFormat) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash  # formats key the caches of plans, which every call looks up

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickle, as a dict without cached values: hashes of str differ between processes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        """The fields that must be equal for two formats to be equal: name, values as text, ties and beyond."""
        return self.name, tuple(value.hex() for value in self.values), self.ties, self.beyond

    @cached_property
    def _hash(self) -> int:
        """Hash of the format, computed once."""
        return hash(self._key)

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return len(self.values).bit_length() - 1

    @property
    def storage(self) -> np.dtype[Any]:
        """Unsigned integer dtype of codes."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16)

    @property
    def dtype(self) -> None:
        """Always None: neither NumPy nor ml_dtypes has dtypes for table formats."""
        return None

    @cached_property
    def finite(self) -> tuple[tuple[float, int], ...]:
        """Pairs (value, code) of all finite values, in ascending order of the values, -0 before 0."""
        pairs = [(value, code) for code, value in enumerate(self.values) if math.isfinite(value)]
        return tuple(sorted(pairs, key=lambda pair: (pair[0], math.copysign(1, pair[0]))))

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return self.finite[-1][0]

    @cached_property
    def min(self) -> float:
        """Lowest finite value."""
        return self.finite[0][0]

    @cached_property
    def largest(self) -> float:
        """Largest finite magnitude. Scales map the largest magnitude of a tile (block of elements) to it."""
        return max(self.max, -self.min)

    @cached_property
    def smallest(self) -> float:
        """Smallest nonzero magnitude."""
        return min(abs(value) for value, _ in self.finite if value)

    @property
    def has_infinity(self) -> bool:
        """True if the format has Inf."""
        return math.inf in self.values or -math.inf in self.values

    @property
    def has_nan(self) -> bool:
        """True if the format has NaN."""
        return self.nan_code is not None

    @property
    def has_zero(self) -> bool:
        """True if the format has a zero."""
        return 0.0 in self.values

    @property
    def negative_zero(self) -> bool:
        """True if the format has -0 as well as 0."""
        return sum(value == 0 for value in self.values) == 2

    @cached_property
    def nan_code(self) -> int | None:
        """Code of NaN, or None if the format has no NaN."""
        return next((code for code, value in enumerate(self.values) if math.isnan(value)), None)

    def infinity_code(self, negative: bool) -> int | None:
        """Return the code of -Inf if `negative`, else of +Inf; None if the format lacks it."""
        infinity = -math.inf if negative else math.inf
        return self.values.index(infinity) if infinity in self.values else None

    def value_of(self, code: int) -> float:
        """Return the value of one code.

        Raises:
          ValueError: code is not an integer in 0 .. 2**bits - 1.

        Example:
          >>> import fpsim as fp
          >>> fp.HIF8.value_of(0x08), fp.HIF8.value_of(0x6F), fp.NF4.value_of(15)
          (1.0, inf, 1.0)
        """
        if not isinstance(code, (int, np.integer)) or not 0 <= code < len(self.values):
            raise ValueError(f"a code of {self.name} lies in 0 .. {len(self.values) - 1:#x}; got {shown(code)}.")
        return self.values[int(code)]

    @cached_property
    def _table(self) -> npt.NDArray[np.float64]:
        """Value of every code in float64, read-only."""
        table = np.array(self.values)
        table.flags.writeable = False
        return table

    def table(self) -> npt.NDArray[np.float64]:
        """Return the value of every code, as a read-only float64 array of shape (2**bits,)."""
        return self._table

    def __repr__(self) -> str:
        infinity, nan = "Inf" if self.has_infinity else "no Inf", "NaN" if self.has_nan else "no NaN"
        zero = "no zero" if not self.has_zero else "-0" if self.negative_zero else "no -0"
        return (
            f"<{self.name}: {self.bits} bits, {len(self.finite)} finite values from {self.min:g} to {self.max:g}, "
            f"smallest {self.smallest:g}; ties {self.ties.replace('_', ' ')}; {infinity}, {nan}, {zero}; "
            f"{self.source}>"
        )

    def __str__(self) -> str:
        return self.name


# Dettmers et al., QLoRA (arXiv:2305.14314), appendix E; the float32 constants of bitsandbytes.
NF4 = TableFormat(
    "NF4",
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    ties="down", source="QLoRA, arXiv:2305.14314",
)  # fmt: skip


def _single(numerator: float, denominator: float) -> float:
    """Return numerator / denominator rounded to float32, the precision of bitsandbytes' table."""
    return float(np.float32(numerator) / np.float32(denominator))


# bitsandbytes, functional.get_4bit_type("fp4"): twelfths, in its own order of codes, a sign in bit 3.
_TWELFTHS = tuple(_single(n, 12) for n in (0, 0.0625, 8, 12, 4, 6, 2, 3))
BNB_FP4 = TableFormat(
    "BNB_FP4", (*_TWELFTHS, *(-value for value in _TWELFTHS)), ties="toward_zero", source="bitsandbytes fp4"
)


def _hif8_value(code: int) -> float:
    """Return the value of a code of HiF8 (arXiv:2409.16626, table 1): sign, dot, exponent, mantissa.

    The dot (11, 10, 01, 001 or 0001) says how many bits the exponent has (4, 3, 2, 1 or 0): a sign and a magnitude
    whose leading 1 is not stored. The other bits are the mantissa. A code whose four bits after the sign are 0000 has
    no dot: its other three bits, r, stand for 2**(r - 23), or for zero if r = 0. 0x80 is NaN, 0x6F is Inf.
    """
    sign, rest = code >> 7, code & 0x7F
    if code == 0x80:
        return math.nan
    if rest == 0x6F:
        return -math.inf if sign else math.inf
    if rest < 8:
        magnitude = math.ldexp(1.0, rest - 23) if rest else 0.0
        return -magnitude if sign else magnitude
    for dot_bits, dot, width in ((2, 3, 4), (2, 2, 3), (2, 1, 2), (3, 1, 1), (4, 1, 0)):
        if rest >> (7 - dot_bits) == dot:
            mantissa_bits = 7 - dot_bits - width
            field = rest >> mantissa_bits & (1 << width) - 1
            exponent = 0
            if width:
                size = 1 << (width - 1)
                exponent = size | field & (size - 1)
                exponent = -exponent if field & size else exponent
            mantissa = rest & (1 << mantissa_bits) - 1
            magnitude = math.ldexp((1 << mantissa_bits) + mantissa, exponent - mantissa_bits)
            return -magnitude if sign else magnitude
    raise AssertionError(f"code {code:#x} of HiF8 has no dot")


# Luo et al., "Ascend HiFloat8 Format for Deep Learning" (arXiv:2409.16626). The code that would be 1.5 * 2**15 is Inf.
HIF8 = TableFormat(
    "HIF8", tuple(_hif8_value(code) for code in range(256)), ties="away", beyond=49152.0,
    source="HiFloat8, arXiv:2409.16626",
)  # fmt: skip

# Elements of scaled quantisation alone, whose values depend on their tile (docs/newer-formats.md).
_QUARTERS = tuple(n / 4 for n in range(8))
HIF4 = TableFormat(
    "HIF4", (*_QUARTERS, *(-value for value in _QUARTERS)), ties="away", source="HiFloat4, arXiv:2602.11287"
)
HIF4_LEVELS = 24  # bits of a tile of 64 elements: exponents of 8 groups of 8, and of 16 of 4
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@reloadable
@dataclass(frozen=True, repr=False, eq=False)
class TwoTableFormat(TableFormat):
    """A format with two tables of values, of which each tile (block of elements with one scale) uses one: IF4.

    `values` is the first table. The second is the format IF4_INTEGERS; the sign bit of a tile's scale code selects it.
    """


IF4 = TwoTableFormat("IF4", (*_E2M1, *(-value for value in _E2M1)), ties="even", source="IF4, arXiv:2603.28765")
# Two's complement; -8, which no tile has, is NaN.
IF4_INTEGERS = TableFormat(
    "IF4 integers",
    (*(_single(6 * n, 7) for n in range(8)), math.nan, *(_single(6 * n, 7) for n in range(-7, 0))),
    source="IF4, arXiv:2603.28765",
)

TABLES = {fmt.name: fmt for fmt in (NF4, BNB_FP4, HIF8, HIF4, IF4)}
_ALIASES = {
    "nf4": NF4, "normalfloat4": NF4, "bnbnf4": NF4,
    "bnbfp4": BNB_FP4, "fp4bnb": BNB_FP4, "bitsandbytesfp4": BNB_FP4,
    "hif8": HIF8, "hifloat8": HIF8, "hif4": HIF4, "hifloat4": HIF4, "if4": IF4,
}  # fmt: skip


@lru_cache(maxsize=1024)
def _named(name: str) -> TableFormat | None:
    """Return the built-in table format with this name, in any case and with any separators, or None; cached."""
    return _ALIASES.get(re.sub(r"[\s_\-]", "", name.lower()))


def table_format(spec: Any) -> TableFormat | None:
    """Return the built-in table format that a name stands for, or `spec` itself if it is a table format; else None.

    Example:
      >>> from fpsim.formats.table_format import table_format
      >>> table_format("hifloat8").name, table_format("e4m3")
      ('HIF8', None)
    """
    if isinstance(spec, str):
        return _named(spec)
    return spec if isinstance(spec, TableFormat) else None


def refuse_without_tiles(fmt: TableFormat) -> None:
    """Raise a ValueError for HIF4 and IF4, whose codes have values only within a tile (block of elements)."""
    if fmt in (HIF4, IF4):
        raise ValueError(
            f"{fmt.name} has its values by tile; use fp.encode_scaled(x, {fmt.name.lower()!r}, fp.scalings.{fmt.name})."
        )


def refuse_table(fmt: TableFormat) -> NoReturn:
    """Raise a ValueError: `fmt`, a table format, was passed where a format of exponent and mantissa is needed."""
    raise ValueError(
        f"this takes a format of exponent and mantissa; got {fmt.name}, which is a table of values. fp.encode, decode, "
        "quantize, explain, encode_scaled, quantize_scaled and fp.analysis.error take tables."
    )
