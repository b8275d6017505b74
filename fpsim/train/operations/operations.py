"""The arithmetic of everything that a model computes beside its linear layers: specified, or torch's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.parts import Numerics
from fpsim.torch.operators import Tensor, torch
from fpsim.train.operations import functions
from fpsim.train.operations.attention import AttentionProduct, AttentionProducts
from fpsim.train.operations.torch_numerics import torch_cross_entropy, torch_rms_norm, torch_softmax

functional: Any = torch.nn.functional
FLOAT32 = Numerics()


@dataclass(frozen=True)
class Operations:
    """The operations of a model, forwards and backwards.

    Attributes:
      numerics: the formats of softmax, norm and loss, and the arithmetic of attention's products.
      specified: True for operations whose bits are the same on every machine (docs/training.md lists them); False for
        torch's own, whose bits depend on the processor, on its libraries and on environment variables.
    """

    numerics: Numerics = FLOAT32
    specified: bool = False

    def embed(self, codes: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the sum of each token's row and of each position's row."""
        if self.specified:
            return _tensor(functions.Embedding.apply(codes, tokens, positions))
        return _tensor(functional.embedding(codes, tokens) + positions[: codes.shape[1]])

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x / rms(x) * weight over the last axis."""
        if self.specified and self.numerics.norm is None:
            return _tensor(functions.RootMeanSquareNorm.apply(x, weight))
        return torch_rms_norm(x, weight, self.numerics.norm, self.numerics.sums)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
        """Return softmax(q k^T * factor) v, where a position sees itself and those before it."""
        shares = self._shares(self._product(q, k.mT), factor)
        return self._product(shares, v)

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a product of attention, (..., M, N)."""
        linear = self.numerics.attention
        if not self.specified and linear is None:
            return a @ b
        assert linear is None or isinstance(linear, LinearRecipe)
        return _tensor(AttentionProduct.apply(a, b, AttentionProducts(linear, self.numerics.products)))

    def _shares(self, scores: Tensor, factor: float) -> Tensor:
        """Return the causal softmax of scores * factor."""
        if self.specified and self.numerics.softmax is None:
            return _tensor(functions.CausalSoftmax.apply(scores, factor))
        length = scores.shape[-1]
        future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        seen = (scores * factor).masked_fill(future, -math.inf)
        return torch_softmax(seen, self.numerics.softmax, self.numerics.sums)

    def swiglu(self, x: Tensor) -> Tensor:
        """Return silu(gate) * up of both halves of the last axis, without a gradient."""
        if self.specified:
            return functions.swiglu(x)
        gate, up = x.chunk(2, -1)
        return _tensor(functional.silu(gate) * up)

    def swiglu_slopes(self, slopes: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of SwiGLU's x, given that of its result."""
        if self.specified:
            return functions.swiglu_slopes(slopes, x)
        gate, up = x.chunk(2, -1)
        share = torch.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
        return torch.cat((slopes * up * slope, slopes * gate * share), -1)

    def relu(self, x: Tensor) -> Tensor:
        """Return x where it is above 0, else 0."""
        return _tensor(functions.ReLU.apply(x) if self.specified else functional.relu(x))

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of logits (rows, classes), in nats."""
        if self.specified and self.numerics.loss is None:
            return _tensor(functions.CrossEntropy.apply(logits, targets))
        return torch_cross_entropy(logits, targets, self.numerics.loss, self.numerics.sums)


TORCH = Operations()


def _tensor(x: Any) -> Tensor:
    result: Tensor = x
    return result
