"""`Scaled`, an array of low-precision codes with one scale per tile, and the functions that encode to it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, float_array, output, refuse_shared_memory
from fpsim.errors import shown
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.cast_options import DEFAULTS, ElementKeywords, with_element_keywords
from fpsim.formats.element import Element, ElementLike
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.keywords import check_keywords
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import HIF4, TableFormat
from fpsim.lazy import deferred
from fpsim.scaling.arguments import checked
from fpsim.scaling.encode import decodes_in_one_pass, encode_into, quantize_into
from fpsim.scaling.recipes import TILE_1X128, scaling_of
from fpsim.scaling.report import ScaleReport, report_of
from fpsim.scaling.scaled_arrays import ARRAYS, EncodedTargets, ScaledArrays
from fpsim.scaling.scaling import Scaling, scaling_fields, scaling_from
from fpsim.scaling.tiling import tiling

FLOAT32 = np.dtype(np.float32)
processor = deferred("fpsim.runtime.processor")  # imports numba


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(ScaledArrays[Array]):
    """Codes with one decode scale per tile (block of elements): value = code * scale. `fpsim.encode_scaled` creates it.

    Attributes:
      codes: array of x's shape: unsigned codes of a float format, int8 or uint8 numbers of an integer format.
      scales: float32, one per tile, with as many axes as the codes; the product of both levels where there are two.
      fmt: the element format.
      scaling: the recipe of the scales.
      scale_codes: codes of the scales (of the first level, where there are two); None if scales are FP32 or the
        caller's.
      tensor_scale: the float32 scale of the second level, or None.
      zero_points: one per tile: of an integer format, its zero point; of LogFMT, the log2 of the lowest level (`scales`
        holds the step); of HiF4, the one-bit exponents of its groups, packed in a uint32; otherwise None.
      report: counts of tiles with an amax of 0, with NaN, with Inf, and with a clamped scale.

    Example:
      >>> import fpsim as fp
      >>> q = fp.encode_scaled(np.float32([[1, -2, 3, 448]]), fp.E4M3, fp.scalings.ROW)
      >>> q
      <Scaled (1, 4) in E4M3, fp.scalings.ROW: 1 tile, 8 bytes>
      >>> q.scales, q.decode()
      (array([[1.]], dtype=float32), array([[  1.,  -2.,   3., 448.]], dtype=float32))
    """

    tensor_scale: np.float32 | None = None
    report: ScaleReport = dataclasses.field(default_factory=ScaleReport)

    def __post_init__(self) -> None:
        for name in ARRAYS:
            array = getattr(self, name)
            if type(array) is not np.ndarray and (array is not None or name in ("codes", "scales")):
                object.__setattr__(self, name, as_array(array, name))
        super().__post_init__()
        if self.tensor_scale is not None:
            if not isinstance(self.tensor_scale, (float, np.floating)):
                raise TypeError(f"tensor_scale must be a float or None; got {shown(self.tensor_scale)}.")
            object.__setattr__(self, "tensor_scale", np.float32(self.tensor_scale))
        codes, fmt = self.codes, self.fmt
        lowest, highest = (fmt.lowest, fmt.highest) if isinstance(fmt, IntegerFormat) else (0, (1 << fmt.bits) - 1)
        if codes.size and fmt.bits < 8 * codes.itemsize and not lowest <= codes.min() <= codes.max() <= highest:
            outside = codes.min() if codes.min() < lowest else codes.max()
            raise ValueError(
                f"codes must lie in {lowest} .. {highest}, the codes of {fmt}; got {outside}. "
                "Mask or shift packed codes apart first."
            )

    @classmethod
    def _of(cls, fill: EncodedTargets, tensor_scale: np.float32 | None, report: ScaleReport) -> Scaled:
        """Return a Scaled of arrays that encoding has filled, without the checks of the constructor.

        fill: the arrays, the format and the scaling. tensor_scale: the scale of the whole array, or None. report:
        counts of tiles.
        """
        made = object.__new__(cls)
        made.__dict__.update(
            codes=fill.codes, scales=fill.scales, fmt=fill.fmt, scaling=fill.scaling, scale_codes=fill.scale_codes,
            tensor_scale=tensor_scale, zero_points=fill.zero_points, report=report,
        )  # fmt: skip
        return made

    @staticmethod
    def _has_dtype(array: Any, dtype: np.dtype[Any]) -> bool:
        return bool(array.dtype == dtype)

    def _decoded(self, dtype: np.dtype[Any], out: Any) -> Array:
        from fpsim.scaling.decode import decode_scaled

        target = output(out, self.shape, dtype, self.codes)
        if out is not None:
            refuse_shared_memory(out, self.scales, self.scale_codes, self.zero_points)
        decode_scaled(self, target)
        return target

    def _encoded(self, values: Array, fmt: Any, scaling: Scaling, cast: dict[str, Any]) -> Scaled:
        return encode_scaled(values, fmt, scaling, **cast)

    def _flipped(self, array: Array) -> Array:
        return np.ascontiguousarray(array.T)

    def _with(self, arrays: dict[str, Any], tiles: int) -> Scaled:
        return dataclasses.replace(self, report=ScaleReport(tiles=tiles), **arrays)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a Scaled array has to be decoded, which makes a copy; got copy=False.")
        values = self.decode()
        return values if dtype is None else values.astype(dtype, copy=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the array with every bit to a .npz or .safetensors file, completely or not at all.

        Raises:
          ValueError: the path ends in neither .npz nor .safetensors.
          ImportError: safetensors is not installed.
          OSError: the file cannot be written.
        """
        from fpsim.scaling.file import save

        arrays = self._arrays()
        if self.tensor_scale is not None:
            arrays["tensor_scale"] = np.asarray(self.tensor_scale, np.float32)
        header = {
            "fmt": element_fields(self.fmt),
            "scaling": scaling_fields(self.scaling),
            "report": self.report.to_dict(),
        }
        save(path, arrays, header)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Scaled:
        """Read a file that `save` wrote, and return the array.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or holds something else.
          ImportError: safetensors is not installed.

        Example:
          >>> import fpsim as fp, tempfile, pathlib
          >>> q = fp.encode_scaled(np.arange(6, dtype=np.float32), "int8", fp.scalings.TENSOR)
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     q.save(pathlib.Path(folder) / "q.npz")
          ...     fp.Scaled.load(pathlib.Path(folder) / "q.npz")
          <Scaled (6,) in INT8, fp.scalings.TENSOR: 1 tile, 10 bytes>
        """
        from fpsim.scaling.file import load

        arrays, header = load(path)
        if "class" in header:  # the file holds a state
            raise ValueError(
                f"{os.fspath(path)} must hold what Scaled.save wrote; got {header['class']}. "
                "Load it with the class that saved it."
            )
        try:
            tensor = arrays.pop("tensor_scale", None)
            return Scaled(
                fmt=element_from(header["fmt"]),
                scaling=scaling_from(header["scaling"]),
                report=ScaleReport(**header["report"]),
                tensor_scale=None if tensor is None else np.float32(tensor),
                **arrays,
            )
        except (KeyError, TypeError, ValueError) as reason:
            raise ValueError(
                f"{os.fspath(path)} must hold what Scaled.save wrote; it lacks or contradicts something: {reason}"
            ) from reason


