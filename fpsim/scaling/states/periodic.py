"""Scales that are recomputed every N training steps, or at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import ElementLike
from fpsim.scaling.recipes import TENSOR
from fpsim.scaling.scaled import encode_scaled, quantize_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.states.state import _integer, _ScaleState

if TYPE_CHECKING:
    from fpsim.scaling.states import steps


class PeriodicScaling(_ScaleState):
    """Scales that are computed from the array at every N-th step, and used unchanged in between.

    Steps 0, N, 2N, ... compute `fpsim.encode_scaled(x, fmt, scaling)`. The steps between them compute
    `fpsim.encode_scaled(x, fmt, scaling, scales=scales)` with the last scales. A scale is used for N steps even if it
    is NaN (the tile had a NaN, and nan="tile") or 1 (the tile was all zeros). An infinite scale (the tile had an Inf,
    and infinity="propagate") makes its tile NaN in the steps between, too. A NaN at another step makes its tile NaN in
    that step only.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: the scaling that computes the scales of an array, by name or object.
      every: N, at least 1.

    Raises:
      ValueError: `every` is below 1, or format and scaling exclude each other.

    Example:
      >>> import fpsim as fp
      >>> state = fp.PeriodicScaling(fp.E4M3, every=2)
      >>> [state.quantize(np.float32([n])).item() for n in (1, 2, 4)]
      [1.0, 1.0, 4.0]
      >>> state.counts
      ScaleCounts(elements=3, saturated=1, underflowed=0, steps=3, recalibrations=2)
    """

    OPTIONS = ("every",)
    ARRAYS = ("scales",)

    def __init__(self, fmt: ElementLike, scaling: Scaling | str = TENSOR, *, every: int = 1000) -> None:
        super().__init__(fmt, scaling)
        self.every = _integer("every", every, 1)

    @property
    def scales(self) -> Array | None:
        """Copy of the decode scales computed last, float32, one per tile; None before the first step."""
        return self._arrays["scales"].copy() if self._arrays else None

    def _run(self, step: steps.EncodingStep, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        """Encode a step's array, with new scales at every N-th step, and return what `_ScaleState._run` describes."""
        from fpsim.scaling.states import steps

        if self._counts.steps % self.every == 0:
            result, scales, factors = steps.encode_with_own_scales(step, back=back)
            return result, factors, {"scales": scales}, True
        scales = self._arrays["scales"]
        scales = np.where(np.isinf(scales), np.float32(np.nan), scales)
        run = quantize_scaled if back else encode_scaled
        result = run(step.source, self.fmt, self.scaling, scales=scales, **step.keywords)
        return result, steps.given_factors(step, scales), self._arrays, False

    def _check_arrays(self, arrays: dict[str, Array]) -> None:
        """Raise a ValueError if a saved scale is neither positive nor NaN; arrays: {"scales": decode scales}."""
        scales = arrays["scales"]
        if not np.all((scales > 0) | np.isnan(scales)):
            raise ValueError(f"scales must be positive; got {scales[~(scales > 0)][0]}.")


class OnlineScaling(_ScaleState):
    """Scales computed from the array itself at every step, as by `fpsim.encode_scaled`, with counts of lost elements.

    The counts are those of saturated and underflowed elements (`ScaleCounts`). Arrays may differ in shape from step to
    step, as only the counts persist.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: the scaling that computes the scales of an array, by name or object.

    Raises:
      ValueError: format and scaling exclude each other.

    Example:
      >>> import fpsim as fp
      >>> state = fp.OnlineScaling(fp.E2M1, fp.scalings.MX)
      >>> state.quantize(np.float32([0.1, 0.2, 0.3, 7.0]))
      array([0. , 0. , 0.5, 6. ], dtype=float32)
      >>> state.last.underflowed, state.last.saturated
      (2, 1)
    """

    def _run(self, step: steps.EncodingStep, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        """Encode a step's array with scales computed from it, and return what `_ScaleState._run` describes."""
        from fpsim.scaling.states import steps

        result, _, factors = steps.encode_with_own_scales(step, back=back)
        return result, factors, {}, True
