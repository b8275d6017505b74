"""Scaled quantisation: arrays to codes with a scale per tile, and to the values that these stand for."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, float_array, output, words
from fpsim.formats.cast_options import CastOptions, cast_options
from fpsim.formats.element import Element, element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP64
from fpsim.formats.rounding import Rounding
from fpsim.scaling.recipes import ROWS, TILE_1X128
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tiling


def encode_scaled(
    x: npt.ArrayLike,
    fmt: Any,
    scaling: Scaling = TILE_1X128,
    *,
    rounding: str | Rounding = "nearest_even",
    overflow: str | None = None,
    subnormals: str = "keep",
    seed: int | None = None,
    random_bits: int = 32,
    scales: npt.ArrayLike | None = None,
    out: Scaled | None = None,
) -> Scaled:
    """Encode an array with a scale per tile: value = code * scale.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape (a torch tensor as well).
      fmt: element format: a float format, fp.INT8, fp.INT4, fp.UINT8, fp.UINT4 or fp.LogFMT(bits), by name or object.
      scaling: how tiles get their scales; `fp.scalings` has a row for every common recipe.
      rounding, subnormals, seed, random_bits: of the elements' cast, as in `fpsim.encode`.
      overflow: the same; by default the scaling's own.
      scales: decode scales to use instead of those that the scaling would find, float32, one per tile or broadcast.
      out: an earlier result of the same shape, format and scaling, whose arrays are filled again; use what is
        returned from then on, since the earlier object does not follow.

    Returns:
      A Scaled array: codes of x's shape, float32 scales, and what happened to the scales in `report`.

    Raises:
      ValueError: a combination that is not possible, scales that do not fit, or an `out` of another kind.
      TypeError: x is not an array of floats, or scaling no Scaling.

    Source: docs/scaling.md states every step.

    Example:
      >>> import fpsim as fp
      >>> x = np.linspace(-3, 3, 512, dtype=np.float32).reshape(2, 256)
      >>> q = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
      >>> q.codes.shape, q.scales.shape, float(abs(q.decode() - x).max()) < 0.13
      ((2, 256), (2, 2), True)
    """
    from fpsim.runtime.processor import under_ieee

    words_of_cast = (rounding, overflow, subnormals, seed, random_bits)
    return under_ieee(_encode_scaled)(x, fmt, scaling, words_of_cast, scales, out)


def _encode_scaled(
    x: npt.ArrayLike, fmt: Any, scaling: Scaling, words_of_cast: Any, scales: npt.ArrayLike | None, out: Scaled | None
) -> Scaled:
    rounding, overflow, subnormals, seed, random_bits = words_of_cast
    element, source, source_fmt = checked(x, fmt, scaling)
    fill = _targets(out, source, element, scaling, scales is not None)
    if isinstance(element, LogFMT):
        _refuse_for_log(rounding, overflow, subnormals, scales)
        return _encode_log(source, source_fmt, element, scaling, fill)
    options = element_options_of(element, scaling, rounding, overflow, subnormals, seed, random_bits)
    given = None if scales is None else given_scales(scales, source.shape, scaling)
    if isinstance(element, IntegerFormat) and not scaling.symmetric:
        return _encode_affine(source, source_fmt, element, scaling, options, given, fill)

    from fpsim.scaling.run_tiles import Grid, run_scales, run_tiles, settle_tensor

    tiles = tiling(source.shape, scaling.block)
    job = _job(source, source_fmt, element, scaling, options, words(fill.codes), back=False)
    if given is not None:
        np.copyto(fill.scales, given)
        run_scales(job, fill.scales.reshape(tiles.tiles))
        return _finished(fill, report=ScaleReport(tiles=fill.scales.size))
    counts = np.zeros(5, np.int64)
    tensor = settle_tensor(job, counts)
    codes = fill.scale_codes
    grid = Grid(
        fill.scales.reshape(tiles.tiles),
        np.empty((*tiles.tiles[:2], 0), np.uint8) if codes is None else codes.reshape(tiles.tiles),
        counts,
    )
    run_tiles(job, grid, tensor)
    report = ScaleReport(fill.scales.size, *(int(count) for count in counts))
    return _finished(fill, report, tensor.scale if scaling.tensor_scale else None)


def quantize_scaled(
    x: npt.ArrayLike,
    fmt: Any,
    scaling: Scaling = TILE_1X128,
    *,
    rounding: str | Rounding = "nearest_even",
    overflow: str | None = None,
    subnormals: str = "keep",
    seed: int | None = None,
    random_bits: int = 32,
    scales: npt.ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Round an array to what a small format with a scale per tile can hold: `encode_scaled(...).decode()` in one pass.

    Args: as for `encode_scaled`; out is a float32 array of x's shape to fill.

    Returns:
      float32 array of x's shape.

    Raises: as `encode_scaled`.

    Example:
      >>> import fpsim as fp
      >>> fp.quantize_scaled(np.float32([0.1, 0.2, 0.3, 6.0]), "e2m1", fp.scalings.MX)
      array([0. , 0. , 0.5, 6. ], dtype=float32)
    """
    from fpsim.runtime.processor import under_ieee

    words_of_cast = (rounding, overflow, subnormals, seed, random_bits)
    return under_ieee(_quantize_scaled)(x, fmt, scaling, words_of_cast, scales, out)


