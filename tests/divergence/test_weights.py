"""`fpsim.divergence.weight_divergence`, which compares two results or weights by value."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.divergence.divergence import weight_divergence
from tests.divergence.test_divergence import NAMES, draw


def test_weights_are_compared_by_their_bits() -> None:
    x = draw(4, 6)
    y = x.copy()
    assert weight_divergence("up.weight", x, y) is None
    y[1, 2] += 1
    divergence = weight_divergence("up.weight", x, y, NAMES, step=7)
    assert divergence is not None
    assert (divergence.step, divergence.layer, divergence.product, divergence.cause) == (
        7,
        "up.weight",
        "update",
        "update",
    )
    assert divergence.element == (1, 2)
    divergence = weight_divergence("norm.weight", x[0], x[0] + 1)
    assert divergence is not None
    assert divergence.element == (0, 0)
    assert divergence.count == 6


@pytest.mark.parametrize(("first", "second", "common"), [("bf16", "fp16", "FP32"), ("e4m3", "bf16", "FP32"),
                                                      ("bf16", "fp64", "FP64")])  # fmt: skip
def test_results_of_two_formats_are_compared_by_value(first: str, second: str, common: str) -> None:
    x, y = (fp.cast(np.array([[1, 1.0078125, 3]], np.float32), fmt, rounding=rounding)
            for fmt, rounding in ((first, "down"), (second, "up")))  # fmt: skip
    divergence = weight_divergence("up", x, y + y.dtype.type(1))
    assert divergence is not None
    assert (str(divergence.fmt), divergence.element, divergence.values) == (common, (0, 0), (1.0, 2.0))
