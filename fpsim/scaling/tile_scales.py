"""From the amaxes of tiles to their scales, NaN and Inf included, for all tiles at once.

The fused loops do the same strip by strip (`kernels/tiles.py`, settle_kernel); here it takes no compilation of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.core.tile_scale import HAS_INFINITY, HAS_NAN, INFINITE_TILES, NAN_TILE, NAN_TILES, ONE, PROPAGATE
from fpsim.scaling.plan import ScalePlan, TensorScale

Array = npt.NDArray[Any]


def settle(
    plan: ScalePlan,
    tensor: TensorScale,
    tops: Array,
    specials: Array,
    scales: Array,
    codes: Array,
    factors: Array,
    counts: Array,
) -> None:
    """Fill scales, their codes (where there are any) and factors from bits of finite amaxes; all of one axis.

    specials: what else tiles hold. Changes tops.
    """
    arguments = plan.arguments(tensor)
    if not specials.any():
        plan.loop(tops, scales, codes, factors, *arguments, counts)
        return
    rules = [int(rule) for rule in plan.rules]
    nan_tile, infinity, one, nan_code = rules[0] == NAN_TILE, rules[1], rules[2], rules[3]
    infinite, with_nan = (specials & HAS_INFINITY) != 0, (specials & HAS_NAN) != 0
    counts[INFINITE_TILES] += np.count_nonzero(infinite)
    counts[NAN_TILES] += np.count_nonzero(with_nan)
    lost = with_nan & nan_tile
    if infinity in (PROPAGATE, ONE):
        tops[infinite] = rules[4] if infinity == PROPAGATE else one
    tops[lost] = one
    plan.loop(tops, scales, codes, factors, *arguments, counts)
    unbounded = infinite & np.isinf(scales) if infinity == PROPAGATE else np.zeros_like(lost)
    ruled = lost | unbounded  # a scale that is NaN or Inf by rule was not clamped
    if ruled.any():
        uncounted = np.zeros_like(counts)
        some = (tops[ruled], scales[ruled], codes[ruled] if codes.size else codes, factors[ruled])
        plan.loop(*some, *arguments, uncounted)
        counts -= uncounted
    scales[lost] = np.nan
    factors[lost] = np.nan
    if codes.size:
        codes[lost] = nan_code