def _quantize_scaled(
    x: npt.ArrayLike, fmt: Any, scaling: Scaling, words_of_cast: Any, scales: npt.ArrayLike | None, out: Array | None
) -> Array:
    rounding, overflow, subnormals, seed, random_bits = words_of_cast
    element, source, source_fmt = checked(x, fmt, scaling)
    target = output(out, source.shape, np.dtype(np.float32), source)
    keywords: dict[str, Any] = {
        "rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed, "random_bits": random_bits,
        "scales": scales,
    }  # fmt: skip
    if isinstance(element, LogFMT) or not decodes_in_one_pass(element, scaling, source_fmt, target):
        encode_scaled(x, element, scaling, **keywords).decode(out=target)
        return target

    from fpsim.scaling.run_tiles import Grid, run_scales, run_tiles, settle_tensor

    options = element_options_of(element, scaling, rounding, overflow, subnormals, seed, random_bits)
    tiles = tiling(source.shape, scaling.block)
    job = _job(source, source_fmt, element, scaling, options, words(target), back=True)
    if scales is not None:
        run_scales(job, given_scales(scales, source.shape, scaling).reshape(tiles.tiles))
        return target
    counts = np.zeros(5, np.int64)
    tensor = settle_tensor(job, counts)
    dtype = job.plan.code_dtype
    codes = np.empty((*tiles.tiles[:2], 0), np.uint8) if dtype is None else np.empty(tiles.tiles, dtype)
    run_tiles(job, Grid(np.empty(tiles.tiles, np.float32), codes, counts), tensor)
    return target


def encode_both_ways(x: npt.ArrayLike, fmt: Any, scaling: Scaling = TILE_1X128, **cast: Any) -> tuple[Scaled, Scaled]:
    """Encode a matrix twice from the original: with a scaling, and with its block the other way around.

    That is how Transformer Engine gets both operands of the backward pass; DeepSeek-V3 keeps the first and calls
    `requantize` on it.

    Returns:
      (Scaled with the scaling's block, Scaled with the block reversed), both of x's shape.

    Raises:
      ValueError: x is not a matrix; otherwise as `encode_scaled`.

    Example:
      >>> import fpsim as fp
      >>> rows, columns = fp.encode_both_ways(np.ones((256, 128), np.float32), "e4m3", fp.scalings.TE_1X128)
      >>> rows.scales.shape, columns.scales.shape
      ((256, 1), (2, 128))
    """
    shape = np.shape(x)
    if len(shape) != 2:
        raise ValueError(f"x must be a matrix to be encoded both ways; got shape {tuple(shape)}.")
    return encode_scaled(x, fmt, scaling, **cast), encode_scaled(x, fmt, scaling.transposed(), **cast)


def checked(x: npt.ArrayLike, fmt: Any, scaling: Any) -> tuple[Element, Array, Format]:
    """The element format, and x as an array of floats and the format of these."""
    element = checked_element(fmt, scaling)
    array, source_fmt = float_array(x)
    return element, array, source_fmt


