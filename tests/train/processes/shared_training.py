"""Two steps of training, alone or as one of several processes."""

from __future__ import annotations

from typing import Any

import fpsim as fp
from fpsim.torch.operators import array_of

AGAIN = "FP8_DELAYED"  # of which several processes compute activations again


def trained(
    recipe: str, ranks: fp.train.Ranks, micro_batches: int, recompute: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """The weights and losses of two steps, whose gradients travel in BF16."""
    chosen = fp.train.recipes.ROWS[recipe].replace(reduction="bf16", **changes)
    settings = fp.train.Settings(
        steps=2, batch=8, context=16, micro_batches=micro_batches, measure=0, recompute=recompute
    )
    trainer = fp.train.Trainer(chosen, settings, ranks)
    losses = [trainer.step()["loss"] for _ in range(2)]
    return {name: array_of(weight.detach()) for name, weight in trainer.weights.items()} | {"losses": losses}
