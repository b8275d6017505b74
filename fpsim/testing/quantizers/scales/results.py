"""Reads what quantizers with scales return: codes, packed or not, scales, a tensor scale, zero points, or values."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array, format_of, packed_as_bytes, without_gradient
from fpsim.casts.cast import decode
from fpsim.errors import shown
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.named import E8M0
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.black_box import QuantizerMisbehaved, read
from fpsim.testing.quantizers.rounder import Words, words_of

WANTED = "an fp.Scaled, (codes, scales), (codes, scales, tensor scale or zero points) or values"


class ReturnedParts:
    """The parts that a quantizer with scales returned.

    Args:
      got: its result.
      x: the matrix that it was given.
      fmt: the element format.
      scaling: the promised recipe; None where it is to be found out.

    Attributes:
      elements: values, or values of codes, as patterns of float64.
      swapped: the same where two codes of a byte are read in the other order; None where codes are not packed.
      scales: float32, of both levels; None where values came back.
      block_scales: float32, of the first of two levels alone; None where these did not come alone.
      tensor_scale: of the second level; None where it did not come alone.
      zero_points: integers; None where none came.

    Raises:
      QuantizerMisbehaved: the result is none of these.
    """

    def __init__(self, got: Any, x: Array, fmt: Element, scaling: Scaling | None = None) -> None:
        self.scales: Array | None = None
        self.block_scales: Array | None = None
        self.tensor_scale: np.float32 | None = None
        self.zero_points: Array | None = None
        self.swapped: Words | None = None
        elements = got
        if isinstance(got, Scaled):
            elements, self.scales, self.zero_points = got.codes, np.asarray(got.scales, np.float32), got.zero_points
        elif isinstance(got, (tuple, list)) and len(got) >= 2:
            elements = got[0]
            scales, coded = _scales(got[1], x, E8M0 if scaling is None else scaling.scale_format)
            self._read_third(got, x, scaling)
            two_levels = scaling is not None and scaling.tensor_scale
            self.block_scales = scales if self.tensor_scale is not None or (two_levels and coded) else None
            with np.errstate(all="ignore"):
                self.scales = scales if self.tensor_scale is None else np.asarray(scales * self.tensor_scale)
        self._read_elements(elements, x, fmt)

    def _read_third(self, got: Any, x: Array, scaling: Scaling | None) -> None:
        """Read the third part of a tuple: a tensor scale, or zero points."""
        if len(got) == 2 or (len(got) == 3 and got[2] is None):
            return
        if len(got) > 3:
            raise QuantizerMisbehaved("returns", f"fn must return {WANTED}; got {len(got)} parts.", x)
        third = as_array(without_gradient(got[2]), "the third part")
        integers = third.dtype.kind in "iu" or third.dtype.name in ("int4", "uint4")
        if (scaling is None and integers) or (scaling is not None and not scaling.symmetric):
            if not integers:
                raise QuantizerMisbehaved("zero points", f"fn must return integer zero points; got {third.dtype}.", x)
            self.zero_points = third.astype(np.int64)
        elif scaling is None or scaling.tensor_scale:
            if third.size != 1 or format_of(third.dtype) is None:
                raise QuantizerMisbehaved(
                    "tensor scale", f"fn must return one float as the tensor scale; got {shown(got[2])}.", x
                )
            self.tensor_scale = np.float32(third.astype(np.float32).reshape(()))
        else:
            raise QuantizerMisbehaved(
                "returns", f"fn must return (codes, scales), as {scaling!r} has neither a tensor scale nor zero "
                "points; got a third part.", x,
            )  # fmt: skip

    def _read_elements(self, elements: Any, x: Array, fmt: Element) -> None:
        if self.scales is None:
            self.elements = values_of(elements, x)
            return
        codes = np.asarray(as_array(packed_as_bytes(without_gradient(elements)), "codes"))
        if is_packed(codes, x.shape, fmt):
            self.elements, self.swapped = (
                _words_of(unpacked(codes, x.shape, fmt, high), x, fmt) for high in (False, True)
            )
        elif isinstance(fmt, Format):
            self.elements = read(elements, x, fmt).words
        else:
            self.elements = _words_of(codes, x, fmt)


def is_packed(codes: Array, shape: tuple[int, ...], fmt: Element) -> bool:
    """Return whether an array has two codes of 4 bits per byte, along the last axis of a shape."""
    half = (*shape[:-1], -(-shape[-1] // 2)) if shape else ()
    bytes_ = codes.dtype.kind in "iu" and codes.dtype.itemsize == 1
    return fmt.bits == 4 and bytes_ and codes.shape == half and codes.shape != shape


def unpacked(codes: Array, shape: tuple[int, ...], fmt: Element, high_first: bool) -> Array:
    """Return one code of 4 bits per element, from bytes with two each, the first in the low or the high bits."""
    packed = codes.view(np.uint8)
    nibbles = [packed & 15, packed >> 4]
    flat = np.stack(nibbles[::-1] if high_first else nibbles, -1).reshape(*codes.shape[:-1], -1)
    single = flat[..., : shape[-1]]
    if not isinstance(fmt, Format) and getattr(fmt, "signed", False):
        return ((single ^ 8).astype(np.int8) - 8).astype(np.int8)
    return np.ascontiguousarray(single)


def _words_of(codes: Array, x: Array, fmt: Element) -> Words:
    """Return the values of codes, one per element, as patterns of float64."""
    if isinstance(fmt, Format):
        return read(codes, x, fmt).words
    if codes.shape != x.shape:
        raise QuantizerMisbehaved("shape", f"fn must return the shape of its input, {x.shape}; got {codes.shape}.", x)
    return words_of(codes.ravel().astype(np.float64))


def values_of(elements: Any, x: Array) -> Words:
    """Return values of the shape of x as patterns of float64.

    Raises:
      QuantizerMisbehaved: these are no floats, or have another shape.
    """
    array = as_array(without_gradient(elements), "the result")
    if array.shape != x.shape or format_of(array.dtype) is None:
        raise QuantizerMisbehaved("returns", f"fn must return {WANTED}; got {shown(elements)}.", x)
    return words_of(np.asarray(array.ravel().astype(np.float64)))


def _scales(scales: Any, x: Array, fmt: Format) -> tuple[Array, bool]:
    """Return scales as float32, and whether they came in their own format; bytes are codes of that format."""
    array = as_array(without_gradient(scales), "scales")
    if array.dtype.kind in "iu" and array.dtype.itemsize == fmt.storage.itemsize and fmt.bits <= 16:
        return np.asarray(decode(np.ascontiguousarray(array).view(fmt.storage), fmt), np.float32), True
    if format_of(array.dtype) is None:
        raise QuantizerMisbehaved("scales", f"fn must return scales as floats or codes of {fmt}; got {array.dtype}.", x)
    return np.asarray(array, np.float32), format_of(array.dtype) == fmt and fmt.bits <= 16
