"""Jobs of the tile loops: an array to encode with one scale per tile, its plan, and parts of its matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts import pipelines
from fpsim.core.decode import DecodeLayout
from fpsim.core.layouts import EncodePlan, decode_plan
from fpsim.core.scaled_element import ElementChoices
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64, NAMED
from fpsim.runtime.general_loops import allows_general_loops
from fpsim.runtime.pipeline import PIECE, run_stages
from fpsim.runtime.threads import over_spans
from fpsim.scaling.kernels.amax import ANY, tile_shape
from fpsim.scaling.kernels.elements import Elements
from fpsim.scaling.plan import ScalePlan
from fpsim.scaling.tiling import Tiling, tiling

FUSED = 1 << 18  # elements of a matrix from which compiling one loop for each rule and format pays off
SHORT = 1 << 14  # elements up to which one loop serves all modes: compiling another takes longer than many calls

NO_DRAWS = np.zeros(4, np.uint64)


class TileTargets(NamedTuple):
    """Arrays that tile loops fill: each tile's scale and scale code, and counts of tiles.

    scales: float32, shape (batch, rows of tiles, tiles in a row). codes: of the same shape, or with a last axis of
    length 0 where scales have no codes. counts: five int64, to which are added the numbers of tiles with an amax of 0,
    with NaN, with Inf, with a scale raised to the smallest one allowed, and with a scale lowered to the largest.
    """

    scales: Array  # float32
    codes: Array  # of the scale format; (batch, bands, 0) where there are none
    counts: Array


@dataclass(frozen=True, eq=False)
class TilePlan:
    """The plan for encoding arrays of one format to one element format with one scaling.

    source_fmt: the format of the arrays. scales: the ScalePlan, by which scales are computed. options: the options of
    the elements' cast, without a seed. encoder: the constants by which scaled floats become codes. integer: True for an
    integer format. back: True writes the values of codes (code * scale), not the codes.
    """

    source_fmt: Format
    scales: ScalePlan
    options: CastOptions  # without seed
    encoder: EncodePlan  # turns scaled floats into codes
    integer: bool
    back: bool

    @property
    def width(self) -> int:
        """Bits, 32 or 64, of the float in which elements are divided by scales."""
        return self.scales.width

    @cached_property
    def is_wide(self) -> bool:
        """True if the source's format has as many bits as the float in which elements are divided by scales."""
        return self.source_fmt.bits == self.scales.width

    def choices(self) -> ElementChoices:
        """Return the integers that select the compiled loop: (rounding mode, encoder's kind, division, is integer).

        The kind is PLAIN, FULL or UNUSUAL, the checks that the element format needs (core/encode.py). The division is
        BY_SCALE, or BY_INVERSE if elements are multiplied with the inverse of the scale.
        """
        return ElementChoices(int(self.options.rounding), self.encoder.kind, self.scales.applied, int(self.integer))

    @cached_property
    def layouts(self) -> tuple[Array, Array]:
        """Constants of the elements' encoder and decoder in one array, and `choices` as an int64 array.

        The decoder's constants are all 0 if the plan writes codes, because nothing is decoded then.
        """
        decoder = decode_plan(self.options.fmt, self.width) if self.back else None
        word: Any = np.uint32 if self.width == 32 else np.uint64
        back = decoder.layout if decoder else np.zeros(len(DecodeLayout._fields), word)
        return np.concatenate([self.encoder.layout, back]), np.array(self.choices(), np.int64)


class TileJob(NamedTuple):
    """One array to encode to codes, or to values, and the array to fill.

    source: bit patterns, shape (batch, rows, columns), of any memory layout. out: codes, or uint32 patterns of float32
    values, of the same shape in C order. tiling: the tiles of the source. how: the TilePlan, constants of the loops.
    seed: the seed of stochastic rounding, or None.
    """

    source: Array  # words, batch x rows x columns, of any layout
    out: Array  # codes, or uint32 bits of float32 values; C order
    tiling: Tiling
    how: TilePlan
    seed: int | None = None

    @property
    def plan(self) -> ScalePlan:
        """The ScalePlan, by which the job's scales are computed."""
        return self.how.scales

    @property
    def width(self) -> int:
        """Bits, 32 or 64, of the float in which elements are divided by scales."""
        return self.how.scales.width

    @property
    def is_small(self) -> bool:
        """True if each matrix has fewer than FUSED (2**18) elements, too few to compile a loop for its scaling."""
        return self.tiling.rows * self.tiling.columns < FUSED

    @property
    def is_direct(self) -> bool:
        """True if kernels can read the source without a copy: contiguous, aligned, native order, `width` bits."""
        flags, source = self.source.flags, self.source
        return flags.c_contiguous and flags.aligned and source.dtype.isnative and self.how.is_wide

    def elements(self, columns: int, *, careful: bool = False) -> Elements:
        """Return the compile-time choices of the loop that encodes elements; columns: number of columns of a tile.

        careful: True if factors, which elements are divided by or multiplied with, may be 0, Inf or NaN.
        """
        how, fmt = self.how, self.how.options.fmt
        freeze = self.source.size >= pipelines.LARGE and NAMED.get(fmt.name) == fmt and not careful
        back = decode_plan(fmt, self.width) if how.back else None
        frozen = (how.encoder.frozen, back.frozen if back else DecodeLayout(*[0] * 9)) if freeze else (None, None)
        general = careful and (self.source.size <= SHORT or allows_general_loops())
        choices = None if general else how.choices()
        return Elements(self.width, self.shape_of(columns), how.back, choices, frozen, careful)

    def shape_of(self, columns: int) -> int:
        """Return `columns`, a tile's number of columns, if a loop is compiled for this number, else ANY (0).

        A loop for ANY reads the number at run time. Loops are compiled for 1 column, and if the matrix is large for
        16, 32, 64 and 128 columns, too.
        """
        return ANY if self.is_small and columns != 1 else tile_shape(columns)

    def draws(self, batch: int, row: int, column: int) -> Array:
        """Return the four uint64 from which random numbers are computed; all are 0 without a seed.

        They are the flat index of the element [batch, row, column], the difference between that index and the index of
        the element one row below, and the seed's low and high 32 bits.
        """
        if self.seed is None:
            return NO_DRAWS
        _, rows, columns, *_ = self.tiling
        index = (batch * rows + row) * columns + column
        return np.array((index, columns, self.seed & 0xFFFFFFFF, self.seed >> 32), np.uint64)


