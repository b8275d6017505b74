"""Loss scaling in training: torch.amp.GradScaler step for step, and what faulty policies do to gradients."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from fpsim.recipes.loss_scaling import POLICIES, loss_scaling_policy
from fpsim.testing import assert_bits_equal

torch = pytest.importorskip("torch")

from fpsim.train.loss_scale import LossScaler  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402

INF, NAN = math.inf, math.nan


def gradients(step: int, overflow: str) -> dict[str, Any]:
    """Scaled gradients of a step; "x" puts an Inf into one tensor, "n" a NaN."""
    generator = torch.Generator().manual_seed(step)
    found = {name: torch.randn(7, 5, generator=generator) * 1000 for name in ("a", "b")}
    if overflow in "xn":
        found["b"][3, 2] = INF if overflow == "x" else NAN
    return found


def torchs(stream: str, **keywords: Any) -> tuple[list[float], list[bool], list[Any]]:
    """The scales, skips and unscaled gradients of torch.amp.GradScaler."""
    scaler = torch.amp.GradScaler("cpu", **keywords)
    weights = [torch.nn.Parameter(torch.zeros(7, 5)) for _ in "ab"]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    scaler.scale(torch.zeros(()))  # sets the scale up
    scales, skips, unscaled = [], [], []
    for step, overflow in enumerate(stream):
        scales.append(scaler.get_scale())
        for weight, gradient in zip(weights, gradients(step, overflow).values(), strict=True):
            weight.grad = gradient
        with torch.no_grad():
            weights[0].zero_()
        scaler.unscale_(optimizer)
        unscaled.append([weight.grad.clone() for weight in weights])
        scaler.step(optimizer)
        skips.append(not weights[0].any())
        scaler.update()
    return [*scales, scaler.get_scale()], skips, unscaled


@in_turn("stream", ["x", "...", "xxn..", ".x..n....x", "x" * 20, "." * 30, "..x" * 6])
@in_turn(
    "fields", [{}, {"interval": 3}, {"interval": 1}, {"interval": 2, "growth": 1.7, "backoff": 0.3, "scale": 1000.1}]
)
def test_dynamic_is_gradscaler_bit_for_bit(stream: str, fields: dict[str, Any]) -> None:
    policy = loss_scaling_policy("dynamic").replace(**fields)
    scales, skips, unscaled = torchs(
        stream, init_scale=policy.scale, growth_factor=policy.growth, backoff_factor=policy.backoff,
        growth_interval=policy.interval,
    )  # fmt: skip
    scaler = LossScaler(policy)
    for step, overflow in enumerate(stream):
        assert scaler.scale == scales[step]
        outcome = gradients(step, overflow)
        assert scaler.unscale(outcome) == (overflow != ".") == scaler.skipped == skips[step]
        for got, want in zip(outcome.values(), unscaled[step], strict=True):
            assert_bits_equal(got, want)
        scaler.update()
    assert scaler.scale == scales[-1]
    assert [row.scale for row in scaler.trace] == scales[:-1]
    assert [row.skipped for row in scaler.trace] == skips
    assert [row.grew for row in scaler.trace] == [b > a for a, b in itertools.pairwise(scales)]


def test_dynamic_grows_at_the_2000th_clean_step() -> None:
    torchs_scaler, scaler = torch.amp.GradScaler("cpu"), LossScaler("dynamic")
    torchs_scaler.scale(torch.zeros(()))
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(2005):
        assert scaler.scale == torchs_scaler.get_scale()
        weight.grad = torch.full((1,), INF if step == 1 else 1.0)
        scaler.unscale({"w": weight.grad.clone()})
        scaler.update()
        torchs_scaler.step(optimizer)
        torchs_scaler.update()
    assert [row.step for row in scaler.trace if row.grew] == [2001]
    assert scaler.scale == torchs_scaler.get_scale() == 65536


def test_a_scale_that_sank_to_0_unscales_as_torchs() -> None:
    policy = loss_scaling_policy("dynamic").replace(scale=2.0**-149)
    _, _, unscaled = torchs("x.", init_scale=2.0**-149)
    scaler = LossScaler(policy)
    scaler.unscale(gradients(0, "x"))
    scaler.update()
    assert scaler.scale == 0
    got = gradients(1, ".")
    scaler.unscale(got)
    assert_bits_equal(got["a"], unscaled[1][0])


@pytest.mark.parametrize("name", ["none", "static", "ema", "inverted"])
def test_every_policy_that_skips_unscales(name: str) -> None:
    scaler = LossScaler(name)
    found = {"w": torch.tensor([1.5, -3.0]) * scaler.scale}
    scaler.unscale(found)
    assert found["w"].tolist() == [1.5, -3.0]
    scaler.update()
    assert scaler.unscale({"w": torch.tensor([INF])})
    assert scaler.skipped


def test_ema_keeps_the_largest_gradient_below_the_largest_value() -> None:
    scaler = LossScaler("ema")
    for _ in range(3):
        scaler.unscale({"w": torch.tensor([2.0**-20, 1e-9]) * scaler.scale})
        scaler.update()
    assert scaler.scale == 2.0 ** (15 - 4 + 20)


def test_ema_without_a_lowest_scale_survives_many_overflows() -> None:
    scaler = LossScaler(loss_scaling_policy("ema").replace(lowest=0.0))
    for value in (*[math.inf] * 1200, 1.0):
        scaler.unscale({"w": torch.tensor([value])})
        scaler.update()
    assert scaler.scale > 0


def test_eager_applies_clamped_gradients_that_stay_scaled() -> None:
    scaler = LossScaler("eager", "fp16")
    found = {"w": torch.tensor([INF, -INF, 3.0, NAN])}
    assert scaler.unscale(found)
    assert not scaler.skipped
    assert_bits_equal(found["w"].numpy(), np.array([65504, -65504, 3, NAN], np.float32))
    scaler.update()
    assert (scaler.scale, scaler.trace[0].overflowed, scaler.trace[0].skipped) == (32768.0, True, False)


def test_norm_driven_leaves_gradients_scaled_and_applies_overflows() -> None:
    scaler = LossScaler("norm_driven")
    found = {"w": torch.tensor([4.0, INF])}
    assert scaler.unscale(found)
    assert not scaler.skipped
    assert found["w"].tolist() == [4.0, INF]


def test_inverted_ends_where_everything_underflows() -> None:
    scaler = LossScaler("inverted")
    for _ in range(60):
        scaler.unscale({"w": torch.tensor([1e-3]) * scaler.scale})
        scaler.update()
    assert scaler.scale == 2.0**-24


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_loaded_state_goes_on_as_if_nothing_had_happened(name: str) -> None:
    def advance(scaler: LossScaler, steps: range) -> None:
        for step in steps:
            scaler.unscale(gradients(step, "x" if step in (2, 7) else "."))
            scaler.update()

    whole, half = LossScaler(name), LossScaler(name)
    advance(whole, range(10))
    advance(half, range(5))
    resumed = LossScaler(name)
    resumed.load(json.loads(json.dumps(half.state())))
    advance(resumed, range(5, 10))
    assert resumed.state() == whole.state()


def test_a_step_out_of_order_and_a_foreign_state_are_refused() -> None:
    scaler = LossScaler("dynamic")
    with pytest.raises(RuntimeError, match="update needs the gradients of this step; call unscale first"):
        scaler.update()
    scaler.unscale(gradients(0, "."))
    with pytest.raises(RuntimeError, match="unscale was called twice in a step"):
        scaler.unscale(gradients(0, "."))
    with pytest.raises(RuntimeError, match="state is taken between steps; call update first"):
        scaler.state()
    with pytest.raises(ValueError, match=r"facts\['policy'\] must be 'dynamic', as in this scaler; got 'static'"):
        scaler.load(LossScaler("static").state())
    with pytest.raises(ValueError, match=r"facts must be what LossScaler\.state returned"):
        scaler.load({"policy": "dynamic", "fmt": "FP16"})
    with pytest.raises(TypeError, match=r"facts must be a dict that LossScaler\.state returned; got 3"):
        scaler.load(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="policies must be one of none, static, dynamic"):
        LossScaler("dynamik")
    with pytest.raises(TypeError, match=r"gradients\['w'\] must be a float32 tensor on the CPU; got torch.float16"):
        LossScaler().unscale({"w": torch.zeros(1, dtype=torch.float16)})


def test_the_scale_is_a_value_of_float32() -> None:
    scaler = LossScaler(loss_scaling_policy("norm_driven").replace(scale=0.1))
    assert scaler.scale == float(np.float32(0.1))


def test_a_scale_without_a_highest_stays_within_float32() -> None:
    scaler = LossScaler(loss_scaling_policy("ema").replace(highest=math.inf), "fp32")
    scaler.unscale({"w": torch.tensor([2.0**-140])})
    scaler.update()
    assert scaler.scale == float(np.finfo(np.float32).max)
