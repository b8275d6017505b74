"""The ten classes of floating-point data."""

from __future__ import annotations

from enum import IntEnum


class FloatClass(IntEnum):
    """What a code stands for, in the order of RISC-V's fclass.

    Source: IEEE 754-2019, 5.7.2; RISC-V instruction set manual, fclass.

    Example:
      >>> import fpsim as fp
      >>> fp.FloatClass(5)
      <FloatClass.POSITIVE_SUBNORMAL: 5>
    """

    NEGATIVE_INFINITY = 0
    NEGATIVE_NORMAL = 1
    NEGATIVE_SUBNORMAL = 2
    NEGATIVE_ZERO = 3
    POSITIVE_ZERO = 4
    POSITIVE_SUBNORMAL = 5
    POSITIVE_NORMAL = 6
    POSITIVE_INFINITY = 7
    SIGNALING_NAN = 8
    QUIET_NAN = 9
