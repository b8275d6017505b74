"""The class of floating-point formats: its fields describe a format, and everything else is derived from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fpsim.errors import is_integer, shown
from fpsim.formats.float64_numbers import exact_float, magnitude_values, real_numbers, spacing_at
from fpsim.reload import reloadable

NanEncoding = Literal["ieee", "top", "negative_zero", "none"]
NAN_ENCODINGS: tuple[NanEncoding, ...] = ("ieee", "top", "negative_zero", "none")

# Layouts above 16 bits that are formats too: codes of FP32 and FP64 are the float's own bits, TF32 keeps 19.
WIDE_LAYOUTS = {(8, 23): "FP32", (11, 52): "FP64", (8, 10): "TF32"}
WIDEST_EXPONENT = 16  # exponent bits; codes have no more bits in all, except in the layouts above

# the NumPy or ml_dtypes dtype of a format, filled in by formats/named.py; a reload keeps them
DTYPES: dict[Format, np.dtype[Any]] = globals().get("DTYPES", {})


@reloadable
@dataclass(frozen=True)
class Format:
    """A floating-point format of up to 16 bits (and FP32, TF32, FP64), described by its fields.

    A code is `sign | exponent field | mantissa`, most significant bit first. Its finite values are
    `(-1)**sign * 2**(field - bias) * (1 + mantissa / 2**mantissa_bits)`, and in exponent field 0
    `(-1)**sign * 2**(1 - bias) * mantissa / 2**mantissa_bits`.

    Args:
      name: what `repr` and tables show.
      exponent_bits: width of the exponent field, at least 1.
      mantissa_bits: width of the stored fraction; 0 leaves the powers of two.
      bias: exponent bias; by default `2**(exponent_bits - 1) - 1`.
      signed: False drops the sign bit and every negative value.
      infinities: whether the format has Inf.
      nan: the codes of NaN: "ieee" (exponent field all ones, as in IEEE 754), "top" (the largest magnitude
        code), "negative_zero" (the code of -0), or "none".
      negative_zero: False makes -0 the same as 0. Must be False where NaN takes that code or there is no sign.
      subnormals: False makes exponent field 0 an ordinary binade, which leaves no zero (E8M0).
      ties_to_even_code: decides nearest-even ties where mantissa_bits is 0 and every significand is 1: True takes
        the even code (IEEE P3109), False the larger magnitude (IEEE 754-2019, 4.3.1). Of the two
        neighbours, the mode "odd" takes the odd code if True, the smaller magnitude if False unless it is 0.
      source: the document that defines the format.

    Raises:
      ValueError: the fields contradict each other, the format has more than 16 bits, or float64 cannot hold its values.

    Example:
      >>> import fpsim as fp
      >>> mine = fp.Format("mine", exponent_bits=3, mantissa_bits=2)
      >>> mine.max, mine.smallest_subnormal, mine.has_infinity
      (14.0, 0.0625, True)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int = None  # type: ignore[assignment]  # filled in below, so that readers see an int
    signed: bool = True
    infinities: bool = True
    nan: NanEncoding = "ieee"
    negative_zero: bool = None  # type: ignore[assignment]
    subnormals: bool = True
    ties_to_even_code: bool = False
    source: str = "user"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name must be a text that is not empty, of one line; got {shown(self.name)}.")
        for field in ("exponent_bits", "mantissa_bits"):
            value = getattr(self, field)
            if not is_integer(value) or value < 0:
                raise ValueError(f"{self.name}: {field} must be an integer >= 0; got {shown(value)}.")
            most = WIDEST_EXPONENT if field == "exponent_bits" else 64
            if value > most:  # before powers of two with this exponent are computed
                raise ValueError(f"{self.name}: {field} must be at most {most}; got {shown(value)}.")
            object.__setattr__(self, field, int(value))
        if not isinstance(self.source, str) or not self.source.isprintable():
            raise ValueError(f"{self.name}: source must be a text of one line; got {shown(self.source)}.")
        if not isinstance(self.nan, str) or self.nan not in NAN_ENCODINGS:
            raise ValueError(f"{self.name}: nan must be one of {', '.join(NAN_ENCODINGS)}; got {shown(self.nan)}.")
        for field in ("signed", "infinities", "subnormals", "ties_to_even_code", "negative_zero"):
            value = getattr(self, field)
            if value is True or value is False:
                continue
            if field == "negative_zero" and value is None:
                value = self.signed and self.subnormals and self.nan != "negative_zero"
            elif not isinstance(value, np.bool_):
                raise ValueError(f"{self.name}: {field} must be True or False; got {shown(value)}.")
            object.__setattr__(self, field, bool(value))
        if self.exponent_bits < 1:
            raise ValueError(f"{self.name}: exponent_bits must be at least 1 to hold a normal number; got 0.")
        bias = 2 ** (self.exponent_bits - 1) - 1 if self.bias is None else self.bias
        if not is_integer(bias):
            raise ValueError(f"{self.name}: bias must be an integer; got {shown(bias)}.")
        object.__setattr__(self, "bias", int(bias))
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        """Raise a ValueError if fields contradict each other, or if float64 cannot hold all values of the format."""
        ieee = self.signed and self.nan == "ieee" and self.subnormals and self.bias == 2 ** (self.exponent_bits - 1) - 1
        known = WIDE_LAYOUTS.get((self.exponent_bits, self.mantissa_bits)) == self.name
        if self.bits > 16 and not (ieee and known):
            raise ValueError(
                f"{self.name}: a format has up to 16 bits; got {self.bits}. Above that only FP32, TF32 and FP64 exist."
            )
        if self.nan == "ieee" and not self.infinities:
            raise ValueError(f"{self.name}: nan='ieee' keeps a code for Inf; use nan='top' for a format without Inf.")
        if self.nan == "ieee" and self.mantissa_bits == 0:
            raise ValueError(f"{self.name}: nan='ieee' needs a mantissa bit to tell NaN from Inf; use nan='top'.")
        if self.nan == "negative_zero" and (not self.signed or self.negative_zero):
            raise ValueError(
                f"{self.name}: nan='negative_zero' needs a sign bit and negative_zero=False; "
                f"got signed={self.signed}, negative_zero={self.negative_zero}."
            )
        if self.negative_zero and not (self.signed and self.subnormals):
            raise ValueError(f"{self.name}: negative_zero=True needs a sign bit and a zero.")
        if self.signed and not self.subnormals:
            raise ValueError(
                f"{self.name}: a format without zero must be unsigned; pass signed=False or subnormals=True."
            )
        if self.signed and not self.negative_zero and self.nan != "negative_zero":
            raise ValueError(f"{self.name}: without -0 its code must be NaN: use nan='negative_zero'.")
        if self.max_code < 1:
            raise ValueError(f"{self.name}: {self.bits} bits leave no finite value besides zero.")
        smallest, largest = self._lowest_place, self.max_exponent
        if smallest < -1074 or largest > 1023:
            raise ValueError(
                f"{self.name}: its values reach from 2**{shown(smallest)} to 2**{shown(largest)}, "
                "beyond float64 (2**-1074 to 2**1023), which every value must fit."
            )

    def __hash__(self) -> int:
        return self._hash  # formats key the caches of plans and kernels, which every call looks up

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a Format with the same fields."""
        if self is other:
            return True
        if not isinstance(other, Format) or type(other) is not type(self):
            return NotImplemented
        return self._hash == other._hash and self._field_values == other._field_values

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickle, as a dict without cached values: hashes of str differ between processes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _field_values(self) -> tuple[Any, ...]:
        """Tuple of all fields, by which formats are compared."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def _hash(self) -> int:
        """Hash of the format, computed once, from some of its fields."""
        return hash((self.name, self.exponent_bits, self.mantissa_bits, self.bias, self.nan))

    # ---- the code space: magnitudes 0 .. max_code are finite, larger ones special

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def precision(self) -> int:
        """Number of significand bits, the hidden bit included."""
        return self.mantissa_bits + 1

    @property
    def sign_bit(self) -> int:
        """Mask of the sign bit in a code; 0 if the format is unsigned."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def top_magnitude(self) -> int:
        """Largest code whose sign bit is 0; it may be the code of a NaN or Inf."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        if self.nan == "ieee":
            return (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1
        return self.top_magnitude - int(self.nan == "top") - int(self.infinities)

    @property
    def infinity_code(self) -> int | None:
        """Code of +Inf, or None if the format has no Inf."""
        return self.max_code + 1 if self.infinities else None

    @property
    def nan_code(self) -> int | None:
        """Code of the NaN that casts return (quiet, and positive where there is a choice); None if there is no NaN."""
        if self.nan == "ieee":
            return (self.max_code + 1) | 1 << (self.mantissa_bits - 1)
        return {"top": self.top_magnitude, "negative_zero": self.sign_bit, "none": None}[self.nan]

    # ---- the values

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal value."""
        return 1 - self.bias if self.subnormals else -self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return self._exponent_of(self.max_code)

    def _exponent_of(self, magnitude: int) -> int:
        """Return the exponent of the value whose code, without its sign bit, is `magnitude`."""
        field = magnitude >> self.mantissa_bits
        return max(field, 1) - self.bias if self.subnormals else field - self.bias

    def value_of(self, code: int) -> float:
        """Return the value of one code as a Python float; ValueError unless code is an integer in 0 .. 2**bits - 1.

        Example:
          >>> import fpsim as fp
          >>> fp.E4M3.value_of(0x38), fp.E4M3.value_of(0x01), fp.E4M3.value_of(0x7F)
          (1.0, 0.001953125, nan)
        """
        if not isinstance(code, (int, np.integer)) or not 0 <= code < 1 << self.bits:
            raise ValueError(f"a code of {self.name} lies in 0 .. {(1 << self.bits) - 1:#x}; got {shown(code)}.")
        code = int(code)
        magnitude, negative = code & self.top_magnitude, bool(code & self.sign_bit)
        if self.nan == "negative_zero" and code == self.sign_bit:
            return math.nan
        if magnitude > self.max_code:
            value = math.inf if magnitude == self.infinity_code else math.nan
        else:
            mantissa = magnitude & ((1 << self.mantissa_bits) - 1)
            hidden = 0 if self.subnormals and magnitude >> self.mantissa_bits == 0 else 1 << self.mantissa_bits
            value = exact_float(hidden | mantissa, self._exponent_of(magnitude) - self.mantissa_bits)
        return -value if negative else value

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return self.value_of(self.max_code)

    @property
    def min(self) -> float:
        """Lowest finite value: -max, or the smallest value of an unsigned format."""
        return -self.max if self.signed else self.value_of(0)

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal value."""
        return exact_float(1, self.min_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive value; the smallest normal one if the format has no subnormals."""
        return exact_float(1, self.min_exponent - self.mantissa_bits if self.subnormals else self.min_exponent)

    @property
    def eps(self) -> float:
        """2**-mantissa_bits: distance from 1 to the next larger value, ignoring the limits of the exponent range."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def has_infinity(self) -> bool:
        """True if the format has Inf."""
        return self.infinities

    @property
    def has_nan(self) -> bool:
        """True if the format has NaN."""
        return self.nan != "none"

    @property
    def has_zero(self) -> bool:
        """True if the format has a zero (E8M0 has none)."""
        return self.subnormals

    def holds(self, other: Format) -> bool:
        """Return whether every value of another format is a value of this one, Inf, NaN and -0 included.

        Raises:
          TypeError: the other is no Format.

        Example:
          >>> import fpsim as fp
          >>> fp.BF16.holds(fp.E5M2), fp.FP16.holds(fp.BF16)
          (True, False)
        """
        if not isinstance(other, Format):
            raise TypeError(f"holds takes an fp.Format; got {shown(other)}. Pass fp.format(...) of a name or dtype.")
        # with few codes, the values need fewer bits: the first codes are multiples of the smallest subnormal value
        needed = min(other.precision, ((other.max_code - 1) | 1).bit_length()) if other.subnormals else other.precision
        return (
            other.max <= self.max
            and other.min >= self.min
            and needed <= self.precision
            and other.smallest_subnormal >= self.smallest_subnormal
            and other._lowest_place >= self._lowest_place
            and (self.has_infinity or not other.has_infinity)
            and (self.has_nan or not other.has_nan)
            and (self.negative_zero or not other.negative_zero)
            and (self.has_zero or not other.has_zero)
        )

    @property
    def _lowest_place(self) -> int:
        """Exponent of the largest power of two of which every finite value is a multiple."""
        return self.min_exponent - self.mantissa_bits

    # ---- how arrays hold it

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """NumPy or ml_dtypes dtype whose bits are this format's codes, or None if there is none."""
        return DTYPES.get(self)

    @cached_property
    def storage(self) -> np.dtype[Any]:
        """Unsigned integer dtype in which `encode` returns codes."""
        width = 8 if self.bits <= 8 else 16 if self.bits <= 16 else 32 if self.bits <= 32 else 64
        return np.dtype(f"uint{width}")

    @cached_property
    def _table(self) -> npt.NDArray[np.float64]:
        """Value of every code in float64, read-only."""
        codes = np.arange(1 << self.bits)
        if self._lowest_place < -1022:  # subnormal in float64, which a processor may be set to flush
            table = np.array([self.value_of(code) for code in codes.tolist()])
        else:
            magnitudes = codes & self.top_magnitude
            finite = np.minimum(magnitudes, self.max_code)
            table = magnitude_values(finite, self.mantissa_bits, self.bias, self.subnormals)
            table[magnitudes > self.max_code] = np.nan
            if self.infinity_code is not None:
                table[magnitudes == self.infinity_code] = np.inf
            table = np.where(codes & self.sign_bit != 0, -table, table)
            if self.nan == "negative_zero":
                table[self.sign_bit] = np.nan
        table.flags.writeable = False
        return table

    def table(self) -> npt.NDArray[np.float64]:
        """Return the value of every code, as a read-only float64 array of shape (2**bits,).

        Raises:
          ValueError: the format has more than 16 bits.

        Example:
          >>> import fpsim as fp
          >>> fp.E2M1.table()[:8].tolist()
          [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        """
        if self.bits > 16:
            raise ValueError(f"a table lists formats of up to 16 bits; {self.name} has {self.bits}.")
        return self._table

    def ulp(self, x: npt.ArrayLike) -> Any:
        """Return the distance between the two neighbouring values of the format that enclose x.

        Below the smallest normal value it is the distance of subnormals, above the largest finite value that of the
        last binade. NaN for a NaN or infinite x.

        Args:
          x: float or array of floats (of any shape).
        Returns:
          float64 of x's shape (a float for a scalar).
        Raises:
          TypeError: x holds no real numbers.

        Example:
          >>> import fpsim as fp
          >>> fp.E4M3.ulp(1.0), fp.E4M3.ulp(300.0), fp.E4M3.ulp(0.0)
          (0.125, 32.0, 0.001953125)
        """
        spacing = spacing_at(real_numbers("x", x), self.min_exponent, self.max_exponent, self.mantissa_bits)
        return spacing if spacing.ndim else float(spacing)

    def __repr__(self) -> str:
        codes = {"top": f"NaN {self.top_magnitude:#x}", "negative_zero": f"NaN {self.sign_bit:#x}", "none": "no NaN"}
        nan = codes.get(self.nan, "NaN as in IEEE 754")
        sign = "1 sign + " if self.signed else ""
        fields = f"{sign}{self.exponent_bits} exponent (bias {self.bias}) + {self.mantissa_bits} mantissa"
        subnormal = f", subnormal 2**{self._lowest_place}" if self.subnormals and self.mantissa_bits else ""
        zero = "no zero" if not self.has_zero else "-0" if self.negative_zero else "no -0"
        return (
            f"<{self.name}: {self.bits} bits = {fields}; max {self.max:g}, "
            f"smallest normal 2**{self.min_exponent}{subnormal}; "
            f"{'Inf' if self.infinities else 'no Inf'}, {nan}, {zero}; {self.source}>"
        )

    def __str__(self) -> str:
        return self.name
