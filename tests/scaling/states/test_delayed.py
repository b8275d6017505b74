"""Delayed scaling: Transformer Engine's rule, stated again a scalar at a time, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.arguments import element_options_of
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.steps import EncodingStep, encode_with_factors
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import sweep
from tests.oracles.tiling import tiles
from tests.scaling.states.steps import LARGEST, f32, tensors

Array = npt.NDArray[Any]


class Reference:
    """One tensor: amax_and_scale_update of delayed_scaling.cu, a scalar at a time."""

    def __init__(self, history: int, algorithm: str, margin: int, largest: float, *, bulk: bool = False) -> None:
        self.history = [f32(0)] * history
        self.scale = f32(1)
        self.algorithm = algorithm
        self.bulk = bulk  # kernel_bulk: a step without an amax does not roll
        self.scaled_max = f32(largest) * f32(2) ** f32(-margin)

    def observe(self, x: Array) -> None:
        """What the cast of a tensor leaves behind, and the update after it."""
        last = f32(0)
        for magnitude in np.abs(x).ravel():
            last = np.fmax(last, f32(magnitude))
        if last == 0 and self.bulk:
            return
        rolled = [*self.history[1:], last]
        amax = f32(0)
        for entry in rolled:
            amax = np.fmax(amax, entry)
        self.history = [f32(0), *rolled[1:]]
        if self.algorithm == "most_recent":
            amax = last
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                self.scale = self.scaled_max / amax
            if np.isinf(self.scale):
                self.scale = LARGEST

    def codes(self, x: Array, fmt: fp.Format) -> Array:
        """x * scale cast as hardware casts with saturation."""
        with np.errstate(all="ignore"):
            scaled = x * self.scale
            limit = f32(fmt.max)
            # a comparison leaves NaN as it is
            clipped = np.where(scaled > limit, limit, np.where(scaled < -limit, -limit, scaled))
            codes: Array = clipped.astype(f32).astype(fmt.dtype).view(np.uint8)
        return codes


@pytest.mark.parametrize("bulk", [False, True])
@sweep("steps", 90, 300)
@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2])
@pytest.mark.parametrize(("history", "algorithm", "margin"), [
    (1, "max", 0), (2, "max", 0), (3, "most_recent", 1), (1, "most_recent", -2), (16, "max", 3), (1024, "max", 0),
])  # fmt: skip
def test_delayed_scaling_is_transformer_engines(
    fmt: fp.Format, history: int, algorithm: str, margin: int, bulk: bool, steps: int
) -> None:
    zero_amax = "skip" if bulk else "roll"
    state = DelayedScaling(fmt, history=history, amax=algorithm, margin=margin, zero_amax=zero_amax)
    want = Reference(history, algorithm, margin, fmt.max, bulk=bulk)
    for x in tensors(steps if history < 1024 else 60):
        scale = want.scale
        codes = want.codes(x, fmt)
        want.observe(x)
        q = state.encode(x)
        assert_bits_equal(q.codes, codes)
        assert_bits_equal(q.scales, np.full((1, 1), f32(1) / scale, np.float32))
        assert state.scales is not None
        assert state.amax_history is not None
        assert_bits_equal(state.scales, np.full((1, 1), f32(1) / want.scale, np.float32))
        assert_bits_equal(state.amax_history[:, 0, 0], np.array(want.history, np.float32))


def test_every_tile_has_a_history_of_its_own() -> None:
    scaling = fp.scalings.TILE_1X128.replace(block=(2, 4))
    state = DelayedScaling(fp.E4M3, scaling, history=3)
    wanted = {index: Reference(3, "max", 0, 448) for index, _ in tiles.tiles((5, 10), (2, 4))}
    for x in tensors(80, (5, 10)):
        q = state.encode(x)
        for index, place in tiles.tiles((5, 10), (2, 4)):
            assert_bits_equal(q.codes[place], wanted[index].codes(x[place], fp.E4M3))
            wanted[index].observe(x[place])
        assert_bits_equal(
            state.state_dict()["encode_scales"], np.array([want.scale for want in wanted.values()]).reshape(3, 3)
        )


def test_the_published_defaults_keep_a_peak_for_1024_steps() -> None:
    state = DelayedScaling(fp.E4M3)
    assert (state.history, state.amax, state.margin) == (1024, "max", 0)
    used = [state.encode(f32([100 if step == 0 else 1])).scales.item() for step in range(1026)]
    assert used[0] == 1
    assert set(used[1:1025]) == {float(f32(1) / (f32(448) / f32(100)))}
    assert used[1025] == float(f32(1) / f32(448))


def test_an_infinite_amax_keeps_the_scale_while_the_history_holds_it() -> None:
    state = DelayedScaling(fp.E4M3, history=4)
    used = [state.encode(f32([np.inf if step == 1 else step + 1])).scales.item() for step in range(8)]
    first, third = (float(f32(1) / (f32(448) / f32(amax))) for amax in (1, 6))
    # steps 1 to 4 are updated with Inf in the history, step 5 is the first without
    assert used[1:6] == [first] * 5
    assert used[6] == third


def test_an_amax_too_small_for_its_scale_gives_the_largest_float() -> None:
    state = DelayedScaling(fp.E4M3)
    tiny = f32([2**-140, -(2**-149)])
    state.encode(tiny)
    assert state.state_dict()["encode_scales"] == LARGEST
    assert_bits_equal(state.encode(tiny).codes, fp.encode(tiny * LARGEST, fp.E4M3))


def test_a_zero_tensor_rolls_or_is_skipped() -> None:
    for word, after in (("roll", 1.0), ("skip", 4.0)):
        state = DelayedScaling(fp.E4M3, history=2, zero_amax=word)
        for amax in (4, 0, 1):
            state.encode(f32([amax]))
        assert state.state_dict()["encode_scales"].item() == 448 / after


def test_delayed_scaling_saturates_unless_told_otherwise() -> None:
    state = DelayedScaling(fp.E4M3)
    x = f32([1000, -np.inf, np.nan])
    assert state.encode(x).codes.tolist() == [0x7E, 0xFE, 0x7F]
    assert DelayedScaling(fp.E4M3).encode(x, overflow="nonfinite").codes.tolist() == [0x7F, 0xFF, 0x7F]


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16, ">f4"])
def test_delayed_scaling_takes_every_dtype(dtype: Any) -> None:
    state, wide = DelayedScaling("e4m3"), DelayedScaling("e4m3")
    for x in tensors(30):
        narrow = np.clip(x, -6e4, 6e4).astype(dtype)
        exact = narrow.astype(np.float32) if narrow.dtype != np.float64 else narrow
        q = state.encode(narrow)
        factor = wide.state_dict().get("encode_scales", f32(1))
        assert_bits_equal(q.codes, fp.encode(exact * factor.astype(exact.dtype), "e4m3", overflow="saturate"))
        wide.encode(exact.astype(np.float32))
        assert_bits_equal(state.state_dict()["encode_scales"], wide.state_dict()["encode_scales"])
        assert state.last == ScaleCounts(**{**wide.last.to_dict(), "underflowed": state.last.underflowed})


def test_factors_need_not_be_inverse_scales() -> None:
    x = np.random.default_rng(0).standard_normal((4, 200)).astype(np.float32)
    scales = f32([[0.5], [3], [7], [1]])
    factors = f32([[1], [2], [0.1], [1e3]])
    scaling = fp.scalings.ROW.replace(division="multiply")
    options = element_options_of(fp.E4M3, scaling, {"overflow": "saturate"})
    step = EncodingStep(x, fp.FP32, fp.E4M3, scaling, options, {"overflow": "saturate"})
    q = encode_with_factors(step, fp.scalings.ROW, scales, factors, back=False)
    assert_bits_equal(encode_with_factors(step, fp.scalings.ROW, scales, factors, back=True), q.decode())
    assert_bits_equal(q.codes, fp.encode(x * factors, "e4m3", overflow="saturate"))
    assert_bits_equal(q.scales, scales)
