"""The function fp.analysis.study, which reports how well formats store the tensors of a model or file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fpsim.analysis.measures.comparison import several
from fpsim.analysis.measures.rounding_error import RoundingWay
from fpsim.analysis.studies.candidates import CastCandidate, candidates_of
from fpsim.analysis.studies.measuring import judged_rounding, measured
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.studies.rows import ErrorRow, RangeRow, Requirements
from fpsim.analysis.tensors.opening import from_mapping, open_tensors, tensor
from fpsim.analysis.tensors.roles import OPERANDS, with_roles
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.display.optional import Client
from fpsim.errors import shown
from fpsim.formats.element import ElementLike
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.recipes import ScalingLike
from fpsim.scaling.scaling import Scaling

ROUNDINGS = ("nearest_even", "toward_zero", "stochastic")

Progress = Callable[[float, str], None]
TensorsLike = npt.ArrayLike | Tensor | Path | Mapping[str, npt.ArrayLike] | Iterable[str | Path | Tensor]
NO_TENSORS = "tensors must hold at least one tensor or path; got none. Pass None for the built-in study."
CAPTURE_SHARE = 0.6  # share of the time of the default study that the training takes


def study(
    tensors: TensorsLike | None = None,
    *,
    formats: ElementLike | Iterable[ElementLike] | None = None,
    scalings: ScalingLike | Iterable[ScalingLike | None] | None = None,
    roundings: Sequence[str | Rounding] | str | Rounding = ROUNDINGS,
    min_sqnr: float = Requirements().min_sqnr,
    max_lost: float = Requirements().max_lost,
    budget_bits: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    client: Client | None = None,
) -> StudyReport:
    """Measure how well formats store tensors, and recommend a format for each operand of products.

    Every tensor is read twice in pieces, for its range and for the errors of every candidate; a tensor of up to two
    million values is read once.

    Args:
      tensors: None for a small transformer that is trained first (needs torch); an array or a mapping of names to
        arrays (NumPy or torch), such as a state dict; a path or a list of paths of .npy, .npz, .safetensors, .pt, .onnx
        and .gguf files; or `fp.analysis.tensor`s, which may have roles and steps.
      formats, scalings: one or several of each, of which every combination is a candidate. If both are None, the
        candidates are E4M3 and INT8 with scales of several sizes, E5M2, MXFP4, NVFP4, INT4, BF16 and FP16. A scaling is
        None, "amax" (one scale for the tensor), or an fp.Scaling.
      roundings: one or several, as for `fpsim.encode`. Nearest-even (if absent, the first) is measured for every
        candidate; the others only for two candidates without scales per tile: the first float format of up to 8 bits,
        and the first of more bits.
      min_sqnr: lowest SQNR of a recommended candidate at every step, in dB.
      max_lost: largest share of the energy, sum x**2, in values that become zero.
      budget_bits: most bits per value of a recommended candidate, scales included; None for any number.
      seed: seed of stochastic rounding and of the training. Tensors are rounded as by `fpsim.quantize` with this seed
        on the whole tensor.
      progress: called with the share of the work done, 0 to 1, and a text on the present activity.
      client: a `dask.distributed.Client` whose workers study the files, one file each at a time; None for this process.
    Returns:
      A StudyReport. Its `problems` name the files that cannot be read; the other files are studied nevertheless.
    Raises:
      ValueError: an unknown format, rounding, scaling or role, no tensor, two of the same name and step, or no file
        that can be read.
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
        raise ValueError(NO_TENSORS)
    if client is not None:
        return _study_shards(tensors, plan, client, progress)
    share = CAPTURE_SHARE if tensors is None else 0.0
    gathered, report = _gather(tensors, plan.report(), _part(progress, 0.0, share))
    _refuse_ambiguous(gathered, report)
    report = _measure(with_roles(gathered), report, plan, _part(progress, share, 1.0))
    if report.problems and not report.ranges:
        raise TensorFileError(*report.problems)
    return report


def _refuse_ambiguous(tensors: Sequence[Tensor], report: StudyReport) -> None:
    """Raise a ValueError if there are no tensors, or if two have the same name and step.

    `report`: if its notes or problems say why there are no tensors, none are needed.
    """
    if not tensors and not report.notes and not report.problems:
        raise ValueError(NO_TENSORS)
    counts = Counter((one.name, one.step) for one in tensors)
    for (name, step), count in counts.items():
        if count > 1:
            when = "" if step is None else f" at step {step}"
            raise ValueError(f"tensors must have different names or steps; got {count} called {name!r}{when}.")


