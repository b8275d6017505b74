"""Counts of saturated and underflowed elements: those of a plain count in a format with more room."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.runtime.threads import SMALLEST
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import scaling as so
from tests.scaling.states.steps import f32, kinds, tensors

Array = npt.NDArray[Any]


def brute_force(ratio: Array, x: Array, fmt: Any, codes: Array, **options: Any) -> tuple[int, int]:
    """(saturated, underflowed) of scaled elements, counted in a format with more room at the top."""
    like = fmt.magnitudes if isinstance(fmt, fp.IntegerFormat) else fmt
    extended = fp.Format(
        "more room", like.exponent_bits + 2, like.mantissa_bits, bias=like.bias, signed=like.signed,
        subnormals=like.subnormals,
    )  # fmt: skip
    if like.signed:
        values = fp.quantize(ratio.astype(np.float64), extended, **options)
        beyond = np.abs(values) > fmt.max
    else:
        signed = fp.Format("more room", like.exponent_bits + 2, like.mantissa_bits, bias=like.bias)
        values = fp.quantize(ratio.astype(np.float64), signed, **options)
        beyond = (values > fmt.max) | (values < 0)
    zero = codes == 0 if isinstance(fmt, fp.IntegerFormat) else fp.decode(codes, fmt, np.float64) == 0
    beyond |= np.isinf(x)
    underflow = zero & (x != 0) & ~np.isnan(x) & ~np.isnan(ratio) & ~beyond
    return int(np.count_nonzero(beyond)), int(np.count_nonzero(underflow))


def nasty(shape: tuple[int, ...] = (6, 150)) -> Array:
    """Numbers of every size, both zeros, NaN and Inf."""
    generator = np.random.default_rng(8)
    x = generator.standard_normal(shape) * 2.0 ** generator.integers(-20, 3, shape)
    x[0, :20] = [0, -0.0] * 10
    x[1, 3], x[1, 4], x[2, 5], x[2, 140] = np.nan, -np.nan, np.inf, -np.inf
    return x.astype(np.float32)


ROUNDINGS: list[dict[str, Any]] = [
    *({"rounding": mode} for mode in ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd")),
    {"rounding": "stochastic", "seed": 77},
    {"rounding": "stochastic", "seed": 77, "random_bits": 4},
]


@pytest.mark.parametrize("options", ROUNDINGS, ids=lambda options: "_".join(str(word) for word in options.values()))
def test_counts_are_those_of_a_plain_loop_in_every_mode(options: dict[str, Any]) -> None:
    x = nasty()
    for fmt in (fp.E4M3, fp.E2M1, fp.INT8):
        state = PeriodicScaling(fmt, fp.scalings.TENSOR.replace(nan="element"), every=2)
        state.encode(x / f32(9))
        assert state.scales is not None
        scale = state.scales.item()
        q = state.encode(x, **options)
        want = brute_force(x / f32(scale), x, fmt, q.codes, **options)
        assert (state.last.saturated, state.last.underflowed) == want
        assert want[0] > 0
        assert (want[1] > 0) == (options["rounding"] != "odd")  # which takes nothing to zero


@in_turn("overflow", sorted(fp.policies.OVERFLOWS))
@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.E2M1, fp.E4M3FNUZ, fp.INT8, fp.format("p3109_k8p4ue")])
def test_counts_do_not_depend_on_the_overflow_policy(fmt: Any, overflow: str) -> None:
    state = DelayedScaling(fmt, history=1, margin=-3)
    x = nasty()
    x[np.isinf(x)] = 4
    state.encode(x, overflow=overflow)
    factor = state.state_dict()["encode_scales"].item()
    x = nasty()
    q = state.encode(x, overflow=overflow)
    if overflow == "torch" and fmt == fp.E4M3:
        assert np.all(fp.decode(q.codes, fmt)[np.isinf(x)] == x[np.isinf(x)].clip(-448, 448))
    want = brute_force(x * f32(factor), x, fmt, q.codes)
    assert (state.last.saturated, state.last.underflowed) == want


@in_turn("subnormals", ["keep", "flush"])
@in_turn("name", [
    "TENSOR", "ROW", "COLUMN", "TILE_1X128", "TILE_128X1", "BLOCK_128X128", "MX", "NVFP4", "TE_TENSOR", "TE_1X128_FP32",
    "TE_MX", "TE_NVFP4", "TORCHAO_TENSOR", "TORCHAO_NVFP4", "DEEPGEMM_1X128",
])  # fmt: skip
def test_online_counts_are_those_of_the_oracle(name: str, subnormals: str) -> None:
    x, scaling = nasty(), getattr(fp.scalings, name)
    fmt = fp.E2M1 if scaling.tensor_scale else fp.E4M3
    for source in (x, x.astype(np.float64)) if name in ("TENSOR", "TE_TENSOR", "NVFP4") else (x,):
        state = OnlineScaling(fmt, scaling)
        q = state.encode(source, subnormals=subnormals)
        want = so.encode(source, fmt, scaling, subnormals=subnormals)
        got = (state.last.saturated, state.last.underflowed)
        assert got == brute_force(want.ratio, source, fmt, q.codes, subnormals=subnormals), source.dtype


def test_minus_zero_is_a_zero() -> None:
    state = DelayedScaling(fp.E4M3)
    q = state.encode(f32([-1e-9, 1e-9, -0.0, 0.0]))
    assert q.codes.tolist() == [0x80, 0, 0x80, 0]
    assert state.counts.underflowed == 2
    assert state.counts.underflow_rate == 0.5


@pytest.mark.parametrize("options", [{}, {"rounding": "stochastic", "seed": 3}])
def test_counts_add_up_over_threads_and_layouts(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((3 * SMALLEST // 1000, 1000)).astype(np.float32)
    scale = f32(x.max() / 448 / 2)
    codes = fp.encode(x / scale, fp.E4M3, overflow="saturate", **options)
    want = brute_force(x / scale, x, fp.E4M3, codes, **options)
    state = PeriodicScaling(fp.E4M3, fp.scalings.TENSOR)
    for layout in (x, x[:, ::-1].copy()[:, ::-1], np.asfortranarray(x), x.astype(">f4")):
        fields = state.state_dict()
        fields["scales"], fields["counts"] = np.full((1, 1), scale), np.array([1, 0, 0, 1, 1], np.int64)
        state.load_state_dict(fields)
        assert_bits_equal(state.encode(layout, **options).codes, codes)
        assert (state.last.saturated, state.last.underflowed) == want


def test_counts_merge_and_have_rates() -> None:
    some = ScaleCounts(elements=4, saturated=1, underflowed=2, steps=1, recalibrations=1)
    assert some.merge(ScaleCounts()) == some
    assert some.merge(some).to_dict() == {
        "elements": 8, "saturated": 2, "underflowed": 4, "steps": 2, "recalibrations": 2
    }  # fmt: skip
    assert (some.saturation_rate, some.underflow_rate) == (0.25, 0.5)
    assert math.isnan(ScaleCounts().saturation_rate)
    assert math.isnan(ScaleCounts().underflow_rate)


def test_the_total_is_the_sum_of_the_steps() -> None:
    for state in kinds():
        total = ScaleCounts()
        for x in tensors(20):
            state.encode(x)
            total = total.merge(state.last)
        assert state.counts == total
        assert total.steps == 20
