"""Delayed scaling: scales computed from the amax of earlier training steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown, unknown
from fpsim.formats.cast_options import ElementKeywords
from fpsim.formats.element import ElementLike
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import TableFormat
from fpsim.scaling.recipes import TENSOR
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.states.state import (
    AMAX,
    LARGEST,
    LARGEST_MARGIN,
    LONGEST_HISTORY,
    ZERO_AMAX,
    _integer,
    _plain,
    _ScaleState,
)
from fpsim.scaling.tiling import tiling

if TYPE_CHECKING:
    from fpsim.scaling.states import steps


class DelayedScaling(_ScaleState):
    """Scales from the amax of earlier steps, as Transformer Engine's DelayedScaling recipe computes them.

    Every tile starts with the encode scale e = 1 and a history of zeros. A step encodes x * e, in float32 (float64 for
    float64 x), saturating; the decode scale is 1 / e in float32. Then, all in float32,

    1. the tile's amax (largest magnitude), NaN ignored, is appended to the history, whose first entry is dropped;
    2. a is the largest entry of the history, or with amax="most_recent" the last one;
    3. if a is finite and not 0, e becomes (max * 2^-margin) / a, at most the largest float32, where max is the largest
       value of the format. Otherwise e stays.

    So an Inf in x prevents changes of the scale for as long as the history holds it. After point 2 the first entry of
    the history is set to 0, where Transformer Engine collects the next amax. Of the scaling only the block is used:
    each of its tiles has a scale. The overflow policy is "saturate" unless a call gives another.

    Args:
      fmt: element format: a float format, fp.INT8 or fp.INT4, by name or object.
      scaling: the scaling whose block is used, fp.scalings.TENSOR or another one with FP32 scales of one level, without
        zero points, amax_floor or smallest_scale.
      history: the number of entries, 1 to 2**20.
      amax: the entry of the history that point 2 takes: "max", the largest, or "most_recent", the last.
      margin: integer, -126 to 126; point 3 scales a to 2**-margin times max.
      zero_amax: what a step does for a tile in which every element is 0 or NaN. "roll": the same as for any other tile,
        as in Transformer Engine's kernel for one tensor, which JAX uses. "skip": history and scale do not change, as in
        its kernel for many tensors, which PyTorch uses.

    Raises:
      ValueError: scaling, amax, history, margin or zero_amax has another value than those above.

    Source: Transformer Engine, transformer_engine/common/recipe/delayed_scaling.cu (kernel, kernel_bulk), __init__.py.

    Example:
      >>> import fpsim as fp
      >>> state = fp.DelayedScaling(fp.E4M3)
      >>> [state.encode(np.float32([1, 1000, -7])).scales.item() for _ in range(3)]
      [1.0, 2.232142686843872, 2.232142686843872]
      >>> state.counts.saturated
      1
    """

    OPTIONS = ("history", "amax", "margin", "zero_amax")
    ARRAYS = ("amax_history", "encode_scales")

    def __init__(
        self,
        fmt: ElementLike,
        scaling: Scaling | str = TENSOR,
        *,
        history: int = 1024,
        amax: str = "max",
        margin: int = 0,
        zero_amax: str = "roll",
    ) -> None:
        super().__init__(fmt, scaling)
        if not _plain(self.scaling):
            raise ValueError(
                "DelayedScaling computes one FP32 scale per tile in its own way and takes the block of the scaling "
                f"alone; got {shown(self.scaling)}. Use fp.scalings.TENSOR or another one of plain FP32 scales."
            )
        for name, word, valid in (("amax", amax, AMAX), ("zero_amax", zero_amax, ZERO_AMAX)):
            if not isinstance(word, str) or word not in valid:
                raise unknown(name, word, valid)
        self.history = _integer("history", history, 1, LONGEST_HISTORY)
        self.amax = amax
        self.margin = _integer("margin", margin, -LARGEST_MARGIN, LARGEST_MARGIN)
        self.zero_amax = zero_amax
        self._arithmetic = self.scaling.replace(division="multiply")
        assert not isinstance(self.fmt, (LogFMT, TableFormat))
        with np.errstate(over="ignore"):
            power = math.ldexp(1.0, -self.margin)  # exact in every rounding mode of the processor
            self._scaled_max = np.float32(self.fmt.max) * np.float32(power)
        if not 0 < self._scaled_max <= LARGEST:
            raise ValueError(
                f"margin must leave the largest value of {self.fmt} a float32 greater than 0; got {margin}."
            )

    @property
    def scales(self) -> Array | None:
        """Decode scales of the next step, float32, one per tile; None before the first step, which uses 1."""
        from fpsim.scaling.states import steps

        return steps.inverse(self._arrays["encode_scales"]) if self._arrays else None

    @property
    def amax_history(self) -> Array | None:
        """Copy of the amax history, float32 of shape (history, *tiles), newest last; None before the first step."""
        return self._arrays["amax_history"].copy() if self._arrays else None

    def _keywords(self, cast: ElementKeywords) -> ElementKeywords:
        """Return the keywords of a step's cast, with overflow="saturate" added unless they give an overflow policy."""
        return cast if cast.get("overflow") is not None else {**cast, "overflow": "saturate"}

    def _run(self, step: steps.EncodingStep, *, back: bool) -> tuple[Any, Array, dict[str, Array], bool]:
        """Encode a step's array with the current scales, and compute the next ones; this object is not changed.

        step: the array and the options of its cast. back: True for values instead of codes.

        Returns:
          The Scaled array (float32 values if `back`); the encode scales that were used; a dict of the arrays for the
          next step, "amax_history" and "encode_scales"; and True if at least one of these new encode scales was
          computed from an amax, False if point 3 of the class (or zero_amax="skip") kept the scale of every tile.
        """
        from fpsim.scaling.look import look
        from fpsim.scaling.states import steps

        grid = tiling(step.source.shape, self.scaling.block).grid
        factors = self._arrays["encode_scales"] if self._arrays else np.ones(grid, np.float32)
        history = self._arrays["amax_history"] if self._arrays else np.zeros((self.history, *grid), np.float32)
        result = steps.encode_with_factors(step, self.scaling, steps.inverse(factors), factors, back=back)
        newest = steps.amax_of(*look(step.job())).reshape(grid)
        history, encode_scales, computed = self._updated(history, factors, newest)
        return result, factors, {"amax_history": history, "encode_scales": encode_scales}, computed

    def _updated(self, history: Array, encode_scales: Array, newest: Array) -> tuple[Array, Array, bool]:
        """Return the history of amaxes after a step, the encode scales after it, and whether any of them is new.

        An encode scale is new if point 3 of the class computed it from an amax, even if its value is the same.
        history: before the step, shape (entries, *tiles). encode_scales: before the step, one per tile. newest: the
        step's amaxes, one per tile.
        """
        from fpsim.runtime.processor import ieee_arithmetic

        rolled = np.concatenate([history[1:], newest[np.newaxis]])  # (history, *tiles)
        amax = rolled.max(axis=0) if self.amax == "max" else newest
        rolled[0] = 0
        stays = (newest == 0) & (self.zero_amax == "skip")
        rolled[:, stays] = history[:, stays]
        computes = np.isfinite(amax) & (amax > 0) & ~stays
        with ieee_arithmetic(), np.errstate(all="ignore"):
            computed = np.minimum(self._scaled_max / amax, LARGEST, dtype=np.float32)
        return rolled, np.where(computes, computed, encode_scales), bool(computes.any())

    def _check_arrays(self, arrays: dict[str, Array]) -> None:
        """Raise a ValueError if a saved history or saved encode scales have shapes or values that no step produces.

        arrays: a dict of "amax_history" and "encode_scales".
        """
        history, encode_scales = arrays["amax_history"], arrays["encode_scales"]
        if history.shape != (self.history, *encode_scales.shape):
            raise ValueError(
                f"amax_history must have shape {(self.history, *encode_scales.shape)}, history and tiles; "
                f"got {history.shape}."
            )
        if not (np.all(history >= 0) and np.all((encode_scales >= 0) & np.isfinite(encode_scales))):
            raise ValueError("amax_history must be at least 0, and encode_scales finite as well; got another number.")
