"""The recipes of training, as `fp.train.recipes`: the same objects as in `fp.recipes`."""

from __future__ import annotations

from fpsim.lazy import face
from fpsim.recipes.training import *  # noqa: F403
from fpsim.recipes.training import TRAINING

ROWS = TRAINING

__getattr__, __dir__ = face(__name__, [*ROWS, "ROWS"])
