"""Loops over float32 arrays: sums in 32 partial sums, softmax, cross-entropy, RMSNorm and SwiGLU, AdamW's updates.

Every operation is rounded to nearest even, in the order of the code; docs/training.md lists all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.core.elementary.exponentials import exp_wide
from fpsim.core.elementary.float32 import FUNCTIONS
from fpsim.core.elementary.logarithms import log_wide
from fpsim.core.elementary.steps import bits_of
from fpsim.runtime.compile import inner_loop, kernel
from fpsim.runtime.processor import ieee_arithmetic

f32, f64, u32 = np.float32, np.float64, np.uint32
exp, log, rsqrt, sigmoid, silu = (FUNCTIONS[name] for name in ("exp", "log", "rsqrt", "sigmoid", "silu"))
ONE, HALF, ZERO, LEAST = f32(1), f32(0.5), f32(0), f32(-np.inf)
EXPONENT, EXPONENT_MASK = u32(23), u32(0xFF)
LANES = 32
CHUNK = 4096  # elements that 32 partial sums add; the sums of chunks are added in 32 partial sums again


# ---- sums in 32 lanes (interleaved partial sums): one order that suits a warp and vector registers of any length
# Lane l adds terms l, l + 32, ... in turn from +0; then lane l + 16 is added to lane l, and so on with 8, 4, 2 and 1,
# as in `fp.LaneSum()`. Products are added in float64, which represents them exactly, so that fused operations change
# no bit; their sum is rounded to float32 once.


@inner_loop
def folded(lanes: Any) -> Any:
    """Return the sum of the 32 numbers `lanes`, which are overwritten: i + 16 is added to i, then i + 8, 4, 2 and 1."""
    width = LANES // 2
    while width > 0:
        for lane in range(width):
            lanes[lane] += lanes[width + lane]
        width //= 2
    return lanes[0]


@inner_loop
def lane_sum(row: Any, lanes: Any) -> Any:
    """Return the sum of a row of floats, added as 32 partial sums, which `folded` then adds.

    Partial sum i adds terms i, i + 32, i + 64 and so on, in turn. lanes: scratch for 32 numbers of the row's dtype.
    """
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
    """Return the dot product of two float32 rows: exact products, added in float64 in the order of `lane_sum`.

    lanes: scratch for 32 float64.
    """
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
    """Return the float64 sum of the squares of a flat float32 array, added in chunks of CHUNK elements.

    The squares of each chunk are added in the order of `lane_sum`; then the sums of the chunks are added in that order.
    chunks: scratch, float64, of ceil(x.size / CHUNK) elements.
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
    """Write the sum of each row of x (rows, columns), as `lane_sum` adds it, to sums (rows,); lanes: scratch (32,)."""
    for i in range(x.shape[0]):
        sums[i] = lane_sum(x[i], lanes)


@kernel
def column_sums(x: Any, lanes: Any, sums: Any) -> None:
    """Write the sums of x (rows, columns) over its rows, in the order of `lane_sum`, to sums (columns,).

    lanes: scratch (32, columns) of the dtype of x.
    """
    lanes[:] = f32(0)
    for i in range(x.shape[0]):
        lane = lanes[i % LANES]
        for j in range(x.shape[1]):
            lane[j] += x[i, j]
    _fold_rows(lanes)
    sums[:] = lanes[0]


@inner_loop
def _fold_rows(lanes: Any) -> None:
    """Add 32 rows in place, as `folded` adds 32 numbers, so that row 0 of lanes (32, columns) becomes their sum."""
    width = LANES // 2
    while width > 0:
        for lane in range(width):
            for j in range(lanes.shape[1]):
                lanes[lane, j] += lanes[width + lane, j]
        width //= 2


@kernel
def column_dots(x: Any, y: Any, lanes: Any, sums: Any) -> None:
    """Write sum(x * y) over rows to sums (columns,), for x and y (rows, columns); lanes: float64 scratch (32, columns).

    Products are exact; they are added in float64, in the order of `lane_sum` over rows, and rounded to float32.
    """
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
    """Add row i of rows (n, columns) to row codes[i] of sums, for ascending i: the gradient of an embedding."""
    for i in range(codes.size):
        total = sums[codes[i]]
        for j in range(rows.shape[1]):
            total[j] += rows[i, j]


# ---- rows


@inner_loop
def _largest(row: Any, lanes: Any) -> Any:
    """Return the largest number of a row, ignoring NaN; -Inf if there is none. lanes: scratch for 32 float32."""
    lanes[:] = LEAST
    whole = row.size - row.size % LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            x = row[start + lane]
            lanes[lane] = x if x > lanes[lane] else lanes[lane]
    for lane in range(row.size - whole):
        x = row[whole + lane]
        lanes[lane] = x if x > lanes[lane] else lanes[lane]
    largest = LEAST
    for lane in range(LANES):
        largest = lanes[lane] if lanes[lane] > largest else largest
    return largest


