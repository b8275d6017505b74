"""The study: how tensors survive in low-precision formats. Names and files in, a report out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpsim.analysis.measures.counts import Chunk, ScaledChunk, Sums, amax_scale, chunk_sums
from fpsim.analysis.measures.exponent_range import EMPTY, RangeReport, chunk_exponents
from fpsim.analysis.measures.rounding_error import report_of
from fpsim.analysis.studies.recommend import ErrorRow, RangeRow
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.tensors.opening import from_array, from_mapping, open_tensors
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.errors import unknown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.runtime.threads import thread_count

FORMATS = ("E4M3", "E5M2", "FP16", "BF16", "E2M1")
ROUNDINGS = ("nearest_even", "stochastic")
SCALES = (None, "amax")

Progress = Callable[[float, str], None]
CAPTURE_SHARE = 0.6  # of the time of the default study that the training takes


def study(
    tensors: Any = None,
    *,
    formats: Sequence[FormatLike] | str | Format = FORMATS,
    roundings: Sequence[str | Rounding] | str | Rounding = ROUNDINGS,
    scales: Sequence[str | None] | str | None = SCALES,
    seed: int = 0,
    progress: Progress | None = None,
) -> StudyReport:
    """Measure how tensors survive in formats, and recommend one for each.

    Every tensor is read twice in chunks: for its range, then for the errors of every combination.

    Args:
      tensors: None for a small transformer that is trained first (needs torch); an array or a mapping of names to
        arrays (NumPy or torch); a path or a list of paths of .npy, .npz, .safetensors and .pt files; or `Tensor`s.
      formats: one or several, by name, dtype or object.
      roundings: one or several, as for `fpsim.encode`.
      scales: None (no scale), "amax" (one per tensor and step), or both.
      seed: of stochastic rounding and of the training. Rounding is that of `fpsim.quantize` with this seed on the
        whole tensor.
      progress: called with (share done, what is going on).
    Returns:
      A StudyReport. Files that cannot be read are in `problems`; the others are studied nevertheless.
    Raises:
      ValueError: an unknown format, rounding or scale, no tensor, or no file that can be read.
      ImportError: torch is needed and not installed.

    Example:
      >>> import fpsim as fp
      >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
      >>> report = fp.analysis.study({"weights": x, "gradients": x * np.float32(2.0**-20)})
      >>> [(r.tensor, r.format, r.scaling) for r in report.recommendations]
      [('weights', 'E4M3', 'none'), ('gradients', 'E4M3', 'amax')]
    """
    scales = [scales] if scales is None or isinstance(scales, str) else list(scales)
    modes = dict.fromkeys(rounding_mode(word) for word in _several(roundings, (str, Rounding)))
    wanted = dict.fromkeys(find_format(fmt) for fmt in _several(formats, (str, Format)))
    for name, often in Counter(fmt.name for fmt in wanted).items():
        if often > 1:
            raise ValueError(f"formats must have different names; got {often} different ones called {name!r}.")
    options = [[cast_options(fmt, mode, seed=seed) for mode in modes] for fmt in wanted]
    if not options or not options[0] or not scales:
        raise ValueError("formats, roundings and scales must each name at least one; got an empty list.")
    for scale in scales:
        if scale not in SCALES:
            raise unknown("scale", scale, ["None", "amax"])
    share = CAPTURE_SHARE if tensors is None else 0.0
    report = StudyReport(
        description="",
        formats=tuple(row[0].fmt for row in options),
        roundings=tuple(option.rounding.name.lower() for option in options[0]),
        scales=tuple(scale or "none" for scale in scales),
        seed=seed,
        ranges=(),
        errors=(),
    )
    if isinstance(tensors, (list, tuple, Mapping)) and not tensors:
        raise ValueError("tensors must hold at least one tensor or path; got none. None is the built-in study.")
    found, report = _gather(tensors, report, _part(progress, 0.0, share))
    report = _measure(found, report, options, scales, _part(progress, share, 1.0))
    if report.problems and not report.ranges:
        raise TensorFileError(*report.problems)
    return report


def _several(words: Any, single: tuple[type, ...]) -> list[Any]:
    """A list of words, where one word may stand for itself."""
    return [words] if isinstance(words, single) or not isinstance(words, Iterable) else list(words)


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
        from fpsim.analysis.tensors.capture import capture

        captured = capture(seed=report.seed, progress=lambda step, steps, text: progress(step / steps, text))
        return captured.tensors, replace(report, description=captured.description, losses=captured.losses)
    if isinstance(tensors, (str, Path)):
        tensors = [tensors]
    if isinstance(tensors, Mapping):
        return from_mapping(tensors), replace(report, description="tensors in memory")
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
    named = [item if isinstance(item, Tensor) else from_array(f"tensor{i}", item) for i, item in enumerate(items)]
    return tuple(named), replace(report, description="tensors in memory")


def _measure(
    tensors: Sequence[Tensor],
    report: StudyReport,
    options: list[list[CastOptions]],
    scales: Sequence[str | None],
    progress: Progress,
) -> StudyReport:
    ranges: list[RangeRow] = []
    errors: list[ErrorRow] = []
    problems = list(report.problems)
    failed: set[str] = set()
    total = max(1, sum(tensor.size for tensor in tensors))
    done = 0
    with ThreadPoolExecutor(thread_count()) as pool:
        for tensor in tensors:

            def advance(share: float, tensor: Tensor = tensor, done: int = done) -> None:
                progress((done + share * tensor.size) / total, tensor.name)

            if tensor.source not in failed:
                try:
                    spread = _range(tensor, advance)
                    rows = _errors(tensor, spread, options, scales, pool, advance)
                except (TensorFileError, OSError) as problem:
                    failed.add(tensor.source)
                    problems.append(
                        str(problem) if isinstance(problem, TensorFileError) else f"{tensor.source}: {problem}"
                    )
                else:
                    ranges.append(
                        RangeRow(
                            tensor.name, tensor.layer, tensor.role, tensor.step, tensor.dtype, tensor.shape, spread
                        )
                    )
                    errors += rows
            done += tensor.size
    return replace(report, ranges=tuple(ranges), errors=tuple(errors), problems=tuple(problems))


RANGE_SHARE = 0.05  # of a tensor's time that the first pass takes


def _range(tensor: Tensor, advance: Callable[[float], None]) -> RangeReport:
    """First pass."""
    report = EMPTY
    seen = 0
    for part in tensor.chunks():
        report = report.merge(chunk_exponents(part))
        seen += part.size
        advance(RANGE_SHARE * seen / tensor.size)
    return report


def _errors(
    tensor: Tensor,
    spread: RangeReport,
    options: list[list[CastOptions]],
    scales: Sequence[str | None],
    pool: ThreadPoolExecutor,
    advance: Callable[[float], None],
) -> list[ErrorRow]:
    """Second pass: every combination on each chunk while it is in the cache."""
    ways = [
        (scale or "none", None if scale is None else amax_scale(spread.amax, row[0].fmt), row)
        for row in options
        for scale in scales
    ]
    sums = [[Sums() for _ in row] for _, _, row in ways]
    first = 0
    for part in tensor.chunks():
        chunk = Chunk(part, first)

        def measure(way: tuple[str, float | None, list[CastOptions]], chunk: Chunk = chunk) -> list[Sums]:
            _, scale, row = way
            scaled = ScaledChunk(chunk, row[0].fmt, scale)
            return [chunk_sums(scaled, option) for option in row]

        for mine, new in zip(sums, pool.map(measure, ways), strict=True):
            mine[:] = [a.merge(b) for a, b in zip(mine, new, strict=True)]
        first += part.size
        advance(RANGE_SHARE + (1 - RANGE_SHARE) * first / tensor.size)
    return [
        ErrorRow(tensor.name, tensor.step, scaling, report_of(total, option, scale))
        for (scaling, scale, row), totals in zip(ways, sums, strict=True)
        for option, total in zip(row, totals, strict=True)
    ]
