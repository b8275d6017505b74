"""Small models of every kind of product, and a training of them that may be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fpsim as fp

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

TENSORS = {"input", "weight", "output", "output_gradient", "weight_gradient"}


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Attention and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.unused = nn.Linear(32, 32)
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, codes: Any) -> Any:
        x = self.tokens(codes)  # (batch, length, 32)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(self.out(x))  # a layer that is used twice


class Checkpointed(nn.Module):  # type: ignore[misc, name-defined]
    """Layers of which one is computed again in backward."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        x = self.first(x).relu()
        if self.reentrant is None:
            return self.second(x)
        return torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=self.reentrant)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 8))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten()
    )


def multi_head() -> Any:
    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
            self.attn = nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            x = self.layer(x)
            return self.attn(x, x, x)[0]

    return Model()


def floats(*shape: int) -> Callable[[], Any]:
    return lambda: torch.randn(*shape)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (mlp, floats(64, 32)),
    "convolutions": (convolutions, floats(4, 3, 8, 8)),
    "attention": (Attention, lambda: torch.randint(0, 16, (4, 12))),
    "multi_head": (multi_head, floats(4, 6, 32)),
    "checkpointed": (lambda: Checkpointed(False), floats(16, 32)),
    "checkpointed, reentrant": (lambda: Checkpointed(True), floats(16, 32)),
}


def training(name: str, steps: int = 5, *, micro: int = 1, autocast: bool = False, **options: Any) -> Any:
    """(model, losses, recording): options None records nothing."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    def loop() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(micro):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = model(batch()).float().square().mean()
                loss.backward()
                losses.append(loss.item())
            optimizer.step()

    if options.pop("record", True):
        with fp.analysis.record(model, **options) as r:
            loop()
        return model, losses, r
    loop()
    return model, losses, None