@inner_loop
def _powers(row: Any, powers: Any, lanes: Any) -> Any:
    """Write exp(row - max(row)) to powers; return (their `lane_sum`, max(row)). lanes: scratch for 32 float32."""
    largest = _largest(row, lanes)
    for j in range(row.size):
        powers[j] = exp(row[j] - largest)
    return lane_sum(powers, lanes), largest


@kernel
def causal_softmax(x: Any, factor: Any, shares: Any) -> None:
    """Write to shares the softmax of x * factor over columns 0 to i of each row i, and +0 to the row's other columns.

    x, shares: float32 (matrices, rows, columns).
    """
    lanes, scaled = np.empty(LANES, f32), np.empty(x.shape[2], f32)
    for matrix in range(x.shape[0]):
        for i in range(x.shape[1]):
            width = i + 1
            for j in range(width):
                scaled[j] = x[matrix, i, j] * factor
            row = shares[matrix, i]
            row[width:] = ZERO
            total, _ = _powers(scaled[:width], row[:width], lanes)
            for j in range(width):
                row[j] /= total


@kernel
def causal_softmax_slopes(slopes: Any, shares: Any, factor: Any, result: Any) -> None:
    """Write the gradient of `causal_softmax`'s x to result; all arrays are float32 (matrices, rows, columns).

    It is p * (g - sum(p * g)) * factor in columns 0 to i of row i, where `lane_dot` adds the sum, and 0 in other
    columns. p: shares, the softmax. g: slopes, the gradient of p.
    """
    lanes = np.empty(LANES, f64)
    for matrix in range(shares.shape[0]):
        for i in range(shares.shape[1]):
            width = i + 1
            p, g, row = shares[matrix, i, :width], slopes[matrix, i, :width], result[matrix, i]
            row[width:] = ZERO
            total = f32(lane_dot(p, g, lanes))
            for j in range(width):
                row[j] = p[j] * (g[j] - total) * factor


@kernel
def cross_entropy(logits: Any, targets: Any, shares: Any, losses: Any) -> None:
    """Write the softmax of each row x of logits to shares, and its cross entropy to losses.

    The cross entropy is log(sum(exp(x - m))) - (x[target] - m) with m = max(x). targets: the class of each row,
    (rows,). logits, shares: float32 (rows, classes). losses: float32 (rows,).
    """
    lanes = np.empty(LANES, f32)
    for i in range(logits.shape[0]):
        row = shares[i]
        total, largest = _powers(logits[i], row, lanes)
        losses[i] = log(total) - (logits[i, targets[i]] - largest)
        for j in range(row.size):
            row[j] /= total


@kernel
def cross_entropy_slopes(shares: Any, targets: Any, factor: Any, result: Any) -> None:
    """Write the gradient of a cross entropy's logits to result: p * factor, but (p - 1) * factor at the target.

    p: shares, the softmax of the logits, (rows, classes). targets: (rows,).
    """
    for i in range(shares.shape[0]):
        target = targets[i]
        for j in range(shares.shape[1]):
            result[i, j] = shares[i, j] * factor
        result[i, target] = (shares[i, target] - ONE) * factor


@kernel
def mean(x: Any) -> Any:
    """Return the mean of a float32 array (n,): its sum as `lane_sum` adds it in float32, divided by n."""
    return lane_sum(x, np.empty(LANES, f32)) / f32(x.size)


@kernel
def rms_norm(x: Any, weight: Any, eps: Any, inverse: Any, result: Any) -> None:
    """Write r = 1 / sqrt(mean(x * x) + eps) of each row of x to inverse (rows,), and x * r * weight to result."""
    lanes, count = np.empty(LANES, f64), f32(x.shape[1])
    for i in range(x.shape[0]):
        r = rsqrt(f32(lane_dot(x[i], x[i], lanes)) / count + eps)
        inverse[i] = r
        for j in range(x.shape[1]):
            result[i, j] = x[i, j] * r * weight[j]


@kernel
def rms_norm_slopes(slopes: Any, x: Any, weight: Any, inverse: Any, ratios: Any, result: Any) -> None:
    """Write n = x * r to ratios, and the gradient of x to result: r * (h - n * mean(h * n)) for h = slopes * weight.

    inverse: r of each row, as `rms_norm` wrote it. slopes: the gradient of the result.
    """
    lanes, h, count = np.empty(LANES, f64), np.empty(x.shape[1], f32), f32(x.shape[1])
    for i in range(x.shape[0]):
        r, n = inverse[i], ratios[i]
        for j in range(x.shape[1]):
            n[j] = x[i, j] * r
            h[j] = slopes[i, j] * weight[j]
        mean_slope = f32(lane_dot(h, n, lanes)) / count
        for j in range(x.shape[1]):
            result[i, j] = r * (h[j] - n[j] * mean_slope)


@kernel
def swiglu(x: Any, result: Any) -> None:
    """Write silu(gate) * up to result (rows, n), for x (rows, 2 n) whose halves are gate and up."""
    hidden = result.shape[1]
    for i in range(x.shape[0]):
        gate, up, row = x[i, :hidden], x[i, hidden:], result[i]
        for j in range(hidden):
            row[j] = silu(gate[j]) * up[j]


