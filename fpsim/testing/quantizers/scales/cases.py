"""Matrices at which scaling recipes differ: magnitudes of tiles, ties, zeros, specials, partial tiles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes, tiling
from fpsim.testing.quantizers.scales.tiles import reduced_tiles, spread_tiles

LAST = "the largest magnitude at the end of each tile"
BRIEF = 1 << 14  # elements of a matrix if its tiles are not too large; hundreds of recipes are tried on each


def cases_for(scaling: Scaling, fmt: Element) -> dict[str, Array]:
    """Return {name in reports: float32 matrix}: matrices whose results tell a scaling from similar recipes.

    Their tiles have, for example, different magnitudes, scales at ties, elements at ties, an outlier or only zeros.
    fmt: the element format.
    """
    rng = np.random.default_rng(0)
    rows, columns = _shape(scaling)
    plain = rng.standard_normal((rows, columns))
    tiles = tiling((rows, columns), scaling.block).grid
    height, width = tile_sizes((rows, columns), scaling.block)

    def for_elements(of_tiles: Array) -> Array:
        return spread_tiles(of_tiles, plain.shape, scaling.block)

    spread = plain * for_elements(np.exp2(rng.integers(-12, 12, tiles)))
    largest = np.abs(spread).copy()
    powers = np.exp2(np.floor(np.log2(largest)))
    most = _largest_value(fmt)
    edge = np.where(rng.random(plain.shape) < 0.5, powers, np.nextafter(powers.astype(np.float32), np.float32(0)))
    full = powers * most / 2.0 ** np.floor(np.log2(most))
    special = spread.copy()
    special[:height, :width] = 0
    special[-1, -1] = -0.0
    amax = _at_ties(scaling, most, rng, tiles)
    ties = np.clip(plain / 5, -0.9, 0.9) * for_elements(amax)
    ties[::height, ::width] = amax * rng.choice([-1, 1], amax.shape)
    outlier = plain.copy()
    outlier[min(height, rows) - 1, min(width, columns) - 1] = 3e4
    seams = _at_element_ties(spread.astype(np.float32), fmt, scaling, rng)
    with np.errstate(all="ignore"):
        matrices = {
            "ordinary tiles": plain, "tiles of different size": spread, "amax at a power of two": edge,
            "amax at the largest value times a power of two": full, "a tile of zeros": special,
            "constant tiles": 1.7 * for_elements(rng.choice([-1.0, 1.0], tiles)),
            "an outlier at a tile's edge": outlier,
            "scales at ties": ties, "elements at ties": seams, "very small values": plain * 2.0**-120,
            "very large values": plain * 2.0**120,
            "subnormal values": plain * 2.0**-140,
            "a largest magnitude of a few subnormals": np.rint(plain * 3) * 2.0**-149,
            LAST: _largest_last(plain, scaling),
        }  # fmt: skip
        if not scaling.symmetric and isinstance(fmt, IntegerFormat):
            matrices["zero points at ties"] = _at_zero_point_ties(plain.shape, scaling, fmt, rng)
        return {name: np.asarray(x, np.float32) for name, x in matrices.items()}


def partial_cases(plain: dict[str, Array], scaling: Scaling) -> dict[str, Array]:
    """Return {name in reports: matrix}: three matrices cut so that the last tiles along both axes are incomplete.

    plain: the matrices that `cases_for` returns for `scaling`.
    """
    height, width = (max(size, 1) for size in _block(scaling))
    rows, columns = plain["ordinary tiles"].shape
    cut = np.s_[: rows - height // 2, : columns - (width // 2 + (width > 2))]
    if height == width == 1:
        cut = np.s_[: rows - 3, : columns - 5]
    names = ("tiles of different size", "elements at ties", LAST)
    matrices = {f"{name}, with partial tiles": np.ascontiguousarray(plain[name][cut]) for name in names}
    matrices[f"{LAST}, with partial tiles"] = _largest_last(matrices[f"{LAST}, with partial tiles"], scaling)
    return matrices


def _largest_last(x: Array, scaling: Scaling) -> Array:
    """Return a copy of the matrix x in which the last element of each tile is 8 times as large as the largest one."""
    ends = [np.minimum(np.arange(step - 1, size + step - 1, step), size - 1)
            for size, step in zip(x.shape, tile_sizes(x.shape, scaling.block), strict=True)]  # fmt: skip
    changed = x.copy()
    changed[np.ix_(*ends)] = 8 * reduced_tiles(np.maximum, np.abs(x), scaling.block)
    return changed


def _at_zero_point_ties(shape: tuple[int, ...], scaling: Scaling, fmt: IntegerFormat, rng: np.random.Generator) -> Any:
    """Return a float64 matrix in which many tiles have zero points at ties: (lowest value) / scale is a half integer.

    In the other tiles that quotient is an integer. In some tiles, no value is below zero, or none above. shape: shape
    of the matrix. scaling: the recipe, for its tiles. fmt: the element format, for the range of integers. rng: the
    random generator.
    """
    tiles = tiling(shape, scaling.block).grid
    height, width = tile_sizes(shape, scaling.block)
    steps = fmt.highest - fmt.lowest
    low = rng.integers(0, steps, tiles) + rng.choice([0, 0.5], tiles)
    low = np.where(rng.random(tiles) < 0.2, rng.choice([0, steps], tiles), low)  # nothing below, or nothing above zero
    scale = np.exp2(rng.integers(-3, 4, tiles))
    levels = rng.integers(0, 2 * steps + 1, shape) / 2
    levels[::height, ::width] = 0
    levels[height - 1 :: height, width - 1 :: width] = steps
    return (levels - spread_tiles(low, shape, scaling.block)) * spread_tiles(scale, shape, scaling.block)


def _at_ties(scaling: Scaling, most: float, rng: np.random.Generator, tiles: tuple[int, ...]) -> Any:
    """Return largest magnitudes of tiles, float32, whose scales are at ties of the scale format or next to ties.

    The first tile has the largest scale, so that the array's scale, if any, is 1. scaling: the recipe. most: largest
    value of an element. rng: the random generator. tiles: shape of the grid of tiles, and of the result.
    """
    fmt = scaling.scale_format
    low, high = max(-6, fmt.min_exponent), min(6, math.frexp(fmt.max)[1] - 1)
    steps = 1 << min(fmt.mantissa_bits, 4)
    halves = (2 * np.arange(steps) + 1) / (2 * steps)
    ties = np.concatenate([(1 + halves) * 2.0**power for power in range(low, high)])
    if not fmt.mantissa_bits:
        ties = np.concatenate([ties, ties / 1.5 * 1.75, ties / 1.5 * 1.9375, ties / 1.5 * 1.25])
    amax = (rng.choice(ties, tiles) * most).astype(np.float32)
    toward = rng.choice([0, 1, 1, 2], tiles).astype(np.float32)
    amax = np.nextafter(amax, amax * toward, dtype=np.float32)
    amax.flat[0] = most * min(fmt.max, 2.0**60)
    return amax


def _largest_value(fmt: Element) -> float:
    """Return the largest value of an element format; 127 for LogFMT, whose values depend on the tile."""
    return 127.0 if isinstance(fmt, LogFMT) else fmt.max


def _at_element_ties(x: Array, fmt: Element, scaling: Scaling, rng: np.random.Generator) -> Array:
    """Return a float32 matrix whose quotients by the scales of `scaling` are next to ties between values of `fmt`.

    Its tiles have the same largest magnitudes as those of x, a float32 matrix. rng: the random generator.
    """
    height, width = tile_sizes(x.shape, scaling.block)
    spread = spread_tiles(encode_scaled(x, fmt, scaling).scales, x.shape, scaling.block)
    values = np.arange(_largest_value(fmt) + 1) if not isinstance(fmt, Format) else fmt.table()[: fmt.max_code + 1]
    values = np.sort(values[np.isfinite(values) & (values >= 0)])
    with np.errstate(all="ignore"):
        ties = (rng.choice((values[1:] + values[:-1]) / 2, x.shape) * spread).astype(np.float32)
    if not isinstance(fmt, Format) or fmt.signed:
        ties *= rng.choice(np.array([-1, 1], np.float32), x.shape)
    amax = reduced_tiles(np.maximum, np.abs(x), scaling.block)
    ties[::height, ::width] = amax
    limits = spread_tiles(amax, x.shape, scaling.block)
    return np.clip(ties, -limits, limits)


def _shape(scaling: Scaling) -> tuple[int, int]:
    """Return a matrix shape with several whole tiles along both axes, and at most 2**14 elements if possible.

    Matrices of longer tiles have fewer of them, since hundreds of recipes are tried. scaling: the recipe of the tiles.
    """
    height, width = _block(scaling)
    if height < 2 and width < 2:
        return 48, 64
    if min(height, width) > 1:
        count = 2 if max(height, width) > 32 else 3
        return count * height, count * width
    size = max(height, width)
    along = (3 if size <= 128 else 2) * size
    across = 16 * min(3, BRIEF // (16 * along)) or max(4, min(16, 4 * BRIEF // along))
    return (across, along) if width == size else (along, across)


def special_cases(plain: Array, scaling: Scaling) -> dict[str, Array]:
    """Return {name in reports: matrix}: `plain` with one Inf, `plain` with one NaN, and a matrix of another shape.

    The last one has the shape (n + 32, n) for tiles (1, n) of `scaling`, (m, m + 32) for tiles (m, 1), and (3 * m, n)
    for other tiles (m, n), where a whole axis counts as 1. For tiles (1, 1) it has the shape of `plain` transposed.
    """
    infinite, nan = plain.copy(), plain.copy()
    infinite[1, 1], nan[2, 2] = np.inf, np.nan
    height, width = (max(size, 1) for size in _block(scaling))
    size = max(height, width)
    turned = (size + 32, width) if height == 1 else (height, size + 32) if width == 1 else (3 * height, width)
    other = np.resize(plain, plain.shape[::-1] if size == 1 else turned)
    return {"an Inf": infinite, "a NaN": nan, "a matrix of the other shape": other}


def _block(scaling: Scaling) -> tuple[int, int]:
    """Return the rows and columns of a scaling's tile; -1 means a whole axis."""
    block = scaling.block
    return (1, block[0]) if len(block) == 1 else (block[-2], block[-1])
