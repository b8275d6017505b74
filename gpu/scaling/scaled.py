"""`fpsim.gpu.Scaled`, codes on the GPU with one scale per tile, and the functions that encode to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Unpack

import numpy as np

from fpsim.arrays import library_of, lies_on_gpu
from fpsim.core.tile_scale import COUNTERS
from fpsim.errors import shown
from fpsim.formats.cast_options import DEFAULTS, ElementKeywords, with_element_keywords
from fpsim.formats.element import ElementLike, element_format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.keywords import check_keywords
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import TableFormat
from fpsim.gpu.casts.cast import has_outside, refuse_outside
from fpsim.gpu.device.array import dtype_name, gpu_array, result_like
from fpsim.gpu.device.copies import refuse_overlap
from fpsim.gpu.device.device import require_device
from fpsim.gpu.device.launch import uploaded
from fpsim.gpu.device.transfer import host_array, sent
from fpsim.gpu.scaling.decode import NOTHING, decode_scaled, transposed
from fpsim.gpu.scaling.encode import GpuTargets, GpuTileJob, refuse_on_gpu, run, scaled_job, temporary
from fpsim.scaling.arguments import given_scales
from fpsim.scaling.recipes import TILE_1X128
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import Scaled as CpuScaled
from fpsim.scaling.scaled_arrays import ARRAYS, ScaledArrays
from fpsim.scaling.scaling import Scaling


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(ScaledArrays[Any]):
    """Codes on the GPU with one decode scale per tile: value = code * scale. `fpsim.gpu.encode_scaled` creates it.

    It has the attributes and methods of `fpsim.Scaled`, except `save` and `load`: `q.cpu().save(path)` saves it. The
    arrays stay on the GPU, and so do the counts of the report until it is read. `cpu()` and `from_cpu` convert between
    the classes without rounding.

    Attributes:
      codes: array of the library and shape of the encoded array; unsigned codes of a float format, or int8 or uint8 of
        an integer format.
      scales: float32, one per tile, with as many axes as the codes; the product of both levels where there are two.
      fmt: the element format.
      scaling: the recipe of the scales.
      scale_codes: codes of the scales (of the first level); None if scales are FP32 or were given.
      tensor_scale: the float32 scale of the second level as an array of one element, or None.
      zero_points: one per tile, for integers with a zero point; else None.
      counts: the counts of `report`, int64, on the GPU; None if nothing was counted.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     q = fp.gpu.encode_scaled(torch.tensor([[1.0, -2.0, 3.0, 448.0]]).cuda(), fp.E4M3, fp.scalings.ROW)
      ...     print(q, q.scales, q.decode())
    """

    counts: Any = dataclasses.field(default=None, repr=False)

    _place: ClassVar[str] = " on the GPU"

    def __post_init__(self) -> None:
        element = element_format(self.fmt)
        if isinstance(element, (LogFMT, TableFormat)):
            refuse_on_gpu(element)
        super().__post_init__()
        if self.counts is None:  # else other code has checked them, without waiting for the GPU
            codes = gpu_array(self.codes, "codes")
            if not isinstance(element, IntegerFormat):
                refuse_outside(codes, element)
            elif element.bits < 8 and has_outside(codes, element.lowest, element.highest):
                raise ValueError(
                    f"codes must lie in {element.lowest} .. {element.highest}, the codes of {element}; got others. "
                    "Mask or shift packed codes apart first."
                )

    @staticmethod
    def _has_dtype(array: Any, dtype: np.dtype[Any]) -> bool:
        return dtype_name(array) == dtype.name

    def _decoded(self, dtype: np.dtype[Any], out: Any) -> Any:
        codes = gpu_array(self.codes, "codes")
        result, values = result_like(codes, codes.shape, dtype, out)
        decode_scaled(self, codes, values, 8 * dtype.itemsize)
        return result

    def _encoded(self, values: Any, fmt: Any, scaling: Scaling, cast: dict[str, Any]) -> Scaled:
        return encode_scaled(values, fmt, scaling, **cast)

    def _flipped(self, array: Any) -> Any:
        return transposed(array)

    def _with(self, arrays: dict[str, Any], tiles: int) -> Scaled:
        part = dataclasses.replace(self, **arrays)  # with counts, since its codes have been checked
        object.__setattr__(part, "counts", None)
        return part

    @cached_property
    def report(self) -> ScaleReport:
        """Counts of tiles that are all zero, or have NaN, Inf or a clamped scale; the first use waits for the GPU."""
        if self.counts is None:
            return ScaleReport(tiles=self._tile_count)
        return ScaleReport(self._tile_count, *(int(count) for count in host_array(self.counts)))

    def cpu(self) -> CpuScaled:
        """Return a copy of this array in CPU memory, as an fpsim.Scaled; waits for the GPU."""
        arrays: dict[str, Any] = {name: host_array(array) for name, array in self._arrays().items()}
        tensor = None if self.tensor_scale is None else np.float32(host_array(self.tensor_scale)[0])
        return CpuScaled(fmt=self.fmt, scaling=self.scaling, tensor_scale=tensor, report=self.report, **arrays)

    @staticmethod
    def from_cpu(scaled: CpuScaled, like: Any = None) -> Scaled:
        """Return an fpsim.Scaled copied to the GPU.

        Args:
          scaled: a result of `fpsim.encode_scaled` or `load`.
          like: an array on the GPU whose library and device the result's arrays use; None for numba's arrays.

        Raises:
          GpuError: there is no GPU, or too little memory on it.
          TypeError: scaled is not an fpsim.Scaled, or `like` is not on the GPU.
          ValueError: the format of its elements is LogFMT or a table format, which the GPU does not support.

        Example:
          >>> import fpsim as fp
          >>> q = fp.encode_scaled(np.ones((2, 128), np.float32), fp.E4M3, fp.scalings.TILE_1X128)
          >>> if fp.gpu.available():
          ...     import torch
          ...     print(fp.gpu.Scaled.from_cpu(q, like=torch.empty(0, device="cuda")).T.cpu())
        """
        require_device()
        if not isinstance(scaled, CpuScaled):
            kind = "an fpsim.gpu.Scaled" if isinstance(scaled, Scaled) else type(scaled).__name__
            raise TypeError(f"scaled must be an fpsim.Scaled; got {kind}.")
        from numba import cuda

        owner = gpu_array(cuda.device_array(1, np.uint8) if like is None else like, "like")

        def put(array: Any) -> Any:
            if array is None:
                return None
            made, words = result_like(owner, array.shape, array.dtype)
            sent(owner.like, array, words)
            return made

        names = ("zero_tiles", "nan_tiles", "infinite_tiles", "clamped_low", "clamped_high")
        counts = np.array([getattr(scaled.report, name) for name in names], np.int64)
        tensor = None if scaled.tensor_scale is None else np.array([scaled.tensor_scale], np.float32)
        arrays = {name: put(getattr(scaled, name)) for name in ARRAYS}
        return Scaled(fmt=scaled.fmt, scaling=scaled.scaling, tensor_scale=put(tensor), counts=put(counts), **arrays)


@with_element_keywords
def encode_scaled(
    x: Any, fmt: ElementLike, scaling: Scaling | str = TILE_1X128, *, scales: Any = None, out: Scaled | None = None,
    **cast: Unpack[ElementKeywords],
) -> Scaled:  # fmt: skip
    """Encode an array on the GPU with one scale per tile, bit for bit as `fpsim.encode_scaled` does.

    Args:
      x: torch CUDA tensor, or array of cupy, numba or another library with `__cuda_array_interface__`, of any float
        dtype and shape.
      fmt: element format: a float format, fp.INT8, fp.INT4, fp.UINT8 or fp.UINT4, by name or object. LogFMT is
        refused, since the GPU's logarithm has other bits than the CPU's.
      scaling, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode_scaled`; stochastic results are
        the same as on the CPU.
      scales: decode scales to use instead of computed ones, one per tile or broadcast, as an array on the GPU or
        the CPU. They are checked on the CPU, which waits for the GPU.
      out: an earlier result of the same library, shape, format and scaling, whose arrays are overwritten. Use only the
        returned object afterwards.

    Returns:
      A Scaled array on the GPU with arrays of x's library. The work is queued on the current stream of torch or cupy;
      its `report` waits for the GPU when it is first read.

    Raises:
      GpuError: there is no GPU, or too little memory on it.
      ValueError: format, scaling and options exclude each other, scales or `out` do not fit, or the format is LogFMT or
        a table.
      TypeError: x is not an array of floats on the GPU, or scaling is neither a Scaling nor a name.

    Source: docs/scaling.md states every step; docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.encode_scaled(torch.randn(256, 512).cuda(), fp.E4M3, fp.scalings.TILE_1X128))
    """
    check_keywords(encode_scaled, cast, DEFAULTS)
    job = scaled_job(x, fmt, scaling, cast, back=False)
    user_scales = _user_scales(scales, job)
    result, fill = _targets(out, job, user_scales is not None)
    run(job, fill, user_scales)
    return result


@with_element_keywords
def quantize_scaled(
    x: Any, fmt: ElementLike, scaling: Scaling | str = TILE_1X128, *, scales: Any = None, out: Any = None,
    **cast: Unpack[ElementKeywords],
) -> Any:  # fmt: skip
    """Round an array on the GPU to a small format with one scale per tile, bit for bit as `fpsim.quantize_scaled` does.

    Args:
      x, fmt, scaling, scales, rounding, overflow, subnormals, seed, random_bits: as for `fpsim.gpu.encode_scaled`.
      out: a float32 array of x's library and shape to fill; None for a new one.

    Returns:
      float32 array of x's library and shape.

    Raises: as `encode_scaled`.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     print(fp.gpu.quantize_scaled(torch.tensor([0.1, 0.2, 0.3, 6.0]).cuda(), "e2m1", fp.scalings.MX))
    """
    check_keywords(quantize_scaled, cast, DEFAULTS)
    job = scaled_job(x, fmt, scaling, cast, back=True)
    result, values = result_like(job.source, job.source.shape, np.dtype(np.float32), out)
    if out is not None:
        refuse_overlap(values, job.source.words)
    if not job.back:
        encoded = encode_scaled(x, job.element, job.scaling, scales=scales, **cast)
        return encoded.decode(out=result)
    user_scales = _user_scales(scales, job)
    run(job, temporary(job, values, user_scales is not None), user_scales)
    return result


def _targets(out: Scaled | None, job: GpuTileJob, scales_known: bool) -> tuple[Scaled, GpuTargets]:
    """Return (result, views of its memory as flat unsigned integers, which kernels fill).

    Args:
      out: an earlier result, whose arrays are reused if the new result needs the same ones; None for new arrays.
      job: the array to be encoded, the format and the scaling.
      scales_known: whether the caller gives the scales, so that the result has no scale codes and no tensor scale.

    Raises:
      ValueError: out has another shape, format, scaling or library.
    """
    grid, scaling, element = job.tiling.grid, job.scaling, job.element
    with_codes = scaling.scale_format.bits <= 16 and not scales_known
    old: dict[str, Any] = {}
    if out is not None:
        wanted = f"out must be a Scaled of the GPU, of shape {job.source.shape} in {element} with {scaling!r}"
        if not isinstance(out, Scaled):
            raise ValueError(f"{wanted}; got {library_of(out)}.{type(out).__name__}.")
        if out.shape != job.source.shape or out.fmt != element or out.scaling != scaling:
            raise ValueError(f"{wanted}; got {shown(out)}.")
        if type(out.codes) is not type(job.source.like):
            kinds = type(job.source.like).__name__, type(out.codes).__name__
            raise ValueError(f"{wanted} in arrays of x's kind, {kinds[0]}; got {kinds[1]}.")
        if (out.scale_codes is not None) == with_codes:
            old = {name: getattr(out, name) for name in ("codes", "scales", "scale_codes", "zero_points")}

    def array(name: str, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        return result_like(job.source, shape, np.dtype(dtype), old.get(name))

    codes, code_words = array("codes", job.source.shape, element.storage)
    scales, scale_words = array("scales", grid, np.float32)
    scale_codes, tensor, zero_points, nothing = None, None, None, uploaded(NOTHING)
    scale_code_words = tensor_words = zero_words = nothing
    if with_codes:
        scale_codes, scale_code_words = array("scale_codes", grid, scaling.scale_format.storage)
    if job.affine:
        zero_points, zero_words = array("zero_points", grid, element.storage)
    if old:
        refuse_overlap(job.source.words, code_words, scale_words, scale_code_words, zero_words)
    if scaling.tensor_scale and not scales_known:
        tensor, tensor_words = job.array((1,), np.float32)
    counts, count_words = job.array((COUNTERS,), np.int64)
    result = Scaled(
        codes, scales, element, scaling, scale_codes=scale_codes, tensor_scale=tensor, zero_points=zero_points,
        counts=counts,
    )  # fmt: skip
    return result, GpuTargets(code_words, scale_words, scale_code_words, zero_words, tensor_words, count_words)


def _user_scales(scales: Any, job: GpuTileJob) -> Any:
    """Return the caller's scales as a float32 NumPy array with one per tile of `job`; None if `scales` is None."""
    if scales is None:
        return None
    on_cpu = host_array(scales, "scales") if lies_on_gpu(scales) else scales
    return given_scales(on_cpu, job.source.shape, job.scaling)
