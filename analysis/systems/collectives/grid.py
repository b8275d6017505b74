"""All-reduces on a grid of ranks: a correct one in three steps, and a faulty but often published one in two steps."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.systems.collectives.algorithms import BufferSpan, Ring, TwoLevel, split
from fpsim.analysis.systems.collectives.contributions import Contributions, ContributionsLike, Source
from fpsim.analysis.systems.collectives.overflow import refuse_overflow
from fpsim.analysis.systems.collectives.reduce import NodeSums, reduce_rows
from fpsim.analysis.systems.collectives.rounding import Adder
from fpsim.arrays import Array
from fpsim.errors import is_integer, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES
from fpsim.formats.rounding import Rounding

SCHEMES = ("three_steps", "two_steps", "rows_only")


def grid_all_reduce(
    x: ContributionsLike, fmt: FormatLike, grid: tuple[int, int], *, scheme: str = "three_steps",
    accumulate: FormatLike | None = None,
    rounding: str | Rounding = "nearest_even", seed: int | None = None, ranks: int | None = None,
) -> Array:  # fmt: skip
    """Return the buffers of all ranks of a grid after an all-reduce along its rows and columns.

    Rank i * columns + j is in row i and column j of the grid. Every reduction is a ring.

    Args:
      x, fmt, accumulate, rounding, seed, ranks: as for `collectives.all_reduce`.
      grid: (rows, columns).
      scheme: "three_steps", which is correct: reduce-scatter in rows, all-reduce in columns, all-gather in rows.
        "two_steps", which is published but is no all-reduce: reduce-scatter in rows, all-gather in columns. The rank in
        row i and column j then receives shard j of every row's sum, one after the other; elements beyond n are dropped,
        and missing elements keep the rank's own contribution. "rows_only": reduce-scatter and all-gather in rows, so
        that each rank has the sum of its own row without the other rows.

    Returns:
      Array (ranks, n) of `fmt`'s dtype, or of its codes where NumPy has no such dtype.

    Raises:
      ValueError: rows * columns is not the number of ranks, or as for `collectives.all_reduce`.
      TypeError, CollectiveOverflowError: as for `collectives.all_reduce`; overflow is checked for "three_steps" only.

    Source: docs/collectives.md.

    Example:
      >>> import fpsim as fp
      >>> x = np.ones((4, 2), np.float32)
      >>> for scheme in ("three_steps", "two_steps", "rows_only"):
      ...     print(scheme, fp.analysis.collectives.grid_all_reduce(x, "bf16", (2, 2), scheme=scheme)[0])
      three_steps [4 4]
      two_steps [2 2]
      rows_only [2 2]
    """
    require_word("scheme", scheme, SCHEMES)
    if not isinstance(grid, (tuple, list)) or len(grid) != 2 or not all(is_integer(n) and n >= 1 for n in grid):
        raise ValueError(f"grid must be (rows, columns), two integers >= 1; got {shown(grid)}.")
    rows, columns = map(int, grid)
    adder = Adder(fmt, accumulate, rounding, seed, "nonfinite")
    source = Source(x, ranks)
    if source.count != rows * columns:
        raise ValueError(
            f"grid must have {source.count} entries, one for each rank; got {rows} x {columns} = {rows * columns}."
        )
    source.keep = columns
    contributions = Contributions(source, adder, None)
    algorithm = TwoLevel(columns, Ring(), Ring())
    dtype = DTYPES.get(adder.fmt, adder.fmt.storage)
    if scheme == "three_steps":
        codes = reduce_rows(algorithm, contributions, adder)
        refuse_overflow(codes, source, contributions, algorithm, adder)
        return np.broadcast_to(codes.view(dtype), (source.count, source.size))
    nodes = NodeSums(contributions, algorithm, adder)
    sums = np.stack([nodes.row(i, 0, source.size) for i in range(rows)])  # (rows, n)
    if scheme == "rows_only":
        return np.repeat(sums, columns, axis=0).view(dtype)
    held = np.stack([contributions.row(rank, 0, source.size) for rank in range(source.count)])
    for j, shard in enumerate(split(BufferSpan(0, source.size), columns)):
        gathered = sums[:, shard.start : shard.stop].reshape(-1)[: source.size]  # shard j of row 0, of row 1, ...
        held[j::columns, : gathered.size] = gathered
    return held.view(dtype)
