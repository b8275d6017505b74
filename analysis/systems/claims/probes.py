"""Measurements of the gradient errors of training recipes, which several experiments on claims share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

STEPS = 120  # training steps in float32 before the batch whose gradients are measured


@lru_cache(maxsize=64)
def gradient_error(recipe: Any, scenario: str = "plain") -> float:
    """Return norm(difference of a recipe's weight gradients from float32's) / norm(float32's); results are cached.

    `fp.train.gradient_probe` measures this over all linear layers together, for one batch, at weights after 120
    training steps in float32. recipe: a training recipe or its name. scenario: change of the loss, such as "loss_2^-12"
    (the loss times 2^-12), or "plain" for none.

    Source: docs/training.md describes model, data and scenarios.
    """
    from fpsim.train.comparisons.gradient_probe import probe_rows

    rows = probe_rows(recipe, STEPS, scenario, 0)
    return next(float(row["relative_error"]) for row in rows if row["layer"] == "all")
