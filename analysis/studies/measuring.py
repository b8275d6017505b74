"""The measurements of one tensor of a study, in pieces of at most about two million elements (slabs)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from operator import sub
from typing import Any

import numpy as np

from fpsim.analysis.measures.candidates import Buffers, Candidate, Tiles
from fpsim.analysis.measures.comparison import scaling_name
from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport, range_of_pieces
from fpsim.analysis.measures.passes import LONG, as_floats, float_pieces, sums_of_pieces
from fpsim.analysis.measures.rounding_error import RoundingWay
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.analysis.studies.rows import ErrorRow
from fpsim.analysis.tensors.operand import as_operand
from fpsim.analysis.tensors.roles import OPERANDS
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.arrays import Array
from fpsim.formats.rounding import Rounding
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling

SLAB = 1 << 21  # elements of a tensor that are in memory at once: whole rows, in bands of 128
BAND = 128  # rows that no tile of a common recipe goes beyond
RANGE_SHARE = 0.1  # share of a tensor's time that the first pass takes
SAMPLE = 1 << 18  # elements of a sample: some dozens of rows of thousands, so that a channel's SQNR is known to 1 dB
ROWS = 32  # rows that a sample has at least
CHANNELS = 0.1  # share of the channels that may be worse
DEAD = 1e-4  # channels with less than this share of the median channel's energy do not count, as they have no effect
VERY_LONG = 1 << 27  # elements from which formats are compiled in as constants, for every candidate


def measured(
    tensor: Tensor, ways_of: Callable[[str, int], list[RoundingWay]], advance: Callable[[float], None]
) -> tuple[RangeReport, list[ErrorRow]]:
    """Return (range of a tensor before rounding, its errors: one for each format, scaling and rounding).

    ways_of(role, rows) returns the combinations of format, scaling and rounding to measure, for the tensor's role
    (such as "matrix") and its number of rows. advance is called with the share of the work done, 0 to 1. The list of
    errors is empty for an empty tensor.
    """
    one = as_operand(tensor)
    rows, columns = one.shape
    ways = ways_of(one.role, rows)
    height, width = _slab_shape(rows, columns, ways)
    if one.size <= height * width:
        slabs = list(_slabs(one, height, width))
        spread = range_of_pieces(piece for slab in slabs for piece in float_pieces(slab))
        return spread, _errors(one, slabs, spread.amax, ways, advance)
    seen = 0

    def counted() -> Iterator[Array]:
        nonlocal seen
        for chunk in _ahead(one.chunks(LONG)):
            yield from float_pieces(chunk)
            seen += chunk.size
            advance(RANGE_SHARE * seen / one.size)

    spread = range_of_pieces(counted())
    return spread, _errors(one, _ahead(_slabs(one, height, width)), spread.amax, ways, advance)


def _ahead(parts: Iterator[Array]) -> Iterator[Array]:
    """Yield the arrays of an iterator; a thread reads the next one while the caller uses the last."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = pool.submit(next, parts, None)
            yield part


