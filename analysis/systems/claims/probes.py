"""Measurements of the gradient errors of training recipes, which several experiments on claims share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

STEPS = 120  # training steps in float32 before the batch whose gradients are measured


class ProbedGradient(NamedTuple):
    """A comparison of a recipe's weight gradients with float32's.

    Attributes:
      error: norm of the difference / norm of float32's gradients.
      cosine: cosine of the angle between both.
    """

    error: float
    cosine: float


@lru_cache(maxsize=64)
def probed(recipe: Any, scenario: str = "plain") -> ProbedGradient:
    """Compare a recipe's weight gradients of linear layers with float32's; results are cached.

    `fp.train.gradient_probe` measures the relative error and the cosine, over all linear layers together, for one
    batch, at weights after 120 training steps in float32. recipe: a training recipe or its name. scenario: change of
    the loss, such as "loss_2^-12" (the loss times 2^-12), or "plain" for none.

    Source: docs/training.md describes model, data and scenarios.
    """
    from fpsim.train.comparisons.gradient_probe import probe_rows

    row = next(row for row in probe_rows(recipe, STEPS, scenario, 0) if row["layer"] == "all")
    return ProbedGradient(row["relative_error"], row["cosine"])
