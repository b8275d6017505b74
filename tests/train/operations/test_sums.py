"""Sums by 32 lanes, of every length with and without a rest."""

from __future__ import annotations

import numpy as np
import pytest

from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import training as oracle
from tests.train.operations.rows import SIZES, rows, usual

torch = pytest.importorskip("torch")
from fpsim.train.operations import sums  # noqa: E402
from fpsim.train.optimizer.clipping import sum_of_squares  # noqa: E402


@in_turn("size", (*SIZES, 4095, 4096, 4097, 33 * 4096 + 5))
def test_squares_of_a_tensor_are_added_by_chunks_of_4096(size: int) -> None:
    x = usual((size,), size)
    assert sum_of_squares([torch.from_numpy(x)]) == oracle.sum_of_squares(x.tolist())


def test_squares_of_several_tensors_are_added_tensor_after_tensor() -> None:
    tensors = [usual(shape, 1) * np.float32(size) for shape, size in (((3, 40), 1e-3), ((7,), 1e6), ((2, 2, 33), 1))]
    want = 0.0
    for x in tensors:
        want += oracle.sum_of_squares(x.reshape(-1).tolist())
    assert sum_of_squares([torch.from_numpy(x) for x in tensors]) == want
    assert sum_of_squares([]) == 0.0
    assert sum_of_squares([torch.empty(0)]) == 0.0


def test_squares_of_special_numbers() -> None:
    for x in rows(65):
        got = sum_of_squares([torch.from_numpy(x)])
        assert_bits_equal(np.array([got]), np.array([oracle.sum_of_squares(x.tolist())]))


@in_turn("size", SIZES)
def test_sums_of_rows_and_columns_in_float64_are_added_by_lanes(size: int) -> None:
    x = rows(size).astype(np.float64) / 3
    totals, lanes = np.empty(len(x)), np.empty(sums.LANES)
    sums.row_sums(x, lanes, totals)
    want = np.array([oracle.lane_sum(row, 0.0) for row in x.tolist()])
    assert_bits_equal(totals, want)
    columns = np.empty(len(x))
    sums.column_sums(np.ascontiguousarray(x.T), np.empty((sums.LANES, len(x))), columns)
    assert_bits_equal(columns, want)


def test_a_sum_of_negative_zeros_is_positive() -> None:
    totals = np.empty(1)
    sums.row_sums(np.full((1, 3), -0.0), np.empty(sums.LANES), totals)
    assert_bits_equal(totals, np.zeros(1))
