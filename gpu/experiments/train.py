"""train: trains small models emulated on CPU and GPU and by tensor cores, and compares the digests of each step.

`python -m fpsim.gpu train --out DIR` runs each recipe in a separate process, all at the same time, and also trains by
torch itself in BF16 and FP8.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fpsim.errors import require_minutes, require_word
from fpsim.files import INTERRUPTED, require_folder
from fpsim.gpu.device.device import GpuError, require_device
from fpsim.gpu.experiments import torch_trainers
from fpsim.gpu.lab.judge import said_of
from fpsim.gpu.lab.lab import REAL, about_of
from fpsim.gpu.lab.processes import Ended, row_file, side_by_side
from fpsim.gpu.lab.training import TrainingReport, TrainingRow, training_row
from fpsim.lazy import public
from fpsim.schedules.arguments import positive

RECORD = "training.json"
BACKENDS = ("gpu", "hardware")
GRACE = 30.0  # seconds that a process may take beyond its time, for imports and compiling
LAST = 20  # number of last steps whose losses are averaged


class TrainingCase(NamedTuple):
    """A training by one recipe, to be run on several backends and compared.

    Attributes:
      recipe: name of the training recipe.
      width: the transformer's width.
      steps: number of training steps.
      beside_torch: True to train by torch itself as well.
      chip: a chip and a library that multiply, such as "H100 cuBLAS"; "" for those of the recipe.
    """

    recipe: str
    width: int
    steps: int
    beside_torch: bool = False
    chip: str = ""

    @property
    def name(self) -> str:
        """Name of the case in reports, such as "DEEPSEEK_V3, width 512"."""
        return f"{self.recipe}{f' on {self.chip}' if self.chip else ''}, width {self.width}"

    @property
    def training_recipe(self) -> Any:
        """Training recipe of the case, an `fp.train.Recipe`, moved to `chip` if one is named."""
        recipe = public().train.recipes.TRAINING[self.recipe]
        return public("fpsim.recipes.hardware").recipe_on_chip(recipe, self.chip)[0] if self.chip else recipe


SHORT_RECIPES = ("FP8_DELAYED", "TE_HYBRID", "DEEPSEEK_V3_POW2", "DEEPSEEK_V3_UNPROMOTED", "DEEPSEEK_V3_E5M2_GRADS")
CASES = {
    case.name: case
    for case in (
        TrainingCase("BF16", 128, 200, True),
        *(TrainingCase(recipe, 128, 200) for recipe in ("FP16_DYNAMIC", "FP8_TENSOR", "DEEPSEEK_V3")),
        *(TrainingCase(recipe, 128, 50, chip="H100 cuBLAS") for recipe in ("BF16", "FP8_TENSOR", "DEEPSEEK_V3")),
        TrainingCase("DEEPSEEK_V3", 512, 20, True),
        *(TrainingCase(recipe, 128, 20) for recipe in SHORT_RECIPES),
    )
}


def train(
    out: str | Path | None = None, minutes: float = 4, cases: Sequence[str] | None = None, *,
    backends: Sequence[str] = BACKENDS, isolated: bool = False, text: str | None = None, steps: int | None = None,
) -> TrainingReport:  # fmt: skip
    """Train by several recipes on the backend "emulated" and on other backends, and compare the digests of each step.

    A digest is a hash of all weights, the optimizer's moments and the losses. If a digest differs, the run ends, and
    `fp.train.replay` names the first operation and element that differ, and the cause. A run also ends with an error at
    a product for which its backend has no instruction.

    Args:
      out: a folder for training.json, which is written after every run; None to write no file.
      minutes: time limit for all runs together; a run whose time is over ends after fewer steps.
      cases: names of cases, such as "DEEPSEEK_V3, width 512"; None for all.
      backends: backends of `fp.train.run` to compare with "emulated".
      isolated: True to run each case in a separate process, all at the same time.
      text: path of a text to train on; None for Python's help topics, which differ between versions of Python.
      steps: the number of steps of every run; None for each case's own.

    Returns:
      TrainingReport; its str() is a table.

    Raises:
      GpuError: a backend needs a GPU, and there is none.
      ValueError: an unknown case or backend, `minutes` is negative, steps are not positive, or `out` cannot be written
        to.
    """
    began = time.monotonic()
    require_minutes(minutes)
    names = list(CASES if cases is None else dict.fromkeys(cases))
    for name in names:
        require_word("cases", name, tuple(CASES))
    for backend in backends:
        require_word("backends", backend, public("fpsim.torch.plan").BACKENDS)
    if steps is not None:
        positive(steps, "steps")
    needs_gpu = bool(set(backends) & set(BACKENDS))
    if needs_gpu:
        require_device()
    folder = None if out is None else require_folder(out)
    about = about_of(public(REAL)) if needs_gpu else {"backends": ", ".join(backends)}
    about["text"] = Path(text).name if text else f"help topics of Python {platform.python_version()}"
    rows: list[TrainingRow] = []

    def report() -> TrainingReport:
        made = TrainingReport(tuple(rows), about, time.monotonic() - began)
        if folder is not None:
            made.save(folder / RECORD)
        return made

    end = began + 60 * minutes
    if isolated:

        def ended(worker: Ended) -> None:
            rows.extend(training_row(json.loads(line)) for line in worker.lines)
            if worker.error:
                rows.append(TrainingRow(worker.name, "", error=worker.error))
            rows.sort(key=lambda row: names.index(row.case) if row.case in names else len(names))
            report()

        def command(name: str, file: Path) -> list[str]:
            return [
                sys.executable, "-m", "fpsim.gpu", "train", "--case", name, "--minutes", f"{minutes:.3f}", "--backends",
                *backends, "--rows", str(file), *(["--text", text] if text else []),
                *(["--steps", str(steps)] if steps else []),
            ]  # fmt: skip

        side_by_side(names, command, 60 * minutes + GRACE, ended)
        return report()
    for i, name in enumerate(names):
        left = end - time.monotonic()
        run_case(_lasting(CASES[name], steps), time.monotonic() + left / (len(names) - i), rows.append, backends, text)
        report()
    return report()


def _lasting(case: TrainingCase, steps: int | None) -> TrainingCase:
    """Return a case with another number of steps; unchanged if `steps` is None."""
    return case if steps is None else case._replace(steps=positive(steps, "steps"))


def run_case(
    case: TrainingCase, deadline: float, each_row: Callable[[TrainingRow], Any], backends: Sequence[str],
    text: str | None,
) -> None:  # fmt: skip
    """Train a case emulated on the CPU and on each backend, and pass a report row for each run to `each_row`.

    deadline: the time of time.monotonic() at which the case ends. backends: names, such as "gpu". text: path of a text
    to train on; None for Python's help topics.
    """
    began = time.monotonic()
    share = (deadline - began) / (len(backends) + 2)
    fields = {"steps": case.steps, "width": case.width, "measure": 0, "text": text}
    base, row = _logged(case, "emulated", fields, began + 2 * share, None)  # the emulator takes most of the time
    each_row(replace(row, equal=None))
    for number, backend in enumerate(backends):
        each_row(_logged(case, backend, fields, began + (3 + number) * share, base)[1])
    if case.beside_torch and set(backends) & set(BACKENDS):
        for name, trainer in torch_trainers.TRAINERS.items():
            each_row(_torch_row(case, name, trainer, text, len(base)))


def _logged(
    case: TrainingCase, backend: str, fields: dict[str, Any], end: float, base: list[dict[str, Any]] | None
) -> tuple[list[dict[str, Any]], TrainingRow]:
    """Train a case on a backend; return (log of the steps, report row of the run).

    The log has a dict with "loss", "digest" and "seconds" for each step. fields: keyword arguments of
    `fpsim.train.Settings`. end: the time of time.monotonic() at which training ends. base: the log of the same run
    emulated on the CPU; training also ends at the first step whose digest differs from that in `base`. None if this run
    is the emulated one.
    """
    train = public().train
    result = TrainingRow(case.name, backend)
    rows: list[dict[str, Any]] = []
    try:
        recipe = case.training_recipe
        trainer = train.Trainer(recipe, train.Settings(backend=backend, **fields))
        result = replace(result, kept=int(public().analysis.ledger(trainer.model, recipe).bytes))
        total = case.steps if base is None else len(base)
        while len(rows) < total and not trainer.stopped and time.monotonic() < end:
            rows.append(trainer.step())
            if base is not None and rows[-1]["digest"] != base[len(rows) - 1]["digest"]:
                losses = [row["loss"] for row in base]
                run = train.Run(recipe, train.Settings(**fields), losses, math.nan, base, [], [])
                difference = str(train.replay(run, backend=backend))
                return rows, replace(_summed(result, rows), equal=False, difference=difference)
    except Exception as reason:
        return rows, replace(_summed(result, rows), error=said_of(reason))
    missing = "" if rows else "no step was taken: no time was left, or the emulated run has none"
    equal = True if base is not None and rows else None
    return rows, replace(_summed(result, rows), equal=equal, error=trainer.stopped or missing)


def _summed(result: TrainingRow, rows: list[dict[str, Any]]) -> TrainingRow:
    """Return the report row `result`, completed with loss, digests, time and memory of the logs of a run's steps.

    rows: for each step, a dict with "loss", "digest" and "seconds"; without any, `result` is returned unchanged.
    """
    if not rows:
        return result
    losses = [row["loss"] for row in rows[-LAST:]]
    digests = tuple(row["digest"] for row in rows)
    return replace(
        result, steps=len(rows), loss=math.fsum(losses) / len(losses), digest=digests[-1], digests=digests,
        milliseconds=1e3 * median(row["seconds"] for row in rows), megabytes=_megabytes(result.backend),
    )  # fmt: skip


def _megabytes(backend: str) -> float:
    """Return the largest GPU memory, in MB, that torch has allocated since the last call of this function.

    backend: the backend of the training run; for all but "hardware" the result is 0.
    """
    if backend != "hardware":
        return 0.0
    cuda: Any = importlib.import_module("torch").cuda
    most = float(cuda.max_memory_allocated()) / 1e6
    cuda.reset_peak_memory_stats()
    return most


def _torch_row(case: TrainingCase, name: str, trainer: Any, text: str | None, steps: int) -> TrainingRow:
    """Return the report row of a training run by torch itself, with losses, times and memory, or the error it raised.

    case: the case, whose width is used. name: the row's backend, such as "torch BF16". trainer: function (width, steps,
    text) -> TorchRun that trains. text: path of a file of text to train on; None trains on Python's help topics. steps:
    number of training steps; 0 counts as 1.
    """
    result = TrainingRow(case.name, name)
    try:
        seen = trainer(case.width, max(steps, 1), text)
    except Exception as reason:
        return replace(result, error=said_of(reason))
    last = seen.losses[-LAST:]
    return replace(
        result, steps=len(seen.losses), loss=math.fsum(last) / len(last), megabytes=seen.megabytes,
        milliseconds=1e3 * median(seen.seconds),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m fpsim.gpu train`, and return its exit code.

    The code is 0 if the digests (hashes) of all runs are equal, 1 if not or if a run failed, 2 without a GPU or a
    writable folder, and 130 after Ctrl-C. arguments: the words after `train` on the command line; None for
    sys.argv[1:].
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu train", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", "-o", default="out/training", help="folder for training.json")
    parser.add_argument("--minutes", type=float, default=4, help="time for all runs together")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), metavar="BACKEND", help="gpu, hardware")
    parser.add_argument("--text", help="a file of text to train on; without it Python's help topics")
    parser.add_argument("--steps", type=int, help="steps of every run")
    parser.add_argument("--together", action="store_true", help="run all cases in this process")
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if options.case:
            case, end = _lasting(CASES[options.case], options.steps), time.monotonic() + 60 * options.minutes
            with row_file(options.rows) as write:
                run_case(case, end, lambda row: write(asdict(row)), options.backends, options.text)
            return 0
        report = train(
            options.out, options.minutes, options.cases, backends=options.backends, isolated=not options.together,
            text=options.text, steps=options.steps,
        )  # fmt: skip
    except (GpuError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"Interrupted; the results so far, if any, are in {options.out}.", file=sys.stderr)
        return INTERRUPTED
    print(report)
    return 0 if report.all_equal else 1
