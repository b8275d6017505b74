"""Checks of the arguments of encoding: element format, scaling, options of the cast, scales given by the caller."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, float_array
from fpsim.formats.cast_options import (
    CastKeywords,
    CastOptions,
    ElementKeywords,
    TableOptions,
    cast_options,
    table_options,
)
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import E2M1, E4M3, FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.formats.table_format import HIF4, IF4, TableFormat
from fpsim.scaling.recipes import E6M2, scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tiling


def checked(x: npt.ArrayLike, fmt: Any, scaling: Any) -> tuple[Element, Array, Format]:
    """Check the arguments of encoding; return the element format, x as an array of floats, and that array's format.

    fmt: element format, by name, dtype or object. scaling: a Scaling (recipe of tiles and scales) or the name of one.

    Raises:
      ValueError: the element format is unknown or does not fit the scaling.
      TypeError: x does not hold floats, or scaling is neither a Scaling nor a name.
    """
    element = checked_element(fmt, scaling)
    array, source_fmt = float_array(x)
    return element, array, source_fmt


def checked_element(fmt: Any, scaling: Any) -> Element:
    """Return the element format that `fmt` (a name, dtype or format) stands for, after checking it against the scaling.

    scaling: a Scaling (recipe of tiles and scales) or the name of one.

    Raises:
      ValueError: the format is unknown or does not fit the scaling.
      TypeError: scaling is neither a Scaling nor a name.
    """
    try:
        return _checked_element(fmt, scaling)
    except TypeError:  # an unhashable object, or no scaling: the checks raise the right error
        return _checked_element.__wrapped__(fmt, scaling)


@lru_cache(maxsize=4096, typed=True)
def _checked_element(fmt: Any, scaling: Any) -> Element:
    """Return the element format that `fmt` stands for, after checking that it fits the scaling; cached.

    fmt: a name, dtype or format. scaling: a Scaling (recipe of tiles and scales) or the name of one. The cache needs
    hashable arguments; others raise a TypeError.

    Raises:
      ValueError: the format is unknown or does not fit the scaling.
      TypeError: scaling is neither a Scaling nor a name.
    """
    element = element_format(fmt)
    scaling = scaling_of(scaling)
    if isinstance(element, Format) and element.bits > 16:
        raise ValueError(f"element formats have up to 16 bits; got {element}. It needs no scale.")
    if isinstance(element, Format) and not element.has_zero:
        raise ValueError(f"element formats need a zero; got {element}.")
    if isinstance(element, Format) and not (FP32.holds(element) and element.max >= FP32.smallest_normal):
        raise ValueError(
            "scales are float32: element formats must have values that float32 holds, and the largest one a normal "
            f"float32; got {element}, up to {element.max!r}. Choose another bias."
        )
    if isinstance(element, TableFormat):
        _refuse_table(element, scaling)
    _refuse_adaptive(element, scaling)
    if not scaling.symmetric and not isinstance(element, IntegerFormat):
        raise ValueError(f"symmetric=False needs an integer format; got {element}. Use fp.INT8 or fp.UINT4, say.")
    if isinstance(element, IntegerFormat) and scaling.symmetric and not element.signed:
        raise ValueError(
            f"{element} needs a zero point; use scaling.replace(symmetric=False), or fp.INT{element.bits}."
        )
    return element


def _refuse_adaptive(element: Element, scaling: Scaling) -> None:
    """Raise a ValueError if an element format or a scaling lacks what the other one needs.

    HiF4 needs E6M2 scales and tiles of 64 elements, and E6M2 scales need HiF4. IF4 needs an adaptive scaling of two
    levels with E4M3 scales. An adaptive scaling, which chooses between two encodings of each tile, needs E2M1 or IF4.
    """
    if scaling.adaptive and element not in (E2M1, IF4):
        raise ValueError(f"adaptive={scaling.adaptive!r} chooses among codes of E2M1 or IF4; got {element}.")
    if element == IF4 and not (scaling.adaptive and scaling.tensor_scale and scaling.scale_format == E4M3):
        raise ValueError(
            f"IF4 needs scales in E4M3 of two levels and an error to choose by; got {scaling!r}. Use fp.scalings.IF4."
        )
    if (element == HIF4) != (scaling.scale_format == E6M2):
        raise ValueError(f"HIF4 and scales in E6M2 belong together; got {element} and {scaling!r}.")
    if element == HIF4 and scaling.block not in ((1, 64), (64,), (64, 1)):
        raise ValueError(f"HIF4 has tiles of 64 elements along one axis; got block {scaling.block}. Use (1, 64).")


def _refuse_table(element: TableFormat, scaling: Scaling) -> None:
    """Raise a ValueError if `element`, a table format (which lists the value of each code), does not fit the scaling.

    That is so if float32 does not hold a value of the table, if the table's largest value is below float32's normal
    range, or if the scale rule is "even", which needs a mantissa.
    """
    with np.errstate(all="ignore"):
        exact = all(float(np.float32(value)) == value for value, _ in element.finite)
    if not exact or not element.largest >= FP32.smallest_normal:
        raise ValueError(
            f"scales are float32: element formats must have values that float32 holds; got {element}. Round its table."
        )
    if scaling.scale_rule == "even":
        raise ValueError(
            f"scale_rule 'even' rounds to the element's mantissa, which the table of {element} has none of. "
            "Use 'floor' or 'ceil'."
        )


def element_options_of(element: Element, scaling: Scaling, cast: ElementKeywords) -> CastOptions:
    """Return the checked options of the cast of elements, divided by their scales, to `element`.

    cast: the keywords that the caller passed. If `overflow` is missing or None, the policy of the scaling is used.

    Raises:
      ValueError: an unknown option, a stochastic mode without a seed, or a number out of range.
    """
    assert not isinstance(element, (LogFMT, TableFormat)), "neither is cast by exponent and mantissa"
    if not cast:
        return usual_options(element, scaling.overflow)
    overflow = cast.get("overflow")
    return options_of(element, {**cast, "overflow": scaling.overflow if overflow is None else overflow})


@lru_cache(maxsize=4096)
def usual_options(element: Format | IntegerFormat, overflow: str) -> CastOptions:
    """Return the options of a cast to `element` with the given overflow policy and else default keywords; cached."""
    return options_of(element, {"overflow": overflow})


def options_of(element: Format | IntegerFormat, keywords: CastKeywords) -> CastOptions:
    """Return the checked options of a cast to `element`, from the keywords of `fpsim.encode`.

    Casts to integers always saturate and do not flush small values, whatever the keywords say.
    """
    if isinstance(element, IntegerFormat):
        # every policy saturates integers, which hold neither Inf nor NaN, and have no subnormals to flush
        return cast_options(element.magnitudes, **keywords)._replace(overflow="saturate", subnormals="keep")
    return cast_options(element, **keywords)


def given_scales(scales: npt.ArrayLike, shape: tuple[int, ...], scaling: Scaling) -> Array:
    """Return the caller's scales in float32, C-contiguous, broadcast to one per tile (elements that share a scale).

    shape: shape of the array to encode. scaling: the recipe, whose block is the size of a tile.

    Raises:
      ValueError: the shape does not broadcast to one scale per tile, or a scale is neither positive and finite nor NaN.
      TypeError: scales are not floats (Python integers are accepted).
    """
    listed = scales if hasattr(scales, "dtype") else as_array(scales, "scales")
    if isinstance(listed, np.ndarray) and listed.dtype.kind in "iu" and listed is not scales:
        listed = listed.astype(np.float64)  # Python's integers
    array, _ = float_array(listed, "scales")
    if array.ndim == 0 and np.isnan(array.astype(np.float64)) and not hasattr(scales, "dtype"):
        raise ValueError(
            "scales must be positive and finite; got nan. An array of one per tile may hold NaN, for tiles."
        )
    grid = tiling(shape, scaling.block).grid
    try:
        with np.errstate(all="ignore"):
            tile_scales = np.ascontiguousarray(np.broadcast_to(array.astype(np.float32), grid)).reshape(grid)
    except ValueError:
        raise ValueError(
            f"scales must be one per tile, shape {grid} for x of shape {shape} and block {scaling.block}, "
            f"or broadcast to that; got shape {array.shape}."
        ) from None
    valid = ((tile_scales > 0) & (tile_scales < np.inf)) | np.isnan(tile_scales)
    if not valid.all():
        raise ValueError(
            f"scales must be positive and finite in float32; got {np.broadcast_to(array, grid)[~valid][0]}."
        )
    return tile_scales


def table_options_of(element: TableFormat, scaling: Scaling, cast: ElementKeywords) -> TableOptions:
    """Return the checked options of the cast of elements, divided by their scales, to the table format `element`.

    cast: the keywords that the caller passed. If `overflow` is missing or None, the policy of the scaling is used.

    Raises:
      ValueError: an unknown option, or one that a table format does not define.
    """
    overflow = cast.get("overflow")
    return table_options(None, element, {**cast, "overflow": scaling.overflow if overflow is None else overflow})


def refuse_options(fmt: object, nearest: str, finds: str, cast: ElementKeywords, scales: Any) -> None:
    """Raise a ValueError if the caller passed scales or cast options for a format that fixes both.

    Args:
      fmt: the format, for the message.
      nearest: noun for the message: what elements are rounded to, such as "level".
      finds: noun for the message: what the format computes by itself, such as "levels".
      cast: the keywords of the elements' cast.
      scales: the caller's scales, or None.
    """
    is_nearest = rounding_mode(cast.get("rounding", Rounding.NEAREST_EVEN)) is Rounding.NEAREST_EVEN
    if not is_nearest or cast.get("overflow") is not None or cast.get("subnormals", "keep") != "keep":
        raise ValueError(
            f"{fmt} takes the nearest {nearest}; got another rounding, overflow or subnormals. Leave these words out."
        )
    if scales is not None:
        raise ValueError(f"{fmt} finds its own {finds}; got scales. Leave them out.")


def refuse_cast(fmt: Any, scaling: Scaling, cast: ElementKeywords) -> None:
    """Raise the error, if any, that encoding a matrix with this format, scaling and cast would raise.

    fmt: element format, by name, dtype or object. cast: the keywords of the elements' cast.
    """
    element = checked_element(fmt, scaling)
    tiling((0, 0), scaling.block)
    if isinstance(element, LogFMT):
        refuse_options("LogFMT", "level", "levels", cast, None)
    elif isinstance(element, TableFormat) and element == HIF4:
        refuse_options(element, "quarter", "scales and exponents", cast, None)
    elif isinstance(element, TableFormat):
        table_options_of(element, scaling, cast)
    else:
        element_options_of(element, scaling, cast)
