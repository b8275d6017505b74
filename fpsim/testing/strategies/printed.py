"""Numbers that print in hexadecimal, so that the printed text evaluates to the same bits."""

from __future__ import annotations

import math


class HexFloat(float):
    """A float whose repr is an expression with a hexadecimal float.

    Example:
      >>> from fpsim.testing.strategies.printed import HexFloat
      >>> HexFloat(0.1), HexFloat(-6), HexFloat("inf")
      (float.fromhex('0x1.999999999999ap-4'), float.fromhex('-0x1.8p+2'), float('inf'))
    """

    __slots__ = ()

    def __repr__(self) -> str:
        if not math.isfinite(self):
            sign = "-" if math.copysign(1, self) < 0 else ""
            return f"float('{sign}{'nan' if math.isnan(self) else 'inf'}')"
        text, power, exponent = self.hex().partition("p")
        mantissa = text.rstrip("0").rstrip(".") if "." in text else text
        return f"float.fromhex('{mantissa}{power}{exponent}')"


class Bits(int):
    """A code or bit pattern, whose repr has all hexadecimal digits of its width.

    Args:
      number: the code.
      width: its number of bits.

    Example:
      >>> from fpsim.testing.strategies.printed import Bits
      >>> Bits(0x7E, 8), Bits(1, 32)
      (0x7E, 0x00000001)
    """

    digits: int

    def __new__(cls, number: int, width: int) -> Bits:
        made = super().__new__(cls, number)
        made.digits = -(-width // 4)
        return made

    def __repr__(self) -> str:
        return f"0x{int(self):0{self.digits}X}"

    def __reduce__(self) -> tuple[type[Bits], tuple[int, int]]:
        return Bits, (int(self), 4 * self.digits)
