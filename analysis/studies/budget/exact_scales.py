"""Variants of recipes with unrounded scales, and the error expected of rounding elements alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.linear_recipe import OPERANDS, LinearRecipe, Product
from fpsim.scaling.recipes import TENSOR, TENSOR_POW2
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tile_sizes

# An error of rounding to nearest is uniform over one ulp: its mean square is ulp^2 / 12. Other roundings have errors
# that are larger by these factors.
NEAREST, STOCHASTIC, DIRECTED = 1.0, math.sqrt(2.0), 2.0


def with_exact_scales(recipe: LinearRecipe) -> LinearRecipe:
    """Return the recipe with unrounded scales for the same tiles, and with products computed by torch in float32.

    The scale of a tile is its amax divided by the format's largest value, in float32. A cast to up to 16 bits without
    scales gets one scale for the tensor, a power of two, so that values are in the format's range. Delayed scales
    become one scale for the tensor, from its own amax.

    Example:
      >>> from fpsim.analysis.studies.budget.exact_scales import with_exact_scales
      >>> exact = with_exact_scales(fp.torch.DEEPSEEK_V3_POW2)
      >>> exact.input_scaling == fp.scalings.TILE_1X128, exact.weight_scaling == fp.scalings.BLOCK_128X128
      (True, True)
      >>> with_exact_scales(fp.torch.RECIPES["FP8_RAW"]).grad_scaling
      fp.scalings.TENSOR_POW2
    """
    changes: dict[str, Any] = {"delayed": None, "fprop": Product(), "dgrad": Product(), "wgrad": Product()}
    for operand in OPERANDS:
        for field in (f"{operand}_scaling", f"{operand}_scaling_backward"):
            scaling = TENSOR if recipe.delayed is not None else getattr(recipe, field)
            if getattr(recipe, f"{operand}_fmt") is not None and not isinstance(scaling, str):
                changes[field] = _exact(scaling, getattr(recipe, f"{operand}_fmt"))
    if recipe.stash_fmt is not None:
        changes["stash_scaling"] = _exact(recipe.stash_scaling, recipe.stash_fmt)
    return recipe.replace(**changes)


def _spread(rounding: str | Rounding) -> float:
    """Return the root-mean-square error of rounding in a mode, divided by that of rounding to nearest.

    It is 1 for modes that round to nearest, sqrt(2) for stochastic rounding, and 2 for other modes.
    """
    mode = rounding_mode(rounding)
    return STOCHASTIC if mode is Rounding.STOCHASTIC else NEAREST if mode.is_nearest else DIRECTED


def _exact(scaling: Scaling | None, fmt: Any) -> Scaling | None:
    """Return a scaling for a cast to `fmt` with the tiles of `scaling`, but with unrounded scales.

    For None, return TENSOR_POW2 (one scale per tensor, a power of two), or None if the format has more than 16 bits.
    """
    if scaling is None:
        return TENSOR_POW2 if fmt.bits <= 16 else None  # wider formats have the range of float32
    return scaling.replace(
        scale_format=FP32, scale_rule="amax", scale_rounding=None, amax_floor=0.0, quotient="amax/max",
        division="divide", tensor_scale=False, smallest_scale=None, zero_scale="one",
    )  # fmt: skip


def relative_rounding(fmt: Any, rounding: Any = "nearest_even") -> float:
    """Return the expected relative error of rounding to a float format of precision p: 2^-p / sqrt(8 ln 2).

    It is a root mean square, for values in the format's range with evenly distributed logarithms: the mean square of an
    error uniform over an ulp is ulp^2 / 12, an ulp is 2^(1 - p) times the lowest value of the binade, and the mean
    square of lowest / value is 3 / (8 ln 2). `rounding`: stochastic has sqrt(2) times this error, directed modes twice.
    The result is NaN for formats that are not floats, and 0 for None.

    Example:
      >>> from fpsim.analysis.studies.budget.exact_scales import relative_rounding
      >>> [float(f"{relative_rounding(fmt):.3g}") for fmt in (fp.E4M3, fp.E5M2, fp.BF16, fp.FP16)]
      [0.0265, 0.0531, 0.00166, 0.000207]
    """
    if fmt is None:
        return 0.0
    if not isinstance(fmt, Format):
        return math.nan
    return _spread(rounding) * 2.0**-fmt.precision / math.sqrt(8 * math.log(2))


def closed_form(source: Array, encoded: Any, fmt: Any, rounding: Any) -> float:
    """Return the expected relative error (root mean square) of rounding an operand to `fmt`.

    For integers with scales, it is the root mean of scale^2 / 12 over the values, divided by the values' own root mean
    square (NaN if all are 0); stochastic rounding has sqrt(2) times that, directed rounding twice. For floats, it is
    that of `relative_rounding`; NaN for other formats, 0 if `fmt` is None.

    `source`: the operand's values before the cast. `encoded`: the codes after the cast, or a Scaled (codes with their
    scales). `rounding`: the rounding mode or its name.
    """
    if not isinstance(fmt, IntegerFormat) or not isinstance(encoded, Scaled):
        return relative_rounding(fmt, rounding)
    energy = float(np.sum(source.astype(np.float64) ** 2))
    tall, wide = tile_sizes(encoded.codes.shape, encoded.scaling.block)
    rows, columns = (  # the number of rows and columns of each tile
        np.diff(np.append(np.arange(0, length, size), length)).astype(np.float64)
        for length, size in zip(encoded.codes.shape, (tall, wide), strict=True)
    )
    noise = float(rows @ (encoded.scales.astype(np.float64) ** 2) @ columns) / 12
    return _spread(rounding) * math.sqrt(noise / energy) if energy else math.nan
