"""Rounding by the processor's addition gives the codes of the integer body, which serves every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given

import fpsim as fp
from fpsim.casts.loops import encode_kernel
from fpsim.casts.pipelines import LARGE
from fpsim.core import nearest
from fpsim.core.layouts import EncodePlan, encode_plan
from fpsim.formats.named import NAMED
from fpsim.formats.rounding import Rounding
from fpsim.testing import assert_bits_equal, strategies
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
EVEN = Rounding.NEAREST_EVEN
STEP = 1 << 24  # patterns compared at a time


def plan_of(fmt: fp.Format, overflow: str = "nonfinite", subnormals: str = "keep") -> EncodePlan:
    return encode_plan(fmt, 32, EVEN, overflow, subnormals, 32)


def is_served(fmt: fp.Format) -> bool:
    if fmt.bits > 16:
        return False
    plan = plan_of(fmt)
    return nearest.serves(32, int(EVEN), plan.kind, plan.frozen)


SERVED = [fmt for fmt in NAMED.values() if is_served(fmt)]


def assert_both_agree(patterns: Array, fmt: fp.Format, plan: EncodePlan) -> None:
    found, want = np.empty((2, patterns.size), fmt.storage)
    encode_kernel(32, int(EVEN), plan.kind, by_sum=True)(patterns, found, plan.layout)
    encode_kernel(32, int(EVEN), plan.kind)(patterns, want, plan.layout)
    assert_bits_equal(found, want)


def hard_patterns(fmt: fp.Format) -> Array:
    """Every value and midpoint with its neighbours, both signs, and every 65,521st float32."""
    magnitudes = np.unique(np.abs(fmt.table()[: 1 << 16]))
    magnitudes = magnitudes[np.isfinite(magnitudes)]
    beyond = 2 * magnitudes[-1] - magnitudes[-2]
    values = np.append(magnitudes, beyond)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32).view(np.uint32)
    near = np.concatenate([points, points + np.uint32(1), points[points > 0] - np.uint32(1)])
    special = np.array([0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 1, 0x007FFFFF, 0x00800000])
    both = np.concatenate([near, special.astype(np.uint32)])
    return np.concatenate([both, both | np.uint32(1 << 31), np.arange(0, 1 << 32, 65_521).astype(np.uint32)])


def test_every_small_named_format_with_float32_room_is_served() -> None:
    assert {"E4M3", "E5M2", "FP16", "E2M1", "E2M3", "E3M2", "E4M3FNUZ"} <= {fmt.name for fmt in SERVED}
    for fmt in (fp.BF16, fp.E8M0):  # sums would leave float32's range; no sign and no zero
        plan = plan_of(fmt)
        assert not nearest.serves(32, int(EVEN), plan.kind, plan.frozen)
    plan = plan_of(fp.E4M3)
    assert not nearest.serves(32, int(Rounding.UP), plan.kind, plan.frozen)
    assert not nearest.serves(64, int(EVEN), plan.kind, plan.frozen)


@in_turn("fmt", SERVED)
def test_both_agree_on_every_value_midpoint_and_neighbour(fmt: fp.Format) -> None:
    patterns = hard_patterns(fmt)
    for overflow in ("nonfinite", "saturate", "saturate_finite"):
        for subnormals in ("keep", "flush"):
            assert_both_agree(patterns, fmt, plan_of(fmt, overflow, subnormals))


@given(strategies.formats())
def test_both_agree_whatever_the_format(fmt: fp.Format) -> None:
    assume(is_served(fmt))
    assert_both_agree(hard_patterns(fmt), fmt, plan_of(fmt))


def test_long_arrays_of_a_named_format_have_the_bits_of_short_ones() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, LARGE * 2, dtype=np.uint32).view(np.float32)
    codes, values = fp.encode(x, fp.E4M3, out=np.empty(x.shape, np.uint8)), fp.quantize(x, fp.E4M3)
    for start in range(0, x.size, 1 << 20):
        piece = x[start : start + (1 << 20)]
        assert_bits_equal(codes[start : start + piece.size], fp.encode(piece, fp.E4M3))
        assert_bits_equal(values[start : start + piece.size], fp.quantize(piece, fp.E4M3))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", SERVED, ids=str)
def test_both_agree_on_all_float32_patterns(fmt: fp.Format) -> None:
    plan = plan_of(fmt)
    for start in range(0, 1 << 32, STEP):
        assert_both_agree(np.arange(start, start + STEP, dtype=np.uint64).astype(np.uint32), fmt, plan)
