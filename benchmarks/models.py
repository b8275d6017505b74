"""Models under fp.analysis: recorded steps compared with plain ones, and the studies of what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow, load

STEPS = 4  # of a training that is recorded
MOST = 2.0  # of a plain step's time that a recorded one takes
SECONDS = {"sensitivity": 8, "plan": 4, "diagnose": 30, "diff": 8}  # in which each is to be measured


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file; none if torch or SciPy is not installed."""
    if load("torch") is None or load("scipy") is None:
        return
    model, batch, loss = _perceptron()
    contestants: dict[str, Work] = {
        "fpsim": partial(_trained, model, batch, loss, recorded=True),
        "plain": partial(_trained, model, batch, loss, recorded=False),
    }
    yield RaceRow("record each step of a perceptron", contestants, {"plain": 1 / MOST})
    terms = sum(batch.shape[0] * (3 if i else 2) * model[i].weight.numel() for i in (0, 2, 4))  # the first has no dgrad
    measured = fp.analysis.sensitivity(model, [batch], loss, recipes=["BF16", "FP8_TENSOR"])
    one: Any = {"recipes": "FP8_TENSOR", "progress": _quiet}
    works: dict[str, Work] = {
        "sensitivity": partial(fp.analysis.sensitivity, model, [batch], loss, **one),
        "plan": partial(fp.analysis.plan, measured, bits=10, random=0),
        "diagnose": partial(fp.analysis.diagnose, model, [batch], loss, **one),
        "diff": partial(fp.analysis.diff, model, batch, "H100", "B200"),
    }
    for name, work in works.items():
        yield RaceRow(f"{name} of 8 products", {"fpsim": work}, {}, terms / SECONDS[name], terms, "term")


def _perceptron() -> tuple[Any, Any, Any]:
    """Return a model of three linear layers, a batch of 512 rows, and a loss."""
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 512), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(512, 128)), torch.randn(512, 256), _squared


def _squared(model: Any, x: Any) -> Any:
    return model(x).square().mean()


def _trained(model: Any, batch: Any, loss: Any, *, recorded: bool) -> None:
    """Take some steps of AdamW with learning rate 0, recorded or not."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    with fp.analysis.record(model) if recorded else nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()


def _quiet(share: float, text: str) -> None:
    """Ignore progress."""
