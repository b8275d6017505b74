"""LogFMT: element formats whose magnitudes are evenly spaced in the logarithm, within the range of each tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fpsim.errors import is_integer, shown
from fpsim.reload import reloadable

SMALLEST_BITS, LARGEST_BITS = 3, 16


@reloadable
@dataclass(frozen=True, repr=False)
class LogFMT:
    """A logarithmic format of 3 to 16 bits: a sign, and the index of a magnitude ("level") within the tile's range.

    A tile is a block of elements that share the numbers low and step. A code is `sign | level index`. Level 0 is zero,
    which keeps its sign. Levels 1 .. level_count run from the smallest to the largest magnitude of the tile, at equal
    distances in log2: level k is `2**(low + step * (k - 1))`. So decoding needs the step and low of the code's tile,
    and the format itself has no largest value. There is neither Inf nor NaN.

    Args:
      bits: width of a code, 3 to 16.

    Raises:
      ValueError: bits is not an integer in that range.

    Source:
      "Insights into DeepSeek-V3: Scaling Challenges and Reflections on Hardware for AI Architectures", ISCA 2025,
      section 3.2.

    Example:
      >>> from fpsim.formats.log_format import LogFMT
      >>> LogFMT(8)
      <LogFMT-8: 8 bits = 1 sign + 7 level; 0 and 127 levels from a tile's smallest to its largest magnitude;
      -0, no Inf, no NaN; Insights into DeepSeek-V3, ISCA 2025>
      >>> LogFMT(10).storage, LogFMT(10).level_count
      (dtype('uint16'), 511)
    """

    bits: int

    def __post_init__(self) -> None:
        if not is_integer(self.bits) or not SMALLEST_BITS <= self.bits <= LARGEST_BITS:
            raise ValueError(
                f"LogFMT takes an integer number of bits in {SMALLEST_BITS} .. {LARGEST_BITS}, the sign included; "
                f"got {shown(self.bits)}."
            )
        object.__setattr__(self, "bits", int(self.bits))

    @property
    def name(self) -> str:
        """Name of the format in the paper, such as LogFMT-8."""
        return f"LogFMT-{self.bits}"

    @property
    def level_count(self) -> int:
        """Number of nonzero magnitudes (levels) of a tile; also the mask of the level index in a code."""
        return (1 << (self.bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        """Mask of the sign bit in a code."""
        return 1 << (self.bits - 1)

    @property
    def storage(self) -> np.dtype[Any]:
        """Unsigned integer dtype of codes."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {self.bits} bits = 1 sign + {self.bits - 1} level; 0 and {self.level_count} levels from a "
            "tile's smallest to its largest magnitude; -0, no Inf, no NaN; Insights into DeepSeek-V3, ISCA 2025>"
        )

    def __str__(self) -> str:
        return self.name
