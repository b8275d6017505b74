"""The tiles of an operand whose rounding costs a product most, and their worst values, with the cast explained."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.explain import explain
from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tile_sizes

SIDE = 128  # lines of a tile at most, where more share a scale
KEPT = 3  # tiles of a product, and values of a tile


class WorstValue(NamedTuple):
    """A value that rounding changes.

    Attributes:
      place: row and column in the tensor as it was recorded, its leading axes as one.
      value, rounded: before and after.
      scale: the decode scale; 1 without one.
      energy: the square of what its rounding does to the product, if nothing else changed it.
    """

    place: tuple[int, int]
    value: float
    rounded: float
    scale: float
    energy: float


class WorstTile(NamedTuple):
    """A tile of an operand.

    Attributes:
      operand: "input", "weight" or "output_gradient".
      rows, columns: where it lies in the tensor as it was recorded: from, and up to.
      energy: the sum of the squares of what its values' roundings do to the product.
      share: the same, as a share of that of both operands of one batch.
      fmt, rounding, overflow: of the cast.
      values: the worst ones.
      mixed: whether the values are those behind a Hadamard transform.
    """

    operand: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    energy: float
    share: float
    fmt: Any
    rounding: str
    overflow: str
    values: tuple[WorstValue, ...]
    mixed: bool = False

    def __str__(self) -> str:
        """Where it lies, and what became of its worst values."""
        behind = ", behind the Hadamard transform" if self.mixed else ""
        lines = [
            f"{self.operand}[{self.rows[0]}:{self.rows[1]}, {self.columns[0]}:{self.columns[1]}]{behind}: "
            f"{100 * self.share:.2g} % of what rounding both operands costs"
        ]
        for each in self.values:
            lines.append(f"  {each.place}: {each.value:.6g} becomes {each.rounded:.6g}, scale {each.scale:.6g}")
            lines += [f"    {line}" for line in self._explained(each)]
        return "\n".join(lines)

    def _explained(self, each: WorstValue) -> list[str]:
        """The cast of a value over its scale, in words; of floats, and of modes that do not draw."""
        if not isinstance(self.fmt, Format) or self.rounding == "stochastic":
            return []
        with np.errstate(all="ignore"):
            quotient = np.float32(each.value / each.scale)
        found = explain(quotient, self.fmt, rounding=self.rounding, overflow=self.overflow)
        return str(found).splitlines()


def worst_of(tiles: Iterable[WorstTile]) -> tuple[WorstTile, ...]:
    """Those that cost most, the worst first."""
    return tuple(heapq.nlargest(KEPT, tiles, key=lambda tile: tile.energy))


class OperandSide(NamedTuple):
    """One operand of a product.

    Attributes:
      name: as it was recorded.
      exact: (M, K) of a or (K, N) of b, float64.
      error: what the recipe's cast changes of it.
      encoded: a Scaled, codes, or the values themselves.
      turned: whether it is the transpose of what was recorded.
      meets: (K,), the sum of squares of what each term is multiplied by.
    """

    name: str
    exact: Array
    error: Array
    encoded: Any
    turned: bool
    meets: Array
    fmt: Any
    rounding: str
    overflow: str
    mixed: bool


def worst_tiles(side: OperandSide, first: bool, total: float) -> list[WorstTile]:
    """The worst tiles of an operand; first: whether it is a. total: the energy of both operands."""
    with np.errstate(all="ignore"):
        energy = side.error**2 * (side.meets[None, :] if first else side.meets[:, None])
    energy = np.nan_to_num(energy, nan=np.inf)
    block = side.encoded.scaling.block if isinstance(side.encoded, Scaled) else (-1, -1)
    tall, wide = (min(size, SIDE) for size in tile_sizes(side.exact.shape, block))
    rows, columns = (np.arange(0, length, size) for length, size in zip(side.exact.shape, (tall, wide), strict=True))
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(np.add.reduceat(energy, rows, axis=0), columns, axis=1)
    found = []
    for place in _largest(sums, KEPT):
        if sums[place] > 0:
            start = int(rows[place[0]]), int(columns[place[1]])
            found.append(_tile(side, energy, start, (tall, wide), float(sums[place]), total))
    return found


def _largest(x: Array, count: int) -> list[tuple[int, int]]:
    """The places of the largest elements, the largest first, earlier ones before equal later ones."""
    lows = np.negative(x).ravel()
    if count < lows.size:  # to sort all of them would take most of the time of a budget's row
        few = np.flatnonzero(lows <= np.partition(lows, count - 1)[count - 1])
        flat = few[np.argsort(lows[few], kind="stable")[:count]]
    else:
        flat = np.argsort(lows, kind="stable")[:count]
    return [(int(i), int(j)) for i, j in zip(*np.unravel_index(flat, x.shape), strict=True)]


def _tile(
    side: OperandSide, energy: Array, start: tuple[int, int], size: tuple[int, int], found: float, total: float
) -> WorstTile:
    """A tile that begins at a place of the operand."""
    stop = tuple(min(at + length, end) for at, length, end in zip(start, size, side.exact.shape, strict=True))
    part = energy[start[0] : stop[0], start[1] : stop[1]]
    values = []
    for i, j in _largest(part, KEPT):
        row, column = start[0] + i, start[1] + j
        value = float(side.exact[row, column])
        values.append(WorstValue(
            (column, row) if side.turned else (row, column), value, value + float(side.error[row, column]),
            _scale(side.encoded, row, column), float(part[i, j]),
        ))  # fmt: skip
    rows, columns = (start[0], stop[0]), (start[1], stop[1])
    if side.turned:
        rows, columns = columns, rows
    share = found / total if np.isfinite(total) and total else 1.0
    return WorstTile(
        side.name, rows, columns, found, share, side.fmt, side.rounding, side.overflow, tuple(values), side.mixed
    )


def _scale(encoded: Any, row: int, column: int) -> float:
    """The decode scale of an element."""
    if not isinstance(encoded, Scaled):
        return 1.0
    tall, wide = tile_sizes(encoded.codes.shape, encoded.scaling.block)
    return float(encoded.scales[row // tall, column // wide])