@with_element_keywords
def encode_scaled(
    x: npt.ArrayLike,
    fmt: ElementLike,
    scaling: Scaling | str = TILE_1X128,
    *,
    scales: npt.ArrayLike | None = None,
    out: Scaled | None = None,
    **cast: Unpack[ElementKeywords],
) -> Scaled:
    """Encode an array with one scale per tile: value = code * scale.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape (a torch tensor as well).
      fmt: element format: a float format, fp.INT8, fp.INT4, fp.UINT8, fp.UINT4, fp.LogFMT(bits), or a table
        (fp.NF4, fp.HIF8, fp.HIF4, fp.IF4), by name or object.
      scaling: recipe of the tiles and their scales: one of `fp.scalings`, its name ("mx"), or another `fp.Scaling`.
      rounding, subnormals, seed, random_bits: the options of the elements' cast, as in `fpsim.encode`.
      overflow: the overflow policy of the elements' cast, as in `fpsim.encode`; by default the scaling's own. Integers
        saturate whatever it says.
      scales: decode scales to use instead of computed ones: float32, one per tile or broadcast. A tile with a NaN
        still gets the scale NaN if the scaling says nan="tile".
      out: an earlier result of the same shape, format and scaling, whose arrays are overwritten. Use only the returned
        object afterwards, since the fields of the earlier one (report, tensor_scale) are not updated.

    Returns:
      A Scaled array: codes of x's shape, float32 scales, and in `report` counts of tiles with an amax of 0, NaN, Inf or
      a clamped scale.

    Raises:
      ValueError: format, scaling and options exclude each other; scales do not broadcast to one per tile; or `out` has
        another shape, format or scaling.
      TypeError: x is not an array of floats, or scaling is neither a Scaling nor a name.

    Source: docs/scaling.md states every step.

    Example:
      >>> import fpsim as fp
      >>> x = np.linspace(-3, 3, 512, dtype=np.float32).reshape(2, 256)
      >>> q = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
      >>> q.codes.shape, q.scales.shape, float(abs(q.decode() - x).max()) < 0.13
      ((2, 256), (2, 2), True)
    """
    check_keywords(encode_scaled, cast, DEFAULTS)
    with processor().ieee_arithmetic():
        return _encode_scaled(x, fmt, scaling_of(scaling), cast, scales, out)


