"""The function `fp.train.run`, and its result: losses, rounding losses of products, checkpoints and plots."""

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
from fpsim.files import path_of
from fpsim.formats.keywords import check_keywords
from fpsim.recipes.hardware import recipe_on_chip
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.this_cpu import THIS_CPU
from fpsim.recipes.training_recipe import Recipe
from fpsim.train import checkpoint, record
from fpsim.train import settings as knobs
from fpsim.train.loop import Trainer
from fpsim.train.operations.trace import OperationTrace
from fpsim.train.ranks import Ranks
from fpsim.train.settings import RUN_DEFAULTS, RunKeywords, Settings, settings_of, with_run_keywords

# Of a run: since 2, saturation counts values beyond the range; since 3, every operation of a step is specified.
VERSION = 3
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Run:
    """The result of a training run, from `fpsim.train.run`.

    Attributes:
      recipe, settings: the recipe and the settings of the run.
      losses: nats per token of each step's batch, float.
      validation_loss: the loss of the last weights, by the recipe's own forward pass; NaN for a run that was stopped.
      rows: a row for each step: step, loss, scale, skipped, overflowed, lr, gradient_norm, clip_factor, lost_updates,
        update_ratio, digest, seconds.
      measured: a row for each operand of each product, every few steps: step, layer, product, operand, underflow,
        saturation, at_maximum, sqnr_db; docs/training.md says what they are.
      changes: the controller's moves: step, layer, watched, figure, before, after.
      stopped: why it ended early, or "".
      seconds: the time of all steps, in seconds.
      checkpoint: the folder that it was saved to, or None.
      data: SHA-256 of the text or the examples.
      machine: what decides the bits of torch's own operations where it ran.
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

    @property
    def digest(self) -> str:
        """Hash of the weights, masters, moments and losses after each step; "" before the first one.

        Of one recipe, settings and text it is equal on every machine, unless torch's own arithmetic was asked for, or
        the recipe has products that torch adds. docs/training.md says what it covers; each row has the digest so far.
        """
        return str(self.rows[-1]["digest"]) if self.rows else ""

    @property
    def final_loss(self) -> float:
        """Mean loss of the last 20 steps, in nats."""
        last = self.losses[-20:]
        return math.fsum(last) / len(last) if last else math.nan

    @property
    def diverged(self) -> bool:
        """True if the loss of any step was above 10 times that of the first one."""
        return bool(self.losses) and self.highest_loss > knobs.DIVERGED_ABOVE * self.losses[0]

    @property
    def highest_loss(self) -> float:
        """Highest finite loss of all steps, in nats."""
        return max((loss for loss in self.losses if math.isfinite(loss)), default=math.nan)

    @property
    def failed(self) -> bool:
        """True if the run was stopped or diverged, so that its final loss says nothing about a recipe's precision."""
        return bool(self.stopped) or self.diverged

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each step."""
        return frame([{name: value for name, value in row.items() if name != "operations"} for row in self.rows])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run as JSON, whole or not at all; `fp.train.replay` trains it again on another machine.

        It has no weights: `out=` of `fp.train.run` keeps those.
        """
        record.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Return the run that `save` wrote, or the one that a folder holds (`out=` of `fp.train.run`).

        Of a folder the weights stay where they are, and the text is not known.

        Raises:
          ValueError: the file or folder cannot be read, or holds something else.
        """
        return cls(**record.load(path))

    def measurements(self) -> Any:
        """Return a pandas frame of measurements: a row for each operand of each product, every few steps."""
        return frame(self.measured)

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss of each step, and its running mean with a weight of 0.9.

        Args:
          ax: matplotlib axes to draw on; None makes a figure.
        """
        from fpsim.display.figure import axes_of

        axes = axes_of(ax, 3.4)
        smooth = smoothed(self.losses)
        (line,) = axes.plot(smooth, label=self.recipe.name or "loss", linewidth=1.6)
        axes.plot(self.losses, color=line.get_color(), alpha=0.25, linewidth=0.8)
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats per token)")
        axes.legend(frameon=False)
        return axes

    def __str__(self) -> str:
        name = self.recipe.name or "a recipe without a name"
        if self.stopped:
            return f"{name}: stopped after {len(self.losses)} steps: {self.stopped}"
        if self.diverged:
            step = self.losses.index(self.highest_loss)
            return (
                f"{name}: diverged: the loss rose from {self.losses[0]:.3g} to {self.highest_loss:.3g} at step {step}, "
                f"and was {self.final_loss:.3g} at the end (mean of the last {min(len(self.losses), 20)} steps)"
            )
        return (
            f"{name}: {len(self.losses)} steps in {self.seconds:.1f} s, loss {self.final_loss:.3f} (mean of the last "
            f"{min(len(self.losses), 20)}), validation {self.validation_loss:.3f}"
        )