def checked_element(fmt: Any, scaling: Any) -> Element:
    """The element format, which must fit the scaling."""
    element = element_format(fmt)
    if not isinstance(scaling, Scaling):
        row = f" Did you mean fp.scalings.{scaling.upper()}?" if str(scaling).upper() in ROWS else ""
        raise TypeError(
            f"scaling must be an fp.Scaling, such as fp.scalings.TILE_1X128; got {type(scaling).__name__} "
            f"{scaling!r}.{row}"
        )
    if isinstance(element, Format) and element.bits > 16:
        raise ValueError(f"element formats have up to 16 bits; got {element}. It needs no scale.")
    if isinstance(element, Format) and not element.has_zero:
        raise ValueError(f"element formats need a zero; got {element}.")
    if not scaling.symmetric and not isinstance(element, IntegerFormat):
        raise ValueError(f"symmetric=False needs an integer format; got {element}. Use fp.INT8 or fp.UINT4, say.")
    if isinstance(element, IntegerFormat) and scaling.symmetric and not element.signed:
        raise ValueError(
            f"{element} needs a zero point; use scaling.replace(symmetric=False), or fp.INT{element.bits}."
        )
    return element


def element_options_of(
    element: Format | IntegerFormat,
    scaling: Scaling,
    rounding: str | Rounding,
    overflow: str | None,
    subnormals: str,
    seed: int | None,
    random_bits: int,
) -> CastOptions:
    word = scaling.overflow if overflow is None else overflow
    if isinstance(element, IntegerFormat):
        options = cast_options(element.magnitudes, rounding, word, subnormals, seed, random_bits)
        # every policy saturates integers, which hold neither Inf nor NaN, and have no subnormals to flush
        return options._replace(overflow="saturate", subnormals="keep")
    return cast_options(element, rounding, word, subnormals, seed, random_bits)


def arithmetic_width(source_fmt: Format, fmt: Format) -> int:
    """Bits of the float that the arithmetic is done in."""
    from fpsim.core.layouts import source_width

    return 64 if source_fmt == FP64 else source_width(fmt)


def decodes_in_one_pass(element: Format | IntegerFormat, scaling: Scaling, source_fmt: Format, target: Array) -> bool:
    """Whether values come without codes in between."""
    if not scaling.symmetric or not (target.flags.c_contiguous and target.flags.aligned):
        return False
    from fpsim.core.layouts import decode_plan

    fmt = element.magnitudes if isinstance(element, IntegerFormat) else element
    return decode_plan(fmt, arithmetic_width(source_fmt, fmt)) is not None


def _job(
    source: Array, source_fmt: Format, element: Any, scaling: Scaling, options: CastOptions, out: Array, *, back: bool
) -> Any:
    from fpsim.scaling.plan import scale_plan
    from fpsim.scaling.run_tiles import Job

    integer = isinstance(element, IntegerFormat)
    fmt = options.fmt
    tiles = tiling(source.shape, scaling.block)
    plan = scale_plan(scaling, largest_value(element), fmt.mantissa_bits, arithmetic_width(source_fmt, fmt))
    return Job(
        words(source).reshape(tiles.shape), source_fmt, out.reshape(tiles.shape), tiles, plan, options, integer, back
    )


@lru_cache(maxsize=1024)
def largest_value(element: Format | IntegerFormat) -> float:
    """The largest value, which takes a while to find."""
    return element.max


def given_scales(scales: npt.ArrayLike, shape: tuple[int, ...], scaling: Scaling) -> Array:
    """Scales that the caller gave, as float32, one per tile.

    Raises:
      ValueError: another shape, or a scale that is negative.
      TypeError: not floats.
    """
    array, _ = float_array(scales if hasattr(scales, "dtype") else np.asarray(scales, np.float32), "scales")
    grid = tiling(shape, scaling.block).grid
    try:
        with np.errstate(all="ignore"):
            given = np.ascontiguousarray(np.broadcast_to(array.astype(np.float32), grid)).reshape(grid)
    except ValueError:
        raise ValueError(
            f"scales must be one per tile, shape {grid} for x of shape {shape} and block {scaling.block}, "
            f"or broadcast to that; got shape {array.shape}."
        ) from None
    valid = ((given > 0) & (given < np.inf)) | np.isnan(given)
    if not valid.all():
        raise ValueError(f"scales must be positive and finite in float32; got {given[~valid][0]}.")
    return given


