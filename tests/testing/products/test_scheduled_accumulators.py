"""Kernels whose accumulators follow a schedule, and faults of terms and roundings that such kernels have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.sums.accumulators import Accumulator
from fpsim.testing import check_kernel
from tests.kit.sweeps import in_turn

Array = Any
FMA = fp.FusedMultiplyAdd(fp.FP32)
BF16_SUMS = fp.Sequential(fp.BF16)
PROMOTED = fp.schedules.cutlass_2xacc(32)
SHAPES = [(6, 5, 150), (4, 4, 33), (3, 3, 1)]


def promoted(how: Accumulator, interval: int) -> Callable[[Array, Array], Array]:
    """Return a kernel that adds the sums of runs of K to a float32 total."""

    def kernel(a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(0, a.shape[1], interval):
            some = np.s_[start : start + interval]
            part = fp.matmul(np.ascontiguousarray(a[:, some]), np.ascontiguousarray(b[some]), accumulate=how)
            total = total + part.astype(np.float32)
        return total

    return kernel


def in_two(first: int) -> Callable[[Array, Array], Array]:
    """Return a kernel that adds the float32 sums of the first terms of K and of the others."""

    def kernel(a: Array, b: Array) -> Array:
        parts = [(a[:, some], b[some]) for some in (np.s_[:first], np.s_[first:])]
        sums = [fp.matmul(*map(np.ascontiguousarray, part), accumulate=FMA) for part in parts]
        return np.asarray(sums[0] + sums[1])

    return kernel


def report(kernel: Any, **promise: Any) -> Any:
    how = {"a": "bf16", "accumulate": BF16_SUMS, "shapes": SHAPES, "certificate": False, "raises": False, **promise}
    return check_kernel(kernel, **how)


def test_an_accumulator_with_a_schedule_passes_and_leaves_few_rivals() -> None:
    checked = report(promoted(BF16_SUMS, 32), schedule=PROMOTED, certificate=True)
    assert checked.ok
    assert checked.excluded > 1000
    assert "adds as Sequential(BF16)" not in checked.rivals


@in_turn("fault", ["another interval", "no promotion", "wider sums"])
def test_another_addition_than_the_scheduled_accumulators_is_named(fault: str) -> None:
    kernel, cause = {
        "another interval": (promoted(BF16_SUMS, 64), "adds as Sequential(BF16) by cutlass_2xacc(64)"),
        "no promotion": (
            lambda a, b: fp.matmul(a, b, accumulate=BF16_SUMS).astype(np.float32), "adds as Sequential(BF16)"),
        "wider sums": (promoted(fp.Sequential(fp.FP32), 32), "adds as Chunked(FP32, chunk=32)"),
    }[fault]  # fmt: skip
    assert report(kernel, schedule=PROMOTED).causes == (cause,)


def test_the_order_that_a_library_of_processors_chooses_for_a_shape_can_be_promised() -> None:
    shape = 6, 5, 500
    chosen = fp.schedules.mkl().at(*shape, "fp32")
    how = {"a": "fp32", "accumulate": chosen.accumulate, "schedule": chosen.schedule}
    assert report(lambda a, b: fp.matmul(a, b, schedule=fp.schedules.mkl()), **how, shapes=[shape]).ok
    assert report(in_two(250), **how, shapes=None).ok  # K is that of the schedule
    assert not report(in_two(125), **how, shapes=None).ok


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accumulate": fp.Sequential(fp.FP64)}, "which does not hold those of Sequential(FP64)"),
        ({"envelope": True}, "envelope=True takes an accumulator without a schedule; got cutlass_2xacc(32)"),
        ({"schedule": fp.schedules.mkl()}, "schedule must be that of one shape here; got mkl()"),
    ],
)
def test_what_an_accumulator_cannot_follow_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        report(promoted(BF16_SUMS, 32), **{"schedule": PROMOTED, **changes})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- faults of terms and roundings


def without_first(a: Array, b: Array) -> Array:
    some = np.s_[1:] if a.shape[1] > 1 else np.s_[:]
    return fp.matmul(np.ascontiguousarray(a[:, some]), np.ascontiguousarray(b[some]), accumulate="hopper_e4m3_f32")


def test_a_dropped_first_term_that_moves_the_steps_is_named() -> None:
    checked = report(without_first, a="e4m3", accumulate="hopper_e4m3_f32", shapes=[(6, 5, 150), (3, 3, 1)])
    assert checked.causes == ("drops the first term, and counts steps from the next one",)


def test_separate_products_and_sums_rounded_toward_zero_are_named() -> None:
    toward_zero = fp.Sequential(fp.FP32, rounding="toward_zero")
    checked = report(lambda a, b: fp.matmul(a, b, accumulate=toward_zero), accumulate=fp.Sequential(fp.FP32))
    assert checked.causes == ("adds as Sequential(FP32, rounding='toward_zero')",)


def test_a_size_that_no_right_product_has_is_named_before_one_that_some_have() -> None:
    def kernel(a: Array, b: Array) -> Array:
        right = fp.matmul(a, b, accumulate="hopper_e4m3_f32")
        return np.zeros_like(right) if a.shape[1] == 1 else right

    shapes = [(5, 7, k) for k in (32, 1, 31, 33)] + [(6, 7, 31)]
    checked = report(kernel, a="e4m3", accumulate="hopper_e4m3_f32", shapes=shapes)
    assert "only where K is 1" in str(checked)


def test_a_kernel_that_takes_few_shapes_is_told_to_name_them() -> None:
    def kernel(a: Array, b: Array) -> Array:
        if a.shape[1] % 16:
            raise ValueError("K must be a multiple of 16")
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32")

    checked = report(kernel, a="e4m3", accumulate="hopper_e4m3_f32", shapes=None)
    assert "pass them as shapes=[(M, N, K), ...]" in checked.broken[0]
    assert report(kernel, a="e4m3", accumulate="hopper_e4m3_f32", shapes=[(4, 4, 48)]).ok
