"""Calls of quantizers with scales, and the parts that they return: codes, packed or not, scales, zero points."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.quantizers.black_box import is_integer_dtype, read, require_cpu, require_shape
from fpsim.testing.quantizers.rounder import Words, words_of

WANTED = "an fp.Scaled, (codes, scales), (codes, scales, tensor scale or zero points) or values"


def called(
    fn: Callable[..., Any], x: Array, fmt: Element, scaling: Scaling | None = None,
    covered: CoverageRecord | None = None, layout: str = "",
) -> ReturnedParts:  # fmt: skip
    """Return the parts of fn's result for a matrix; fn receives a NumPy array or, if it raises, a torch tensor.

    Args:
      fn: the quantizer.
      x: the matrix.
      fmt: the promised element format.
      scaling: the promised scaling; None if it is unknown.
      covered: the record of inputs to which the call is added, or None.
      layout: the name of the memory layout of x in that record, "" for C order.

    Raises:
      FunctionMisbehaved: fn raises, writes into its input, or does not return an fp.Scaled, (codes, scales), (codes,
        scales, tensor scale or zero points) or values.
    """
    before = x.tobytes()
    try:
        with np.errstate(all="ignore"):
            got = fn(x)
    except Exception as first:
        torch = sys.modules.get("torch")
        if torch is None or min(x.strides) < 0:
            no_tensor = "" if torch is None else ", and torch has no tensors with negative strides"
            said = f"fn raised {type(first).__name__}: {first} on shape {x.shape}{no_tensor}."
            raise FunctionMisbehaved("runs", said, x) from first
        try:
            got = fn(torch.from_numpy(x))
        except Exception as second:
            raise FunctionMisbehaved(
                "runs", f"fn raised {type(first).__name__}: {first} on a NumPy array, and {type(second).__name__}: "
                f"{second} on a torch tensor, of shape {x.shape}.", x,
            ) from second  # fmt: skip
    if x.tobytes() != before:
        raise FunctionMisbehaved("leaves its input alone", f"fn writes into its input of shape {x.shape}.", x)
    require_cpu(got, x)
    parts = ReturnedParts(got, x, fmt, scaling)
    if covered is not None:
        covered.note(x, layout)
    return parts


class ReturnedParts:
    """The parts of a result of a quantizer with scales, all as NumPy arrays.

    Args:
      got: the result.
      x: the input matrix.
      fmt, scaling: the promised element format and scaling; None for an unknown scaling.

    Attributes:
      elements: bit patterns of float64, flat: the returned values; if scales are returned, the values of the codes,
        before multiplication by the scales.
      swapped: `elements` with the two codes of each byte exchanged; None if codes are not packed.
      scales: float32 scales, the products of both levels if there are two; None if values were returned instead of
        codes and scales.
      block_scales: float32 scales of the first level, if the second level is returned separately, or if the scaling has
        two levels and the scales are returned in its scale format; else None.
      tensor_scale: scale of the second level; None unless it is returned separately.
      zero_points: int64 zero points, or None.
      returned: the result itself; the other parts are copies.

    Raises:
      FunctionMisbehaved: the result has none of the forms that the constant WANTED lists.
    """

    def __init__(self, got: Any, x: Array, fmt: Element, scaling: Scaling | None = None) -> None:
        self.returned = got  # a later call may write into its memory
        self.scales: Array | None = None
        self.block_scales: Array | None = None
        self.tensor_scale: np.float32 | None = None
        self.zero_points: Array | None = None
        self.swapped: Words | None = None
        elements = got
        if isinstance(got, Scaled):
            elements, self.scales = got.codes, np.array(got.scales, np.float32)
            self.zero_points = None if got.zero_points is None else np.array(got.zero_points)
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
        """Store the third part of the returned tuple `got`, a tensor scale or zero points, in the attributes.

        Nothing is stored if there is no third part. x: the input. scaling: the promised scaling; None if it is unknown.

        Raises:
          FunctionMisbehaved: the third part is not what the scaling has, or there is a fourth part.
        """
        if len(got) == 2 or (len(got) == 3 and got[2] is None):
            return
        if len(got) > 3:
            raise FunctionMisbehaved("returns", f"fn must return {WANTED}; got {len(got)} parts.", x)
        third = as_array(without_gradient(got[2]), "the third part")
        integers = is_integer_dtype(third.dtype)
        if (scaling is None and integers) or (scaling is not None and not scaling.symmetric):
            if not integers:
                raise FunctionMisbehaved("zero points", f"fn must return integer zero points; got {third.dtype}.", x)
            self.zero_points = third.astype(np.int64)
        elif scaling is None or scaling.tensor_scale:
            if third.size != 1 or format_of(third.dtype) is None:
                raise FunctionMisbehaved(
                    "tensor scale", f"fn must return one float as the tensor scale; got {shown(got[2])}.", x
                )
            self.tensor_scale = np.float32(third.astype(np.float32).reshape(()))
        else:
            raise FunctionMisbehaved(
                "returns", f"fn must return (codes, scales), as {scaling!r} has neither a tensor scale nor zero "
                "points; got a third part.", x,
            )  # fmt: skip

    def _read_elements(self, elements: Any, x: Array, fmt: Element) -> None:
        """Store the elements that a quantizer returned in the attributes `elements` and `swapped`.

        Without scales, `elements` gets the returned values; with scales, the values of the returned codes. Codes packed
        two to a byte are unpacked twice: for `elements` with the low half of a byte first, for `swapped` with the high
        half first.

        Args:
          elements: an array or tensor of values or codes.
          x: the input, whose shape the elements must have.
          fmt: the element format.

        Raises:
          FunctionMisbehaved: the elements have another shape, or are neither values nor codes.
        """
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
    """Return whether `codes` has the dtype and shape of 4-bit codes that are packed two per byte.

    shape: shape of the elements; packing halves its last axis. fmt: their format; False unless it has 4 bits.
    """
    half = (*shape[:-1], -(-shape[-1] // 2)) if shape else ()
    bytes_ = codes.dtype.kind in "iu" and codes.dtype.itemsize == 1
    return fmt.bits == 4 and bytes_ and codes.shape == half and codes.shape != shape


def unpacked(codes: Array, shape: tuple[int, ...], fmt: Element, high_first: bool) -> Array:
    """Return an array of `shape` with one 4-bit code per element, from bytes that hold two each.

    high_first: whether the first of two codes is in the high bits. Codes of signed integer formats become int8 values;
    other codes are uint8.
    """
    packed = codes.view(np.uint8)
    nibbles = [packed & 15, packed >> 4]
    flat = np.stack(nibbles[::-1] if high_first else nibbles, -1).reshape(*codes.shape[:-1], -1)
    single = flat[..., : shape[-1]]
    if not isinstance(fmt, Format) and getattr(fmt, "signed", False):
        return ((single ^ 8).astype(np.int8) - 8).astype(np.int8)
    return np.ascontiguousarray(single)


def _words_of(codes: Array, x: Array, fmt: Element) -> Words:
    """Return the values of codes, one per element of x, as bit patterns of float64, flat.

    Raises:
      FunctionMisbehaved: the codes have another shape than x, or are not codes of the format.
    """
    if isinstance(fmt, Format):
        return read(codes, x, fmt).words
    require_shape(codes, x)
    if not is_integer_dtype(codes.dtype) and format_of(codes.dtype) is None:
        raise FunctionMisbehaved("dtype", f"fn must return codes of {fmt} as integers; got {codes.dtype}.", x)
    return words_of(codes.ravel().astype(np.float64))


def values_of(elements: Any, x: Array) -> Words:
    """Return values as bit patterns of float64, flat.

    elements: an array or tensor of floats. x: the input, whose shape they must have.

    Raises:
      FunctionMisbehaved: the elements are not floats, or have another shape.
    """
    array = as_array(without_gradient(elements), "the result")
    if array.shape != x.shape or format_of(array.dtype) is None:
        raise FunctionMisbehaved("returns", f"fn must return {WANTED}; got {shown(elements)}.", x)
    return words_of(np.asarray(array.ravel().astype(np.float64)))


def _scales(scales: Any, x: Array, fmt: Format) -> tuple[Array, bool]:
    """Return (scales as float32, whether they were returned in the promised scale format, as its codes or values).

    scales: an array or tensor. x: the input, for errors. fmt: the promised scale format.

    Raises:
      FunctionMisbehaved: the scales are neither floats nor codes of `fmt`.
    """
    array = as_array(without_gradient(scales), "scales")
    if array.dtype.kind in "iu" and array.dtype.itemsize == fmt.storage.itemsize and fmt.bits <= 16:
        return np.asarray(decode(np.ascontiguousarray(array).view(fmt.storage), fmt), np.float32), True
    if format_of(array.dtype) is None:
        raise FunctionMisbehaved("scales", f"fn must return scales as floats or codes of {fmt}; got {array.dtype}.", x)
    return np.array(array, np.float32), format_of(array.dtype) == fmt and fmt.bits <= 16


def in_tiles(of_tiles: Array, grid: tuple[int, ...]) -> Array | None:
    """Return `of_tiles`, an array with a number for each tile, reshaped to `grid`, (rows of tiles, columns of tiles).

    `of_tiles` may also be flat, or have fewer or more axes of size 1 than `grid`. Return None for any other shape.
    """
    squeezed, of_grid = (tuple(size for size in shape if size != 1) for shape in (of_tiles.shape, grid))
    whole = of_tiles.size == int(np.prod(grid)) and squeezed in (of_grid, (of_tiles.size,))
    return of_tiles.reshape(grid) if of_tiles.shape == grid or whole else None


def same_scales(got: Array, want: Array) -> Any:
    """Return a bool mask of the float32 scales that have the same bits in `got` and `want`; NaNs equal each other."""
    return (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
