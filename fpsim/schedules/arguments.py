"""Arguments that the functions of several libraries take, checked."""

from __future__ import annotations

import numpy as np

from fpsim.errors import shown, unknown
from fpsim.matrix_units.chips import find, of_arch
from fpsim.schedules.schedule import ScaleOrder

ORDERS = ("product", "a_first", "b_first")
LARGEST = (1 << 31) - 1  # of sizes, which the libraries keep in 32 bits


def positive(value: int, name: str, largest: int = LARGEST) -> int:
    """A number of terms, or of something else."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer; got {shown(value)}.")
    if value > largest:
        raise ValueError(f"{name} must be at most {largest}; got 2**{int(value).bit_length() - 1} or more.")
    return int(value)


def arch_of(arch: str, known: tuple[str, ...]) -> str:
    """Return the architecture, as units name it, of a chip as it is sold, a compute target or an architecture.

    Example:
      >>> from fpsim.schedules.arguments import arch_of
      >>> [arch_of(word, ("hopper", "blackwell")) for word in ("sm_90a", "Blackwell", "H100", "B200")]
      ['hopper', 'blackwell', 'hopper', 'blackwell']
    """
    chip = find(arch)
    if chip is not None and chip.arch in known:
        return chip.arch
    names = [name for word in known for name in (*(each.sm for each in of_arch(word)), word)]
    if chip is not None:
        raise ValueError(f"arch must be one of {', '.join(names)}; got {shown(arch)}, of which nothing is known here.")
    raise unknown("arch", arch, names, others="a chip such as H100")


def order_of(scale_order: ScaleOrder) -> ScaleOrder:
    """The order in which two scales are multiplied in."""
    if not isinstance(scale_order, str) or scale_order not in ORDERS:
        raise unknown("scale_order", scale_order, list(ORDERS))
    return scale_order
