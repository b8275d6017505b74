"""Models, losses and recipes that tests of sensitivity share, and the same figures by a slow way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.models import trained

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

FP32 = fp.torch.LinearRecipe()
E4M3 = fp.torch.LinearRecipe(
    "e4m3", "e4m3", "e4m3", fp.scalings.TENSOR, fp.scalings.TENSOR, fp.scalings.TENSOR, name="E4M3"
)


class Convolutional(nn.Module):  # type: ignore[misc, name-defined]
    """Convolutions, batch norm and dropout in front of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()
        )
        self.hidden = nn.Linear(8 * 4 * 4, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        hidden = functional.dropout(functional.relu(self.hidden(self.features(x))), 0.25, self.training)
        return self.head(hidden)


class Attention(trained.Attention):
    """Attention with a layer that is called twice and one that shares the embedding's weight."""

    def forward(self, codes: Any) -> Any:
        return {"logits": super().forward(codes)}


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))


def squared(model: Any, batch: Any) -> Any:
    """Compute a loss of batches of x and y."""
    return (model(batch[0]) - batch[1]).square().mean()


def next_token(model: Any, codes: Any) -> Any:
    logits = model(codes)["logits"][:, :-1]
    return functional.cross_entropy(logits.reshape(-1, 16), codes[:, 1:].reshape(-1))


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "mlp": (perceptron, lambda: (torch.randn(64, 32), torch.randn(64, 8)), squared),
    "convolutional": (Convolutional, lambda: (torch.randn(16, 3, 8, 8), torch.randn(16, 8)), squared),
    "attention": (Attention, lambda: torch.randint(0, 16, (8, 12)), next_token),
}


def made(name: str, batches: int = 2) -> tuple[Any, list[Any], Any]:
    """Return a model, batches and a loss."""
    make, batch, loss = MODELS[name]
    torch.manual_seed(0)
    return make(), [batch() for _ in range(batches)], loss


def state_of(model: Any) -> dict[str, bytes]:
    """Everything that a run could change, as bytes: weights, gradients, buffers, modes, and the generators."""
    report = {f"{name} weight": p.detach().numpy().tobytes() for name, p in model.named_parameters()}
    report |= {
        f"{name} gradient": b"" if p.grad is None else p.grad.numpy().tobytes() for name, p in model.named_parameters()
    }
    report |= {f"{name} buffer": buffer.numpy().tobytes() for name, buffer in model.named_buffers()}
    report |= {f"{name} mode": bytes([module.training]) for name, module in model.named_modules()}
    report |= {f"{name} own": repr(sorted(vars(module))).encode() for name, module in model.named_modules()}
    report |= {f"{name} hooks": repr(module._forward_hooks).encode() for name, module in model.named_modules()}
    import random

    generators = torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), repr(random.getstate())  # noqa: NPY002
    return report | {"generators": repr(generators).encode()}


def gradients_by_hand(model: Any, batch: Any, loss: Any, seed: int, low: dict[str, tuple[Any, Any, Any]]) -> Any:
    """(loss, gradients by name) of a copy whose layers follow a recipe for each product."""
    from fpsim.torch.operators import one_thread

    twin = copy.deepcopy(model)
    for layer, recipes in low.items():
        fp.torch.quantize_linears(twin, FP32, layer)
        twin.get_submodule(layer).follow(*recipes)
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        value = loss(twin, batch)
        value.backward()
    zeros = {name: torch.zeros_like(p) for name, p in twin.named_parameters()}
    report = {name: zeros[name] if p.grad is None else p.grad for name, p in twin.named_parameters()}
    return float(value.detach()), report


def relative(got: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Compute the relative error of all gradients together."""
    apart = sum(float(((got[name] - wanted[name]).double() ** 2).sum()) for name in wanted)
    return float((apart / sum(float((wanted[name].double() ** 2).sum()) for name in wanted)) ** 0.5)
