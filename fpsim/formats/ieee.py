"""The classes of floating-point data and the exception flags of IEEE 754."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from fpsim.reload import reloadable


@reloadable
class FloatClass(IntEnum):
    """Classes of floating-point values, numbered in the order of RISC-V's fclass.

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


@reloadable
class Flags(IntFlag):
    """IEEE exceptions that an operation raised, as bits; docs/arithmetic.md says when each is raised.

    Source: IEEE 754-2019, 7; Berkeley SoftFloat 3e.

    Example:
      >>> import fpsim as fp
      >>> fp.Flags(5)
      <Flags.INEXACT|OVERFLOW: 5>
    """

    NONE = 0
    INEXACT = 1
    UNDERFLOW = 2
    OVERFLOW = 4
    DIVIDE_BY_ZERO = 8
    INVALID = 16
