"""Listeners of a recording: a line for each training step in the terminal, and TensorBoard's event files."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from fpsim.analysis.models.step_figures import StepFigures
from fpsim.display.optional import load
from fpsim.display.wording import printable
from fpsim.errors import require_integer
from fpsim.files import require_folder

Listener = Callable[[StepFigures], None]


def to_terminal(stream: TextIO | None = None, *, every: int = 1) -> Listener:
    """Return a listener, for `Recording.listen`, that writes a line of text for every recorded training step.

    A listener is a function that gets the measurements of a step, a StepFigures, when the step ends. The line is the
    text of the StepFigures: number of the step, norms of gradient and updates, range of the activations, loss scale,
    and the first tensor with Inf or NaN, as far as they were measured.

    Args:
      stream: stream for the lines; None is stderr.
      every: write a line for every n-th recorded step; steps that overflow or are skipped always get a line.

    Raises:
      ValueError: every is less than 1.

    Example:
      >>> import io, torch
      >>> model, text = torch.nn.Sequential(torch.nn.Linear(64, 32)), io.StringIO()
      >>> with fp.analysis.record(model) as r:
      ...     r.listen(fp.analysis.to_terminal(text))
      ...     y = model(torch.full((64, 64), 2.0))
      >>> text.getvalue().startswith("step 1: activations")
      True
    """
    require_integer("every", every, 1)
    count = 0

    def write(figures: StepFigures) -> None:
        nonlocal count
        if count % every == 0 or figures.fallback or figures.overflow is not None:
            print(printable(str(figures)), file=sys.stderr if stream is None else stream, flush=True)
        count += 1

    return write


def to_events(folder: str | Path) -> Listener:
    """Return a listener, for `Recording.listen`, that writes TensorBoard's event files.

    A listener is a function that gets the measurements of a step, a StepFigures, when the step ends.

    Every recorded training step adds a point to each of the curves gradient_norm, update_ratio, lost_updates,
    activations/amax, activations/smallest, fallback (1: the step was skipped), overflow (1: a tensor held Inf or NaN)
    and scale/<name>, a curve for the loss scale ("loss") and each delayed scale of a layer. Values that are None or NaN
    are left out. A step that overflows also adds its text, under the name "overflow". Points are on the disk when the
    step ends; `tensorboard --logdir` shows them.

    Args:
      folder: the folder of the event files, which is created if it does not exist.

    Raises:
      ImportError: torch or tensorboard is not installed.
      ValueError: the folder can't be written to.

    Source: https://docs.pytorch.org/docs/stable/tensorboard.html
    """
    load("torch", "event files")
    load("tensorboard", "event files")
    place = require_folder(folder)
    writer: Any = load("torch.utils.tensorboard", "event files").SummaryWriter(str(place))

    def write(figures: StepFigures) -> None:
        curves: dict[str, float | None] = {
            "gradient_norm": figures.gradient_norm, "update_ratio": figures.update_ratio,
            "lost_updates": figures.lost_updates, "activations/amax": figures.amax,
            "activations/smallest": figures.smallest, "fallback": float(figures.fallback),
            "overflow": float(figures.overflow is not None),
            **{f"scale/{name}": scale for name, scale in figures.scales.items()},
        }  # fmt: skip
        for name, value in curves.items():
            if value is not None and not math.isnan(value):
                writer.add_scalar(name, value, figures.step)
        if figures.overflow is not None:
            writer.add_text("overflow", str(figures), figures.step)
        writer.flush()

    return write
