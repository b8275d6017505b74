"""Loops of exports: extremes of blocks, sums of errors, and transposes by tiles."""

from __future__ import annotations

import numpy as np
import pytest

from fpsim.analysis.tensors.writing.loops import BLOCK, TILE, add_errors, transpose
from fpsim.analysis.tensors.writing.scales import block_amax, block_extremes
from fpsim.analysis.tensors.writing.weights import largest_of
from fpsim.testing import assert_bits_equal


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


@pytest.mark.parametrize("width", [1, 7, 16, 128])
def test_extremes_of_blocks_are_those_of_numpy(width: int) -> None:
    rng = np.random.default_rng(width)
    values = rng.standard_normal((6, 3 * width)).astype(np.float32)
    values[0], values[1, :width], values[2], values[3] = 0, -0.0, -np.abs(values[2]), np.abs(values[3])
    values[4, 0] = 1e-42  # subnormal
    blocks = values.reshape(6, 3, width)
    lowest, highest = block_extremes(values, width)
    assert_bits_equal(lowest, blocks.min(-1))
    assert_bits_equal(highest, blocks.max(-1))
    assert_bits_equal(block_amax(values, width), np.abs(blocks).max(-1))
    assert largest_of(values) == np.abs(values).max()


def test_minus_zero_is_less_than_zero_and_nan_is_the_largest_magnitude() -> None:
    lowest, highest = block_extremes(np.array([[0, -0.0, 0]], np.float32), 3)
    assert (np.signbit(lowest[0, 0]), np.signbit(highest[0, 0])) == (True, False)
    assert np.isnan(block_amax(np.array([[1, np.nan, -np.inf]], np.float32), 3)[0, 0])
    assert largest_of(np.array([-np.inf, 1], np.float32)) == np.inf
    assert np.isnan(largest_of(np.array([-np.inf, np.nan], np.float32)))
    assert largest_of(np.empty((0, 4), np.float32)) == 0