def _slab_shape(rows: int, columns: int, ways: Sequence[RoundingWay]) -> tuple[int, int]:
    """Return (rows, columns) of a slab: the piece of a matrix that is read at once. No tile extends beyond its slab.

    `rows`, `columns`: shape of the matrix. `ways`: the formats, scalings and roundings to measure; the tiles are those
    of their scalings. A slab of a matrix has whole rows, a multiple of 128 of them; it is the whole matrix if that has
    at most 128 rows, or if the height of a tile does not divide 128. A slab of a single row has a multiple of 128 and
    of the width of every tile; it is the whole row if the block of a scaling has a -1. Unless these rules require more,
    a slab has at most about two million elements. If values with a scale per tile are rounded stochastically, the slab
    is the whole matrix, since `encode_scaled` draws random numbers by the index in the array that it is given.
    """
    scaled = [way for way in ways if isinstance(way.scaling, Scaling)]
    blocks = [way.scaling.block for way in scaled if isinstance(way.scaling, Scaling)]
    whole = any(way.options.rounding is Rounding.STOCHASTIC for way in scaled)
    if rows == 1:
        if whole or any(-1 in block for block in blocks):
            return 1, columns
        step = math.lcm(BAND, *(block[-1] for block in blocks))
        return 1, max(min(columns, max(SLAB // step, 1) * step), 1)
    if whole or rows <= BAND or any(len(block) > 1 and (block[-2] == -1 or BAND % block[-2]) for block in blocks):
        return max(rows, 1), columns
    return max(SLAB // max(columns, 1) // BAND * BAND, BAND), columns


def _slabs(one: Tensor, height: int, width: int) -> Iterator[Array]:
    """Yield the elements of a tensor, in C order, as matrices (height, width) with exact values.

    The last matrix may have fewer rows, or if `height` is 1 fewer columns. The matrices are float64 if `one.chunks`
    yields float64, else float32.
    """
    wanted = max(height * width, 1)
    waiting: list[Array] = []
    held = 0
    for chunk in one.chunks(min(wanted, SLAB)):
        waiting.append(chunk)
        held += chunk.size
        while held >= wanted:
            together = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            yield as_floats(together[:wanted]).reshape(height, width)
            waiting = [together[wanted:]]
            held -= wanted
    if held:
        yield as_floats(np.concatenate(waiting)).reshape(1 if height == 1 else -1, width if height > 1 else held)


@dataclass
class Running:
    """The sums of a tensor's errors in one format, scaling and rounding, over the slabs (pieces) read so far.

    Attributes:
      way: the format, scaling and rounding.
      sums: the sums from which metrics are computed.
      scales: numbers of tiles so far: of all, and of those with an amax of 0, with a NaN, with an Inf, and with a
        clamped scale; all are 0 without a scale per tile.
      scale_bits: total number of bits of all scales.
      last: the cast that is measured: with a scale per tile the last slab as encoded (Tiles), else the FloatCast that
        rounds the elements of every slab. None before the first slab.
      channel_sqnr_db: an SQNR in dB that 90 % of the rows and 90 % of the columns of a sample reach or exceed. The
        sample is the first rows of the tensor, as `_channel_sqnr_db` takes them from its first slab. It is measured
        only for operands of products, in the rounding on which recommendations are based; else it is NaN.
    """

    way: RoundingWay
    sums: ErrorSums
    scales: ScaleReport = field(default_factory=ScaleReport)
    scale_bits: int = 0
    last: Any = None
    channel_sqnr_db: float = math.nan

    def report(self) -> ErrorReport:
        """Return the error over all slabs (pieces of the tensor) read so far."""
        report = self.way.report(self.sums, self.last)
        if not isinstance(self.way.scaling, Scaling):
            return report
        one = report.scale if self.scales.tiles == 1 else math.nan
        return replace(report, scale=one, scales=self.scales, scale_bits=self.scale_bits)


def judged_rounding(roundings: Sequence[Rounding]) -> Rounding:
    """Return the rounding on which recommendations are based: nearest-even if it is in `roundings`, else the first."""
    return Rounding.NEAREST_EVEN if Rounding.NEAREST_EVEN in roundings else roundings[0]


def _errors(
    one: Tensor, slabs: Iterable[Array], amax: float, ways: Sequence[RoundingWay], advance: Callable[[float], None]
) -> list[ErrorRow]:
    """Return a tensor's errors, one for each of `ways` (format, scaling and rounding); [] for an empty tensor.

    `one`: the tensor. `slabs`: its elements as matrices in order, as `_slabs` yields them; sums are added over all of
    them. `amax`: the tensor's largest finite magnitude. `advance`: called with the share of the work done, 0 to 1.
    """
    running = [Running(way, nothing()) for way in ways]
    judged = judged_rounding([way.options.rounding for way in ways]) if ways else None
    first = 0
    long = one.size >= VERY_LONG
    for slab in slabs:
        for row in running:
            if isinstance(row.way.scaling, Scaling):
                scaled = _encoded(row.way, slab, None if slab.size == one.size else amax)
                row.last = Tiles(scaled, slab.dtype == np.float64, first)
                row.scales = row.scales.merge(scaled.report)
                row.scale_bits += scaled.scale_bits - (32 if scaled.scaling.tensor_scale and first else 0)
            elif row.last is None:
                row.last = row.way.candidate(slab, long, amax)
            if first == 0 and one.role in OPERANDS and row.way.options.rounding is judged:
                row.channel_sqnr_db = _channel_sqnr_db(slab, row.last, amax)
        of_slab = sums_of_pieces(float_pieces(slab), [row.last for row in running], first)
        for row, sums in zip(running, of_slab, strict=True):
            row.sums = row.sums.merge(sums)
        first += slab.size
        advance(RANGE_SHARE + (1 - RANGE_SHARE) * first / max(one.size, 1))
    if first == 0:
        return []
    return [
        ErrorRow(one.name, one.step, scaling_name(row.way.scaling), row.report(), row.channel_sqnr_db)
        for row in running
    ]


def _encoded(way: RoundingWay, slab: Array, amax: float | None) -> Scaled:
    """Return a slab (a piece of a tensor) encoded in the format of `way` with the scaling of `way`, which is an
    fp.Scaling.

    The scales are those that the slab has if the whole tensor is encoded. `amax`: the tensor's largest finite
    magnitude; a scaling with a second scale for the whole tensor, such as NVFP4, computes that scale from it. None if
    the slab is the whole tensor.
    """
    scaling = way.scaling
    assert isinstance(scaling, Scaling)
    if amax is None or not scaling.tensor_scale:
        return encode_scaled(slab, way.element, scaling, **way.keywords)
    # the second scale depends on the largest value, which an added row of tiles brings into every slab
    height, tall = len(slab), scaling.block[-2] if len(scaling.block) > 1 else 1
    source = np.concatenate([slab, np.zeros((-height % tall + 1, slab.shape[1]), slab.dtype)])
    source[-1, 0] = amax
    scaled = encode_scaled(source, way.element, scaling, **way.keywords)
    added = encode_scaled(source[-1:], way.element, scaling, **way.keywords).report
    counts = ScaleReport(*map(sub, astuple(scaled.report), astuple(added)))
    scale_codes = None if scaled.scale_codes is None else scaled.scale_codes[:-1]
    return replace(
        scaled, report=counts, codes=scaled.codes[:height], scales=scaled.scales[:-1], scale_codes=scale_codes
    )


def _channel_sqnr_db(slab: Array, candidate: Candidate, amax: float) -> float:
    """Return an SQNR in dB that at least 90 % of the rows and 90 % of the columns of a sample reach or exceed.

    The sample is the first 262,144 elements of the slab, in whole rows and at least 32 of them. A row or column whose
    energy (sum of squares) is below 0.0001 of the median energy is not counted. Return NaN if the sample has only one
    row or column, or only zeros. `slab`: a matrix, the first piece of the tensor. `candidate`: the slab's cast.
    `amax`: the tensor's largest finite magnitude.
    """
    sample = slab[: max(SAMPLE // max(slab.shape[1], 1), ROWS)]
    if min(sample.shape) < 2:
        return math.nan
    result = candidate.rounded(sample.reshape(-1), 0, Buffers()).results.reshape(sample.shape)
    # squares of float32 values fit float64; of larger values, those near 1 neither overflow nor underflow
    most = np.finfo(np.float64).maxexp - 8
    unit = 1.0 if sample.dtype == np.float32 else 2.0 ** -min(max(math.frexp(amax)[1], -most), most)
    channels = []
    with np.errstate(all="ignore"):
        noise = np.square(np.subtract(result, sample, dtype=np.float64) * unit)
        signal = np.square(np.multiply(sample, unit, dtype=np.float64))
        if not np.isfinite(noise.sum()):
            fine = np.isfinite(noise)
            noise, signal = np.where(fine, noise, 0), np.where(fine, signal, 0)
        for axis in (0, 1):
            energy = signal.sum(axis=axis, dtype=np.float64)
            decibels = 10 * (np.log10(energy) - np.log10(noise.sum(axis=axis, dtype=np.float64)))
            if (energy > 0).any():
                alive = energy >= DEAD * np.median(energy[energy > 0])
                channels.append(_lower_quantile(decibels[alive], CHANNELS))
    return min(channels, default=math.nan)


def _lower_quantile(x: Array, share: float) -> float:
    """Return np.quantile(x, share, method="lower") of a 1-d array; NaN if x contains a NaN.

    For few elements, this is ten times as fast as NumPy's function.
    """
    ordered = np.sort(x)
    return math.nan if np.isnan(ordered[-1]) else float(ordered[int((x.size - 1) * share)])
