"""Recalibration and online scales: those of fp.encode_scaled at some steps, or at every one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.scaling.states.steps import f32, tensors

Array = npt.NDArray[Any]


@pytest.mark.parametrize("name", ["TENSOR", "TE_TENSOR", "TILE_1X128", "MX", "NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"])
def test_periodic_scales_are_those_of_encode_scaled(name: str) -> None:
    scaling = getattr(fp.scalings, name)
    state = PeriodicScaling(fp.E2M1, scaling, every=3)
    got = np.empty(0)
    for step, x in enumerate(tensors(10, (4, 70))):
        q = state.encode(x)
        if step % 3 == 0:
            want = fp.encode_scaled(x, fp.E2M1, scaling)
            got = want.scales
        else:
            want = fp.encode_scaled(x, fp.E2M1, scaling, scales=got)
        assert_bits_equal(q.codes, want.codes)
        assert_bits_equal(q.scales, want.scales)
        assert state.last.recalibrations == (step % 3 == 0)
        assert state.scales is not None
        assert_bits_equal(state.scales, got)


@in_turn("back", [False, True])
@in_turn("nan", ["tile", "element"])
@in_turn("name", ["TENSOR", "TILE_1X128", "TE_TENSOR"])
def test_a_nan_between_recalibrations_spoils_its_tile_and_no_later_step(name: str, nan: str, back: bool) -> None:
    scaling = getattr(fp.scalings, name).replace(nan=nan)
    clean = np.arange(1, 201, dtype=np.float32).reshape(1, 200)
    spoilt = clean.copy()
    spoilt[0, 150], spoilt[0, 160], spoilt[0, 1] = np.nan, 1e6, 1e-9
    state = PeriodicScaling("int8", scaling, every=3)
    run = state.quantize if back else lambda x: state.encode(x).decode()
    want = run(clean)
    scales = state.scales
    got = run(spoilt)
    lost = np.zeros((1, 200), bool)
    if nan == "tile":
        lost[0, 128 if name == "TILE_1X128" else 0 :] = True
    else:
        lost[0, 150] = False
        assert got[0, 150] == got[0, 160] == 127 * (scales.ravel()[-1] if scales is not None else 0)
    assert np.isnan(got[lost]).all()
    assert np.isfinite(got[~lost]).all()
    # what a NaN spoilt is neither saturated nor underflowed
    assert (state.last.saturated, state.last.underflowed) == (int(not lost[0, 160]), int(not lost[0, 1]))
    assert_bits_equal(run(clean), want)


@in_turn("back", [False, True])
@in_turn("fmt", ["e4m3", "e2m1", "int8"])
@in_turn("name", ["DEEPGEMM_1X128", "TORCHAO_TENSOR"])
def test_an_infinite_scale_spoils_its_tile_until_the_next_recalibration(name: str, fmt: str, back: bool) -> None:
    clean = np.arange(1, 201, dtype=np.float32).reshape(1, 200)
    infinite = clean.copy()
    infinite[0, 3] = np.inf
    state = PeriodicScaling(fmt, getattr(fp.scalings, name), every=3)
    run = state.quantize if back else lambda x: state.encode(x).decode()
    run(infinite)
    lost = np.arange(200) < (128 if name == "DEEPGEMM_1X128" else 200)
    for _ in range(2):
        assert_bits_equal(np.isnan(run(clean))[0], lost)
        assert (state.last.saturated, state.last.underflowed) == (0, 0)
    assert_bits_equal(run(clean), fp.quantize_scaled(clean, fmt, getattr(fp.scalings, name)))


def saturated_by_growth(every: int, growth: float, steps: int) -> tuple[list[int], list[int]]:
    """(counts of the state, counts of a plain loop) for numbers that grow from step to step."""
    x = np.random.default_rng(3).standard_normal(400)
    state = PeriodicScaling(fp.E4M3, every=every)
    got, want = [], []
    scale = f32(0)
    for step in range(steps):
        now = (x * (1 + growth) ** step).astype(np.float32)
        state.encode(now)
        got.append(state.last.saturated)
        if step % every == 0:
            scale = np.abs(now).max() / f32(448)
        want.append(int(np.count_nonzero(np.abs(now / scale) > 464)))  # 464 is a tie, and 448 has the even code
    return got, want


@pytest.mark.parametrize(("every", "growth"), [(1, 0.02), (16, 0.02), (1000, 0.002)])
def test_saturation_grows_with_the_age_of_a_scale(every: int, growth: float) -> None:
    got, want = saturated_by_growth(every, growth, 40 if every < 1000 else 1001)
    assert got == want
    youngest, oldest = got[0], got[every - 1]
    assert youngest == 0
    assert got[:every] == sorted(got[:every])
    assert (oldest > 0) == (every > 1)
    assert got[every] == 0


def test_online_steps_are_those_of_encode_scaled() -> None:
    state = OnlineScaling(fp.E4M3, fp.scalings.TILE_1X128)
    for shape in ((3, 200), (400,), (2, 2, 130)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        q, want = state.encode(x), fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
        assert_bits_equal(q.codes, want.codes)
        assert_bits_equal(q.scales, want.scales)
        assert q.report == want.report
    assert state.counts == ScaleCounts(elements=600 + 400 + 520, steps=3, recalibrations=3).merge(
        ScaleCounts(underflowed=state.counts.underflowed)
    )
