"""Choice and launch of the kernels that encode an array on the GPU to codes and scales, or to these codes' values."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import numpy as np

from fpsim.core.decode import DecodeLayout
from fpsim.core.layouts import EncodePlan, decode_plan, encode_plan
from fpsim.core.tile_scale import COUNTERS, ScaleNumbers
from fpsim.formats.cast_options import CastOptions, ElementKeywords
from fpsim.formats.element import Element
from fpsim.formats.integer_format import OFFSETS, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import FP64
from fpsim.formats.rounding import Rounding
from fpsim.formats.table_format import TableFormat
from fpsim.gpu.casts.cast import decode, float_array, is_named
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.groups import GROUP_BITS, as_groups
from fpsim.gpu.device.launch import launch, uploaded, uploaded_rows
from fpsim.gpu.device.transfer import cleared, sent
from fpsim.gpu.scaling import scale_kernels, tile_kernels
from fpsim.gpu.scaling.areas import Areas, areas_of, block_threads
from fpsim.gpu.scaling.decode import NOTHING
from fpsim.gpu.scaling.short_tiles import EACH, ShortTiles, short_tiles_kernel, tile_threads_of
from fpsim.runtime.processor import under_ieee
from fpsim.scaling.arguments import checked_element, element_options_of
from fpsim.scaling.encode import arithmetic_width
from fpsim.scaling.plan import ScalePlan, TensorScale, element_plan, scale_plan
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import Tiling, tiling

u32, u64 = np.uint32, np.uint64
NO_AREAS = np.zeros(1, u64)


def refuse_on_gpu(fmt: LogFMT | TableFormat) -> NoReturn:
    """Raise the ValueError for LogFMT and table formats, which the GPU does not support."""
    if isinstance(fmt, TableFormat):
        raise ValueError(f"{fmt}, a table of values, is not on the GPU. Use the functions of fpsim itself.")
    raise ValueError(
        f"{fmt} is not on the GPU, whose log2 and exp2 differ from the CPU's in their last bit. Use the functions of "
        "fpsim itself."
    )


class GpuTileJob(NamedTuple):
    """An array on the GPU to encode tile by tile, with its format and scaling.

    Attributes:
      source: the array.
      element: the format of its elements.
      scaling: the recipe of the scales.
      options: format and rounding of the elements.
      tiling: shape of the array and of its tiles.
      plan: how a tile's amax becomes its scale.
      back: True to compute the values of the codes in place of the codes.
    """

    source: GpuArray
    element: Any
    scaling: Scaling
    options: CastOptions
    tiling: Tiling
    plan: ScalePlan
    back: bool

    @property
    def width(self) -> int:
        """Bits, 32 or 64, of the floats in which elements are scaled."""
        return self.plan.width

    @property
    def affine(self) -> bool:
        """True if elements are integers with a zero point."""
        return not self.scaling.symmetric

    def encoder(self) -> EncodePlan:
        """Return the EncodePlan, the constants by which scaled floats are rounded to codes."""
        if self.affine:
            return encode_plan(OFFSETS, self.width, self.options.rounding, "saturate", "keep", self.options.random_bits)
        return element_plan(self.options, self.width, integer=isinstance(self.element, IntegerFormat))

    def decoder(self) -> Any:
        """Return the DecodeLayout, constants by which codes are decoded, as an array; zeros if `back` is False."""
        plan = decode_plan(self.options.fmt, self.width) if self.back else None
        return _no_layout(self) if plan is None else plan.layout

    def array(self, shape: tuple[int, ...], dtype: Any) -> tuple[Any, Any]:
        """Return (new uninitialised array of the source's library, the same memory as flat unsigned integers).

        shape, dtype: shape and NumPy dtype of the array.
        """
        return result_like(self.source, shape, np.dtype(dtype))

    def areas(self, *, cut: bool, whole: bool = False) -> Areas:
        """Return how the array is divided into areas for blocks of threads.

        cut: whether a tile may be divided among several blocks. whole: whether to treat the whole array as one tile.
        """
        tiles = self.tiling
        if whole:
            size = self.source.size
            tiles = Tiling(1, 1, size, 1, max(size, 1), (1,))
        return areas_of(tiles, block_threads(), cut=cut)


def _no_layout(job: GpuTileJob) -> Any:
    """Return zeros in place of the constants of a DecodeLayout, for kernels of a job that decode nothing."""
    return np.zeros(len(DecodeLayout._fields), u32 if job.width == 32 else u64)


class GpuTargets(NamedTuple):
    """The GPU memory that kernels fill, as flat arrays of unsigned integers.

    A placeholder of one byte stands for an array that is not computed.

    Attributes:
      out: codes or values of the elements.
      scales, scale_codes, zero_points: one per tile.
      tensor: the second-level scale, one element.
      counts: 5 uint64, the counts zero_tiles .. clamped_high of ScaleReport (scaling/report.py), in this order.
    """

    out: Any
    scales: Any
    scale_codes: Any
    zero_points: Any
    tensor: Any
    counts: Any


def scaled_job(x: Any, fmt: Any, scaling: Any, cast: ElementKeywords, *, back: bool) -> GpuTileJob:
    """Validate the arguments for encoding x, or for rounding it to values if `back`; return them as a GpuTileJob.

    x: array on the GPU. fmt, scaling, cast: as for `encode_scaled`, whose errors are raised. back: True for values. The
    job's `back` is False all the same if values can only be computed by decoding codes in a second pass, or if the
    scaling has zero points.
    """
    scaling = scaling_of(scaling)
    element: Element = checked_element(fmt, scaling)
    if isinstance(element, (LogFMT, TableFormat)):
        refuse_on_gpu(element)
    if scaling.adaptive:
        raise ValueError(f"{scaling!r} chooses by tile, which is not on the GPU. Use the functions of fpsim itself.")
    options = element_options_of(element, scaling, cast)
    source = float_array(x)
    assert source.fmt is not None
    width = arithmetic_width(source.fmt, options.fmt)
    if scaling.symmetric:
        plan = scale_plan(scaling, element.max, options.fmt.mantissa_bits, width)
    else:
        assert isinstance(element, IntegerFormat)
        width = 64 if source.fmt == FP64 else 32
        steps = float(element.highest - element.lowest)
        plan = scale_plan(scaling.replace(amax_floor=0.0), steps, 0, width)
    back = back and scaling.symmetric and decode_plan(options.fmt, width) is not None
    return GpuTileJob(source, element, scaling, options, tiling(source.shape, scaling.block), plan, back)


def temporary(job: GpuTileJob, values: Any, scales_known: bool) -> GpuTargets:
    """Return the arrays that kernels fill if only values are wanted: `values`, and temporary arrays for the rest.

    job: the array, its format and its scaling. values: flat GPU array of float32 bits. The rest is scales, their codes
    and counts. scales_known: whether the caller gives the scales, so that no scale codes are computed.
    """
    tiles, nothing = (math.prod(job.tiling.grid),), uploaded(NOTHING)
    codes = tensor = nothing
    if job.plan.code_dtype is not None and not scales_known:
        codes = job.array(tiles, job.plan.code_dtype)[1]
    if job.scaling.tensor_scale and not scales_known:
        tensor = job.array((1,), np.float32)[1]
    return GpuTargets(
        values, job.array(tiles, np.float32)[1], codes, nothing, tensor, job.array((COUNTERS,), np.int64)[1]
    )


@under_ieee  # plans are made with floats of the CPU
def run(job: GpuTileJob, fill: GpuTargets, user_scales: Any) -> None:
    """Queue the GPU kernels that encode an array; they fill all arrays of `fill`.

    job: the array, its format and its scaling. user_scales: the caller's scales, a float32 NumPy array with one per
    tile; None to compute them.
    """
    source, like, plan = job.source, job.source.like, job.plan
    assert source.fmt is not None
    words, of_source, widened = source.words, _no_layout(job), source.fmt.bits != job.width
    if widened:
        narrow = decode_plan(source.fmt, job.width)
        if narrow is None:  # values are looked up first
            words = gpu_array(decode(like, source.fmt, np.float32 if job.width == 32 else np.float64), "x").words
            widened = False
        else:
            of_source = narrow.layout
    encoder, seed = job.encoder(), job.options.seed or 0
    e = tile_kernels.ElementKernels(
        job.width, widened, int(job.options.rounding), encoder.kind, plan.applied,
        isinstance(job.element, IntegerFormat), job.back, job.affine,
    )  # fmt: skip
    from_source, key = (words, uploaded(of_source)), (u64(seed & 0xFFFFFFFF), u64(seed >> 32))
    layouts = [
        layout.astype(u64) for layout in (of_source, encoder.layout, job.decoder(), plan.layout, plan.rules.view(u64))
    ]
    cleared(like, fill.counts)
    if user_scales is None:
        numbers, table = _scale_numbers(job, fill, from_source, widened), uploaded(plan.table)
        in_one_pass = key, numbers, uploaded_rows(NO_AREAS, *layouts), table
        if _run_short_tiles(job, fill, e, encoder, words, in_one_pass):
            return
        whole_tiles = job.areas(cut=False)
        if whole_tiles.stays_in_cache and not job.affine:
            _launch(
                tile_kernels.tiles_kernel(e, plan.choices), job, whole_tiles, words, fill.out, fill.scales,
                fill.scale_codes, fill.counts, key, numbers,
                uploaded_rows(whole_tiles.layout.view(u64), *layouts), table,
            )  # fmt: skip
            return
    tiles = (math.prod(job.tiling.grid),)
    word = f"u{job.width // 8}"
    tops, lows, specials = (job.array(tiles, dtype)[1] for dtype in (word, word, np.uint32))
    factors = job.array(tiles, word)[1]
    _find_tops(job, from_source, widened, job.areas(cut=True), tops, lows, specials)
    if job.affine:
        launch(scale_kernels.spread_kernel(job.width), like, tops.size, tops, lows)
    if user_scales is None:
        settle = scale_kernels.settle_kernel(plan.choices)
        launch(
            settle, like, tops.size, tops, specials, fill.scales, fill.scale_codes, factors, fill.counts,
            *in_one_pass[1:],
        )  # fmt: skip
    else:
        sent(like, user_scales, fill.scales)
        given_kernel = scale_kernels.given_kernel(job.width, plan.applied)
        nan_tile = int(job.scaling.nan == "tile")
        launch(given_kernel, like, tops.size, tops, specials, fill.scales, factors, fill.counts, nan_tile)
    limits = (0, 0)
    if job.affine:
        limits = (job.element.lowest, job.element.highest)
        nearest = encode_plan(OFFSETS, job.width, Rounding.NEAREST_EVEN, "saturate", "keep", 32)
        zero_points = scale_kernels.zero_points_kernel(job.width, nearest.kind, plan.applied)
        launch(zero_points, like, tops.size, lows, factors, fill.zero_points, *limits, uploaded(nearest.layout))
    parts = job.areas(cut=True)
    _launch(
        tile_kernels.elements_kernel(e), job, parts, words, fill.out, fill.scales, factors, fill.zero_points,
        uploaded_rows(parts.layout.view(u64), *layouts), key, limits,
    )  # fmt: skip


def _run_short_tiles(
    job: GpuTileJob, fill: GpuTargets, e: tile_kernels.ElementKernels, encoder: EncodePlan, words: Any,
    more: tuple[Any, ...],
) -> bool:  # fmt: skip
    """Queue `short_tiles_kernel` and return True, or return False if it cannot process the array.

    The kernel needs tiles that `tile_threads_of` accepts, elements that are scaled in float32 without a zero point, and
    memory that is aligned to 64 bits. job: the array, its format and its scaling. fill: the arrays to fill. e:
    compile-time choices of the kernel. encoder: the constants by which elements are encoded. words: the source's
    memory. more: the last arguments of `short_tiles_kernel`: (seed, numbers, plan, table).
    """
    tile_threads = tile_threads_of(job.tiling)
    if job.affine or job.width != 32 or not tile_threads or not words.size:
        return False
    bits = tuple(8 * array.dtype.itemsize for array in (words, fill.out))
    source, out = (
        as_groups((array,), GROUP_BITS // width)[0] for array, width in zip((words, fill.out), bits, strict=True)
    )
    if not source.size or not out.size:  # memory that is not aligned to whole words
        return False
    freezes = is_named(job.options.fmt) or isinstance(job.element, IntegerFormat)
    how = ShortTiles(e, job.plan.choices, tile_threads, bits[0], bits[1], encoder.frozen if freezes else None)
    launch(
        short_tiles_kernel(how), job.source.like, words.size, source, out, fill.scales, fill.scale_codes, fill.counts,
        *more, each=EACH,
    )  # fmt: skip
    return True


def _launch(kernel: Any, job: GpuTileJob, areas: Areas, *arguments: Any) -> None:
    """Launch a GPU kernel with one block of threads per area, on the stream of the job's source.

    areas: how the array is divided among blocks. arguments: the arguments of the kernel.
    """
    launch(kernel, job.source.like, int(areas.count) * block_threads(), *arguments)


def _find_tops(
    job: GpuTileJob, from_source: tuple[Any, Any], widened: bool, areas: Areas, tops: Any, lows: Any, specials: Any
) -> None:
    """Write each tile's amax, as float bits, to `tops`, and its flags of NaN and Inf to `specials`.

    With zero points, `tops` receives the amax of the positive elements and `lows` that of the negative ones; otherwise
    `lows` is set to 0. job: the array and its scaling. from_source: (memory of the source, constants that decode it).
    widened: whether kernels decode elements to a wider float. areas: the parts on which blocks of threads work.
    """
    for words in (tops, lows, specials):
        cleared(job.source.like, words)
    kernel = tile_kernels.tops_kernel(job.width, widened, job.affine)
    _launch(kernel, job, areas, *from_source, uploaded(areas.layout), tops, lows, specials)


def _scale_numbers(job: GpuTileJob, fill: GpuTargets, from_source: tuple[Any, Any], widened: bool) -> Any:
    """Return the ScaleNumbers, largest values and limits of elements and scales, as an array of floats on the GPU.

    If the scaling has a second-level scale, the kernels that compute it are queued first; they fill fill.tensor and may
    increase fill.counts. job: the array and its scaling. from_source: (memory of the source, constants that decode it).
    widened: whether kernels decode elements to a wider float.
    """
    plan, word = job.plan, f"u{job.width // 8}"
    real = np.dtype(f"f{job.width // 8}")
    numbers = uploaded(plan.numbers(TensorScale()))
    if job.scaling.tensor_scale:
        plain = numbers
        top, low, specials = (job.array((1,), dtype)[1] for dtype in (word, word, np.uint32))
        numbers = job.array((len(ScaleNumbers._fields),), real)[1].view(real)
        _find_tops(job, from_source, widened, job.areas(cut=True, whole=True), top, low, specials)
        launch(
            scale_kernels.tensor_kernel(job.width), job.source.like, 1, top, specials, plain,
            uploaded(np.array([plan.highest])), int(job.scaling.infinity == "propagate"), int(plan.is_inverse),
            numbers, fill.tensor, fill.counts,
        )  # fmt: skip
    return numbers
