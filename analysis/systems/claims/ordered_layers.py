"""A random network in BF16 or FP16 whose products add in a chosen order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from fpsim.analysis.systems.claims.samples import Floats, log_softmax
from fpsim.casts.cast import encode, quantize
from fpsim.formats.named import BF16, Format
from fpsim.products.matmul import matmul


class OrderedLayers:
    """A random residual network in a 16-bit format, BF16 or FP16, whose products add their K terms in slices.

    Hopper's matrix unit sums each slice, and the sums are added in float32.
    """

    def __init__(self, fmt: Format, slices: int) -> None:
        self.fmt, self.slices = fmt, slices

    def rounded(self, x: Any) -> Floats:
        """Return an array of floats, x, rounded to the network's format, as float32."""
        return np.asarray(quantize(np.asarray(x, np.float32), self.fmt), np.float32)

    def product(self, x: Floats, weights: Floats) -> Floats:
        """Return x (rows, K) @ weights (K, columns) rounded to the network's format, computed in slices of K."""
        unit = "hopper_bf16_f32" if self.fmt == BF16 else "hopper_f16_f32"
        a, b = encode(x, self.fmt), encode(weights, self.fmt)
        parts = zip(np.split(a, self.slices, axis=1), np.split(b, self.slices), strict=True)
        sums = [matmul(np.ascontiguousarray(first), second, accumulate=unit) for first, second in parts]
        return self.rounded(reduce(np.add, sums))

    def normed(self, x: Floats) -> Floats:
        """Return x with each row divided by its root mean square, rounded to the network's format."""
        return self.rounded(x / np.sqrt(np.square(x, dtype=np.float32).mean(axis=1, keepdims=True)))

    def log_probabilities(self, layers: int) -> Floats:
        """Return float64 log-probabilities (32 tokens, 256 classes) of the network with this number of layers.

        Inputs x (32, 256) and weights are random, with a fixed seed. A layer adds max(0, normed(x) @ w1) @ w2 to x,
        with 512 inner channels; the logits are normed(x) @ w3. All these results are rounded.
        """
        rng = np.random.default_rng(0)

        def weights(rows: int, columns: int) -> Floats:
            return self.rounded(rng.standard_normal((rows, columns)) / np.sqrt(rows))

        x = self.rounded(rng.standard_normal((32, 256)))
        for _ in range(layers):
            inner = np.maximum(self.product(self.normed(x), weights(256, 512)), 0)
            x = self.rounded(x + self.product(inner, weights(512, 256)))
        return log_softmax(self.product(self.normed(x), weights(256, 256)))
