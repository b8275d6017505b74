"""Models of several lengths: each is that of its own, and the one that fits runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal


def by_length(x: Any) -> Any:
    """Up to ten terms from the first, more of them from the last."""
    return np.cumsum(x if x.size <= 10 else x[::-1])[-1]


def test_each_length_has_its_own_model_and_the_one_that_fits_runs() -> None:
    models = fp.probe.sweep(by_length, [12, 8, 9, 12], kind="sum")
    assert list(models) == [8, 9, 12]
    assert models[8].tree != models[12].tree
    for n in models:
        x = np.random.default_rng(n).standard_normal((20, n)).astype(np.float32)
        assert_bits_equal(models.sum(x), np.array([by_length(row) for row in x]))
    first, second = models.explain().split("\n")
    assert first.startswith("8, 9 terms: an order without a name.")
    assert second.startswith("12 terms: an order without a name.")
    assert "from the last to the first" in second
    assert repr(models) == "Sweep(sum of 8, 9, 12 terms)"


def test_products_are_swept_too() -> None:
    models = fp.probe.sweep(np.matmul, [5, 9], rows=4, columns=4)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 9)).astype(np.float32), rng.standard_normal((9, 4)).astype(np.float32)
    assert_bits_equal(models.matmul(a, b), a @ b)
    assert_bits_equal(models.dot(a, b.T), np.diagonal(a @ b))


def test_a_length_that_was_not_probed_is_refused() -> None:
    models = fp.probe.sweep(by_length, [3, 4], kind="sum")
    with pytest.raises(ValueError, match=r"x must have as many terms as one of the models, 3, 4; got shape \(5,\)"):
        models.sum(np.ones(5, np.float32))
    with pytest.raises(KeyError, match="n must be a length that was probed, one of 3, 4; got 5"):
        models[5]
    assert 5 not in models


def test_what_cannot_be_swept_is_refused() -> None:
    with pytest.raises(ValueError, match="lengths must have one length at least"):
        fp.probe.sweep(np.sum, [])
    with pytest.raises(ValueError, match="kind must be one of sum, dot, matmul; got 'mm'"):
        fp.probe.sweep(np.sum, [3], kind="mm")
    with pytest.raises(TypeError, match="a length must be an integer; got None"):
        fp.probe.sweep(np.sum, None, kind="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"n must be at most 2\*\*20, since .* as many calls or more; got 10+\. Probe"):
        fp.probe.sum(np.sum, 10**30)
    with pytest.raises(ValueError, match=r"k must be at most 2\*\*20, since .*; got 2147483648\. Probe fewer terms"):
        fp.probe.matmul(np.matmul, 1 << 31)
    with pytest.raises(ValueError, match="a length must be an integer >= 1; got 0"):
        fp.probe.sweep(np.sum, [0], kind="sum")
