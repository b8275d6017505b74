"""Runs that tests of comparisons share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

for package in ("torch", "pandas", "jinja2", "matplotlib", "pyarrow", "safetensors"):
    pytest.importorskip(package)
from fpsim.train import Comparison, Run, Settings, recipes  # noqa: E402


def made(losses: dict[str, list[float]], stopped: Sequence[str] = (), baseline: str = "BF16") -> Comparison:
    """A comparison of runs of 25 equal losses, for each recipe one a seed."""
    runs = []
    for name, values in losses.items():
        for seed, loss in enumerate(values):
            rows = [
                {"step": step, "loss": loss, "scale": 1.0, "skipped": False, "lost_updates": 0.25, "seconds": 0.5}
                for step in range(25)
            ]
            why = "the loss of step 25 is nan." if f"{name}-{seed}" in stopped else ""
            recipe = recipes.FP32.replace(name=name)
            runs.append(Run(recipe, Settings(steps=25, seed=seed), [loss] * 25, loss - 0.1, rows, [], [], why, 12.5))
    return Comparison(tuple(runs), baseline)
