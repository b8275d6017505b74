"""Functions for one step of encoding with scales that persist over training steps: encoding and counting.

The module imports numba, so it is loaded at the first step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.core.tile_scale import HAS_INFINITY
from fpsim.formats.cast_options import CastOptions, ElementKeywords
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import TableFormat
from fpsim.runtime.pipeline import wrapping
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.scaling.encode import decodes_in_one_pass, tile_plan
from fpsim.scaling.kernels.amax import float_words
from fpsim.scaling.kernels.counts import count_kernel
from fpsim.scaling.look import look, with_nan_scales
from fpsim.scaling.run_tiles import run_scales, settle_tensor
from fpsim.scaling.scaled import Scaled, encode_scaled, quantize_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tile_jobs import Place, load, over_parts, pieces, tile_job


def encode_with_factors(step: EncodingStep, scaling: Scaling, scales: Array, factors: Array, *, back: bool) -> Any:
    """Encode x * factor, with one factor and one decode scale per tile, which need not be exact inverses of each other.

    The decoded value is code * scale. step: the array x and the options of its cast, with division="multiply" in its
    scaling. scaling: the recipe of the result. scales, factors: float32, one per tile. Return a Scaled, or if `back`
    its decoded values, float32, computed in one pass where possible.
    """
    element, shape = step.element, step.source.shape
    assert not isinstance(element, (LogFMT, TableFormat))
    values = np.empty(shape, np.float32)
    # the loops of one pass look at factors alone to see whether decoding can give a NaN
    in_one_pass = (
        back and decodes_in_one_pass(element, scaling, step.source_fmt, values) and bool(np.all(np.isfinite(scales)))
    )
    out = values if in_one_pass else np.empty(shape, element.storage)
    job = step.job(out, back=in_one_pass)
    _, real, _, _ = float_words(job.width)
    grid = job.tiling.tiles
    run_scales(job, np.ascontiguousarray(scales).reshape(grid), factors.astype(real).reshape(grid))
    if in_one_pass:
        return values
    encoded = Scaled(out, np.array(scales, np.float32), element, scaling)
    return encoded.decode(out=values) if back else encoded


class EncodingStep(NamedTuple):
    """The arguments of one step of encoding.

    source: the float array. source_fmt: the format that its dtype stores. element: the element format. scaling: the
    recipe of tiles and scales. options: the checked options of the elements' cast. keywords: the keywords from which
    `options` was made.
    """

    source: Array
    source_fmt: Format
    element: Element
    scaling: Scaling
    options: CastOptions
    keywords: ElementKeywords

    def job(self, target: Array | None = None, *, back: bool = False) -> Any:
        """Return the `TileJob` (arrays, tiles, plan and seed) that writes codes, or values if `back`, into `target`.

        target: array of the source's shape. Without a target, the job can only be used to read the source.
        """
        assert not isinstance(self.element, (LogFMT, TableFormat))
        how = tile_plan(self.element, self.scaling, self.options, self.source_fmt, back)
        return tile_job(self.source, self.source if target is None else target, how, self.options.seed)


def encode_with_own_scales(step: EncodingStep, *, back: bool) -> tuple[Any, Array, Array]:
    """Encode a step's array with scales computed from the array itself.

    step: the array and the options of its cast. back: True for values instead of codes.

    Returns:
      The Scaled array, or float32 values if `back`; the decode scales, float32, one per tile, with as many
      axes as the array; and the factors that elements were divided by or multiplied with, 1-D, one per tile.
    """
    run = quantize_scaled if back else encode_scaled
    result = run(step.source, step.element, step.scaling, **step.keywords)
    job = step.job()
    tops, specials = look(job)
    counts = np.zeros(5, np.int64)
    tensor = settle_tensor(job, counts)
    scales = np.empty(tops.size, np.float32)
    codes = np.empty(0 if job.plan.code_dtype is None else tops.size, job.plan.code_dtype or np.uint8)
    factors = np.empty(tops.size, np.float32 if job.width == 32 else np.float64)
    with ieee_arithmetic(), wrapping():
        arguments = job.plan.arguments(tensor)
        settle = job.plan.settle(tops.size)
        settle(tops.reshape(-1), specials.reshape(-1), scales, codes, factors, counts, *arguments)
    return result, scales.reshape(job.tiling.grid), factors


def given_factors(step: EncodingStep, scales: Array) -> Array:
    """Return the factors of elements for given decode scales: the scales if elements are divided, else their inverses.

    step: the array and its scaling. scales: float32, one per tile. The result has the shape (batch, rows of tiles,
    tiles in a row), in the float (float32 or float64) in which elements are divided by scales.
    """
    job = step.job()
    factors: Array = job.plan.factors(with_nan_scales(job, scales.reshape(job.tiling.tiles)))
    return factors


def amax_of(tops: Array, specials: Array) -> Array:
    """Return each tile's amax (largest magnitude) in float32, ignoring NaN; Inf if the tile has an infinite element.

    tops: bit patterns (uint32 or uint64) of the finite amax. specials: flags of the same shape, the sum of HAS_NAN and
    HAS_INFINITY.
    """
    real: Any = np.float32 if tops.dtype == np.uint32 else np.float64
    with np.errstate(over="ignore"):
        amax: Array = tops.view(real).astype(np.float32)
    amax[(specials & HAS_INFINITY) != 0] = np.inf
    return amax


def count(step: EncodingStep, factors: Array) -> tuple[int, int]:
    """Return (number of elements that saturate, number that underflow) in a step with these factors.

    step: the array and the options of its cast. factors: one per tile, what elements are divided by or multiplied with.
    The counts are those of `ScaleCounts`.
    """
    job = step.job()
    encoder, tiles = job.how.encoder, job.tiling
    beyond = (1 << job.width) - 1
    # values that the format cannot hold get words that are no codes, and signs are dropped, so that -0 is 0
    layout = encoder.frozen._replace(
        overflow=beyond, overflow_negative=beyond, infinite=beyond, below=beyond, nan=1, nan_sign=0, sign_bit=0
    )
    fields = np.array(layout, encoder.layout.dtype)
    loop = count_kernel(job.width, int(job.how.options.rounding), encoder.kind, job.plan.applied)
    _, real, _, _ = float_words(job.width)
    factors = factors.astype(real).reshape(tiles.tiles)
    size = (tiles.tile_rows, tiles.tile_columns)

    counts: list[Array] = []

    def work(part: Place) -> None:
        part_counts = np.zeros(2, np.int64)
        with ieee_arithmetic(), wrapping():
            for piece in pieces(job, part, (1, 1)):
                corner = piece.rows[0], piece.columns[0]
                draws = job.draws(piece.batch, *corner)
                loop(load(job, piece.of(job.source)), factors[piece.batch], *size, *corner, draws, fields, part_counts)
        counts.append(part_counts)

    for batch in range(tiles.batch):
        over_parts(Place(batch, (0, tiles.rows), (0, tiles.columns)), (1, 1), work)
    saturated, underflowed = np.sum(counts, axis=0).tolist()
    return saturated, underflowed


def inverse(encode_scales: Array) -> Array:
    """Return 1 / encode_scales in float32."""
    with ieee_arithmetic(), np.errstate(all="ignore"):
        return np.float32(1) / encode_scales
