"""One of several processes that train the same model on parts of a batch, and record it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import fpsim as fp

ROWS = 64  # of a rank's part of the batch
STEPS = 3


def model_and_data(ranks: int) -> tuple[Any, Any, Any]:
    """A model, inputs and output gradients of small integers, whose sums at the first step are exact in every order."""
    generator = torch.Generator().manual_seed(0)

    def integers(*shape: int) -> Any:
        return torch.randint(-3, 4, shape, generator=generator).float()

    model = torch.nn.Sequential(
        torch.nn.Linear(32, 16, bias=False), torch.nn.ReLU(), torch.nn.Linear(16, 8, bias=False)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(integers(*parameter.shape))
    return model, integers(STEPS, ranks * ROWS, 32), integers(STEPS, ranks * ROWS, 8)


def train(model: Any, x: Any, dy: Any, *, together: bool) -> fp.analysis.Recording:
    """A recording of training steps; `together` adds the gradients of all ranks up."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)
    with fp.analysis.record(model, every=2, keep=2, sample=None) as r:
        for step in range(STEPS):
            optimizer.zero_grad()
            (model(x[step]) * dy[step]).sum().backward()
            if together:
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad)
            optimizer.step()
    return r


def run(rank: int, ranks: int, folder: str) -> None:
    """What each process does: its part of every batch, and a file of its recording."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks
    )  # fmt: skip
    model, x, dy = model_and_data(ranks)
    part = slice(rank * ROWS, (rank + 1) * ROWS)
    train(model, x[:, part], dy[:, part], together=True).save(Path(folder) / f"rank{rank}.npz")
    torch.distributed.destroy_process_group()
