"""Groups of neighbouring elements, which a GPU thread loads and stores as one word of up to 64 bits.

A kernel takes every array twice, as elements and as groups; it loads single elements if the arrays of groups are empty,
because the memory is not aligned to whole groups.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.gpu.device.copies import address_of
from fpsim.gpu.device.device import device_number

GROUP_BITS = 64  # bits of a group in the array with the widest elements
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class Grouping(NamedTuple):
    """Size of a group, `length` elements, and number of groups that a GPU thread loads before it computes, `depth`."""

    length: int
    depth: int

    @property
    def each(self) -> int:
        """Number of elements that a thread processes at once."""
        return self.length * self.depth


def grouping(*bits: int, elements: int = 8) -> Grouping:
    """Return the grouping for arrays whose elements have the widths `bits`, one width per array.

    A group holds as many of the widest elements as fit 64 bits; a thread loads `elements` elements, at least one group.

    Eight float32 elements are 32 bytes in flight per thread; a GPU needs about 20 bytes per thread to keep its memory
    busy: 4.8 TB/s times 700 ns, over 132 multiprocessors of 1024 threads (H200 data sheet).
    """
    count = GROUP_BITS // max(bits)
    return Grouping(count, max(elements // count, 1))


@cache
def _no_groups(bits: int, device: int) -> Any:
    """Return an empty GPU array of unsigned integers that are `bits` wide: 8, 16, 32 or 64.

    device: index of the current GPU, so that each GPU has its own cached array.
    """
    return cuda.device_array(0, WORDS[bits])


def as_groups(arrays: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return flat numba arrays as arrays of groups: unsigned integers, each of which is `count` neighbouring elements.

    All arrays have equally many elements; those after the last whole group are left out. All results are empty if there
    is no whole group, or if the memory of one array is not aligned to its groups.
    """
    whole = arrays[0].size // count
    bits = [8 * array.dtype.itemsize * count for array in arrays]
    if whole and all(address_of(array) % (width // 8) == 0 for array, width in zip(arrays, bits, strict=True)):
        length = whole * count
        cut = (array if array.size == length else array[:length] for array in arrays)
        return tuple(array.view(WORDS[width]) for array, width in zip(cut, bits, strict=True))
    return tuple(_no_groups(width, device_number()) for width in bits)
