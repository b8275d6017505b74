"""Rows of a group have the bits of a product of their own, by the group's matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.products.stacks.test_batched import codes

Array = npt.NDArray[Any]
f32 = np.float32
UNIT = "hopper_e4m3_f32"
SIZES = (3, 0, 130, 1)
BOUNDS = ((0, 3), (3, 3), (3, 133), (133, 134))


def in_groups(a: Array, b: Array, **words: Any) -> Array:
    """Return the products of all groups that have rows, one call for each."""
    return np.concatenate([fp.matmul(a[i:j], b[g], **words) for g, (i, j) in enumerate(BOUNDS) if i < j])


@in_turn("words", [
    {"accumulate": UNIT}, {"accumulate": UNIT, "promote": 64, "out_fmt": "bf16"},
    {"accumulate": UNIT, "schedule": fp.schedules.cutlass_2xacc(128), "bias": np.arange(20, dtype=f32), "alpha": 0.5},
    {"accumulate": fp.Sequential(fp.FP16), "fmt": fp.E4M3}, {"accumulate": "cdna1_f16_f32"},
])  # fmt: skip
def test_groups_have_the_bits_of_their_own_products(words: dict[str, Any]) -> None:
    fmt = fp.FP16 if words["accumulate"] == "cdna1_f16_f32" else fp.E4M3
    a, b = codes((134, 96), fmt), codes((4, 96, 20), fmt, 1)
    assert_bits_equal(fp.grouped_matmul(a, b, SIZES, **words), in_groups(a, b, **words))


def test_scales_go_with_their_rows_and_groups() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((134, 256)).astype(f32), rng.standard_normal((4, 256, 8)).astype(f32)
    a = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    b = fp.encode_scaled(y, fp.E4M3, fp.scalings.BLOCK_128X128)
    words: dict[str, Any] = {"accumulate": UNIT, "schedule": fp.schedules.deepgemm()}
    got = fp.grouped_matmul(a, b, SIZES, **words)
    want = [
        fp.matmul(a.codes[i:j], b.codes[g], scale_a=a.scales[i:j], scale_b=b.scales[g], **words)
        for g, (i, j) in enumerate(BOUNDS) if i < j
    ]  # fmt: skip
    assert_bits_equal(got, np.concatenate(want))
    passed = fp.grouped_matmul(a.codes, b.codes, SIZES, scale_a=a.scales, scale_b=b.scales, **words)
    assert_bits_equal(passed, got)
    whole = fp.encode_scaled(x, fp.E4M3, fp.scalings.TENSOR)
    got = fp.grouped_matmul(whole, b.codes, SIZES, accumulate=UNIT)
    assert_bits_equal(got, fp.grouped_matmul(whole.codes, b.codes, SIZES, accumulate=UNIT, scale_a=whole.scales[0, 0]))


def test_no_rows_are_a_result_too() -> None:
    got = fp.grouped_matmul(codes((0, 32), fp.E4M3), codes((2, 32, 5), fp.E4M3), [0, 0], accumulate=UNIT)
    assert got.shape == (0, 5)
    assert got.dtype == f32


A, B = np.zeros((5, 32), np.uint8), np.zeros((2, 32, 3), np.uint8)
BLOCKS = fp.encode_scaled(np.ones((256, 128), f32), fp.E4M3, fp.scalings.BLOCK_128X128)


def grouped(a: Any = A, b: Any = B, sizes: Any = (3, 2), **words: Any) -> Array:
    """Return a grouped product that is right but for what a case changes."""
    return fp.grouped_matmul(a, b, sizes, **{"accumulate": UNIT, **words})


@in_turn(
    "call, words",
    [
        (lambda: grouped(sizes=(3, 3)), r"group_sizes must add up to the 5 rows of a; got 6 rows"),
        (lambda: grouped(sizes=(3, 1)), r"group_sizes must add up to the 5 rows of a; got 4 rows"),
        (lambda: grouped(sizes=(6, -1)), r"group_sizes must be 0 or more; got -1"),
        (lambda: grouped(sizes=(5,)), r"one number for each of the 2 matrices of b; got shape \(1,\)"),
        (lambda: grouped(sizes=(2.5, 2.5)), r"group_sizes must be integers.*got float64"),
        (lambda: grouped(a=A[0]), r"a must have two axes, \(M, K\); got shape \(32,\)"),
        (lambda: grouped(b=B[0]), r"b must have three axes, \(groups, K, N\); got shape \(32, 3\)"),
        (lambda: grouped(b=B[:0], a=A[:0], sizes=()), r"b must have a matrix for one group or more"),
        (lambda: grouped(b=B[:, :16]), r"must agree in K"),
        (lambda: grouped(accumulate=fp.Sequential("fp16", rounding="stochastic", seed=1), fmt="e4m3"), "random words"),
        (lambda: grouped(BLOCKS, np.zeros((2, 128, 3), np.uint8), (100, 156)), r"tiles of one row, or of all rows"),
    ],
)
def test_bad_groups_get_one_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
