"""Recomputation."""

from __future__ import annotations

import math


def blocks_recomputed(share: float, blocks: int) -> int:
    """Return how many of the blocks are computed again for a share of them, rounded up to a whole block.

    Example:
      >>> from fpsim.train.recomputation import blocks_recomputed
      >>> [blocks_recomputed(share, 4) for share in (0.0, 0.25, 0.3, 1.0)]
      [0, 1, 2, 4]
    """
    return math.ceil(round(share * blocks, 9))  # 1 - 0.9 of 10 blocks is one block
