"""Integers as element formats of scaled quantisation: each has a width and may be signed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.errors import is_integer, shown
from fpsim.formats.float_format import Format
from fpsim.reload import reloadable


@reloadable
@dataclass(frozen=True)
class IntegerFormat:
    """Integers of 2 to 8 bits, to be multiplied by a scale (after subtracting a zero point).

    Codes are the numbers themselves. Symmetric quantisation uses -max .. max; with a zero point it uses all of lowest
    .. highest.

    Args:
      name: what `repr` shows.
      bits: width of a code, 2 to 8.
      signed: True for two's complement numbers, False for numbers from 0 on.

    Raises:
      ValueError: bits is not an integer in that range, signed is not a bool, or the name is not one line of text.

    Example:
      >>> import fpsim as fp
      >>> fp.INT4.max, fp.INT4.lowest, fp.UINT4.highest
      (7.0, -8, 15)
    """

    name: str
    bits: int
    signed: bool

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"name must be a text that is not empty, of one line; got {shown(self.name)}.")
        if not is_integer(self.bits) or not 2 <= self.bits <= 8:
            raise ValueError(
                f"{self.name}: bits must be an integer in 2 .. 8, the sign included; got {shown(self.bits)}."
            )
        if not isinstance(self.signed, (bool, np.bool_)):
            raise ValueError(f"{self.name}: signed must be True or False; got {shown(self.signed)}.")
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "signed", bool(self.signed))

    @property
    def lowest(self) -> int:
        """Smallest integer of the format."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """Largest integer of the format."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def max(self) -> float:
        """Largest integer of the format, as a float."""
        return float(self.highest)

    @property
    def storage(self) -> np.dtype[Any]:
        """Dtype of arrays of codes, int8 or uint8."""
        return np.dtype(np.int8 if self.signed else np.uint8)

    @cached_property
    def magnitudes(self) -> Format:
        """Float format of the integers -n to n, n = 2**(bits - 1) - 1, by which casts round to signed integers."""
        mantissa_bits = self.bits - 2
        return Format(
            f"{self.name} magnitudes", 1, mantissa_bits, bias=1 - mantissa_bits, infinities=False, nan="none",
            source="sign and magnitude",
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.name}: integers {self.lowest} .. {self.highest}>"

    def __str__(self) -> str:
        return self.name


INT8 = IntegerFormat("INT8", 8, signed=True)
INT4 = IntegerFormat("INT4", 4, signed=True)
UINT8 = IntegerFormat("UINT8", 8, signed=False)
UINT4 = IntegerFormat("UINT4", 4, signed=False)

INTEGERS = {fmt.name: fmt for fmt in (INT8, INT4, UINT8, UINT4)}
DTYPES = {
    np.dtype(np.int8): INT8,
    np.dtype(np.uint8): UINT8,
    np.dtype(ml_dtypes.int4): INT4,
    np.dtype(ml_dtypes.uint4): UINT4,
}

# Differences from a zero point: integers of a 16-bit range, wide enough that clamping them first changes nothing.
OFFSETS = Format(
    "integers to 32767", 1, 14, bias=-13, infinities=False, nan="none", source="sign and magnitude"
)  # fmt: skip
