"""Schedules of no particular library: K in segments of given lengths, and terms dealt to lanes in rounds."""

from __future__ import annotations

from fpsim.errors import require_integer, require_kind
from fpsim.schedules.arguments import call_text
from fpsim.schedules.schedule import Chain, Evidence, Schedule, Slicing


def segments(
    *lengths: int, step: int = 0, odd_first: bool = False, library: str = "fpsim", source: str = "",
    evidence: Evidence = "inferred",
) -> Schedule:  # fmt: skip
    """Return the schedule that chains instructions over segments of K, and adds the segments' sums from left to right.

    Args:
      lengths: terms of each segment, which add up to K.
      step: terms of an instruction, if fewer than the unit's; 0 for the unit's.
      odd_first: True adds the second term of each pair in a segment before the first; False adds them in order.
      library, source, evidence: as in `Schedule`.

    Raises:
      ValueError, TypeError: there is no length, or a length is not a positive integer.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.segments(512, 512, 76)
      segments(512, 512, 76)
      >>> x, ones, chain = np.float32([[2.0**24, 1, 1]]), np.ones((3, 1), np.float32), fp.FusedMultiplyAdd("fp32")
      >>> for lengths in ((3,), (1, 2)):
      ...     total = fp.matmul(x, ones, accumulate=chain, schedule=fp.schedules.segments(*lengths))
      ...     print(int(total[0, 0]) - 2**24)
      0
      2
    """
    if not lengths:
        raise ValueError("segments takes the number of terms of each segment; got none.")
    for length in lengths:
        require_integer("length", length, 1)
    require_integer("step", step, 0)
    require_kind("odd_first", odd_first, bool, "True or False")
    name = call_text("segments", *lengths, step=(step, 0), odd_first=(odd_first, False))
    slicing = Slicing(len(lengths), rule="listed", lengths=tuple(map(int, lengths)))
    return Schedule(
        name, library, "segments", sums=Chain(step=step, odd_first=odd_first),
        slicing=slicing, source=source, evidence=evidence, operands="bf16",
    )  # fmt: skip


def rounds(lanes: int = 4, *, library: str = "fpsim", source: str = "", evidence: Evidence = "inferred") -> Schedule:
    """Return the schedule that deals terms to lanes in turn, and adds the lanes from the first to the last.

    The terms after the last whole round over the lanes are all added to the first lane, after its own terms.

    Args:
      lanes: number of lanes.
      library, source, evidence: as in `Schedule`.

    Raises:
      ValueError, TypeError: the number of lanes is not a positive integer.

    Example:
      >>> import fpsim as fp
      >>> x, ones, chain = np.float32([[2.0**24, 1, 1, 1]]), np.ones((4, 1), np.float32), fp.FusedMultiplyAdd("fp32")
      >>> for lanes in (1, 2, 4):
      ...     total = fp.matmul(x, ones, accumulate=chain, schedule=fp.schedules.rounds(lanes))
      ...     print(int(total[0, 0]) - 2**24)
      0
      2
      0
    """
    require_integer("lanes", lanes, 1)
    return Schedule(
        f"rounds({lanes})", library, "rounds", slicing=Slicing(int(lanes), 1, "rounds"), source=source,
        evidence=evidence, operands="bf16",
    )  # fmt: skip
