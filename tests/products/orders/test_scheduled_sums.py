"""Schedules whose partial sums an accumulator adds: terms of K by the accumulator, totals and slices in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.arrays import Array
from fpsim.sums.accumulators import Accumulator
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

s = fp.schedules
rng = np.random.default_rng(7)
A, B = (rng.standard_normal(shape).astype(np.float16) for shape in ((9, 150), (150, 11)))
HOW: list[Accumulator] = [
    fp.Sequential(fp.BF16), fp.Sequential(fp.FP32), fp.Sequential(fp.FP16, rounding="toward_zero"),
    fp.Chunked(fp.BF16, chunk=16, outer=fp.FP32), fp.FusedMultiplyAdd(fp.FP16), fp.Pairwise(fp.BF16), fp.Exact(fp.FP32),
]  # fmt: skip


def part(how: Accumulator, terms: list[int] | slice) -> Array:
    """Return the accumulator's sums of some terms of K, as float32."""
    sums = fp.matmul(np.ascontiguousarray(A[:, terms]), np.ascontiguousarray(B[terms]), accumulate=how)
    return sums.astype(np.float32)


def spans(length: int) -> list[slice]:
    return [slice(start, min(start + length, 150)) for start in range(0, 150, length)]


def added(parts: list[Array]) -> Array:
    return reduce(np.add, parts)


@in_turn("how", HOW)
def test_partial_sums_are_the_accumulators_and_totals_are_float32(how: Accumulator) -> None:
    zero = np.zeros((9, 11), np.float32)
    lanes = [[*range(lane, 148, 4), *([148, 149] if lane == 0 else [])] for lane in range(4)]
    pairs = [k for i in range(0, 150, 2) for k in (i + 1, i)]
    for schedule, want in (
        (s.FLAT, part(how, slice(0, 150))),
        (s.segments(64, 80, 6), added([part(how, slice(*at)) for at in ((0, 64), (64, 144), (144, 150))])),
        (s.segments(150, odd_first=True), part(how, pairs)),
        (s.rounds(4), added([part(how, lane) for lane in lanes])),
        (s.cutlass_2xacc(32), added([zero, *(part(how, span) for span in spans(32))])),
    ):
        got = fp.matmul(A, B, accumulate=how, schedule=schedule)
        assert_bits_equal(got, want)
        assert_bits_equal(fp.matmul(A, B, accumulate=how, schedule=schedule, out_fmt="bf16"), fp.cast(want, fp.BF16))


def test_libraries_schedules_take_accumulators_where_they_are_not_strict() -> None:
    how = fp.Sequential(fp.BF16)
    split = s.cublas("sm_90", split_k=3)
    with pytest.raises(ValueError, match=r"got Sequential\(BF16\)\. strict=False computes it all the same"):
        fp.matmul(A, B, accumulate=how, schedule=split)
    with pytest.warns(UserWarning, match="cuBLAS takes nvjet for row-major operands where K and N are multiples of 8"):
        got = fp.matmul(A, B, accumulate=how, schedule=split, strict=False)
    assert_bits_equal(got, added([part(how, span) for span in spans(64)]))


def test_scales_alpha_and_bias_follow_as_for_a_unit() -> None:
    how, bias = fp.Chunked(fp.FP16, chunk=10), np.linspace(-1, 1, 11, dtype=np.float32)
    sums = part(how, slice(0, 75)) + part(how, slice(75, 150))
    got = fp.matmul(A, B, accumulate=how, schedule=s.segments(75, 75), alpha=0.3, bias=bias)
    assert_bits_equal(got, np.float32(0.3) * sums + bias)


def test_scales_of_blocks_multiply_the_accumulators_sums() -> None:
    a, b = fp.cast(A, fp.E4M3), fp.cast(B, fp.E4M3)
    rows, columns = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in ((9, 2), (2, 11)))
    how = fp.Sequential(fp.FP32)
    total = np.zeros((9, 11), np.float32)
    for i, terms in enumerate((slice(0, 128), slice(128, 150))):
        sums = fp.matmul(np.ascontiguousarray(a[:, terms]), b[terms], accumulate=how)
        total = total + np.multiply(rows[:, i, None] * columns[None, i], sums)
    got = fp.matmul(
        a, b, accumulate=how, schedule=s.deepgemm(fused=False), scale_a=rows, scale_b=columns, strict=False
    )  # fmt: skip
    assert_bits_equal(got, total)


@in_turn(
    "call, words",
    [
        (lambda: fp.matmul(A, B, accumulate=fp.Sequential(fp.FP64), schedule=s.rounds(4)), "does not hold those of"),
        (
            lambda: fp.matmul(A, B, accumulate=fp.Sequential("bf16", rounding="stochastic", seed=1), schedule=s.FLAT),
            "without random numbers; got Sequential(BF16, rounding='stochastic', seed=1)",
        ),
        (
            lambda: fp.matmul(A, B, np.zeros((9, 11)), accumulate=fp.Sequential("bf16"), schedule=s.FLAT),
            "start at +0, so that c has no place",
        ),
        (
            lambda: fp.matmul(A[:1], B, accumulate=fp.Sequential("bf16"), strict=False,
                              schedule=s.cublas("sm_90", family="gemv", option=10)),
            "a schedule of lanes adds by float32 fused multiply-adds; got accumulate=Sequential(BF16)",
        ),
        (
            lambda: fp.matmul(A, B, accumulate=fp.Sequential("bf16"), promote=32),
            "promote is for matrix units; an accumulator rounds every sum",
        ),
    ],
)  # fmt: skip
def test_what_an_accumulator_cannot_add_is_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_exact_sums_of_64_terms_are_rounded_once_and_added_as_in_amx_fp8() -> None:
    a, b = (fp.cast(rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape), fmt)
            for shape, fmt in (((3, 200), fp.E4M3), ((200, 4), fp.E5M2)))  # fmt: skip
    got = fp.matmul(a, b, accumulate=fp.Exact(fp.FP32), schedule=s.cutlass_2xacc(64))
    x, y = a.astype(np.float64) * 2.0**9, b.astype(np.float64) * 2.0**16  # integers
    want = np.zeros((3, 4), np.float32)
    for start in range(0, 200, 64):
        left, right = (
            part.astype(np.int64).astype(object) for part in (x[:, start : start + 64], y[start : start + 64])
        )
        want += (left @ right).astype(np.float64).astype(np.float32) * np.float32(2.0**-25)  # below 2**53, so exact
    assert_bits_equal(got, want)


def test_sums_in_pairs_round_their_terms_in_every_order() -> None:
    """R(term) flushes subnormals of the sum's own format, and takes terms beyond float32."""
    codes = np.array([1, 2, 64], np.uint8)  # two subnormals, and 2
    for rounding in ("nearest_even", "up"):
        how = fp.Pairwise("e4m3", subnormals="flush", rounding=rounding)
        for order in (((0, 1), 2), (0, (1, 2)), ((0, 2), 1)):
            tree = fp.schedules.tree(order, accumulate=how)
            assert int(fp.sum(codes, accumulate=tree, fmt="e4m3").view(np.uint8)) == 64, (how, order)
    tiny = fp.Format("tiny", 4, 3, bias=1022)
    tree = fp.schedules.tree((0, (1, 2)), accumulate=fp.Pairwise("bf16", rounding="up"))
    assert float(fp.sum(codes, accumulate=tree, fmt=tiny)) == 3 * fp.BF16.smallest_subnormal
