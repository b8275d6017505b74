"""Models that tests of exports share."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


class Tiny(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with every kind of tensor that an export meets."""

    def __init__(self, dtype: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(16, 256)
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(256, 256, bias=False) for _ in range(3))
        self.norm = torch.nn.LayerNorm(256)
        self.down = torch.nn.Linear(256, 128)
        self.lm_head = torch.nn.Linear(128, 16, bias=False)
        self.register_buffer("steps", torch.arange(5))
        with torch.no_grad():
            self.v_proj.weight *= 3
        self.to(dtype or torch.float32)

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        return self.lm_head(self.down(self.norm(self.q_proj(h) + self.k_proj(h) + self.v_proj(h))))
