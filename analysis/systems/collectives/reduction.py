"""`fp.analysis.collectives.all_reduce`: the buffers of all ranks after an all-reduce, bit for bit."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.systems.collectives.algorithms import Algorithm, algorithm_of, largest_group
from fpsim.analysis.systems.collectives.contributions import Contributions, ContributionsLike, Source
from fpsim.analysis.systems.collectives.overflow import refuse_overflow
from fpsim.analysis.systems.collectives.reduce import reduce_rows
from fpsim.analysis.systems.collectives.rounding import Adder
from fpsim.arrays import Array
from fpsim.errors import require_word, unknown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES
from fpsim.formats.policies import OVERFLOWS
from fpsim.formats.rounding import Rounding

AVERAGES = ("multiply_before", "divide_before", "divide_after")
RAISE = "raise"  # the value of `overflow` that makes a sum beyond the format's range an error


def all_reduce(
    x: ContributionsLike, fmt: FormatLike, *, algorithm: str | Algorithm = "ring", accumulate: FormatLike | None = None,
    average: str | None = None, rounding: str | Rounding = "nearest_even", seed: int | None = None,
    overflow: str = RAISE, ranks: int | None = None,
) -> Array:  # fmt: skip
    """Return the buffers of all ranks after an all-reduce, with every rounding of the algorithm.

    Contributions are rounded to `fmt`, and every message between ranks holds values of `fmt`. A rank that receives a
    sum adds its own contribution in the accumulation format and rounds to `fmt` when it sends. Random bits of
    stochastic rounding depend on the seed, the rank whose contribution is added, and the element.

    Args:
      x: contributions, float16, bfloat16, any ml_dtypes float, float32 or float64 (float64 is rounded once): an array
        or a torch tensor (ranks, n), a sequence or an iterator of arrays (n,), or a function of the rank that returns
        an array (n,). Rings call a function twice for each rank, trees once. Arrays of an iterator are written to a
        temporary file when they exceed 256 MiB together. A function or iterator of any number of ranks needs memory
        for a few arrays of n elements only.
      fmt: the format of contributions and of every message between ranks (NCCL's datatype).
      algorithm: "ring", "tree", "recursive_halving", "two_level" (nodes of 8 ranks), "direct" (an exact sum, rounded
        once), or `collectives.Ring`, `ReductionTree`, `RecursiveHalving`, `TwoLevel` or `Direct` with other settings.
      accumulate: the format in which a rank adds, rounding to nearest even; None or `fmt` adds in `fmt`, with `rounding`.
        With "direct", a format given here replaces the exact sum by additions in ascending order of ranks.
      average: None for the sum; "multiply_before": each contribution times the rounded 1 / ranks, rounded;
        "divide_before": each divided by ranks, rounded; "divide_after": the sum divided by ranks, rounded.
      rounding, seed: settings of every rounding to `fmt`, as for `fp.encode`.
      overflow: "raise" for an error that names the element and the addition where a sum exceeds the range of `fmt`, or
        a mode of `fp.encode`.
      ranks: number of ranks; required if x is a function.

    Returns:
      Array (ranks, n) of `fmt`'s dtype, or of its codes where NumPy has no such dtype. All ranks hold the same bits, so
      the array is a read-only view of one rank's n elements; `.copy()` makes a full array.

    Raises:
      ValueError: the algorithm does not support the number of ranks, contributions have other shapes, or a name is
        unknown.
      collectives.CollectiveOverflowError: a sum of finite contributions left the range of `fmt`; an OverflowError and
        a ValueError.
      TypeError: contributions are not floats.

    Source: docs/collectives.md states every algorithm's order of additions.

    Example:
      >>> import fpsim as fp
      >>> x = np.float32([[256, 1], [1, 1], [1, 1], [1, 1]])
      >>> fp.analysis.collectives.all_reduce(x, fp.BF16)[0]
      array([256, 4], dtype=bfloat16)
      >>> fp.analysis.collectives.all_reduce(x, fp.BF16, algorithm="tree")[0]
      array([258, 4], dtype=bfloat16)
      >>> fp.analysis.collectives.all_reduce(x, fp.BF16, algorithm="direct")[0]
      array([260, 4], dtype=bfloat16)
      >>> fp.analysis.collectives.all_reduce(np.float32([[3e4], [3e4], [3e4]]), fp.FP16)
      Traceback (most recent call last):
      fpsim.analysis.systems.collectives.overflow.CollectiveOverflowError: element 0 overflowed FP16 when rank 2's contribution (30000) was added to the sum of 2 ranks (60000). Scale contributions down, pass average='multiply_before', or take a format with more range, such as BF16; overflow='nonfinite' or 'saturate' returns the overflowed sums.
    """  # noqa: E501
    chosen = algorithm_of(algorithm)
    if overflow != RAISE and overflow not in OVERFLOWS:
        raise unknown("overflow", overflow, (RAISE, *OVERFLOWS))
    if average is not None:
        require_word("average", average, AVERAGES)
    adder = Adder(fmt, accumulate, rounding, seed, "nonfinite" if overflow == RAISE else overflow)
    source = Source(x, ranks)
    chosen.check(source.count)
    source.keep = largest_group(chosen, source.count)
    rows = Contributions(source, adder, average)
    codes = reduce_rows(chosen, rows, adder)
    if overflow == RAISE:
        refuse_overflow(codes, source, rows, chosen, adder)
    codes = adder.mean(codes, average, source.count)
    return np.broadcast_to(codes.view(DTYPES.get(adder.fmt, codes.dtype)), (source.count, source.size))
