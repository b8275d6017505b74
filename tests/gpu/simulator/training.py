"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: a training run with backend="gpu"."""

from __future__ import annotations

from typing import Any

import fpsim as fp

SETTINGS: dict[str, Any] = {"steps": 1, "model": "perceptron", "batch": 2, "measure": 0}


def main(backend: str) -> None:
    """Print the digest after one step by BF16."""
    trainer = fp.train.Trainer(fp.train.recipes.BF16, fp.train.Settings(backend=backend, **SETTINGS))
    print(trainer.step()["digest"])
