"""The function `fp.train.run`, and its result: losses, rounding errors of products, checkpoints and plots."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fpsim.deprecation import renamed_arguments
from fpsim.display.optional import frame
from fpsim.display.wording import plural
from fpsim.errors import shown
from fpsim.files import path_of
from fpsim.formats.keywords import check_keywords
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.training_recipe import Recipe
from fpsim.train import checkpoint, record
from fpsim.train import settings as knobs
from fpsim.train.loop import Trainer
from fpsim.train.operations.trace import OperationTrace
from fpsim.train.ranks import Ranks
from fpsim.train.settings import RUN_DEFAULTS, RunKeywords, Settings, settings_of, with_run_keywords

# Version of a run's results: since 2, saturation counts values beyond the range; since 3, all operations of a step are
# specified.
VERSION = 3
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Run:
    """The result of a training run, from `fpsim.train.run`.

    Attributes:
      recipe, settings: the recipe and the settings of the run.
      losses: the mean loss of each step's batch in nats (per token of a text), floats.
      validation_loss: the loss of the last weights, by the recipe's own forward pass; NaN for a run that was stopped.
      rows: a dict for each step: step, loss, scale, skipped, overflowed, lr, gradient_norm, clip_factor, lost_updates,
        update_ratio, digest, seconds. docs/training.md explains them.
      measured: a dict for each operand of each product, every `settings.measure` steps: step, layer, product, operand,
        underflow, saturation, at_maximum, sqnr_db. docs/training.md explains them.
      changes: a dict for each change of a layer's precision level: step, layer, watched, figure, before, after.
      stopped: the reason why the run ended early; "" if it did not.
      seconds: the time of all steps, in seconds.
      checkpoint: the folder that the run was saved to, or None.
      data: SHA-256 of the text or the examples.
      machine: properties of the machine that trained, which decide the bits of torch's own operations.
      world: the number of processes that trained together.
    """

    recipe: Recipe
    settings: Settings
    losses: list[float] = field(repr=False)
    validation_loss: float
    rows: list[dict[str, Any]] = field(repr=False)
    measured: list[dict[str, Any]] = field(repr=False)
    changes: list[dict[str, Any]] = field(repr=False)
    stopped: str = ""
    seconds: float = math.nan
    checkpoint: Path | None = None
    data: str = ""
    machine: dict[str, str] = field(default_factory=dict, repr=False)
    world: int = 1

    @property
    def digest(self) -> str:
        """Hash of the weights, masters, moments and losses of all steps so far; "" before the first step.

        For equal recipes, settings and texts it is equal on every machine, unless the run uses torch's arithmetic or
        torch's products. docs/training.md lists what it covers. Each dict of `rows` holds the digest after its step.
        """
        return str(self.rows[-1]["digest"]) if self.rows else ""

    @property
    def final_loss(self) -> float:
        """Mean loss of the last 20 steps, in nats; NaN without steps."""
        last = self.losses[-20:]
        return math.fsum(last) / len(last) if last else math.nan

    @property
    def diverged(self) -> bool:
        """True if the loss of a step was above 10 times the first step's."""
        return bool(self.losses) and self.highest_loss > knobs.DIVERGED_ABOVE * self.losses[0]

    @property
    def highest_loss(self) -> float:
        """Highest finite loss of all steps, in nats; NaN if there is none."""
        return max((loss for loss in self.losses if math.isfinite(loss)), default=math.nan)

    @property
    def failed(self) -> bool:
        """True if the run was stopped or diverged, so that its final loss does not measure a recipe's precision."""
        return bool(self.stopped) or self.diverged

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each step, whose columns are the keys of `rows`.

        The key "operations", the trace of a step's operations, has no column.
        """
        return frame([{name: value for name, value in row.items() if name != "operations"} for row in self.rows])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run without its weights as a JSON file; `fp.train.replay` can train it again on another machine.

        The file is complete or not there at all. To save weights too, pass `out=` to `fp.train.run`.
        """
        record.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Return the run in a file that `save` wrote, or in a folder that was `out` of `fp.train.run`.

        Weights in the folder are not loaded. A run from a folder has no text path, no machine and no validation loss.

        Raises:
          ValueError: the file or folder cannot be read, or holds something else.
        """
        return cls(**record.load(path))

    def measurements(self) -> Any:
        """Return `measured` as a pandas frame: a row for each operand of each product in each step that was measured.

        The columns are step, layer, product, operand and four metrics of the operand's rounding.
        """
        return frame(self.measured)

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss of each step and its running mean m = 0.9 m + 0.1 loss; return the axes.

        Args:
          ax: matplotlib axes to draw on; None for the axes of a new figure.
        """
        from fpsim.display.figure import axes_of

        axes = axes_of(ax, 3.4)
        smooth = smoothed(self.losses)
        (line,) = axes.plot(smooth, label=self.recipe.name or "loss", linewidth=1.6)
        axes.plot(self.losses, color=line.get_color(), alpha=0.25, linewidth=0.8)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats per token)" if self.settings.model == "transformer" else "loss (nats per vector)")
        axes.legend(frameon=False)
        return axes

    def __str__(self) -> str:
        name, last = self.recipe.name or "a recipe without a name", min(len(self.losses), 20)
        if self.stopped:
            return f"{name}: stopped after {plural(len(self.losses), 'step')}: {self.stopped}"
        if self.diverged:
            step = self.losses.index(self.highest_loss)
            return (
                f"{name}: diverged: the loss rose from {self.losses[0]:.3g} to {self.highest_loss:.3g} at step {step}, "
                f"and was {self.final_loss:.3g} at the end (mean of the last {plural(last, 'step')})"
            )
        return (
            f"{name}: {plural(len(self.losses), 'step')} in {self.seconds:.1f} s, loss {self.final_loss:.3f} "
            f"(mean of the last {last}), validation {self.validation_loss:.3f}"
        )