@kernel
def swiglu_slopes(slopes: Any, x: Any, result: Any) -> None:
    """Write to result the gradient of SwiGLU's x: g * up * (s * (1 + gate * (1 - s))) for gate, g * silu(gate) for up.

    g: slopes, the gradient of the result; s: sigmoid(gate).
    """
    hidden = slopes.shape[1]
    for i in range(slopes.shape[0]):
        g, gate, up, of_gate, of_up = slopes[i], x[i, :hidden], x[i, hidden:], result[i, :hidden], result[i, hidden:]
        for j in range(hidden):
            s = sigmoid(gate[j])
            of_gate[j] = g[j] * up[j] * (s * (ONE + gate[j] * (ONE - s)))
        for j in range(hidden):
            of_up[j] = g[j] * silu(gate[j])


@kernel
def relu(x: Any, result: Any) -> None:
    """Write x to result where x is above 0 or NaN, else +0."""
    for i in range(x.size):
        result[i] = ZERO if x[i] <= ZERO else x[i]


@kernel
def relu_slopes(slopes: Any, x: Any, result: Any) -> None:
    """Write to result the gradient of ReLU's x: `slopes`, the result's gradient, where x is above 0 or NaN, else +0."""
    for i in range(x.size):
        result[i] = ZERO if x[i] <= ZERO else slopes[i]


# ---- updates of AdamW, and counts of what they change


@kernel
def adamw(gradient: Any, first: Any, second: Any, numbers: Any, update: Any) -> None:
    """Update both moments of AdamW in place, and write the update of the weights before decay.

    first: m becomes m + (g - m) * (1 - beta1) for the gradient g, but g - (g - m) * (1 - (1 - beta1)) if 1 - beta1 is
    0.5 or more, as by torch.lerp. second: v becomes v * beta2 + g * (1 - beta2) * g. update: filled with m * -size /
    (sqrt(v) / root + eps) for the new moments. numbers: float32 [1 - beta1, beta2, 1 - beta2, root = sqrt(1 -
    beta2**n), eps, -size = -lr / (1 - beta1**n)], at step n.
    """
    growth, beta2, weight, root, eps, size = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    for i in range(gradient.size):
        g = gradient[i]
        m = first[i] + (g - first[i]) * growth if growth < HALF else g - (g - first[i]) * (ONE - growth)
        v = second[i] * beta2 + g * weight * g
        first[i], second[i] = m, v
        update[i] = m * size / (np.sqrt(v) / root + eps)


@kernel
def decayed(weights: Any, update: Any, decay: Any) -> None:
    """Subtract weights * decay from `update` in place; all are flat float32 arrays of one size."""
    for i in range(update.size):
        update[i] -= weights[i] * decay


@kernel
def count(before: Any, update: Any, after: Any, exponents: Any) -> Any:
    """Return (number of updates that are not 0, number of these that left their weight unchanged).

    before, after: the weights before and after the update. exponents: int64 (256,); element e is increased by 1 for
    each quotient update / weight whose float32 exponent field is e.
    """
    moves, unchanged = 0, 0
    for i in range(update.size):
        exponents[(bits_of(update[i] / before[i]) >> EXPONENT) & EXPONENT_MASK] += 1
        moving = update[i] != ZERO
        moves += moving
        unchanged += moving and before[i] == after[i]
    return moves, unchanged


# ---- exp and log in float64
# The same bits everywhere, unlike NumPy's. Relative errors are below 2**-46 (docs/elementary.md), for results that are
# rounded to formats of up to 16 bits.


@kernel
def _exp_each(x: Any, y: Any) -> None:
    """Write exp(x) of flat float64 numbers to y, float64, with a relative error below 2**-46."""
    for i in range(x.size):
        y[i] = exp_wide(x[i])


@kernel
def _log_each(x: Any, y: Any) -> None:
    """Write log(x) of flat, positive and finite float64 numbers to y, float64."""
    for i in range(x.size):
        y[i] = log_wide(x[i])


def wide_exp(x: Array) -> Array:
    """Return exp(x) in float64 for finite x; x below -110 counts as -110, above 90 as 90."""
    y = np.empty(x.shape)
    with ieee_arithmetic():
        _exp_each(np.ascontiguousarray(x, np.float64).reshape(-1), y.reshape(-1))
    return y


def wide_log(x: Array) -> Array:
    """Return log(x) in float64 for float32 values; -Inf for 0, NaN below 0, Inf and NaN unchanged."""
    ordinary = (x > 0) & np.isfinite(x)
    y = np.empty(x.shape)
    with ieee_arithmetic():
        _log_each(np.ascontiguousarray(np.where(ordinary, x, 1.0), np.float64).reshape(-1), y.reshape(-1))
    others = np.where(x == 0, -np.inf, np.where(x > 0, x, np.nan))
    return np.where(ordinary, y, others)
