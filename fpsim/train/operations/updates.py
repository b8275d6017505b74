"""Loops of AdamW over flat float32 arrays, and of counting what its updates change."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.core.elementary.steps import bits_of
from fpsim.runtime.compile import kernel

f32, u32 = np.float32, np.uint32
EXPONENT, EXPONENT_MASK = u32(23), u32(0xFF)
ZERO = f32(0)


@kernel
def adamw(gradient: Any, first: Any, second: Any, numbers: Any, update: Any) -> None:
    """Change both moments, and write the update before decay.

    m + (g - m) * (1 - beta1), v * beta2 + g * (1 - beta2) * g, and m * -size / (sqrt(v) / root + eps). numbers: float32
    1 - beta1, beta2, 1 - beta2, root = sqrt(1 - beta2**n), eps, and -size = -lr / (1 - beta1**n) of step n.
    """
    growth, beta2, weight, root, eps, size = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    for i in range(gradient.size):
        g = gradient[i]
        m = first[i] + (g - first[i]) * growth
        v = second[i] * beta2 + g * weight * g
        first[i], second[i] = m, v
        update[i] = m * size / (np.sqrt(v) / root + eps)


@kernel
def decayed(weights: Any, update: Any, decay: Any) -> None:
    """Take weight * decay from each update."""
    for i in range(update.size):
        update[i] -= weights[i] * decay


@kernel
def count(before: Any, update: Any, after: Any, exponents: Any) -> Any:
    """Return how many updates are not 0, and how many of these left their weight as it was.

    exponents: int64 (256,), to which the exponent field of each abs(update / weight) is counted.
    """
    moves, unchanged = 0, 0
    for i in range(update.size):
        exponents[(bits_of(update[i] / before[i]) >> EXPONENT) & EXPONENT_MASK] += 1
        moving = update[i] != ZERO
        moves += moving
        unchanged += moving and before[i] == after[i]
    return moves, unchanged
