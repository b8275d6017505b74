"""Loops of exports: sums of errors, and transposes by tiles."""

from __future__ import annotations

import numpy as np
import pytest

from fpsim.analysis.tensors.writing.loops import BLOCK, TILE, add_errors, transpose


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7])
def test_sums_of_errors_are_those_of_numpy(size: int) -> None:
    rng = np.random.default_rng(size)
    wanted, read = rng.standard_normal((2, size), np.float32)
    sums = np.array([1.0, 2.0, 0.5])
    add_errors(wanted, read, sums)
    apart = read - wanted
    assert sums[0] == pytest.approx(1 + np.sum(wanted.astype(np.float64) ** 2), rel=1e-13)
    assert sums[1] == pytest.approx(2 + np.sum(apart.astype(np.float64) ** 2), rel=1e-13)
    assert sums[2] == max(0.5, np.max(np.abs(apart), initial=0))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_is_seen(value: float) -> None:
    wanted = np.ones(BLOCK + 100, np.float32)
    read = wanted.copy()
    read[BLOCK + 3] = value
    sums = np.zeros(3)
    add_errors(wanted, read, sums)
    assert not np.isfinite(sums[1])


@pytest.mark.parametrize("shape", [(1, 1), (TILE, TILE), (3, 100), (2 * TILE + 5, TILE + 1)])
def test_a_transpose_is_that_of_numpy(shape: tuple[int, int]) -> None:
    source = np.random.default_rng(0).integers(0, 1 << 16, (shape[0], 2 * shape[1]), np.uint16)[:, shape[1] :]
    target = np.zeros(shape[::-1], np.uint16)
    transpose(source, target)
    assert np.array_equal(target, source.T)
