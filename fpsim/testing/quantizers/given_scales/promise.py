"""Model of a quantizer with a given scale: code = saturate(round(x / scale) + zero point)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, as_array, format_of
from fpsim.casts.cast import decode, encode, quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import cast_options
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import E4M3
from fpsim.formats.rounding import rounding_mode
from fpsim.testing.quantizers.rounder import RULES, round_to_integers

Values = Any  # float64
WIDE = 2.0**31  # magnitude to which rounded quotients are limited, before the bits of a format are cut off


class GivenScale(NamedTuple):
    """Model of a quantizer with a given scale; the fields from `quotient` on add no fault by default.

    For an integer format, `lowest` and `highest` must be set.

    Attributes:
      fmt: the element format.
      scale, zero_point: float32 and float64 arrays: () per tensor, (n,) or (n, 1) along an axis, or (m, n) for the
        tiles of a matrix.
      rounding: a rule of `rounder.RULES`, such as "nearest_even" or "half_added".
      cast: keywords overflow and subnormals of the cast to a float format.
      block: rows and columns of a tile; None without tiles.
      quotient: arithmetic of x / scale: "float32", "float64", "reciprocal" (x * (1 / scale)), "product" (x * scale), a
        format to which quotients are rounded, or "fused" (x * (1 / scale) + zero point, rounded once, with `before`).
      lowest, highest: the smallest and the largest integer of the result, such as -128 and 127.
      before: whether the zero point is added before rounding, not after it.
      wraps: the side of the range beyond which integers lose their high bits instead of saturating: "", "both", "above"
        or "below".
      wide: upper limit of rounded quotients, before the zero point is added and high bits are lost.
      sign: treatment of the signs of quotients: "keep", "drop" or "flip".
      input_bits: number of low bits that are kept of integer inputs; None keeps all.
      decoded: whether values are (code - zero point) * scale, and not the codes themselves.
    """

    fmt: Format | IntegerFormat
    scale: Array
    zero_point: Array
    rounding: str
    cast: dict[str, Any]
    block: tuple[int, int] | None = None
    quotient: Any = "float32"
    lowest: int = 0
    highest: int = 0
    before: bool = False
    wraps: str = ""
    wide: float = WIDE
    sign: str = "keep"
    input_bits: int | None = None
    decoded: bool = True

    @property
    def matrix(self) -> tuple[int, int] | None:
        """Shape of the matrix that the tiles form, (rows, columns); None without tiles."""
        if self.block is None:
            return None
        return self.scale.shape[0] * self.block[0], self.scale.shape[1] * self.block[1]

    @property
    def along(self) -> int | None:
        """Axis of a matrix along which the scale stays the same: 1 with one scale per row, 0 with one per column.

        None with a single scale.
        """
        if not self.scale.ndim:
            return None
        return 1 if self.scale.ndim == 2 and self.scale.shape[0] > 1 else 0

    def spread(self, of_scales: Array, shape: tuple[int, ...]) -> Array:
        """Return scales or zero points as an array that broadcasts with the inputs.

        of_scales: the scales or zero points, in the shape of `self.scale`. shape: the shape of the inputs, which may be
        several matrices stacked along the rows.
        """
        if self.block is None or of_scales.ndim == 0:
            return of_scales
        whole = of_scales.repeat(self.block[0], 0).repeat(self.block[1], 1)
        return np.tile(whole, (shape[0] // whole.shape[0], 1))

    def codes(self, x: Array) -> Values:
        """Return the results for x as float64: integers, or a float format's values, not yet times the scale."""
        with np.errstate(all="ignore"):
            quotient = self._quotient(x)
            if isinstance(self.fmt, Format):
                rounded = encode(quotient, self.fmt, rounding=self.rounding, **self.cast)
                return np.asarray(decode(rounded, self.fmt, np.float64))
            offset = self.spread(self.zero_point, x.shape).astype(np.float64)
            moved = quotient.astype(np.float64)
            moved = {"keep": moved, "drop": np.abs(moved), "flip": -moved}[self.sign]
            if self.before and self.quotient != "fused":
                moved = (moved.astype(np.float32) + offset.astype(np.float32)).astype(np.float64)
            rounded_off: Values = round_to_integers(np.clip(moved, -WIDE, WIDE), self.rounding)
            added = 0 if self.before else offset
            integers = rounded_off + added
            saturated = np.clip(integers, self.lowest, self.highest)
            if not self.wraps:
                return saturated
            cut = np.clip(rounded_off, -WIDE, self.wide) + added
            cut = (cut - self.fmt.lowest) % (1 << self.fmt.bits) + self.fmt.lowest
            saturates = {"both": False, "above": integers < self.lowest, "below": integers > self.highest}[self.wraps]
            return np.where(saturates, saturated, cut)

    def _quotient(self, x: Array) -> Array:
        """Return x divided by its scales, in the arithmetic that the attribute `quotient` names.

        The result is float64 for "float64", else float32.
        """
        scale = self.spread(self.scale, x.shape)
        if self.input_bits is not None:
            x = x.astype(f"{x.dtype.kind}{self.input_bits // 8}")
        single = x.astype(np.float32)
        if self.quotient == "reciprocal":
            return np.asarray(single * (np.float32(1) / scale))
        if self.quotient == "fused":
            exact = single.astype(np.float64) * (np.float32(1) / scale)
            return np.asarray((exact + self.spread(self.zero_point, x.shape)).astype(np.float32))
        if self.quotient == "product":
            return np.asarray(single * scale)
        if self.quotient == "float64":
            return np.asarray(x.astype(np.float64) / scale.astype(np.float64))
        divided = np.asarray(single / scale)
        return divided if self.quotient == "float32" else np.asarray(quantize(divided, self.quotient))

    def values(self, codes: Values) -> Values:
        """Return the float32 values, (code - zero point) * scale, of codes, as float64; codes if not `decoded`."""
        if not self.decoded:
            return codes
        with np.errstate(all="ignore"):
            scale = self.spread(self.scale, codes.shape)
            offset = self.spread(self.zero_point, codes.shape) if isinstance(self.fmt, IntegerFormat) else 0.0
            return np.asarray(((codes - offset).astype(np.float32) * scale).astype(np.float64))