def smoothed(losses: list[float], keep: float = 0.9) -> list[float]:
    """Return the running mean m = keep * m + (1 - keep) * loss, corrected for its start.

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
    """Train a small model by a recipe.

    The same arguments give the same bits, on any number of threads. With `out` the run is saved as it goes, at least
    every 10 seconds between two steps, and the same call goes on where it stopped, bit for bit, however it ended. Only
    the same call does: schedules and overrides are shares of `steps`, so a longer run is another one.

    Args:
      recipe: an `fpsim.train.Recipe`, the name of a recipe in `fpsim.train.recipes`, a TOML file, or a plan
        of `fpsim.analysis.plan`.
      steps: the number of steps of the optimizer.
      seed: the seed of the weights, batches and draws.
      model: "transformer": characters, 2 layers of width 128, 0.33 million weights in linear layers; or "perceptron":
        128-256-256-10 on handwritten digits (scikit-learn) or on a synthetic set where that is missing.
      text: a file of text for the transformer; None for Python's help topics.
      out: a folder; None keeps nothing.
      backend: the backend that multiplies: "emulated" on the CPU; "float32", torch in place of every unit; "gpu", the
        emulation on a GPU; "hardware", a GPU's tensor cores; "cpu", the matrix instructions of this processor, through
        torch.mm, of the recipe on "this CPU", whose bits fp.schedules.torch_mm predicts.
      arithmetic: "specified", where every operation beside the products has the same bits on every machine; or "torch",
        its own operations, whose bits depend on the processor. "float32" multiplies by the recipe's
        `numerics.products` in the first case.
      batch: sequences in a micro-batch, by default 8; for the perceptron vectors, by default 128.
      context: tokens of a sequence.
      width: the transformer's width, a multiple of 128.
      micro_batches: micro-batches of a step.
      measure: steps from one measurement of every product to the next; 0 for none.
      recompute: share of the blocks whose activations are computed again, or an `fp.train.Recompute`; it changes
        no bit, except for slices of K.
      offload: share of the model's blocks whose activations wait in temporary files; it changes no bit.
      trace: True to keep the name and a digest of each operation of each step, by which `fp.train.replay` on another
        machine names the first one that differs; some 600 lines a step.
      progress: called with the share done and a text.
      ranks: the processes that train together, of `fpsim.train.Ranks`.

    Returns:
      A Run. One whose loss became Inf or NaN ends there, with a warning and `.stopped`.

    Raises:
      ValueError: an unknown recipe, model or backend, layers or shapes that the recipe cannot have, a text that is too
        short, a folder of another run: the sentence names the differences.
      TypeError: an argument that must be a number is something else.
      ImportError: safetensors is not installed, with `out`.

    Example:
      >>> found = fp.train.run("DEEPSEEK_V3", steps=3, model="perceptron")
      >>> len(found.losses), found.losses[0] > 1.5, found.stopped
      (3, True, '')
    """
    check_keywords(run, keywords, RUN_DEFAULTS)
    settings = settings_of(seed=seed, **keywords)
    chosen = find_recipe(recipe)
    if settings.backend == "cpu":
        chosen, _ = recipe_on_chip(chosen, THIS_CPU)
    trainer = Trainer(chosen, settings, ranks)
    if out is None:
        return _finished(trainer, None, progress, trace)
    if trainer.ranks.rank > 0:  # rank 0 writes; all read
        _resume(trainer, path_of(out, "out"))
        return _finished(trainer, None, progress, trace)
    with checkpoint.Checkpoints(path_of(out, "out")) as kept:
        _resume(trainer, kept.folder)
        return _finished(trainer, kept, progress, trace)


def _finished(
    trainer: Trainer, kept: checkpoint.Checkpoints | None, progress: Progress | None, trace: bool
) -> Run:  # fmt: skip
    """Train to the last step, saving checkpoints, and return the run."""
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
        warnings.warn(f"{trainer.recipe.name}: {trainer.stopped}", RuntimeWarning, stacklevel=3)
    changes = [] if trainer.levels is None else [change._asdict() for change in trainer.levels.log]
    return Run(
        trainer.recipe, trainer.settings, [row["loss"] for row in trainer.rows],
        math.nan if trainer.stopped else trainer.validation_loss(), trainer.rows, trainer.measured, changes,
        trainer.stopped, math.fsum(row["seconds"] for row in trainer.rows), None if kept is None else kept.folder,
        trainer.data.digest, record.machine(),
    )  # fmt: skip


def traced_step(trainer: Trainer) -> dict[str, Any]:
    """Take a step, and add the name and digest of each of its operations to its row."""
    with OperationTrace(trainer.model) as seen:
        row = trainer.step()
    row["operations"] = [list(operation) for operation in seen.operations]
    return row


# ---- what is kept


def identity(trainer: Trainer) -> dict[str, Any]:
    """Return everything that must be equal for a run to resume from a checkpoint, as plain values."""
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
    """Save the trainer's state as a checkpoint."""
    arrays, fields = trainer.state()
    kept.save(trainer.steps, arrays, {"identity": identity(trainer), "state": fields})


def _resume(trainer: Trainer, folder: Path) -> None:
    """Continue from the newest checkpoint of a folder, if there is one.

    Raises:
      ValueError: the checkpoint is of another run.
    """
    saved = checkpoint.load(folder)
    if saved is None:
        return
    fields = saved.facts
    if not isinstance(fields.get("identity"), Mapping) or "state" not in fields:
        raise ValueError(
            f"out must be a new folder or that of a run; got {folder}, whose checkpoint is of something else."
        )
    theirs, mine = _with_new_names(fields["identity"]), identity(trainer)
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


def _with_new_names(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's identity with current names: `accumulate` became `micro_batches`."""
    settings = identity.get("settings")
    if not isinstance(settings, Mapping) or "accumulate" not in settings:
        return dict(identity)
    return {
        **identity,
        "settings": {{"accumulate": "micro_batches"}.get(name, name): settings[name] for name in settings},
    }