def _encode_scaled(
    x: npt.ArrayLike,
    fmt: Any,
    scaling: Scaling,
    cast: ElementKeywords,
    scales: npt.ArrayLike | None,
    out: Scaled | None,
) -> Scaled:
    """Encode an array as `encode_scaled` describes; the caller has already switched flush-to-zero off.

    x, fmt, scaling, scales, out: as for `encode_scaled`. cast: keywords of the elements' cast.
    """
    element, source, source_fmt = checked(x, fmt, scaling)
    fill = _targets(out, source, element, scaling, scales is not None)
    counts, tensor_scale = encode_into(fill, source, source_fmt, cast, scales)
    return Scaled._of(fill, tensor_scale, report_of(fill.scales.size, *counts.tolist()))


@with_element_keywords
def quantize_scaled(
    x: npt.ArrayLike,
    fmt: ElementLike,
    scaling: Scaling | str = TILE_1X128,
    *,
    scales: npt.ArrayLike | None = None,
    out: Array | None = None,
    **cast: Unpack[ElementKeywords],
) -> Array:
    """Round an array to the values of a small format with one scale per tile: `encode_scaled(...).decode()` in one go.

    Args: as for `encode_scaled`; out is a float32 array of x's shape to fill.

    Returns:
      float32 array of x's shape.

    Raises: as `encode_scaled`.

    Example:
      >>> import fpsim as fp
      >>> fp.quantize_scaled(np.float32([0.1, 0.2, 0.3, 6.0]), "e2m1", fp.scalings.MX)
      array([0. , 0. , 0.5, 6. ], dtype=float32)
    """
    check_keywords(quantize_scaled, cast, DEFAULTS)
    recipe = scaling_of(scaling)
    with processor().ieee_arithmetic():
        element, source, source_fmt = checked(x, fmt, recipe)
        target = output(out, source.shape, FLOAT32, source)
        if (
            isinstance(element, (LogFMT, TableFormat))
            or recipe.adaptive
            or not decodes_in_one_pass(element, recipe, source_fmt, target)
        ):
            _encode_scaled(x, element, recipe, cast, scales, None).decode(out=target)
        else:
            quantize_into(target, source, source_fmt, element, recipe, cast, scales)
    return target