def given_scale(
    fmt: Element, scale: Any, zero_point: Any, cast: dict[str, Any], block: tuple[int, int] | None = None
) -> GivenScale:
    """Return the model of a correct quantizer to a format with a given scale.

    scale: a positive number or an array of them. zero_point: an integer or an array of them; None for 0.
    block: rows and columns of a tile; None without tiles.
    cast: {"rounding": ..., "overflow": ..., "subnormals": ...}; overflow None means "saturate_finite".

    Raises:
      ValueError, TypeError: an argument is not accepted, or arguments do not fit each other.
    """
    if not isinstance(fmt, (Format, IntegerFormat)):
        raise ValueError(f"scale= needs an integer or float format; got {fmt}.")
    scales = np.asarray(as_array(scale, "scale"))
    if scales.dtype.kind not in "fiu" and format_of(scales.dtype) is None:
        raise TypeError(f"scale must be a positive number or an array of them; got {shown(scale)}.")
    scales = scales.astype(np.float32)
    wanted = "one number, or (n, 1) or (n,) of a matrix" if block is None else "(m, n) of the tiles of a matrix"
    if not (np.isfinite(scales) & (scales > 0)).all() or not scales.size or scales.ndim > 2:
        raise ValueError(f"scale must be positive and finite, {wanted}; got {shown(scale)}.")
    tiled = scales.ndim == 2 and min(scales.shape) > 1
    if block is None and tiled:
        raise ValueError(
            f"scale must be {wanted}; got shape {scales.shape}. Pass block=, such as (1, 32), for scales of tiles."
        )
    if block is not None and scales.ndim != 2:
        raise ValueError(f"scale must be {wanted} where block= is passed; got shape {scales.shape}.")
    scales = scales.reshape(()) if scales.size == 1 and block is None else scales
    zero_points = np.asarray(0 if zero_point is None else as_array(zero_point, "zero_point")).astype(np.float64)
    zero_points = zero_points.reshape(()) if zero_points.size == 1 and block is None else zero_points
    if isinstance(fmt, Format) and zero_points.any():
        raise ValueError(f"zero_point must be 0 for {fmt}, a float format; got {shown(zero_point)}. Leave it out.")
    if isinstance(fmt, IntegerFormat):
        inside = (zero_points >= fmt.lowest) & (zero_points <= fmt.highest) & (zero_points == np.rint(zero_points))
        if not inside.all():
            integers = f"integers of {fmt}, {fmt.lowest} .. {fmt.highest}"
            raise ValueError(f"zero_point must be {integers}; got {shown(zero_point)}.")
    if zero_points.ndim and zero_points.shape != scales.shape:
        raise ValueError(f"zero_point must have the shape of scale, {scales.shape}; got {zero_points.shape}.")
    rounding = rounding_mode(cast["rounding"]).name.lower()
    if rounding not in RULES:
        raise ValueError(f"{fmt} needs a deterministic rounding here; got {cast['rounding']!r}. Use check_stochastic.")
    overflow = cast["overflow"] or "saturate_finite"
    float_format = fmt if isinstance(fmt, Format) else E4M3  # integers ignore these keywords, as in fpsim.encode_scaled
    cast_options(float_format, rounding, overflow, cast["subnormals"], cast.get("seed"))  # raises for unknown values
    kept = {"overflow": overflow, "subnormals": cast["subnormals"]}
    limits: dict[str, Any] = {} if isinstance(fmt, Format) else {"lowest": fmt.lowest, "highest": fmt.highest}
    return GivenScale(fmt, scales, zero_points, rounding, kept, block, **limits)
