"""Sums of weights and small updates in BF16: to nearest, stochastically, and by Kahan."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

torch = pytest.importorskip("torch")

from fpsim.train.updates import add_rounded, draw_key  # noqa: E402


@pytest.mark.parametrize(
    ("rounding", "low", "high"), [("nearest_even", 1, 1), ("kahan", 2, 2), ("stochastic", 1.9, 2.1)]
)
def test_a_thousand_thousandths_added_to_1_in_bf16(rounding: str, low: float, high: float) -> None:
    """Published: 1.0 to nearest, 2.0 by Kahan, 2.006 +- 0.085 stochastically; here on average over 4096."""
    weight, compensation = torch.ones(4096), torch.zeros(4096)
    for step in range(1000):
        seed = draw_key(0, "w", "weights", step)
        add_rounded(weight, torch.full_like(weight, 1e-3), fp.BF16, rounding, compensation=compensation, seed=seed)
    mean, spread = float(weight.mean()), float(weight.std())
    assert low <= mean <= high
    assert (0.06 < spread < 0.11) if rounding == "stochastic" else spread == 0
    if rounding == "stochastic":
        assert abs(mean - 2) < 5 * 0.085 / 64  # unbiased


def test_kahans_sum_rounds_every_operation() -> None:
    """Against the same sum by NumPy's bfloat16, which rounds every operation."""
    bf16, generator = fp.BF16.dtype, np.random.default_rng(0)
    w = generator.standard_normal(500).astype(bf16)
    c = np.zeros(500, bf16)
    weight, compensation = torch.from_numpy(w.astype(np.float32)), torch.zeros(500)
    for _ in range(50):
        update = (generator.standard_normal(500) * 10.0 ** generator.integers(-6, 0, 500)).astype(np.float32)
        add_rounded(weight, torch.from_numpy(update), fp.BF16, "kahan", compensation=compensation)
        y = update.astype(bf16) - c
        s = w + y
        c, w = (s - w) - y, s
        assert_bits_equal(weight.numpy(), w.astype(np.float32))
        assert_bits_equal(compensation.numpy(), c.astype(np.float32))
