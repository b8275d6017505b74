"""Measurements of the reference trainer's gradient errors, which several experiments on claims share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

STEPS = 120  # of float32 training before the probed batch


class ProbedGradient(NamedTuple):
    """Relative error and cosine of a recipe's weight gradients, compared with float32's."""

    error: float
    cosine: float


@lru_cache(maxsize=64)
def probed(recipe: Any, scenario: str = "plain") -> ProbedGradient:
    """Return the error of the gradients of all linear layers by `fpsim.train.gradient_probe`, for a recipe or its name.

    Source: docs/training.md describes model, data and scenarios.
    """
    from fpsim.train.comparisons.gradient_probe import probe_rows

    row = next(row for row in probe_rows(recipe, STEPS, scenario, 0) if row["layer"] == "all")
    return ProbedGradient(row["relative_error"], row["cosine"])
