"""The study: how tensors survive in low-precision formats. Names, arrays and files in, a report out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.measures.candidates import Buffers, Tiles
from fpsim.analysis.measures.comparison import scaling_name, several
from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport, range_of_pieces
from fpsim.analysis.measures.passes import LONG, as_floats, float_pieces, sums_of_pieces
from fpsim.analysis.measures.rounding_error import RoundingWay
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.analysis.studies.candidates import CastCandidate, candidates_of
from fpsim.analysis.studies.recommend import ErrorRow, RangeRow, Requirements
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.tensors.opening import from_mapping, open_tensors, tensor
from fpsim.analysis.tensors.operand import as_operand
from fpsim.analysis.tensors.roles import OPERANDS, with_roles
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling

ROUNDINGS = ("nearest_even", "toward_zero", "stochastic")

Progress = Callable[[float, str], None]
CAPTURE_SHARE = 0.6  # of the time of the default study that the training takes
SLAB = 1 << 21  # elements of a tensor that are in memory at once: whole rows, in bands of 128
BAND = 128  # rows that no tile of a common recipe goes beyond


def study(
    tensors: Any = None,
    *,
    formats: Any = None,
    scalings: Any = None,
    roundings: Sequence[str | Rounding] | str | Rounding = ROUNDINGS,
    min_sqnr: float = Requirements().min_sqnr,
    max_lost: float = Requirements().max_lost,
    budget_bits: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    client: Any = None,
) -> StudyReport:
    """Measure how tensors survive in formats, and recommend one for each operand of products.

    Every tensor is read in slabs: for its range, then for the errors of every candidate; one that fits into a slab of
    two million values is read once.

    Args:
      tensors: None for a small transformer that is trained first (needs torch); an array or a mapping of names to
        arrays (NumPy or torch), such as a state dict; a path or a list of paths of .npy, .npz, .safetensors, .pt,
        .onnx and .gguf files; or `fp.analysis.tensor`s, which may have roles and steps.
      formats, scalings: one or several of each, of which every combination is a candidate; None for the default
        candidates: E4M3 and INT8 with scales of several sizes, E5M2, MXFP4, NVFP4, INT4, BF16 and FP16. A scaling is
        None, "amax" (one scale for the tensor), or an fp.Scaling.
      roundings: one or several, as for `fpsim.encode`; nearest-even, or the first, is measured for every candidate, the
        others for the first float format of up to 8 bits and the first of more, without scales per tile.
      min_sqnr: dB that a recommended candidate has at least, at every step.
      max_lost: share of the energy, sum x**2, that may become zero.
      budget_bits: bits per value that it takes at most, scales included; None for any number.
      seed: of stochastic rounding and of the training. Rounding is that of `fpsim.quantize` with this seed on the
        whole tensor.
      progress: called with (share done, what is going on).
      client: a `dask.distributed.Client` whose workers study the files, one at a time each.
    Returns:
      A StudyReport. Files that cannot be read are in `problems`; the others are studied nevertheless.
    Raises:
      ValueError: an unknown format, rounding, scaling or role, no tensor, or no file that can be read.
      ImportError: torch is needed and not installed.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
      >>> report = fp.analysis.study({"fc.weight": x, "fc.bias": x[0], "fc.weight.grad": x * np.float32(2.0**-20)})
      >>> [(row.tensor, row.role, row.choice) for row in report.recommendations]  # doctest: +NORMALIZE_WHITESPACE
      [('fc.weight', 'matrix', 'E4M3 with one scale'), ('fc.bias', 'bias', 'float32'),
       ('fc.weight.grad', 'gradient', 'E4M3 with one scale')]
    """
    modes = list(dict.fromkeys(rounding_mode(word) for word in several(roundings, "roundings")))
    plan = StudyPlan(
        candidates=candidates_of(formats, scalings),
        roundings=tuple(modes),
        seed=seed,
        requirements=Requirements(min_sqnr, max_lost, budget_bits).checked(),
    )
    plan.check()
    if isinstance(tensors, (list, tuple, Mapping)) and not tensors:
        raise ValueError("tensors must hold at least one tensor or path; got none. None is the built-in study.")
    if client is not None:
        return _study_shards(tensors, plan, client, progress)
    share = CAPTURE_SHARE if tensors is None else 0.0
    found, report = _gather(tensors, plan.report(), _part(progress, 0.0, share))
    report = _measure(with_roles(found), report, plan, _part(progress, share, 1.0))
    if report.problems and not report.ranges:
        raise TensorFileError(*report.problems)
    return report


@dataclass(frozen=True)
class StudyPlan:
    """What is measured of every tensor."""

    candidates: tuple[CastCandidate, ...]
    roundings: tuple[Rounding, ...]
    seed: int
    requirements: Requirements

    @property
    def judged(self) -> Rounding:
        """The rounding that recommendations are based on: nearest-even where it is studied."""
        return Rounding.NEAREST_EVEN if Rounding.NEAREST_EVEN in self.roundings else self.roundings[0]

    def check(self) -> None:
        """Refuse what cannot be measured before any work."""
        for candidate in self.candidates:
            RoundingWay(candidate.element, candidate.scaling, self.judged, seed=self.seed).check()

    @cached_property
    def compared(self) -> tuple[CastCandidate, ...]:
        """Of which all roundings are measured: the first float format of up to 8 bits and the first of more."""
        casts = [c for c in self.candidates[::-1] if not c.has_tiles]  # with a scale rather than without
        casts.sort(key=lambda c: self.formats.index(c.element))
        few, many = ([c for c in casts if (c.element.bits <= 8) == small] for small in (True, False))
        return tuple(found[0] for found in (few, many) if found)

    @property
    def formats(self) -> list[Any]:
        """The formats in their order."""
        return [candidate.element for candidate in self.candidates]

    def report(self) -> StudyReport:
        """A report without tensors."""
        return StudyReport(
            description="",
            candidates=self.candidates,
            roundings=tuple(mode.name.lower() for mode in self.roundings),
            seed=self.seed,
            requirements=self.requirements,
            ranges=(),
            errors=(),
        )

    def ways(self, role: str, rows: int) -> list[RoundingWay]:
        """The ways to round a tensor: every candidate for an operand, casts to 16 bits and more for others."""
        found = []
        for element, scaling in self.candidates:
            if role not in OPERANDS and (scaling is not None or element.bits < 16):
                continue
            if isinstance(scaling, Scaling):
                others = [c for c in self.candidates if c.element == element and c.scaling != scaling]
                if rows > 1 or scaling.block[-1] != -1 or not others:  # else the row is the whole tensor
                    found.append(RoundingWay(element, scaling, self.judged, seed=self.seed))
            else:
                modes = self.roundings if CastCandidate(element, scaling) in self.compared else (self.judged,)
                found += [RoundingWay(element, scaling, mode, seed=self.seed) for mode in modes]
        return found


def _part(progress: Progress | None, start: float, stop: float) -> Progress:
    """Progress of a part of the whole."""
    return (
        (lambda share, text: None)
        if progress is None
        else lambda share, text: progress(start + share * (stop - start), text)
    )


def _gather(tensors: Any, report: StudyReport, progress: Progress) -> tuple[tuple[Tensor, ...], StudyReport]:
    """The tensors, and the report with what is known about them."""
    if tensors is None:
        from fpsim.analysis.models.capture import capture

        captured = capture(seed=report.seed, progress=lambda step, steps, text: progress(step / steps, text))
        return captured.tensors, replace(report, description=captured.description, losses=captured.losses)
    if isinstance(tensors, (str, Path)):
        tensors = [tensors]
    if isinstance(tensors, Mapping):
        found, notes = from_mapping(tensors)
        return found, replace(report, description="tensors in memory", notes=notes)
    if isinstance(tensors, Tensor) or hasattr(tensors, "dtype"):
        tensors = [tensors]
    items = list(tensors) if isinstance(tensors, Iterable) else None
    if items is not None and items and all(isinstance(item, (str, Path)) for item in items):
        opened = open_tensors(items)
        names = ", ".join(dict.fromkeys(Path(tensor.source).name for tensor in opened.tensors))
        report = replace(report, description=names, notes=opened.notes, problems=opened.problems)
        return opened.tensors, report
    if items is None or not all(isinstance(item, Tensor) or hasattr(item, "dtype") for item in items):
        raise ValueError(
            "tensors must be None, an array, a mapping of names to arrays, paths of tensor files, or Tensors; "
            f"got {type(tensors).__name__}."
        )
    named = [item if isinstance(item, Tensor) else tensor(f"tensor{i}", item) for i, item in enumerate(items)]
    return tuple(named), replace(report, description="tensors in memory")


def _measure(tensors: Sequence[Tensor], report: StudyReport, plan: StudyPlan, progress: Progress) -> StudyReport:
    ranges: list[RangeRow] = []
    errors: list[ErrorRow] = []
    problems = list(report.problems)
    failed: set[str] = set()
    total = max(1, sum(one.size for one in tensors))
    done = 0
    for one in tensors:

        def advance(share: float, one: Tensor = one, done: int = done) -> None:
            progress((done + share * one.size) / total, one.name)

        if one.source not in failed or not one.source:
            try:
                spread, rows = _measured(one, plan, advance)
            except (TensorFileError, OSError) as problem:
                failed.add(one.source)
                text = str(problem) if isinstance(problem, TensorFileError) else f"{one.source}: {problem}"
                problems.append(text)
            else:
                ranges.append(
                    RangeRow(one.name, one.layer, one.role, one.step, one.dtype, one.shape, spread, one.stored_bits)
                )
                errors += rows
        done += one.size
        advance(1.0)
    return replace(report, ranges=tuple(ranges), errors=tuple(errors), problems=tuple(problems))


RANGE_SHARE = 0.1  # of a tensor's time that the first pass takes


def _measured(one: Tensor, plan: StudyPlan, advance: Callable[[float], None]) -> tuple[RangeReport, list[ErrorRow]]:
    """The range of a tensor and the errors of every way to round it."""
    one = as_operand(one)
    rows, columns = one.shape
    ways = plan.ways(one.role, rows)
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
    """The same parts, each read while the one before is worked on."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = pool.submit(next, parts, None)
            yield part


