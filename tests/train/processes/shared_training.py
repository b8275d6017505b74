"""Two steps of training, alone or as one of several processes, and two processes that compute together."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fpsim as fp
from fpsim.torch.operators import array_of
from tests.kit.forks import fork

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


def in_two_processes(folder: Path, call: Callable[..., object], *arguments: object) -> list[str]:
    """Call a function in two processes, which have what torchrun sets, and return what each prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with contextlib.ExitStack() as forks:
        processes = [
            forks.enter_context(fork(folder / "said", call, *arguments, environment=shared | {"RANK": rank}))
            for rank in ("0", "1")
        ]
        for process in processes:
            assert process.end() == 0, process.errors
            assert "Warning: `" not in process.errors
        return [process.out for process in processes]
