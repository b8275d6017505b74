"""What torchrun runs in each process of a test: two steps of training, whose weights go to a file per rank."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import fpsim as fp
from fpsim.torch.operators import array_of


def main(recipe: str, out: str, accumulate: int) -> None:
    """Train two steps; every rank leaves losses and weights in out-<rank>.npz."""
    chosen = fp.train.recipes.ROWS[recipe].replace(reduction="bf16")
    with fp.train.Ranks.from_environment() as ranks:
        settings = fp.train.Settings(steps=2, batch=8, context=16, accumulate=accumulate, measure=0)
        trainer = fp.train.Trainer(chosen, settings, ranks)
        losses = [trainer.step()["loss"] for _ in range(2)]
        found: dict[str, Any] = {name: array_of(weight.detach()) for name, weight in trainer.weights.items()}
        np.savez(f"{out}-{ranks.rank}.npz", **found, losses=losses)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
