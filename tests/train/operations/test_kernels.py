"""Loops: sums by 32 lanes, of every length with and without a rest, and exp and log of float64 arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp

from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import training as oracle
from tests.oracles.elementary import fraction
from tests.train.operations.rows import SIZES, rows, usual

torch = pytest.importorskip("torch")
from fpsim.train.operations import kernels  # noqa: E402
from fpsim.train.updates import sum_of_squares  # noqa: E402

WIDE_BOUND = 2.0**-46  # of relative errors, which docs/elementary.md derives


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
    totals, lanes = np.empty(len(x)), np.empty(kernels.LANES)
    kernels.row_sums(x, lanes, totals)
    want = np.array([oracle.lane_sum(row, 0.0) for row in x.tolist()])
    assert_bits_equal(totals, want)
    columns = np.empty(len(x))
    kernels.column_sums(np.ascontiguousarray(x.T), np.empty((kernels.LANES, len(x))), columns)
    assert_bits_equal(columns, want)


def test_a_sum_of_negative_zeros_is_positive() -> None:
    totals = np.empty(1)
    kernels.row_sums(np.full((1, 3), -0.0), np.empty(kernels.LANES), totals)
    assert_bits_equal(totals, np.zeros(1))


def test_errors_of_exp_and_log_are_below_the_bound() -> None:
    random = np.random.default_rng(0)
    powers, numbers = random.uniform(-109, 89.9, (10, 20)), random.lognormal(0, 20, 200).astype(np.float32)
    with mp.workdps(40):
        for function, name, xs in ((kernels.wide_exp, "exp", powers), (kernels.wide_log, "log", numbers)):
            got = function(xs)
            assert got.shape == xs.shape
            for x, y in zip(xs.reshape(-1).tolist(), got.reshape(-1).tolist(), strict=True):
                exact = fraction(getattr(mp, name)(mp.mpf(x)))
                assert abs(fraction(mp.mpf(y)) - exact) <= WIDE_BOUND * abs(exact), (name, x)


def test_exp_and_log_of_numbers_without_an_ordinary_result() -> None:
    low, high = kernels.wide_exp(np.array([-110.0, 90.0]))
    assert_bits_equal(kernels.wide_exp(np.array([-1e9, -111.0, 91.0, 1e9])), np.array([low, low, high, high]))
    with np.errstate(all="ignore"):
        smallest = math.log(2.0**-149)
    got = kernels.wide_log(np.array([0.0, -0.0, -1.0, np.nan, np.inf, 1.0]))
    assert_bits_equal(got, np.array([-np.inf, -np.inf, np.nan, np.nan, np.inf, 0.0]))
    assert abs(kernels.wide_log(np.array([2.0**-149]))[0] / smallest - 1) <= 2 * WIDE_BOUND