def tile_job(source: Array, out: Array, how: TilePlan, seed: int | None = None) -> TileJob:
    """Return the TileJob (arrays, their tiles, plan and seed) that encodes `source` into `out` by the plan `how`.

    out: array of the source's shape. seed: the seed of stochastic rounding, or None.
    """
    tiles = tiling(source.shape, how.scales.scaling.block)
    return TileJob(words(source).reshape(tiles.shape), words(out).reshape(tiles.shape), tiles, how, seed)


class Place(NamedTuple):
    """A rectangular part of one matrix of a batch.

    batch: index of the matrix. rows, columns: (first, stop) of its rows and of its columns.
    """

    batch: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    def of(self, array: Array) -> Array:
        """Return the rows and columns of this part of an array of shape (batch, rows, columns), as a 2-D view."""
        part: Array = array[self.batch, slice(*self.rows), slice(*self.columns)]
        return part


def load(job: TileJob, part: Array) -> Array:
    """Return `part`, a view of the job's source, as contiguous bit patterns of floats of job.width bits, 32 or 64.

    Narrower source formats are widened. A part that kernels can read directly is returned without a copy.
    """
    if job.is_direct and part.flags.c_contiguous:
        return part
    return widened(part, job.how.source_fmt, job.width)


def widened(part: Array, fmt: Format, width: int) -> Array:
    """Convert `part`, bit patterns of `fmt`, to contiguous, native ones of floats of `width` bits, 32 or 64."""
    native = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    if fmt.bits == width:
        return native
    wide = FP32 if width == 32 else FP64
    wide_bits = np.empty(part.shape, wide.storage)
    run_stages(pipelines.decoding(fmt, wide, fmt.storage), native, wide_bits)
    return wide_bits


def pieces(job: TileJob, place: Place, step: tuple[int, int]) -> Iterator[Place]:
    """Split a rectangle of a matrix, `place`, into parts of at most PIECE elements, which fit the cache.

    step: (rows, columns); parts start at multiples of it, counted from the corner of `place`. A part has at least one
    step, even if that is more than PIECE elements. A place that kernels can read without a copy is yielded whole. job:
    the job that encodes the matrix.
    """
    (top, bottom), (left, right) = place.rows, place.columns
    if job.is_direct and place.of(job.source).flags.c_contiguous:
        yield place
        return
    rows, columns = bottom - top, right - left
    if step[0] * columns <= PIECE:
        high, wide = PIECE // max(step[0] * columns, 1) * step[0], columns
    else:
        high, wide = step[0], max(PIECE // (step[0] * step[1]), 1) * step[1]
    for r in range(top, top + rows, high):
        for c in range(left, left + columns, wide):
            yield Place(place.batch, (r, min(r + high, bottom)), (c, min(c + wide, right)))


def tile_range(span: tuple[int, int], size: int) -> tuple[int, int]:
    """Return (first, stop) of the tiles that cover the rows or columns `span`, (first, stop).

    size: the rows or columns of a tile. With a size of 4, the span (8, 13) gives (2, 4). The span must begin at the
    edge of a tile.
    """
    return span[0] // size, -(-span[1] // size)


def over_parts(place: Place, step: tuple[int, int], work: Callable[[Place], None]) -> None:
    """Split a rectangle of a matrix, `place`, into one part for each thread, and call `work` with each part.

    step: (rows, columns); parts start at multiples of it, counted from the corner of `place`. A small rectangle is one
    part.
    """
    (top, bottom), (left, right) = place.rows, place.columns
    rows, columns = bottom - top, right - left
    if rows == 0 or columns == 0:
        return

    def by_rows(start: int, stop: int) -> None:
        work(place._replace(rows=(top + start // columns, top + -(-stop // columns))))

    def by_columns(start: int, stop: int) -> None:
        work(place._replace(columns=(left + start // rows, left + -(-stop // rows))))

    if rows > step[0]:
        over_spans(rows * columns, by_rows, alignment=step[0] * columns)
    else:
        over_spans(rows * columns, by_columns, alignment=step[1] * rows)