def _targets(out: Scaled | None, source: Array, element: Element, scaling: Scaling, given: bool) -> Scaled:
    """Arrays to fill: those of an earlier result, or new ones.

    Raises:
      ValueError: out does not fit.
    """
    if out is None:
        return _new_targets(source, element, scaling, given)
    wanted = f"out must be a Scaled of shape {source.shape} in {element} with {scaling!r}"
    if not isinstance(out, Scaled):
        raise ValueError(f"{wanted}; got {type(out).__name__}.")
    if out.shape != source.shape or out.fmt != element or out.scaling != scaling:
        raise ValueError(f"{wanted}; got {out!r}.")
    arrays = [array for array in (out.codes, out.scales, out.scale_codes, out.zero_points) if array is not None]
    if not all(array.flags.c_contiguous and array.flags.writeable for array in arrays):
        raise ValueError(f"{wanted} in contiguous writeable arrays; got parts or read-only ones. Leave it out.")
    fresh = _new_targets(source[:0] if source.ndim else source, element, scaling, given)
    if (out.scale_codes is None) != (fresh.scale_codes is None):
        return _new_targets(source, element, scaling, given)
    return out


def _new_targets(source: Array, element: Element, scaling: Scaling, given: bool) -> Scaled:
    grid = tiling(source.shape, scaling.block).grid
    fmt = scaling.scale_format
    with_codes = fmt.bits <= 16 and not given and not isinstance(element, LogFMT)
    zero_points = None
    if isinstance(element, LogFMT):
        zero_points = np.empty(grid, np.float32)
    elif not scaling.symmetric:
        zero_points = np.empty(grid, element.storage)
    return Scaled(
        np.empty(source.shape, element.storage), np.empty(grid, np.float32), element, scaling,
        scale_codes=np.empty(grid, fmt.storage) if with_codes else None, zero_points=zero_points,
    )  # fmt: skip


def _finished(fill: Scaled, report: ScaleReport, tensor_scale: np.float32 | None = None) -> Scaled:
    import dataclasses

    return dataclasses.replace(fill, report=report, tensor_scale=tensor_scale)


def _encode_affine(
    source: Array,
    source_fmt: Format,
    element: IntegerFormat,
    scaling: Scaling,
    options: CastOptions,
    given: Array | None,
    fill: Scaled,
) -> Scaled:
    from fpsim.scaling.zero_points_and_logs import encode_affine

    tiles = tiling(source.shape, scaling.block)
    counts = np.zeros(5, np.int64)
    assert fill.zero_points is not None
    targets = (
        fill.codes.reshape(tiles.shape),
        fill.scales.reshape(tiles.tiles),
        None if fill.scale_codes is None else fill.scale_codes.reshape(tiles.tiles),
        fill.zero_points.reshape(tiles.tiles),
    )
    grid = None if given is None else given.reshape(tiles.tiles)
    if source.size:
        encode_affine(words(source), source_fmt, element, scaling, options, tiles, grid, targets, counts)
    return _finished(fill, ScaleReport(fill.scales.size, *(int(count) for count in counts)))


def _encode_log(source: Array, source_fmt: Format, element: LogFMT, scaling: Scaling, fill: Scaled) -> Scaled:
    from fpsim.scaling.zero_points_and_logs import encode_log

    tiles = tiling(source.shape, scaling.block)
    assert fill.zero_points is not None
    targets = (
        fill.codes.reshape(tiles.shape),
        fill.scales.reshape(tiles.tiles),
        fill.zero_points.reshape(tiles.tiles),
    )
    if source.size:
        encode_log(words(source), source_fmt, element, scaling, tiles, targets)
    nan_tiles = int(np.count_nonzero(np.isnan(fill.scales)))
    return _finished(fill, ScaleReport(fill.scales.size, nan_tiles=nan_tiles))


def _refuse_for_log(rounding: Any, overflow: Any, subnormals: Any, scales: Any) -> None:
    from fpsim.formats.rounding import rounding_mode

    if rounding_mode(rounding) is not Rounding.NEAREST_EVEN or overflow is not None or subnormals != "keep":
        raise ValueError(
            "LogFMT takes the nearest level; got another rounding, overflow or subnormals. Leave these words out."
        )
    if scales is not None:
        raise ValueError("LogFMT finds its own levels; got scales. Leave them out.")
