"""Shapes at which a box changes its kernel are found, with what there is a threshold of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from tests.kit.chains import chained
from tests.kit.sweeps import in_turn


def two_kernels(small: Callable[[int, int, int], bool], out: Any = np.float32) -> Callable[[Any, Any], Any]:
    """Four lanes where a shape is small, a chain elsewhere."""

    def fn(a: Any, b: Any) -> Any:
        a, b = a.astype(np.float32), b.astype(np.float32)
        (m, k), n = a.shape, b.shape[1]
        lanes = 4 if small(m, n, k) else 1
        sums = [chained(a, b, range(i, k, lanes)) for i in range(lanes)]
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return total.astype(out)

    return fn


@in_turn("measure, most, small", [
    ("M x N x K", 4096, lambda m, n, k: m * n * k <= 4096), ("M x N", 100, lambda m, n, k: m * n <= 100),
    ("N", 8, lambda m, n, k: n <= 8), ("M", 32, lambda m, n, k: m <= 32), ("N x K", 256, lambda m, n, k: n * k <= 256),
    ("M x K", 512, lambda m, n, k: m * k <= 512),
], some=[("M x N x K", 4096, lambda m, n, k: m * n * k <= 4096), ("N", 8, lambda m, n, k: n <= 8)])  # fmt: skip
def test_what_a_threshold_is_of_is_found(measure: str, most: int, small: Callable[[int, int, int], bool]) -> None:
    limits = fp.probe.thresholds(two_kernels(small), [8, 128])
    assert limits.measure == measure, str(limits)
    assert limits.largest is not None
    assert limits.smallest is not None
    assert limits.largest <= most < limits.smallest
    for last, first in limits.edges:
        assert small(*last)
        assert not small(*first)
        assert sum(first) == sum(last) + 1
    assert f"Products with {measure} <= " in str(limits)


def test_a_threshold_shows_in_narrow_results() -> None:
    fn = two_kernels(lambda m, n, k: m * n * k <= 4096, ml_dtypes.bfloat16)
    limits = fp.probe.thresholds(fn, [16, 64], a="bf16")
    assert (limits.measure, limits.largest) == ("M x N x K", 4096)
    assert "Products with M x N x K <= " in str(limits)


def test_products_of_one_row_or_column_are_told_apart() -> None:
    limits = fp.probe.thresholds(two_kernels(lambda m, n, k: m == 1 or n == 1 or m * n * k <= 4096), [16, 64, 512])
    assert (limits.single, limits.measure, limits.largest) == (("M", "N"), "M x N x K", 4096)
    assert "Products of one row add in another order or arithmetic." in str(limits)


def test_where_nothing_changes_nothing_is_found() -> None:
    largest: Any = np.int64(20)
    limits = fp.probe.thresholds(two_kernels(lambda m, n, k: False), [9, 40], largest=largest)
    assert (limits.edges, limits.measure, limits.single) == ((), None, ())
    assert str(limits) == "No shape that was tried changes the bits (K = 9, 40)."


def test_edges_of_no_measure_are_listed() -> None:
    limits = fp.probe.thresholds(two_kernels(lambda m, n, k: n % 16 < 8), [16, 24], largest=40)
    assert limits.measure is None
    assert limits.edges
    assert "Bits change between" in str(limits)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="lengths must have one K at least"):
        fp.probe.thresholds(np.matmul, [])
    with pytest.raises(ValueError, match="largest must be an integer >= 2; got 1"):
        fp.probe.thresholds(np.matmul, [8], largest=1)
