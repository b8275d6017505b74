"""Arguments that the functions of several libraries take, checked."""

from __future__ import annotations

import re

import numpy as np

from fpsim.errors import shown, unknown
from fpsim.matrix_units.chips import CHIPS, names_of, of_arch
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
    """The architecture, as units name it, that a compute target or an architecture's name stands for.

    Example:
      >>> from fpsim.schedules.arguments import arch_of
      >>> arch_of("sm_90a", ("hopper", "blackwell")), arch_of("Blackwell", ("hopper", "blackwell"))
      ('hopper', 'blackwell')
    """
    names: dict[str, str] = {}
    for word in known:
        for chip in of_arch(word):
            names |= dict.fromkeys((chip.sm, *(f"{chip.sm}{letter}" for letter in chip.features)), word)
        names[word] = word
    found = names.get(re.sub(r"^sm(?=\d)", "sm_", arch.lower())) if isinstance(arch, str) else None
    if found is None:
        raise _unknown_arch(arch, list(names))
    return found


def _unknown_arch(arch: object, known: list[str]) -> ValueError:
    """The error for an architecture that is not among those known; a chip as it is sold gets its compute target."""
    word = arch.lower() if isinstance(arch, str) else ""
    targets = {chip.sm for chip in CHIPS.values() if word in names_of(chip)}
    if targets and not targets & set(known):
        return ValueError(f"arch must be one of {', '.join(known)}; got {shown(arch)}, of which nothing is known here.")
    return unknown("arch", arch, known, meant=sorted(targets & set(known)))


def order_of(scale_order: ScaleOrder) -> ScaleOrder:
    """The order in which two scales are multiplied in."""
    if not isinstance(scale_order, str) or scale_order not in ORDERS:
        raise unknown("scale_order", scale_order, list(ORDERS))
    return scale_order
