"""The tiles of an operand whose rounding adds most to a product's error, with the worst values in them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.explain import explain
from fpsim.display.wording import percent
from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tile_sizes

SIDE = 128  # most rows and columns of a tile, if more share a scale
KEPT = 3  # worst tiles of a product, and worst values of a tile


class WorstValue(NamedTuple):
    """A value of an operand that rounding changes, and the effect on the product.

    Attributes:
      place: row and column in the recorded tensor, reshaped to a matrix by merging its leading axes.
      value, rounded: the value before and after rounding.
      scale: the decode scale; 1 if there is none.
      energy: the sum of squared errors that rounding this value alone causes in the product.
    """

    place: tuple[int, int]
    value: float
    rounded: float
    scale: float
    energy: float


class WorstTile(NamedTuple):
    """A tile of an operand, its effect on the product's error, and its worst values.

    The tile has the values that share a scale, cut to at most 128 x 128.

    Attributes:
      operand: "input", "weight" or "output_gradient", or another name such as "query".
      rows, columns: (start, stop) in the recorded tensor, reshaped to a matrix by merging its leading axes.
      energy: the sum of squared errors that rounding the tile's values causes in the product, if these errors are
        independent.
      share: `energy` divided by the sum of `energy` over all tiles of both operands in one batch; 1 if that sum is 0 or
        infinite.
      fmt: format of the cast; None without a cast.
      rounding, overflow: names of the cast's rounding and overflow modes.
      values: the values with the largest energy, at most 3.
      mixed: whether the values are taken after a Hadamard transform.
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
        """Return the position of the tile, and its worst values with their casts explained."""
        mixed = ", after the Hadamard transform" if self.mixed else ""
        lines = [
            f"{self.operand}[{self.rows[0]}:{self.rows[1]}, {self.columns[0]}:{self.columns[1]}]{mixed}: "
            f"{percent(self.share)} of the error that rounding both operands makes"
        ]
        for worst in self.values:
            lines.append(f"  {worst.place}: {worst.value:.6g} becomes {worst.rounded:.6g}, scale {worst.scale:.6g}")
            lines += [f"    {line}" for line in self._explained(worst)]
        return "\n".join(lines)

    def _explained(self, worst: WorstValue) -> list[str]:
        """Return the lines of text in which `fpsim.explain` describes the cast of one value, divided by its scale.

        Return [] for integer formats and stochastic rounding. `worst`: the value and its scale.
        """
        if not isinstance(self.fmt, Format) or self.rounding == "stochastic":
            return []
        with np.errstate(all="ignore"):
            quotient = np.float32(np.float64(worst.value) / worst.scale)  # a scale may have become 0
        return str(explain(quotient, self.fmt, rounding=self.rounding, overflow=self.overflow)).splitlines()


def worst_of(tiles: Iterable[WorstTile]) -> tuple[WorstTile, ...]:
    """Return the 3 tiles whose rounding adds most to a product's error (attribute `energy`), the largest first.

    If there are fewer tiles, all are returned.
    """
    return tuple(heapq.nlargest(KEPT, tiles, key=lambda tile: tile.energy))


class OperandSide(NamedTuple):
    """One operand of a product, with its cast and the cast's errors.

    Attributes:
      name: "input", "weight" or "output_gradient".
      exact: the values before the cast, float64, (M, K) if the operand is a, or (K, N) if it is b.
      error: the values after the recipe's cast minus `exact`.
      encoded: the result of the cast: a Scaled (codes with their scales), codes, or, without a cast, the values.
      turned: whether the operand is the transpose of the recorded tensor.
      factors: float64 of shape (K,), for each index of K the sum of squares of the other operand's values.
      fmt: format of the cast; None without a cast.
      rounding, overflow: names of the cast's rounding and overflow modes.
      mixed: whether the values are taken after a Hadamard transform.
    """

    name: str
    exact: Array
    error: Array
    encoded: Any
    turned: bool
    factors: Array
    fmt: Any
    rounding: str
    overflow: str
    mixed: bool


def worst_tiles(side: OperandSide, first: bool, total: float) -> list[WorstTile]:
    """Return the (at most 3) tiles of an operand whose rounding adds most to the product's error, the worst first.

    Args:
      side: the operand with its cast and errors.
      first: True if the operand is a, the left one of the product; False if it is b.
      total: the sum of `WorstTile.energy` over all tiles of both operands.
    """
    with np.errstate(all="ignore"):
        energy = side.error**2 * (side.factors[None, :] if first else side.factors[:, None])
    energy = np.nan_to_num(energy, nan=np.inf)
    block = side.encoded.scaling.block if isinstance(side.encoded, Scaled) else (-1, -1)
    tall, wide = (min(size, SIDE) for size in tile_sizes(side.exact.shape, block))
    rows, columns = (np.arange(0, length, size) for length, size in zip(side.exact.shape, (tall, wide), strict=True))
    with np.errstate(all="ignore"):
        sums = np.add.reduceat(np.add.reduceat(energy, rows, axis=0), columns, axis=1)
    tiles = []
    for place in _largest(sums, KEPT):
        if sums[place] > 0:
            start = int(rows[place[0]]), int(columns[place[1]])
            tiles.append(_tile(side, energy, start, (tall, wide), float(sums[place]), total))
    return tiles


def _largest(x: Array, count: int) -> list[tuple[int, int]]:
    """Return the (row, column) indices of the `count` largest elements of the matrix x, the largest first.

    Of equal elements, the earlier in C order comes first.
    """
    lows = np.negative(x).ravel()
    if count < lows.size:  # sorting all of them would take most of the time of a budget's row
        few = np.flatnonzero(lows <= np.partition(lows, count - 1)[count - 1])
        flat = few[np.argsort(lows[few], kind="stable")[:count]]
    else:
        flat = np.argsort(lows, kind="stable")[:count]
    return [(int(i), int(j)) for i, j in zip(*np.unravel_index(flat, x.shape), strict=True)]


def _tile(
    side: OperandSide, energy: Array, start: tuple[int, int], size: tuple[int, int], tile_energy: float, total: float
) -> WorstTile:
    """Return the operand's tile of the given size (rows, columns) that begins at index `start`, with its worst values.

    `side`: the operand. `energy`: in the shape of the operand, the squared error of the product that each value causes.
    `tile_energy`: the sum of `energy` in the tile. `total`: the sum of `energy` over both operands.
    """
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
    share = tile_energy / total if np.isfinite(total) and total else 1.0
    return WorstTile(
        side.name, rows, columns, tile_energy, share, side.fmt, side.rounding, side.overflow, tuple(values), side.mixed
    )


def _scale(encoded: Any, row: int, column: int) -> float:
    """Return the decode scale of the element at (row, column); 1 without scales.

    `encoded`: the result of a cast: a Scaled (codes with their scales), or codes or values without scales.
    """
    if not isinstance(encoded, Scaled):
        return 1.0
    tall, wide = tile_sizes(encoded.codes.shape, encoded.scaling.block)
    return float(encoded.scales[row // tall, column // wide])