def encode_both_ways(
    x: npt.ArrayLike, fmt: ElementLike, scaling: Scaling | str = TILE_1X128, **cast: Unpack[ElementKeywords]
) -> tuple[Scaled, Scaled]:
    """Encode a matrix twice from the original: with a scaling, and with the scaling whose block is transposed.

    Transformer Engine does so for the operands of the backward pass. DeepSeek-V3 stores only the first result, and
    obtains the second one from it, as `requantize` does.

    Args: as for `encode_scaled`.

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
    x, _ = float_array(x)
    if x.ndim != 2:
        raise ValueError(f"x must be a matrix to be encoded both ways; got shape {x.shape}.")
    scaling = scaling_of(scaling)
    return encode_scaled(x, fmt, scaling, **cast), encode_scaled(x, fmt, scaling.transposed(), **cast)


def _targets(out: Scaled | None, source: Array, element: Element, scaling: Scaling, has_scales: bool) -> EncodedTargets:
    """Return the arrays to fill: those of `out`, an earlier result, or new ones if `out` is None.

    source: the array to encode. element, scaling: the format and the recipe of the result. has_scales: True if the
    caller passes the scales, which then have no codes. New arrays are also returned if `out` has scale codes or zero
    points and the result has none, or the reverse.

    Raises:
      ValueError: `out` is of another shape, format or scaling, not contiguous, read-only, or shares memory with
        `source`.
    """
    if out is None:
        return _new_targets(source, element, scaling, has_scales)
    requirement = f"out must be a Scaled of shape {source.shape} in {element} with {scaling!r}"
    if not isinstance(out, Scaled):
        raise ValueError(f"{requirement}; got {type(out).__name__}.")
    if out.shape != source.shape or out.fmt != element or out.scaling != scaling:
        raise ValueError(f"{requirement}; got {shown(out)}.")
    arrays = [array for array in (out.codes, out.scales, out.scale_codes, out.zero_points) if array is not None]
    if not all(array.flags.c_contiguous and array.flags.writeable for array in arrays):
        raise ValueError(f"{requirement} in contiguous writeable arrays; got parts or read-only ones. Leave it out.")
    refuse_shared_memory(source, *arrays)
    fresh = _new_targets(source[:0] if source.ndim else source, element, scaling, has_scales)
    pairs = (out.scale_codes, fresh.scale_codes), (out.zero_points, fresh.zero_points)
    if any((old is None) != (new is None) for old, new in pairs):
        return _new_targets(source, element, scaling, has_scales)
    return EncodedTargets(out.codes, out.scales, element, scaling, out.scale_codes, out.zero_points)


def _new_targets(source: Array, element: Element, scaling: Scaling, has_scales: bool) -> EncodedTargets:
    """Return new arrays, not initialised, for codes, scales, scale codes and zero points (None where unused).

    source: the array to encode. element, scaling: the format and the recipe of the result. has_scales: True if the
    caller passes the scales, which then have no codes.
    """
    grid = tiling(source.shape, scaling.block).grid
    of_codes, of_zeros = _dtypes_per_tile(element, scaling)
    return EncodedTargets(
        np.empty(source.shape, element.storage), np.empty(grid, FLOAT32), element, scaling,
        None if of_codes is None or has_scales else np.empty(grid, of_codes),
        None if of_zeros is None else np.empty(grid, of_zeros),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _dtypes_per_tile(element: Element, scaling: Scaling) -> tuple[np.dtype[Any] | None, np.dtype[Any] | None]:
    """Return (dtype of scale codes, dtype of zero points); None for an array that the format and scaling do not use."""
    if isinstance(element, LogFMT):
        return None, FLOAT32
    fmt = scaling.scale_format
    if element == HIF4:
        return fmt.storage, np.dtype(np.uint32)
    return fmt.storage if fmt.bits <= 16 else None, None if scaling.symmetric else element.storage