def require_progress(progress: object) -> None:
    """Raise a TypeError unless the argument `progress` is a function, or None."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of a share and a text, or None; got {shown(progress)}.")


def smoothed(losses: list[float], keep: float = 0.9) -> list[float]:
    """Return the running means m = keep * m + (1 - keep) * loss, from m = 0, each divided by its sum of weights.

    keep: the weight of the earlier mean, 0 to 1.

    Example:
      >>> from fpsim.train.runs import smoothed
      >>> [round(x, 3) for x in smoothed([1.0, 1.0, 2.0])]
      [1.0, 1.0, 1.369]
    """
    mean, weight, means = 0.0, 0.0, []
    for loss in losses:
        mean, weight = keep * mean + (1 - keep) * loss, keep * weight + (1 - keep)
        means.append(mean / weight)
    return means


@renamed_arguments(accumulate="micro_batches")
@with_run_keywords
def run(
    recipe: Recipe | str,
    *,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    trace: bool = False,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    **keywords: Unpack[RunKeywords],
) -> Run:
    """Train a small model by a recipe, and return the run's losses and measurements.

    Equal arguments give equal bits, on any number of threads. With `out`, the run is saved while it trains, once 10
    seconds have passed since the last time. However the run ended, the same call continues it, bit for bit. A call with
    other `steps` is refused, because learning-rate schedules and overrides depend on `steps`.

    Args:
      recipe: an `fpsim.train.Recipe`, the name of a recipe in `fpsim.train.recipes`, a TOML file, or a plan
        of `fpsim.analysis.plan`.
      steps: the number of steps of the optimizer.
      seed: the seed of the weights, batches and random draws.
      model: "transformer": characters, 2 layers of width 128, 0.33 million weights in linear layers; or "perceptron":
        128-256-256-10 on handwritten digits (scikit-learn) or on a synthetic set where that is missing.
      text: a file of text for the transformer; None for Python's help topics.
      out: the folder to save the run in; None to save nothing.
      backend: the backend that multiplies: "emulated" on the CPU; "float32", torch in place of every unit; "gpu", the
        emulation on a GPU; "hardware", a GPU's tensor cores; "cpu", torch.mm with this processor's matrix instructions,
        whose bits fp.schedules.torch_mm predicts. These instructions then replace the matrix units of the recipe's
        linear layers.
      arithmetic: "specified", where all operations besides products have the same bits on every machine; or "torch",
        torch's own operations, whose bits depend on the processor. With "specified", the backend "float32" adds
        products by the recipe's `numerics.products`.
      batch: sequences in a micro-batch, by default 8; for the perceptron vectors, by default 128.
      context: tokens in a sequence.
      width: the transformer's width, a multiple of 128.
      micro_batches: micro-batches in a step.
      measure: number of steps from one measurement of the rounding of every product's operands to the next; 0 for none.
      recompute: share of the blocks whose activations are computed again in the backward pass, or an
        `fp.train.Recompute`; it changes no bit, except for slices of K.
      offload: share of the model's blocks whose activations wait in temporary files; it changes no bit.
      trace: True to record the name and a digest of each operation in each step (some 600 entries a step), by which
        `fp.train.replay` on another machine names the first operation that differs.
      progress: called with the finished share of the work, 0 to 1, and a text.
      ranks: the processes that train together (`fpsim.train.Ranks`); None for this process alone.

    Returns:
      A Run. If the loss or applied gradients became Inf or NaN, or too many steps in a row overflowed, the run ends
      there, with a RuntimeWarning and the reason in `.stopped`.

    Raises:
      ValueError: an unknown recipe, model or backend; layers or shapes that the recipe does not fit; a text that is too
        short; or a folder of another run, whose differences the message lists.
      TypeError: an argument has a wrong type.
      ImportError: safetensors is not installed, with `out`.

    Example:
      >>> run = fp.train.run("DEEPSEEK_V3", steps=3, model="perceptron")
      >>> len(run.losses), run.losses[0] > 1.5, run.stopped
      (3, True, '')
    """
    check_keywords(run, keywords, RUN_DEFAULTS)
    require_progress(progress)
    settings = settings_of(seed=seed, **keywords)
    trainer = Trainer(find_recipe(recipe), settings, ranks)
    if out is None:
        return _finished(trainer, None, progress, trace)
    if trainer.ranks.rank > 0:  # only rank 0 writes; all ranks read
        _resume(trainer, path_of(out, "out"))
        return _finished(trainer, None, progress, trace)
    with checkpoint.Checkpoints(path_of(out, "out")) as kept:
        _resume(trainer, kept.folder)
        return _finished(trainer, kept, progress, trace)


def _finished(
    trainer: Trainer, kept: checkpoint.Checkpoints | None, progress: Progress | None, trace: bool
) -> Run:  # fmt: skip
    """Train to the last step, or until training stops, saving checkpoints on the way, and return the run.

    trainer: it may have taken steps before. kept: the open folder of checkpoints, or None. progress: called with the
    finished share of the work, 0 to 1, and a text, or None. trace: whether to record every operation.
    """
    total, saved, began = trainer.settings.steps, trainer.steps, time.monotonic()
    while trainer.steps < total and not trainer.stopped:
        row = traced_step(trainer) if trace else trainer.step()
        if progress is not None:
            progress(trainer.steps / total, f"step {trainer.steps} of {total}, loss {row['loss']:.3f}")
        if kept is not None and time.monotonic() - began >= knobs.SAVED_EVERY:
            _save(trainer, kept)
            saved, began = trainer.steps, time.monotonic()
    if kept is not None and (saved != trainer.steps or not checkpoint.steps(kept.folder)):
        _save(trainer, kept)
    if trainer.stopped:
        # to the caller of `run`, which a decorator wraps
        warnings.warn(f"{trainer.recipe.name}: {trainer.stopped}", RuntimeWarning, stacklevel=4)
    changes = [] if trainer.levels is None else [change._asdict() for change in trainer.levels.log]
    return Run(
        trainer.recipe, trainer.settings, [row["loss"] for row in trainer.rows],
        math.nan if trainer.stopped else trainer.validation_loss(), trainer.rows, trainer.measured, changes,
        trainer.stopped, math.fsum(row["seconds"] for row in trainer.rows), None if kept is None else kept.folder,
        trainer.data.digest, record.machine(), trainer.ranks.world,
    )  # fmt: skip


def traced_step(trainer: Trainer) -> dict[str, Any]:
    """Take a training step, and return its log row with "operations", a list of [name, digest], added."""
    with OperationTrace(trainer.model) as seen:
        row = trainer.step()
    row["operations"] = [list(operation) for operation in seen.operations]
    return row


# ---- what is kept


def identity(trainer: Trainer) -> dict[str, Any]:
    """Return everything that must be equal for a run to continue from a checkpoint, as a dict for JSON.

    These are the version of the arithmetic, the recipe, the settings that can change a bit, the digest of the data, the
    shapes of the weights, and the number of processes.
    """
    settings = trainer.settings.to_plain()
    del settings["text"], settings["measure"], settings["offload"]
    if trainer.settings.recompute.keeps_bits:
        del settings["recompute"]
    shapes = {name: list(weight.shape) for name, weight in trainer.weights.items()}
    return {
        "version": VERSION, "recipe": trainer.recipe.to_plain(), "settings": settings, "data": trainer.data.digest,
        "shapes": shapes, "world": trainer.ranks.world,
    }  # fmt: skip


def _save(trainer: Trainer, kept: checkpoint.Checkpoints) -> None:
    """Save a checkpoint of the trainer in the open folder `kept`: its state, and what `identity` returns."""
    arrays, fields = trainer.state()
    kept.save(trainer.steps, arrays, {"identity": identity(trainer), "state": fields})


def _resume(trainer: Trainer, folder: Path) -> None:
    """Load the newest checkpoint of a folder into the trainer, if any; a ValueError if it belongs to another run."""
    saved = checkpoint.load(folder)
    if saved is None:
        return
    fields = saved.facts
    if not isinstance(fields.get("identity"), Mapping) or "state" not in fields:
        raise ValueError(f"out must be a new folder or that of a run; got {folder}, whose checkpoint is not of a run.")
    theirs, mine = dict(fields["identity"]), identity(trainer)
    if isinstance(theirs.get("settings"), Mapping):
        theirs["settings"] = record.renamed(theirs["settings"])
    if theirs.get("recipe") != mine["recipe"]:
        older = Recipe.from_plain(theirs["recipe"])
        lines = older.differences(trainer.recipe) or ["its name or source"]
        raise ValueError(
            f"out must be a folder of a run with recipe {trainer.recipe.name!r}; got {folder}, whose recipe "
            f"{older.name!r} has {'; '.join(lines[:3])}{f' and {len(lines) - 3} more' if len(lines) > 3 else ''}. Name "
            "another folder."
        )
    checkpoint.require_same(theirs, mine, "run")
    trainer.load(saved.arrays, fields["state"])
