"""CPU loops that compute the error of each tile, and that copy each tile from one of two encodings."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.runtime.compile import kernel

f64 = np.float64
SQUARES, MAGNITUDES, LARGEST = range(3)


@cache
def error_kernel() -> Any:
    """Return the loop (x, values, errors, rows, columns, kind) -> None that computes the error of each tile.

    x: 2-D floats. values: 2-D floats of the same shape, decoded from the codes of x. errors: float64, one per tile,
    filled. rows, columns: the size of a tile. kind: SQUARES or MAGNITUDES for sums, in float64 and row by row, of
    (value - x)**2 or |value - x|; LARGEST for the largest |value - x|.
    """

    def find_errors(x: Any, values: Any, errors: Any, rows: int, columns: int, kind: int) -> None:
        for band in range(errors.shape[0]):
            for tile in range(errors.shape[1]):
                total = f64(0)
                for r in range(band * rows, min((band + 1) * rows, x.shape[0])):
                    for i in range(tile * columns, min((tile + 1) * columns, x.shape[1])):
                        error = abs(f64(values[r, i]) - f64(x[r, i]))
                        if kind == SQUARES:
                            total += error * error
                        elif kind == MAGNITUDES:
                            total += error
                        elif not error <= total:  # a NaN stays
                            total = error
                errors[band, tile] = total

    return kernel(find_errors)


@cache
def merge_kernel() -> Any:
    """Return the loop (first, second, chosen, out, rows, columns) -> None that copies tiles from one of two matrices.

    It copies tiles of `second` to `out` where `chosen` is true, and tiles of `first` elsewhere; the three have one
    shape. chosen: 2-D, one flag per tile. rows, columns: the size of a tile.
    """

    def merge(first: Any, second: Any, chosen: Any, out: Any, rows: int, columns: int) -> None:
        for r in range(out.shape[0]):
            for tile in range(chosen.shape[1]):
                left, right = tile * columns, min((tile + 1) * columns, out.shape[1])
                if chosen[r // rows, tile]:
                    out[r, left:right] = second[r, left:right]
                else:
                    out[r, left:right] = first[r, left:right]

    return kernel(merge)
