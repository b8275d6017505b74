"""`fp.analysis.claims`: runs the experiments of claims, stores each result, and returns a table of verdicts."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from fpsim.analysis.studies.cells import Cells, SweepCell
from fpsim.analysis.studies.identity import digest
from fpsim.analysis.studies.workers import Failure, Progress, run_over
from fpsim.analysis.systems.claims import ordered_layers, probes, samples
from fpsim.analysis.systems.claims.catalogue import CLAIMS, find_claim
from fpsim.analysis.systems.claims.claim import Claim
from fpsim.analysis.systems.claims.report import ClaimResult, ClaimsReport
from fpsim.display.progress import bar
from fpsim.errors import is_integer, require_integer, shown

SECONDS = "seconds"


def claims(
    only: str | int | Iterable[str | int] | None = None,
    *,
    out: str | Path | None = None,
    workers: int | None = 1,
    progress: Progress | None = None,
) -> ClaimsReport:
    """Run the experiments of claims about low precision, and return a table of their results and verdicts.

    Args:
      only: names or numbers of claims, such as "ring-bf16", 69 or "P8"; None runs all.
      out: a folder that stores each finished result at once; a later call with the same folder runs only the other
        claims, and those whose experiments have changed or failed. None stores nothing.
      workers: number of processes; None is one for each core, and 1 runs in this process.
      progress: function called with (share done, text) after each claim; None draws a bar if stderr is a terminal and
        rich is installed.
    Returns:
      A ClaimsReport with a row for each claim, in the catalogue's order.
    Raises:
      ValueError: an unknown claim, fewer than one worker, or a folder with other contents.
      TypeError: `only` has neither names nor numbers, or workers is not an integer.

    Source: docs/claims.md lists every claim with its source.

    Example:
      >>> import fpsim as fp
      >>> report = fp.analysis.claims(["fp16-range", 12])
      >>> report["fp16-range"].figures["largest finite value"], report[12].verdict
      (65504.0, 'right')
    """
    chosen = _chosen(only)
    if workers is not None:
        require_integer("workers", workers, 1)
    keys = {claim.name: _key(claim) for claim in chosen}  # before the run, during which source files may change
    with nullcontext() if out is None else Cells(out, "claims", "", [], kind="run of claims") as cells:
        known = {} if cells is None else _known(chosen, keys, cells)
        missing = [claim for claim in chosen if claim.experiment is not None and claim.name not in known]
        for result in _run(missing, workers, progress):
            known[result.name] = result
            if cells is not None:
                figures = None if result.error else {**result.figures, SECONDS: result.seconds}
                cells.add(SweepCell(keys[result.name], {"claim": result.name}, figures, result.error))
    return ClaimsReport(tuple(known.get(claim.name, ClaimResult(claim, {})) for claim in chosen))


def _chosen(only: Any) -> list[Claim]:
    """Return the claims that `only` names (all for None), each once, in the catalogue's order.

    Raises ValueError if `only` names an unknown claim or no claim, TypeError if `only` has neither names nor numbers.
    """
    if only is None:
        return list(CLAIMS.values())
    words = [only] if isinstance(only, (str, int)) or is_integer(only) else only
    if not isinstance(words, Iterable):
        raise TypeError(f"only must be names or numbers of claims; got {shown(only)}. Pass 'ring-bf16', for example.")
    names = {find_claim(word).name for word in words}
    if not names:
        raise ValueError("only must name at least one claim; got none. Leave it out to run all.")
    return [claim for claim in CLAIMS.values() if claim.name in names]


def _key(claim: Claim) -> str:
    """Return a digest of a claim's name and its experiment's code; if it changes, a stored result is computed again."""
    module = inspect.getmodule(claim.experiment)
    source = "" if module is None else inspect.getsource(module)
    return digest(claim.name, source, *map(inspect.getsource, (samples, probes, ordered_layers)))


def _known(chosen: list[Claim], keys: dict[str, str], cells: Cells) -> dict[str, ClaimResult]:
    """Return name of a claim -> stored result, for those of `chosen` whose experiment succeeded and has not changed.

    keys: name of a claim -> present digest (see `_key`). cells: the folder's contents.
    """
    results = {}
    for claim in chosen:
        cell = cells.finished.get(keys[claim.name])
        if cell is not None and cell.result is not None:
            figures = dict(cell.result)
            results[claim.name] = ClaimResult(claim, figures, float(figures.pop(SECONDS)))
    return results


def _run(missing: list[Claim], workers: int | None, progress: Progress | None) -> Iterable[ClaimResult]:
    """Run the experiments of the claims `missing`, and yield each result when it is finished.

    workers: number of processes; None for one per core. progress: function called with (share done, name of the claim)
    after each result; None draws a bar in the terminal.
    """
    names = [claim.name for claim in missing]
    results = run_over(names, _figures, workers=1 if len(names) < 2 else workers)
    with closing(results), bar("claims") if progress is None else nullcontext(progress) as report:
        for done, (index, figures) in enumerate(results, 1):
            claim = missing[index]
            if isinstance(figures, Failure):
                yield ClaimResult(claim, {}, error=figures.text)
            else:
                yield ClaimResult(claim, figures, figures.pop(SECONDS))
            report(done / len(names), claim.name)


def _figures(name: str) -> dict[str, Any]:
    """Run a claim's experiment; return its results by name as Python numbers and strings, and "seconds", its duration.

    Raises ValueError for a claim without an experiment.
    """
    experiment = CLAIMS[name].experiment
    if experiment is None:
        raise ValueError(f"a claim to run must have an experiment; got {name!r}.")
    start = time.perf_counter()
    figures = {key: value.item() if hasattr(value, "item") else value for key, value in experiment().items()}
    return {**figures, SECONDS: time.perf_counter() - start}
