"""A random network in BF16 or FP16 whose products add in a chosen order."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from fpsim.analysis.measures.log_probabilities import log_softmax
from fpsim.analysis.systems.claims.samples import Floats
from fpsim.casts.cast import encode, quantize
from fpsim.formats.named import BF16, Format
from fpsim.products.matmul import matmul


def log_probabilities(fmt: Format, slices: int, layers: int) -> Floats:
    """Return float64 log-probabilities (32 tokens, 256 classes) of a random residual network with `layers` layers.

    fmt: BF16 or FP16. Products add their terms in `slices` slices of K: Hopper's matrix unit sums each slice, and
    float32 additions add the sums. Inputs x (32, 256) and weights are random, with a fixed seed. A layer adds max(0,
    normed(x) @ w1) @ w2 to x, with 512 inner channels; the logits are normed(x) @ w3. normed(x) is x / the root mean
    square of its row. All these results are rounded to the format.
    """
    rng = np.random.default_rng(0)
    unit = "hopper_bf16_f32" if fmt == BF16 else "hopper_f16_f32"

    def rounded(x: Any) -> Floats:
        return np.asarray(quantize(np.asarray(x, np.float32), fmt), np.float32)

    def weights(rows: int, columns: int) -> Floats:
        return rounded(rng.standard_normal((rows, columns)) / np.sqrt(rows))

    def product(x: Floats, w: Floats) -> Floats:
        parts = zip(np.split(encode(x, fmt), slices, axis=1), np.split(encode(w, fmt), slices), strict=True)
        return rounded(reduce(np.add, [matmul(np.ascontiguousarray(a), b, accumulate=unit) for a, b in parts]))

    def normed(x: Floats) -> Floats:
        return rounded(x / np.sqrt(np.square(x, dtype=np.float32).mean(axis=1, keepdims=True)))

    x = rounded(rng.standard_normal((32, 256)))
    for _ in range(layers):
        inner = np.maximum(product(normed(x), weights(256, 512)), 0)
        x = rounded(x + product(inner, weights(512, 256)))
    return log_softmax(product(normed(x), weights(256, 256)))
