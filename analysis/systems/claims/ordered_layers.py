"""A random network in 16 bits whose products add in a chosen order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from fpsim.analysis.systems.claims.samples import Floats, wide
from fpsim.casts.cast import encode, quantize
from fpsim.formats.named import BF16, Format
from fpsim.products.matmul import matmul


class OrderedLayers:
    """A random residual network whose tensors have a 16-bit format, and whose products add K in slices.

    Attributes:
      fmt: BF16 or FP16.
      slices: number of slices of K; each is summed on Hopper's unit, and the sums are added in float32.
    """

    def __init__(self, fmt: Format, slices: int) -> None:
        self.fmt, self.slices = fmt, slices

    def rounded(self, x: Any) -> Floats:
        """Return x rounded to the network's format."""
        return np.asarray(quantize(np.asarray(x, np.float32), self.fmt), np.float32)

    def product(self, x: Floats, weights: Floats) -> Floats:
        """Return x @ weights in the network's format."""
        unit = "hopper_bf16_f32" if self.fmt == BF16 else "hopper_f16_f32"
        a, b = encode(x, self.fmt), encode(weights, self.fmt)
        parts = zip(np.split(a, self.slices, axis=1), np.split(b, self.slices), strict=True)
        sums = [matmul(np.ascontiguousarray(first), second, accumulate=unit) for first, second in parts]
        return self.rounded(reduce(np.add, sums))

    def normed(self, x: Floats) -> Floats:
        """Return x with each row scaled to a root mean square of 1."""
        return self.rounded(x / np.sqrt(np.square(x, dtype=np.float32).mean(axis=1, keepdims=True)))

    def log_probabilities(self, layers: int) -> Floats:
        """Return log-probabilities (32, 256) of a network with that number of layers, in float64."""
        rng = np.random.default_rng(0)

        def weights(rows: int, columns: int) -> Floats:
            return self.rounded(rng.standard_normal((rows, columns)) / np.sqrt(rows))

        x = self.rounded(rng.standard_normal((32, 256)))
        for _ in range(layers):
            inner = np.maximum(self.product(self.normed(x), weights(256, 512)), 0)
            x = self.rounded(x + self.product(inner, weights(512, 256)))
        logits = wide(self.product(self.normed(x), weights(256, 256)))
        shifted = logits - logits.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
