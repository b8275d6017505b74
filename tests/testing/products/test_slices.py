"""Kernels that cut K into other slices than promised, or merge their sums in another order, are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = Any
UNIT = "hopper_bf16_f32"
PROMISE: dict[str, Any] = {"a": "bf16", "accumulate": UNIT}
TWO = {**PROMISE, "schedule": fp.schedules.cublas("sm_90", split_k=2)}
FOUR = {**PROMISE, "schedule": fp.schedules.cublas("sm_90", split_k=4)}

pytestmark = pytest.mark.filterwarnings("ignore:cuBLAS takes")


def split(ends: Callable[[int], list[int]], merge: Callable[[list[Array]], Array]) -> Callable[[Array, Array], Array]:
    """Return a kernel that adds slices of K, each by one chain of instructions, with their ends but the last given."""

    def kernel(a: Array, b: Array) -> Array:
        cuts = sorted({0, *(min(end, a.shape[1]) for end in ends(a.shape[1])), a.shape[1]})
        parts = [
            fp.matmul(
                np.ascontiguousarray(a[:, start:end]), np.ascontiguousarray(b[start:end]), accumulate=UNIT,
            ).astype(np.float32)
            for start, end in pairwise(cuts)
        ]  # fmt: skip
        return merge(parts)

    return kernel


def forward(parts: list[Array]) -> Array:
    return reduce(np.add, parts)


def reverse(parts: list[Array]) -> Array:
    return reduce(np.add, parts[::-1])


def in_pairs(parts: list[Array]) -> Array:
    while len(parts) > 1:
        parts = [reduce(np.add, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def whole(count: int, grain: int) -> Callable[[int], list[int]]:
    def ends(k: int) -> list[int]:
        terms = math.ceil(math.ceil(k / count) / grain) * grain
        return [i * terms for i in range(1, count)]

    return ends


def halves_of_halves(k: int) -> list[int]:
    ends = [0, k]
    for _ in range(3):
        ends = sorted([*ends, *((start + end) // 2 for start, end in pairwise(ends))])
    return ends


KERNELS: dict[str, tuple[Callable[[Array, Array], Array], dict[str, Any], str]] = {
    "reversed merges": (split(whole(4, 64), reverse), FOUR, "4 slices of K in multiples of 64 by {}, joined from the "
                        "last to the first in FP32"),
    "reversed merges of three": (split(whole(3, 16), reverse), PROMISE, "3 slices of K in multiples of 16 by {}, "
                                 "joined from the last to the first in FP32"),
    "halves": (split(lambda k: [k // 2], forward), TWO, "2 slices of K (the last ones longer) by {}, joined in FP32"),
    "halves of whole steps": (split(lambda k: [k // 2 // 16 * 16], forward), PROMISE, "2 slices of K (the last ones "
                              "longer) in multiples of 16 by {}, joined in FP32"),
    "halves, rounded up": (split(lambda k: [-(-(k // 2) // 32) * 32], forward), PROMISE, "2 slices of K (of equal "
                           "length, rounded up) in multiples of 32 by {}, joined in FP32"),
    "halves of halves": (split(halves_of_halves, in_pairs), PROMISE, "8 slices of K (halved again and again) by {}, "
                         "joined in pairs in FP32"),
    "merges in pairs": (split(whole(4, 32), in_pairs), PROMISE, "4 slices of K in multiples of 32 by {}, joined in "
                        "pairs in FP32"),
}  # fmt: skip


@in_turn("name", KERNELS, some=["reversed merges of three", "halves, rounded up", "halves of halves"])
def test_slices_and_their_merges_are_named(name: str) -> None:
    kernel, promise, words = KERNELS[name]
    report = fp.testing.check_kernel(kernel, **promise, certificate=False, raises=False)
    assert report.causes == (f"adds as {words.format(UNIT + ' in one chain')}",), report
    assert report.unexplained == 0


def test_merges_in_bf16_results_are_named_too() -> None:
    kernel = split(whole(4, 64), reverse)
    report = fp.testing.check_kernel(
        lambda a, b: kernel(a, b).astype(ml_dtypes.bfloat16), **FOUR, out_fmt="bf16", certificate=False, raises=False
    )
    assert "joined from the last to the first in FP32" in report.causes[0]
    assert report.unexplained == 0
