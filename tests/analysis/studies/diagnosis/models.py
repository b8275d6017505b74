"""Models with a planted bad layer, and losses, that tests of diagnoses share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import fpsim as fp

torch: Any = pytest.importorskip("torch")
nn = torch.nn

ONE = fp.scalings.TENSOR
INT8 = fp.torch.LinearRecipe("int8", "int8", "int8", ONE, ONE, ONE)


class Shrunk(nn.Module):  # type: ignore[misc, name-defined]
    """Three layers, of which the middle one has weights that are 2^-12 times as large as others."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(128, 128), nn.Linear(128, 128), nn.Linear(128, 128)
        with torch.no_grad():
            for parameter in self.b.parameters():
                parameter *= 2.0**-12

    def forward(self, x: Any) -> Any:
        return self.c(torch.relu(self.b(torch.relu(self.a(x))) * 2.0**12))


def shrunk() -> tuple[Any, list[Any]]:
    """Return the shrunk model and two batches."""
    torch.manual_seed(0)
    return Shrunk(), [torch.randn(128, 128) for _ in range(2)]


def outlier() -> tuple[Any, list[Any]]:
    """Three layers whose first one has a channel that is 3000 times as large, and its weights as small."""
    model, batches = healthy()
    with torch.no_grad():
        model[0].weight[:, 5] /= 3000
        for x in batches:
            x[:, 5] *= 3000
    return model, batches


def healthy(*widths: int) -> tuple[Any, list[Any]]:
    """Linear layers with ReLU between them, and two batches."""
    torch.manual_seed(0)
    layers: list[Any] = []
    shape = widths or (128, 128, 128, 128)
    for inputs, outputs in pairwise(shape):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), [torch.randn(128, shape[0]) for _ in range(2)]


def squared(model: Any, x: Any) -> Any:
    """Compute a loss whose gradients are about as large as values."""
    return model(x).square().sum()


def quiet(share: float, text: str) -> None:
    """Progress that nobody sees."""


def diagnosed(model: Any, batches: Any, **options: Any) -> fp.analysis.Diagnosis:
    """Diagnose a model by that loss."""
    return fp.analysis.diagnose(model, batches, squared, **{"progress": quiet, **options})
