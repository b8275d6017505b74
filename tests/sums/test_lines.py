"""Sums along an axis are made some terms at a time: the same bits, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.sums import accumulate, lines
from fpsim.testing import assert_bits_equal

Array = npt.NDArray[Any]

ACCUMULATORS = [
    fp.Sequential("fp16"), fp.Sequential("fp32", rounding="stochastic", seed=3), fp.FusedMultiplyAdd("bf16"),
    fp.FusedMultiplyAdd("fp16", rounding="up"), fp.Pairwise("fp16"), fp.Pairwise("bf16", rounding="stochastic", seed=1),
    fp.Pairwise("e4m3"), fp.Chunked("fp16", chunk=24), fp.Chunked("bf16", outer="fp32", chunk=7), fp.Exact("fp16"),
    fp.Exact("bf16", rounding="stochastic", seed=2), fp.Sequential("e4m3", rounding="down"),
]  # fmt: skip
accumulators = pytest.mark.parametrize("how", ACCUMULATORS, ids=str)


def numbers(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers of all sizes, some of them special."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(np.float16)
    return np.asarray(np.where(rng.random(shape) < 0.01, np.float16("inf"), x) if seed % 2 else x)


@pytest.fixture(params=[1, 2], ids=["finite", "with Inf"])
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@accumulators
def test_some_lines_at_a_time_give_the_bits_of_the_whole(how: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = numbers((3, 5, 33), seed), numbers((5, 33), seed + 2)
    calls: list[Callable[[], Any]] = [
        lambda: fp.dot(x, y, accumulate=how),
        lambda: fp.dot(x, x[0, 0], accumulate=how),
        *[lambda axis=axis: fp.sum(x, accumulate=how, axis=axis) for axis in range(3)],
    ]
    whole = [call() for call in calls]
    for count in (33, 40, 100):
        monkeypatch.setattr(lines, "TERMS_AT_ONCE", count)
        for call, want in zip(calls, whole, strict=True):
            assert_bits_equal(call(), want)


@accumulators
def test_parts_of_a_long_line_give_the_bits_of_the_whole(how: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = numbers((1000,), seed), numbers((1000,), seed + 2)
    calls: list[Callable[[], Any]] = [
        lambda: fp.sum(x, accumulate=how),
        lambda: fp.sum(x[:7], accumulate=how),
        lambda: fp.sum(x[:513], accumulate=how),
        lambda: fp.sum(x[:512], accumulate=how),
        lambda: fp.dot(x, y, accumulate=how),
    ]
    whole = [np.asarray(call()) for call in calls]
    monkeypatch.setattr(lines, "SUBTREE", 8)
    monkeypatch.setattr(accumulate, "NARROW", 0)
    for count in (6, 50, 300):
        monkeypatch.setattr(lines, "TERMS_AT_ONCE", count)
        for call, want in zip(calls, whole, strict=True):
            assert_bits_equal(np.asarray(call()), want)


SMALLER = 16  # times as small as they are are the terms at once of the next test, its operands, and what it allows
SIZE = (1 << 24) // SMALLER
MEMORY = {
    "dot of matrices": lambda m: fp.dot(m, m, accumulate=fp.Sequential("fp32")),
    "dot with a row": lambda m: fp.dot(m, m[0], accumulate=fp.Sequential("fp32")),
    "sum of all by pairs": lambda m: fp.sum(m, accumulate=fp.Pairwise("fp32")),
    "sum of all in order": lambda m: fp.sum(m, accumulate=fp.Sequential("fp16")),
    "sum of rows by pairs": lambda m: fp.sum(m, accumulate=fp.Pairwise("fp32"), axis=1),
    "exact sums of rows": lambda m: fp.sum(m, accumulate=fp.Exact("fp32"), axis=1),
    "exact sums of columns": lambda m: fp.sum(m, accumulate=fp.Exact("fp32"), axis=0),
}


@pytest.mark.parametrize("name", MEMORY)
def test_sums_take_less_than_64_mib_beside_their_operands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines.TERMS_AT_ONCE == 1 << 20
    monkeypatch.setattr(lines, "TERMS_AT_ONCE", lines.TERMS_AT_ONCE // SMALLER)
    m = np.resize(np.random.default_rng(0).standard_normal(4096).astype(np.float16), (1 << 10, SIZE >> 10))
    MEMORY[name](m[:2, :16])  # compiles
    tracemalloc.start()
    try:
        MEMORY[name](m)
        assert tracemalloc.get_traced_memory()[1] < (64 << 20) // SMALLER
    finally:
        tracemalloc.stop()
