"""Products of training that draw, are transformed or follow earlier steps, with the bits of `fp.matmul` by hand."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from fpsim.torch.trace import watching

torch = pytest.importorskip("torch")

from fpsim.train import Settings, Trainer, recipes  # noqa: E402

mixing: Any = importlib.import_module("fpsim.torch.hadamard")
NVFP4 = fp.scalings.NVFP4
FP4: dict[str, Any] = {"accumulate": "blackwell_nvfp4_f32"}
FP8: dict[str, Any] = {"accumulate": "hopper_e4m3_f32"}
HYBRID: dict[str, Any] = {"accumulate": "hopper_e5m2xe4m3_f32", "promote": 128}
LAYER = "blocks.1.mlp.down"


def calls_of(run: Any, layer: str) -> dict[str, list[Any]]:
    """The products of a layer in the next step, those of each micro-batch."""
    calls: list[Any] = []
    with watching(calls.append):
        run.step()
    return {
        name: [call for call in calls if (call.layer, call.product) == (layer, name)]
        for name in ("fprop", "dgrad", "wgrad")
    }


def spread(w: Any) -> Any:
    """A matrix in 16x16 blocks as rows of 1x16: a scale of its own for each."""
    rows: dict[str, Any] = {name: np.repeat(getattr(w, name), 16, axis=0) for name in ("scales", "scale_codes")}
    return fp.Scaled(w.codes, fmt=w.fmt, scaling=NVFP4, tensor_scale=w.tensor_scale, **rows)


def squares(w: Any) -> Any:
    return spread(fp.encode_scaled(np.ascontiguousarray(w), "e2m1", NVFP4.replace(block=(16, 16)))).transpose()


def rounded(codes: Any) -> Any:
    return np.asarray(codes).astype(np.float32)


def test_nvfp4_draws_anew_in_every_step() -> None:
    run = Trainer(recipes.NVFP4, Settings(steps=2, batch=2, measure=0))
    plan = importlib.import_module("fpsim.torch.plan").plan_of(recipes.NVFP4.linear, LAYER)
    columns = NVFP4.transposed()
    for step in range(2):
        calls = {name: found[0] for name, found in calls_of(run, LAYER).items()}
        x, dy, weight = calls["fprop"].a.source, calls["dgrad"].a.source, calls["dgrad"].b.source
        want = fp.matmul(fp.encode_scaled(x, "e2m1", NVFP4), squares(weight), out_format="bf16", **FP4)
        assert_bits_equal(calls["fprop"].result, rounded(want))
        draws: dict[str, Any] = {"rounding": "stochastic", "seed": plan.grad.key + step}
        qdy = fp.encode_scaled(dy, "e2m1", NVFP4, **draws)
        assert_bits_equal(calls["dgrad"].result, rounded(fp.matmul(qdy, squares(weight.T), out_format="bf16", **FP4)))
        draws["seed"] = plan.grad_backward.key + step
        left = fp.encode_scaled(mixing.hadamard(dy, 16, plan.signs), "e2m1", columns, **draws).transpose()
        right = fp.encode_scaled(mixing.hadamard(x, 16, plan.signs), "e2m1", columns)
        assert_bits_equal(calls["wgrad"].result, fp.matmul(left, right, **FP4))


def test_delayed_scales_follow_the_steps_before() -> None:
    run = Trainer(recipes.FP8_DELAYED, Settings(steps=4, model="perceptron", batch=128, measure=0))
    states = [fp.DelayedScaling(fmt, history=16) for fmt in ("e4m3", "e4m3", "e5m2")]
    for _ in range(4):
        calls = {name: found[0] for name, found in calls_of(run, "second").items()}
        sources = calls["fprop"].a.source, calls["dgrad"].b.source, calls["dgrad"].a.source
        x, weight, dy = (
            state.encode(np.ascontiguousarray(each)) for state, each in zip(states, sources, strict=True)
        )  # fmt: skip
        want = fp.matmul(x, weight.transpose(), out_format="bf16", **FP8)
        assert_bits_equal(calls["fprop"].result, rounded(want))
        assert_bits_equal(calls["dgrad"].result, rounded(fp.matmul(dy, weight, out_format="bf16", **HYBRID)))
        assert_bits_equal(calls["wgrad"].result, fp.matmul(dy.transpose(), x, **HYBRID))


def test_delayed_scales_move_once_a_step_by_the_largest_amax_of_its_micro_batches() -> None:
    run = Trainer(recipes.FP8_DELAYED, Settings(steps=3, model="perceptron", batch=64, accumulate=3, measure=0))
    states = [fp.DelayedScaling(fmt, history=16) for fmt in ("e4m3", "e5m2")]
    for _ in range(3):
        calls = calls_of(run, "second")
        for state, product, row in zip(states, ("fprop", "dgrad"), (0, 2), strict=True):
            parts = [call.a for call in calls[product]]
            assert len({float(part.encoded.scales.item()) for part in parts}) == 1
            largest = max(parts, key=lambda part: float(np.abs(part.source).max()))
            want = state.encode(np.ascontiguousarray(largest.source))
            assert_bits_equal(largest.encoded.scales, want.scales)
            arrays, scales = state.state_dict(), run.layers["second"].scales
            assert scales is not None
            assert scales[row, 0] == arrays["encode_scales"].item()
            assert scales[row, 1:].tolist() == arrays["amax_history"].ravel().tolist()
