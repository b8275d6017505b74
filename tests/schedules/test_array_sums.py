"""The orders in which NumPy, torch and JAX sum: recorded results, and the probe that tells which one is at work."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.probe.candidates import order_of
from fpsim.schedules import SUM_ROWS, SumOrder, jax_sum, numpy_sum, torch_sum, tree
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
f32 = np.float32
LENGTHS = (1, 3, 5, 7, 8, 9, 20, 33, 100, 128, 129, 136, 300, 1000, 4000)


@in_turn("library, row", [("numpy", numpy_sum()), ("torch", torch_sum()), ("jax", jax_sum())])
def test_rows_have_the_recorded_bits(library: str, row: SumOrder) -> None:
    with np.load(ROOT / "tests" / "data" / "sums.npz") as recorded:
        for n in LENGTHS:
            x, want = recorded[f"x {n}"], recorded[f"{library} {n}"]
            assert_bits_equal(fp.sum(x, accumulate=row), want[()])
            assert_bits_equal(fp.sum(np.stack([x, x]), accumulate=row, axis=1), np.stack([want, want]))
            assert_bits_equal(fp.dot(x, np.ones_like(x), accumulate=row.tree(n)), want[()])


def by_numpys_rule(x: Array, lanes: int = 8, block: int = 128) -> Any:
    """Return the pairwise sum of float32 numbers, written out again."""
    n = len(x)
    if n < lanes:
        return list(accumulate(x))[-1]
    if n > block:
        half = n // 2
        half -= half % lanes
        return f32(by_numpys_rule(x[:half], lanes, block) + by_numpys_rule(x[half:], lanes, block))
    whole = n - n % lanes
    level = [list(accumulate(x[lane:whole:lanes]))[-1] for lane in range(lanes)]
    while len(level) > 1:
        level = [f32(p + q) for p, q in zip(level[::2], level[1::2], strict=True)]
    return list(accumulate([level[0], *x[whole:]]))[-1]


@in_turn("lanes, block", [(8, 128), (4, 64), (16, 128), (1, 5), (8, 100)])
def test_pairwise_sums_follow_their_rule(lanes: int, block: int) -> None:
    rng = np.random.default_rng(lanes)
    for n in (1, 4, 7, 16, 99, 129, 515):
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-9, 9, n)).astype(f32)
        assert_bits_equal(fp.sum(x, accumulate=numpy_sum(lanes, block)), by_numpys_rule(x, lanes, block))


@in_turn("row", SUM_ROWS)
def test_rows_add_every_term_once(row: SumOrder) -> None:
    for n in (1, 5, 31, 64, 517, 2049):
        order = order_of(row.tree(n))
        assert order is not None
        assert sorted(step for step in order.program if step >= 0) == list(range(n))


def test_the_sign_of_zeros_tells_where_a_sum_starts() -> None:
    x = np.full(20, -0.0, f32)
    assert [bool(np.signbit(fp.sum(x, accumulate=row))) for row in (numpy_sum(), torch_sum(), jax_sum())] == [
        True, False, False,
    ]  # fmt: skip


@in_turn("row", [torch_sum(), numpy_sum(16)])
def test_the_probe_names_the_row_of_a_black_box(row: SumOrder) -> None:
    model = fp.probe.sum(lambda x: fp.sum(x, accumulate=row), 45)
    assert model.sum_rows == (str(row),)
    assert f" in the order of fp.schedules.{row}, seen in" in model.explain()
    assert fp.probe.dot(lambda x, y: fp.dot(x, y, accumulate=row), 20).sum_rows == ()


def test_this_numpy_may_follow_a_row() -> None:
    """Whichever it is: where the probe names one, the row has the bits of this NumPy."""
    rows = fp.probe.sum(np.sum, 150).sum_rows
    x = np.random.default_rng(0).standard_normal((20, 150)).astype(f32)
    for name in rows:
        row = next(row for row in SUM_ROWS if str(row) == name)
        assert_bits_equal(fp.sum(x, accumulate=row, axis=1), np.array([np.sum(part) for part in x]))


def test_rows_are_data() -> None:
    assert numpy_sum() == numpy_sum(8, 128, "fp32")
    assert str(numpy_sum(16, fmt="fp64")) == "numpy_sum(lanes=16, fmt=FP64)"
    assert numpy_sum(fmt="bf16").tree(9).fmt == fp.BF16
    assert numpy_sum(np.int8(8), np.int8(100)).tree(3000) == numpy_sum(8, 100).tree(3000)  # type: ignore[arg-type]
    assert numpy_sum().tree(0) == tree(fp.Sequential("fp32"), 0)
    a = np.random.default_rng(0).standard_normal((3, 50)).astype(f32)
    assert_bits_equal(fp.matmul(a, a.T, schedule=numpy_sum()), fp.matmul(a, a.T, schedule=numpy_sum().tree(50)))


@in_turn(
    "call, words",
    [
        (lambda: numpy_sum(6), "lanes must be a power of two, which are joined in pairs; got 6"),
        (lambda: numpy_sum(0), "lanes must be at least 1|lanes must be"),
        (lambda: numpy_sum(8, 4), "block must be"),
        (lambda: numpy_sum(8, 14), "block must be an integer >= 15; got 14"),  # halves of 15 terms would be empty
        (lambda: numpy_sum().tree(2**64), r"at most 4194304 parts; got numpy_sum\(\) with k=18446744073709551616"),
        (lambda: torch_sum().tree(10**2000), r"at most 4194304 parts; got torch_sum\(\) with k=1000"),
        (lambda: torch_sum(2**70).tree(2**64), "at most 4194304 parts"),
        (lambda: numpy_sum(1, 1).tree(2**22), "at most 4194304 parts"),
        (lambda: SumOrder("mine", "windows", 1, 2).tree(2**64), "at most 4194304 parts"),
        (lambda: SumOrder("mine", "windows", 1, 1), "block must be an integer >= 2; got 1"),
        (lambda: SumOrder("mine", "pairwise", 3, 30), "lanes must be a power of two"),
        (lambda: SumOrder("mine", "pairwise", 8, 30, most="all"), "most must be"),  # type: ignore[arg-type]
        (lambda: SumOrder(5, "pairwise", 8, 30), "name must be a text"),  # type: ignore[arg-type]
        (lambda: torch_sum(0), "lanes must be"),
        (lambda: jax_sum(1), "window must be"),
        (lambda: jax_sum().tree(4096), r"jax_sum\(\) is known for up to 4095 terms.*got 4096"),
        (lambda: numpy_sum().tree(-1), "k must be"),
        (lambda: SumOrder("mine", "loops", 1, 1), "rule must be one of pairwise, cascade, windows; got 'loops'"),
        (lambda: fp.sum(np.ones(5000, f32), accumulate=jax_sum()), "known for up to 4095 terms"),
    ],
)
def test_bad_rows_get_one_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
