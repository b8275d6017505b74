"""Small models of several architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mlp() -> Any:
    """Three linear layers of 256, 512 and 128 terms."""
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 16))


class Convolutional(torch.nn.Module):
    """Convolutions of one and two axes of space, in groups, strided and dilated, batch norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        nn = torch.nn
        self.stem = nn.Conv2d(3, 16, 3, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.down = nn.Conv2d(16, 32, (3, 5), stride=(2, 1), padding=(2, 1), dilation=(2, 1), groups=2)
        self.mix = nn.Conv1d(32, 48, 7, padding=3)
        self.head = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        x = functional.relu(self.norm(self.stem(x)))
        x = functional.relu(self.down(x)).flatten(2)
        return self.head(self.mix(x).mean(-1))


class Attentive(torch.nn.Module):
    """A transformer whose two blocks are the same one, its head's weights those of its embedding; one layer idle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        nn = torch.nn
        self.embedding = nn.Embedding(48, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.1)
        self.idle = nn.Linear(64, 64)
        self.head = nn.Linear(64, 48, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        """Logits."""
        return self.head(self.block(self.block(self.embedding(tokens))))


def images() -> Any:
    """Return a batch of the convolutional model."""
    return torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(3))


def tokens() -> Any:
    """Return a batch of the attentive model."""
    return torch.randint(0, 48, (2, 12), generator=torch.Generator().manual_seed(4))


def rows(count: int = 32, features: int = 256) -> Any:
    """Return a batch of the perceptron."""
    return torch.randn(count, features, generator=torch.Generator().manual_seed(5))


def mean_square(model: Any, batch: Any) -> Any:
    """Compute a loss."""
    return model(batch).square().mean()


class Checkpointed(torch.nn.Module):
    """A model whose forward pass is computed again in the backward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: torch.Tensor) -> Any:
        """Return y."""
        return checkpoint(self.inner, x, use_reentrant=False)


class Named(torch.nn.Module):
    """A model whose logits are one of several outputs."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, x: torch.Tensor) -> Any:
        """Logits and others."""
        return {"logits": self.inner(x), "other": None}


class Routed(torch.nn.Module):
    """Takes one of two layers, by a bit of the first one's result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.last = (torch.nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Any:
        """Return y."""
        y = self.first(x)
        odd = int(y.detach().double().numpy().view(np.uint64).sum() >> np.uint64(45)) & 1
        return self.last((self.left if odd else self.right)(y))


class Uncopied(torch.nn.Sequential):
    """A model that copy.deepcopy does not copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("only one of me")