def _slab_shape(rows: int, columns: int, ways: Sequence[RoundingWay]) -> tuple[int, int]:
    """Rows and columns of a slab: bands of whole rows, or part of a single row, unless a tile is as large as that."""
    blocks = [way.scaling.block for way in ways if isinstance(way.scaling, Scaling)]
    if rows == 1:
        widths = [block[-1] for block in blocks]
        step = math.lcm(BAND, *(width for width in widths if width != -1))
        return 1, columns if -1 in widths else max(min(columns, SLAB // step * step), 1)
    tall = any(len(block) > 1 and (block[-2] == -1 or BAND % block[-2]) for block in blocks)
    if tall or rows <= BAND:
        return max(rows, 1), columns
    return max(SLAB // max(columns, 1) // BAND * BAND, BAND), columns


def _slabs(one: Tensor, height: int, width: int) -> Iterator[Array]:
    """The elements of a tensor as matrices (height, width), the last one smaller."""
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
    """What one way to round a tensor has cost so far."""

    way: RoundingWay
    sums: ErrorSums
    scales: ScaleReport = field(default_factory=ScaleReport)
    scale_bits: int = 0
    last: Any = None
    channel_sqnr_db: float = math.nan

    def report(self) -> ErrorReport:
        """The error over all slabs."""
        report = self.way.report(self.sums, self.last)
        if not isinstance(self.way.scaling, Scaling):
            return report
        one = report.scale if self.scales.tiles == 1 else math.nan
        return replace(report, scale=one, scales=self.scales, scale_bits=self.scale_bits)


def _errors(
    one: Tensor, slabs: Iterable[Array], amax: float, ways: Sequence[RoundingWay], advance: Callable[[float], None]
) -> list[ErrorRow]:
    """Every way to round a tensor, measured slab by slab."""
    running = [Running(way, nothing()) for way in ways]
    judged = ways[0].options.rounding if ways else None
    first = 0
    long = one.size >= VERY_LONG
    for slab in slabs:
        for row in running:
            if isinstance(row.way.scaling, Scaling):
                _encode_slab(row, slab, amax, first)
            elif row.last is None:
                row.last = row.way.candidate(slab, long, amax)
            if first == 0 and one.role in OPERANDS and row.way.options.rounding is judged:
                row.channel_sqnr_db = _channel_sqnr_db(slab, row, amax)
        found = sums_of_pieces(float_pieces(slab), [row.last for row in running], first)
        for row, sums in zip(running, found, strict=True):
            row.sums = row.sums.merge(sums)
        first += slab.size
        advance(RANGE_SHARE + (1 - RANGE_SHARE) * first / max(one.size, 1))
    if first == 0:
        return []
    return [
        ErrorRow(one.name, one.step, scaling_name(row.way.scaling), row.report(), row.channel_sqnr_db)
        for row in running
    ]


def _encode_slab(row: Running, slab: Array, amax: float, first: int) -> None:
    """Encode a slab with scales per tile, and count these."""
    scaled = _encoded(row.way, slab, amax)
    row.last = Tiles(scaled, slab.dtype == np.float64, first)
    row.scales = row.scales.merge(scaled.report)
    row.scale_bits += scaled.scale_bits - (32 if scaled.scaling.tensor_scale and first else 0)


def _encoded(way: RoundingWay, slab: Array, amax: float) -> Scaled:
    """A slab of a tensor whose largest finite magnitude is amax, encoded as it is in the whole tensor."""
    scaling = way.scaling
    assert isinstance(scaling, Scaling)
    source = slab
    if scaling.tensor_scale:  # which follows the largest value: a row of its own brings that into every slab
        source = np.concatenate([slab, np.zeros((1, slab.shape[1]), slab.dtype)])
        source[-1, 0] = amax
    scaled = encode_scaled(source, way.element, scaling, **way.keywords)
    if not scaling.tensor_scale:
        return scaled
    counts, added = scaled.report, scaled.scales.shape[-1]
    counts = replace(counts, tiles=counts.tiles - added, zero_tiles=counts.zero_tiles - added + (amax > 0))
    arrays = {name: getattr(scaled, name)[:-1] for name in ("codes", "scales", "scale_codes")}
    return replace(scaled, report=counts, **arrays)


SAMPLE = 1 << 18  # elements: of rows of thousands some dozens, so that a channel's SQNR is known to 1 dB
ROWS = 32  # that it has at least
CHANNELS = 0.1  # share of the channels that may be worse
DEAD = 1e-4  # of the median channel's energy: one with less does not count, as it does nothing
VERY_LONG = 1 << 27  # elements from which formats are compiled in as constants, for every candidate


def _channel_sqnr_db(slab: Array, row: Running, amax: float) -> float:
    """The SQNR that nine of ten rows and of ten columns of a sample reach, the lower of both; NaN without any."""
    height = max(SAMPLE // max(slab.shape[1], 1), ROWS)
    sample = slab[:height]
    if min(sample.shape) < 2:
        return math.nan
    scaled = isinstance(row.way.scaling, Scaling)
    candidate = Tiles(_encoded(row.way, sample, amax), slab.dtype == np.float64) if scaled else row.last
    result = candidate.rounded(sample.reshape(-1), 0, Buffers()).results.reshape(sample.shape)
    found = []
    with np.errstate(all="ignore"):
        noise, signal = np.square(result - sample), np.square(sample)
        if not np.isfinite(noise.sum()):
            fine = np.isfinite(noise)
            noise, signal = np.where(fine, noise, 0), np.where(fine, signal, 0)
        for axis in (0, 1):
            energy = signal.sum(axis=axis, dtype=np.float64)
            decibels = 10 * (np.log10(energy) - np.log10(noise.sum(axis=axis, dtype=np.float64)))
            if (energy > 0).any():
                alive = energy >= DEAD * np.median(energy[energy > 0])
                found.append(_lower_quantile(decibels[alive], CHANNELS))
    return min(found, default=math.nan)


def _lower_quantile(x: Array, share: float) -> float:
    """`np.quantile` with method="lower", which takes ten times as long for a few elements; NaN where one is."""
    ordered = np.sort(x)
    return math.nan if np.isnan(ordered[-1]) else float(ordered[int((x.size - 1) * share)])


def _study_shards(tensors: Any, plan: StudyPlan, client: Any, progress: Progress | None) -> StudyReport:
    """Each file by a worker of a cluster, and their reports merged in the order of the files."""
    from fpsim.analysis.studies.workers import Failure, run_over
    from fpsim.analysis.tensors.files import tensor_files

    paths = [tensors] if isinstance(tensors, (str, Path)) else tensors
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, (str, Path)) for path in paths):
        raise ValueError(f"client needs paths of tensor files, which its workers read; got {shown(tensors)}.")
    problems: list[str] = []
    files: list[Path] = []
    for path in paths:
        try:
            files += [file.resolve() for file in tensor_files(Path(path))]
        except TensorFileError as problem:
            problems.append(str(problem))
    files = list(dict.fromkeys(files))
    found: dict[int, StudyReport] = {}
    with closing(run_over(files, partial(_study_file, plan), client=client, progress=progress)) as results:
        for place, result in results:
            if isinstance(result, Failure):
                problems.append(f"{files[place]}: {result.text.removeprefix('TensorFileError: ')}")
            else:
                found[place] = result
    report = plan.report()
    parts = [_with_file_names(found[place], files[place], found) for place in sorted(found)]
    for part in parts:
        report = replace(
            report.merge(part), description="; ".join(filter(None, (report.description, part.description)))
        )
    report = replace(report, problems=(*report.problems, *problems))
    if report.problems and not report.ranges:
        raise TensorFileError(*report.problems)
    return report


def _study_file(plan: StudyPlan, path: Path) -> StudyReport:
    """What a worker does."""
    found, report = _gather(path, plan.report(), _part(None, 0.0, 1.0))
    return _measure(with_roles(found), report, plan, _part(None, 0.0, 1.0))


def _with_file_names(report: StudyReport, path: Path, others: Mapping[int, StudyReport]) -> StudyReport:
    """The same with the file's name before tensors that another file has too."""
    often = Counter(name for other in others.values() for name in {row.tensor for row in other.ranges})

    def named(row: Any) -> Any:
        return row._replace(tensor=f"{path.stem}:{row.tensor}") if often[row.tensor] > 1 else row

    return replace(report, ranges=tuple(map(named, report.ranges)), errors=tuple(map(named, report.errors)))