@dataclass(frozen=True)
class StudyPlan:
    """The checked settings of a study.

    Attributes:
      candidates: the formats with scalings to compare.
      roundings: the rounding modes.
      seed: seed of stochastic rounding.
      requirements: the requirements that a recommended candidate must meet.
    """

    candidates: tuple[CastCandidate, ...]
    roundings: tuple[Rounding, ...]
    seed: int
    requirements: Requirements

    @property
    def judged(self) -> Rounding:
        """The rounding on which recommendations are based: nearest-even if it is one of `roundings`, else the first of
        them."""
        return judged_rounding(self.roundings)

    def check(self) -> None:
        """Raise a ValueError, before any tensor is read, if a candidate's format and scaling cannot be combined."""
        for candidate in self.candidates:
            RoundingWay(candidate.element, candidate.scaling, self.judged, seed=self.seed).check()

    @cached_property
    def compared(self) -> tuple[CastCandidate, ...]:
        """The candidates that are measured in all roundings: at most two, none with a scale per tile.

        Of the candidates without a scale per tile, one has the first format of up to 8 bits, and the other the first
        format of more bits. If a format has two such candidates, the one with a scale is taken.
        """
        formats = [c.element for c in self.candidates]
        casts = [c for c in self.candidates if not c.has_tiles]
        casts.sort(key=lambda c: (formats.index(c.element), c.scaling is None))
        few, many = ([c for c in casts if (c.element.bits <= 8) == small] for small in (True, False))
        return tuple(some[0] for some in (few, many) if some)

    def report(self) -> StudyReport:
        """Return a report with the settings of the study, but without tensors and measurements."""
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
        """Return the combinations of format, scaling and rounding to measure on a tensor.

        The role decides on the candidates, which are formats with scalings:
        - An operand of products (a role in OPERANDS, such as "matrix") is measured in all candidates. If the tensor has
          only one row, candidates with a scale for each row are left out where their format has another candidate.
        - Other tensors, such as a "bias", are measured in the candidates without scaling whose format has 16 bits or
          more.

        A candidate in the property `compared` is measured in all roundings of the study. Other candidates are measured
        only in the rounding `judged`, on which recommendations are based. `role`: the tensor's role. `rows`: the
        tensor's number of rows.
        """
        ways = []
        for element, scaling in self.candidates:
            if role not in OPERANDS and (scaling is not None or element.bits < 16):
                continue
            if isinstance(scaling, Scaling):
                others = [c for c in self.candidates if c.element == element and c.scaling != scaling]
                if rows > 1 or scaling.block[-1] != -1 or not others:  # else the row is the whole tensor
                    ways.append(RoundingWay(element, scaling, self.judged, seed=self.seed))
            else:
                modes = self.roundings if CastCandidate(element, scaling) in self.compared else (self.judged,)
                ways += [RoundingWay(element, scaling, mode, seed=self.seed) for mode in modes]
        return ways


def _part(progress: Progress | None, start: float, stop: float) -> Progress:
    """Return the progress function of one part of the work: from `start` to `stop`, shares (0 to 1) of all the work.

    The returned function takes (share of the part that is done, text), and calls `progress` with (share of all the
    work, text). It does nothing if `progress` is None. Example: 0.5 becomes 0.3 for a part from 0.2 to 0.4.
    """
    return (
        (lambda share, text: None)
        if progress is None
        else lambda share, text: progress(start + share * (stop - start), text)
    )


def _gather(tensors: Any, report: StudyReport, progress: Progress) -> tuple[tuple[Tensor, ...], StudyReport]:
    """Return (the tensors to study, `report` with a description of them).

    `tensors` is the argument of `study`: arrays, paths, Tensors, or None. The returned report also has notes on tensors
    that are left out and problems of files that cannot be read. For None, a small transformer is trained first;
    meanwhile `progress` is called with (share done, text). Raise a ValueError if `tensors` is of another type.
    """
    if tensors is None:
        from fpsim.analysis.models.capture import capture

        captured = capture(seed=report.seed, progress=lambda step, steps, text: progress(step / steps, text))
        return captured.tensors, replace(report, description=captured.description, losses=captured.losses)
    if isinstance(tensors, (str, Path)):
        tensors = [tensors]
    if isinstance(tensors, Mapping):
        named_tensors, notes = from_mapping(tensors)
        return named_tensors, replace(report, description="tensors in memory", notes=notes)
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
    """Return the report with the ranges and errors of the given tensors.

    If a file cannot be read, a text is added to the report's problems, and the other tensors of the file are skipped.
    `plan`: the study's settings. `progress`: called with (share done, name of the tensor).
    """
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
                spread, rows = measured(one, plan.ways, advance)
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


def _study_shards(tensors: Any, plan: StudyPlan, client: Any, progress: Progress | None) -> StudyReport:
    """Return the merged report of files, each studied by a worker of a dask cluster, in the order of the files.

    A file that cannot be read adds a text to the report's problems. Raise a TensorFileError if no file can be read, and
    a ValueError unless `tensors` is a path or a list of paths, of files or folders. plan: the study's settings. client:
    a dask.distributed.Client. progress: called with (share of files done, text), or None.
    """
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
    reports: dict[int, StudyReport] = {}

    def study_file(path: Path) -> StudyReport:
        gathered, part = _gather(path, plan.report(), _part(None, 0.0, 1.0))
        return _measure(with_roles(gathered), part, plan, _part(None, 0.0, 1.0))

    with closing(run_over(files, study_file, client=client, progress=progress)) as results:
        for place, result in results:
            if isinstance(result, Failure):
                problems.append(f"{files[place]}: {result.text.removeprefix('TensorFileError: ')}")
            else:
                reports[place] = result
    report = plan.report()
    counts = Counter(name for part in reports.values() for name in {row.tensor for row in part.ranges})
    repeated = {name for name, count in counts.items() if count > 1}
    stems = Counter(file.stem for file in files)
    for place in sorted(reports):
        file = files[place]
        part = _with_file_name(reports[place], file.stem if stems[file.stem] == 1 else str(file), repeated)
        report = replace(
            report.merge(part), description="; ".join(filter(None, (report.description, part.description)))
        )
    report = replace(report, problems=(*report.problems, *problems))
    if report.problems and not report.ranges:
        raise TensorFileError(*report.problems)
    return report


def _with_file_name(report: StudyReport, file: str, repeated: Set[str]) -> StudyReport:
    """Return the report with "FILE:" put before the name of each tensor whose name is in `repeated`.

    file: the name or path of the tensors' file. repeated: the names that occur in several files.
    """

    def named(row: Any) -> Any:
        return row._replace(tensor=f"{file}:{row.tensor}") if row.tensor in repeated else row

    return replace(report, ranges=tuple(map(named, report.ranges)), errors=tuple(map(named, report.errors)))
