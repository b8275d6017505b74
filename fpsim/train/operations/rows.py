"""Loops over rows of float32: softmax, cross-entropy, RMSNorm and SwiGLU, forwards and backwards.

Every operation is one of IEEE 754 in float32, rounded to nearest even, in the order that is written; exp, log, sigmoid,
silu and 1 / sqrt are correctly rounded. docs/training.md lists all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.float32 import exp, log, rsqrt, sigmoid, silu
from fpsim.runtime.compile import inner_loop, kernel
from fpsim.train.operations.sums import LANES, lane_dot, lane_sum

f32, f64 = np.float32, np.float64
ONE, ZERO = f32(1), f32(0)
LEAST = f32(-np.inf)


@inner_loop
def _largest(row: Any, lanes: Any) -> Any:
    """Return the largest number of a row, NaN left out; lanes: room for 32 float32."""
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
    """Write exp(row - its largest number), and return their sum and that number."""
    largest = _largest(row, lanes)
    for j in range(row.size):
        powers[j] = exp(row[j] - largest)
    return lane_sum(powers, lanes), largest


@kernel
def causal_softmax(x: Any, factor: Any, shares: Any) -> None:
    """Write the softmax of x * factor along the last axis of x (matrices, rows, columns), +0 behind the diagonal.

    Row i takes columns 0 .. i alone.
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
    """Write the gradient of a causal softmax's x, given that of its shares: p * (g - sum(p * g)) * factor."""
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
    """Write the softmax of each row of logits, and log(sum of exp(x - m)) - (x of the target - m)."""
    lanes = np.empty(LANES, f32)
    for i in range(logits.shape[0]):
        row = shares[i]
        total, largest = _powers(logits[i], row, lanes)
        losses[i] = log(total) - (logits[i, targets[i]] - largest)
        for j in range(row.size):
            row[j] /= total


@kernel
def cross_entropy_slopes(shares: Any, targets: Any, factor: Any, result: Any) -> None:
    """Write (p - 1 at the target) * factor."""
    for i in range(shares.shape[0]):
        target = targets[i]
        for j in range(shares.shape[1]):
            result[i, j] = shares[i, j] * factor
        result[i, target] = (shares[i, target] - ONE) * factor


@kernel
def mean(x: Any) -> Any:
    """Return the mean of a row of float32."""
    return lane_sum(x, np.empty(LANES, f32)) / f32(x.size)


@kernel
def rms_norm(x: Any, weight: Any, eps: Any, inverse: Any, result: Any) -> None:
    """Write r = 1 / sqrt(sum(x * x) / n + eps) of each row, and x * r * weight."""
    lanes, count = np.empty(LANES, f64), f32(x.shape[1])
    for i in range(x.shape[0]):
        r = rsqrt(f32(lane_dot(x[i], x[i], lanes)) / count + eps)
        inverse[i] = r
        for j in range(x.shape[1]):
            result[i, j] = x[i, j] * r * weight[j]


@kernel
def rms_norm_slopes(slopes: Any, x: Any, weight: Any, inverse: Any, ratios: Any, result: Any) -> None:
    """Write n = x * r and the gradient of x: r * (h - n * (sum(h * n) / count)), h = g * weight."""
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
    """Write silu(gate) * up of each row (gate, up)."""
    hidden = result.shape[1]
    for i in range(x.shape[0]):
        gate, up, row = x[i, :hidden], x[i, hidden:], result[i]
        for j in range(hidden):
            row[j] = silu(gate[j]) * up[j]


@kernel
def swiglu_slopes(slopes: Any, x: Any, result: Any) -> None:
    """Write the gradients of both halves of x: g * up * (s * (1 + gate * (1 - s))) and g * silu(gate).

    s is sigmoid(gate).
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
    """Write x, and +0 for numbers of 0 and below."""
    for i in range(x.size):
        result[i] = ZERO if x[i] <= ZERO else x[i]


@kernel
def relu_slopes(slopes: Any, x: Any, result: Any) -> None:
    """Write the gradient where x is not 0 or below, and +0 elsewhere."""
    for i in range(x.size):
        result[i] = ZERO if x[i] <= ZERO else slopes[i]
