"""Sums by 32 lanes: one order for every axis, which a warp and vector registers of any length share.

Lane l adds terms l, l + 32, ... in turn from +0; then lane l adds lane l + 16, and so on for 8, 4, 2 and 1. That is
`fp.LaneSum()`. Products are added in float64, which holds each of them, so that no fused operation changes a bit; their
sum is rounded to float32 once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.runtime.compile import inner_loop, kernel

f32, f64 = np.float32, np.float64
LANES = 32
CHUNK = 4096  # terms of a whole tensor that one sum by lanes takes; the sums of the chunks are added by lanes again


@inner_loop
def folded(lanes: Any) -> Any:
    """Return the sum of 32 lanes, which it overwrites."""
    width = LANES // 2
    while width > 0:
        for lane in range(width):
            lanes[lane] += lanes[width + lane]
        width //= 2
    return lanes[0]


@inner_loop
def lane_sum(row: Any, lanes: Any) -> Any:
    """Return the sum of a row of floats; lanes: room for 32 of their dtype."""
    lanes[:] = f32(0)
    whole = row.size - row.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += row[start + lane]
    for lane in range(row.size - whole):
        lanes[lane] += row[whole + lane]
    return folded(lanes)


@inner_loop
def lane_dot(x: Any, y: Any, lanes: Any) -> Any:
    """Return the float64 sum of the exact products of two rows of float32; lanes: room for 32 float64."""
    lanes[:] = f64(0)
    whole = x.size - x.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += f64(x[start + lane]) * f64(y[start + lane])
    for lane in range(x.size - whole):
        lanes[lane] += f64(x[whole + lane]) * f64(y[whole + lane])
    return folded(lanes)


@kernel
def sum_of_squares(x: Any, chunks: Any) -> Any:
    """Return the float64 sum of the squares of a flat float32 array.

    chunks: room for one float64 for each CHUNK elements.
    """
    lanes = np.empty(LANES, f64)
    for chunk in range(chunks.size):
        part = x[chunk * CHUNK : min((chunk + 1) * CHUNK, x.size)]
        chunks[chunk] = lane_dot(part, part, lanes)
    lanes[:] = f64(0)
    for chunk in range(chunks.size):
        lanes[chunk % LANES] += chunks[chunk]
    return folded(lanes)


@kernel
def row_sums(x: Any, lanes: Any, sums: Any) -> None:
    """Write the sum of each row of x (rows, columns); lanes: room for 32 numbers of its dtype."""
    for i in range(x.shape[0]):
        sums[i] = lane_sum(x[i], lanes)


@kernel
def column_sums(x: Any, lanes: Any, sums: Any) -> None:
    """Write the sums of x (rows, columns) over its rows; lanes: room for (32, columns) numbers of its dtype."""
    lanes[:] = f32(0)
    for i in range(x.shape[0]):
        lane = lanes[i % LANES]
        for j in range(x.shape[1]):
            lane[j] += x[i, j]
    _fold_rows(lanes)
    sums[:] = lanes[0]


@inner_loop
def _fold_rows(lanes: Any) -> None:
    """Add 32 lanes of rows to the first one."""
    width = LANES // 2
    while width > 0:
        for lane in range(width):
            for j in range(lanes.shape[1]):
                lanes[lane, j] += lanes[width + lane, j]
        width //= 2


@kernel
def column_dots(x: Any, y: Any, lanes: Any, sums: Any) -> None:
    """Round the sums of x * y (rows, columns) over the rows to float32; lanes: room for (32, columns) float64."""
    lanes[:] = f64(0)
    for i in range(x.shape[0]):
        lane = lanes[i % LANES]
        for j in range(x.shape[1]):
            lane[j] += f64(x[i, j]) * f64(y[i, j])
    _fold_rows(lanes)
    for j in range(x.shape[1]):
        sums[j] = f32(lanes[0, j])


@kernel
def add_by_code(codes: Any, rows: Any, sums: Any) -> None:
    """Add each row to the sum of its code, in ascending order of positions: the gradient of an embedding."""
    for i in range(codes.size):
        total = sums[codes[i]]
        for j in range(rows.shape[1]):
            total[j] += rows[i, j]
