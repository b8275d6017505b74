"""The exceptions of IEEE 754 as flags, with the bits of Berkeley SoftFloat 3 and RISC-V."""

from __future__ import annotations

from enum import IntFlag


class Flags(IntFlag):
    """What happened in an operation; docs/arithmetic.md says when each is raised.

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
