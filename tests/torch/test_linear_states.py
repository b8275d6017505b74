"""Quantised layers keep their counters and scales through conversions, recomputation and changes of recipe."""

from __future__ import annotations

import copy
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
checkpoint: Any = pytest.importorskip("torch.utils.checkpoint").checkpoint

ft: Any = importlib.import_module("fpsim.torch")
DELAYED = ft.TE_DELAYED.replace(delayed=ft.Delayed(history=3))
SR = ft.DEEPSEEK_V3.replace(rounding="stochastic", grad_rounding="stochastic")


def trained(layer: Any, steps: int = 2) -> Any:
    torch.manual_seed(5)
    for _ in range(steps):
        x = torch.randn(32, layer.in_features, dtype=layer.weight.dtype, requires_grad=True)
        layer(x).float().square().sum().backward()
    return layer


@in_turn("dtype", ["bfloat16", "float16", "float64"])
def test_delayed_scales_stay_float32_when_a_layer_is_converted(dtype: str) -> None:
    layer = trained(ft.QuantLinear(128, 64, recipe=DELAYED))
    before = layer.scales.clone()
    layer.to(getattr(torch, dtype))
    assert layer.weight.dtype == getattr(torch, dtype)
    assert torch.equal(layer.scales, before)
    trained(layer, 1)
    assert layer.scales.dtype == torch.float32
    assert not torch.equal(layer.scales, before)


def test_delayed_scales_that_a_checkpoint_has_in_bfloat16_become_float32() -> None:
    layer = trained(ft.QuantLinear(128, 64, recipe=DELAYED))
    rounded = {name: tensor.bfloat16() for name, tensor in layer.state_dict().items()}
    for assign in (False, True):
        layer.load_state_dict(rounded, assign=assign)
        assert torch.equal(layer.scales, rounded["scales"].float())
        trained(layer, 1)


def test_gradients_do_not_depend_on_strides() -> None:
    layer = ft.QuantLinear(128, 64, recipe=DELAYED).eval()
    x, dy = torch.randn(48, 128, requires_grad=True), torch.randn(48, 64)
    wanted = [x, *layer.parameters()]
    want = torch.autograd.grad(layer(x), wanted, dy)
    for strided in (dy.t().contiguous().t(), torch.randn(48, 128)[:, ::2].copy_(dy)):
        got = torch.autograd.grad(layer(x), wanted, strided)
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_a_layer_of_the_meta_device_starts_afresh_on_the_cpu() -> None:
    for recipe in (DELAYED, SR):
        layer = ft.QuantLinear(128, 64, recipe=recipe, device="meta")
        assert layer(torch.empty(2, 128, device="meta")).shape == (2, 64)
        plain, fresh = torch.nn.Linear(128, 64), ft.QuantLinear(128, 64, recipe=recipe)
        assigned = copy.deepcopy(layer)
        assigned.load_state_dict(plain.state_dict(), assign=True)
        layer.to_empty(device="cpu").load_state_dict(plain.state_dict())
        for name in ("steps", "scales"):
            want = getattr(fresh, name)
            for made in (layer, assigned):
                assert (getattr(made, name) is None) == (want is None)
                assert want is None or torch.equal(getattr(made, name), want)


def test_layers_and_casts_without_values_are_refused() -> None:
    layer, x = ft.QuantLinear(128, 64, recipe=DELAYED, device="meta"), torch.ones(2, 128)
    with pytest.raises(ValueError, match="weight must be a tensor with values, on the CPU; got one of the meta device"):
        layer(x)
    nothing = torch.ones((), device="meta")
    seed = nothing.long()
    for call in (
        lambda: ft.fake_quantize(x, "e4m3", "TENSOR", scales=nothing),
        lambda: ft.quantize_scaled(x, "e4m3", "TENSOR", scales=nothing),
        lambda: ft.fake_quantize(x, "e4m3", rounding="stochastic", seed=seed),
        lambda: ft.fake_quantize(x, "e4m3", backward_fmt="e4m3", backward_rounding="stochastic", backward_seed=seed),
        lambda: ft.quantize(x, "e4m3", rounding="stochastic", seed=seed),
        lambda: ft.encode(x, "e4m3", rounding="stochastic", seed=seed),
    ):
        with pytest.raises(ValueError, match="must be a tensor with values, on the CPU; got one of the meta device"):
            call()  # type: ignore[no-untyped-call]
    assert ft.quantize(x.to("meta"), "e4m3", rounding="stochastic", seed=3).is_meta


def test_another_history_keeps_the_newest_amax() -> None:
    layer = trained(ft.QuantLinear(128, 64, recipe=DELAYED), 3)
    old = layer.scales.clone()
    for history in (2, 5):
        layer.follow(*[DELAYED.replace(delayed=ft.Delayed(history=history))] * 3)
        assert layer.scales.shape == (3, 1 + history)
        assert torch.equal(layer.scales[:, 0], old[:, 0])
        assert torch.equal(layer.scales[:, -2:], old[:, -2:])
    assert torch.all(layer.scales[:, 1:4] == 0)
    trained(layer, 1)


@in_turn("product, scaled", [("dgrad", (1, 2)), ("wgrad", (0, 2))])
def test_operands_that_only_the_backward_pass_scales_have_delayed_scales(product: str, scaled: tuple[int, int]) -> None:
    layer = ft.QuantLinear(128, 64, bias=False, recipe=ft.RECIPES["BF16"])
    recipes = dict.fromkeys(("fprop", "dgrad", "wgrad"), ft.RECIPES["BF16"]) | {product: DELAYED}
    layer.follow(**recipes)
    states = [fp.DelayedScaling(fmt, history=3) for fmt in ("e4m3", "e4m3", "e5m2")]
    torch.manual_seed(3)
    for step in range(3):
        x, dy = torch.randn(32, 128, requires_grad=True), torch.randn(32, 64) * 4.0**step
        grads = dict(zip(("dgrad", "wgrad"), torch.autograd.grad(layer(x), (x, layer.weight), dy), strict=True))
        tensors = [x.detach().numpy(), layer.weight.detach().numpy(), dy.numpy()]
        first, second = (states[row].encode(tensors[row]) for row in scaled)
        gradient = second if product == "dgrad" else second.transpose()
        want = fp.matmul(gradient, first, accumulate="hopper_e5m2xe4m3_f32", promote=128,
                         out_fmt="bf16" if product == "dgrad" else None)  # fmt: skip
        fp.testing.assert_bits_equal(grads[product].numpy(), want.astype(np.float32))
    for row in range(3):
        assert layer.scales[row, 0] == (states[row].state_dict()["encode_scales"].item() if row in scaled else 1)


def test_in_evaluation_gradients_have_the_stored_scale() -> None:
    layer = trained(ft.QuantLinear(128, 64, bias=False, recipe=DELAYED)).eval()
    scales = layer.scales.clone()
    x, dy = torch.randn(16, 128), torch.randn(16, 64) * 1e-3
    dw = torch.autograd.grad(layer(x), layer.weight, dy)[0].numpy()
    qx, qdy = (
        fp.encode_scaled(each.numpy(), fmt, "TENSOR", scales=1 / scales[row, 0].item(), overflow="saturate")
        for each, fmt, row in ((x, "e4m3", 0), (dy, "e5m2", 2))
    )
    want = fp.matmul(qdy.transpose(), qx, accumulate="hopper_e5m2xe4m3_f32", promote=128)
    fp.testing.assert_bits_equal(dw, want)
    assert torch.equal(layer.scales, scales)


@in_turn("recipe", [SR, ft.NVFP4, DELAYED])
def test_checkpointed_layers_repeat_their_draws_and_scales(recipe: Any) -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
    ft.quantize_linears(net, recipe)
    nets = [copy.deepcopy(net) for _ in range(3)]
    for step in range(3):
        data, results = torch.randn(32, 128) * (step + 1), []
        for net, reentrant in zip(nets, (None, False, True), strict=True):
            net.zero_grad()
            x = data.clone().requires_grad_()
            y = net(x) if reentrant is None else checkpoint(net, x, use_reentrant=reentrant)
            y.square().sum().backward()
            results.append([y, x.grad, *(weight.grad for weight in net.parameters()), *net.buffers()])
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@in_turn("recipe", [SR, DELAYED])
def test_layers_that_run_several_times_in_checkpoints_repeat_every_pass(recipe: Any) -> None:
    def of_two(layer: Any, x: Any, again: bool) -> Any:
        parts = x.chunk(2)
        return sum((checkpoint(layer, part, use_reentrant=False) if again else layer(part)).square() for part in parts)

    def chained(layer: Any, x: Any, again: bool) -> Any:
        def twice(part: Any) -> Any:
            return layer(layer(part))

        return checkpoint(twice, x, use_reentrant=False) if again else twice(x)

    for run in (of_two, chained):
        layer, data = ft.QuantLinear(128, 128, recipe=recipe), torch.randn(32, 128)
        twin, results = copy.deepcopy(layer), []
        for each, again in ((layer, False), (twin, True)):
            x = data.clone().requires_grad_()
            run(each, x, again).square().sum().backward()
            results.append([x.grad, each.weight.grad, each.bias.grad, *each.buffers()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        assert layer._passes
        assert not copy.deepcopy(layer)._passes


@in_turn("between", ["nothing", "without gradients", "in evaluation"])
def test_checkpoints_repeat_every_pass_whatever_runs_before_the_backward_pass(between: str) -> None:
    layer, parts = ft.QuantLinear(128, 128, recipe=SR), torch.randn(20, 2, 128)
    twin, results = copy.deepcopy(layer), []
    for each, again in ((layer, False), (twin, True)):
        leaves = [part.clone().requires_grad_() for part in parts]
        run = (lambda x, each=each: checkpoint(each, x, use_reentrant=False)) if again else each
        loss = sum(run(x).square().sum() for x in leaves)
        each.train(between != "in evaluation")
        if between != "nothing":
            with torch.no_grad():
                each(torch.ones(1, 128))
        each.train()
        loss.backward()
        results.append([*(x.grad for x in leaves), each.weight.grad, each.steps])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_reentrant_checkpoints_repeat_the_draws_of_their_first_pass() -> None:
    layer, parts, seen = ft.QuantLinear(128, 128, recipe=SR), torch.randn(3, 2, 128), []

    def run(x: Any) -> Any:
        seen.append(layer(x))
        return seen[-1]

    sum(checkpoint(run, x.clone().requires_grad_(), use_reentrant=True).sum() for x in parts).backward()
    assert all(torch.equal(first, again) for first, again in zip(seen[:3], seen[:2:-1], strict=True))
    assert layer.steps.item() == 3


def test_remembered_passes_hold_no_history_of_delayed_scales() -> None:
    layer = ft.QuantLinear(8, 8, recipe=ft.TE_DELAYED)
    for _ in range(3):
        layer(torch.ones(1, 8))
    assert [each.scales.shape for each in layer._passes] == [(3, 1)] * 3


def test_a_layer_warns_if_it_is_computed_again_for_another_input() -> None:
    layer, x = ft.QuantLinear(128, 64, recipe=SR, name="up"), torch.ones(2, 128, requires_grad=True)
    y = checkpoint(lambda x: layer(x + torch.rand(())), x, use_reentrant=False, preserve_rng_state=False)
    with pytest.warns(RuntimeWarning, match="QuantLinear 'up' runs again .* none of its last forward passes had"):
        y.sum().backward()


def test_layers_with_delayed_scales_may_run_in_several_threads() -> None:
    def run(number: int) -> list[float]:
        layer, generator = copy.deepcopy(layers[number]), torch.Generator().manual_seed(number)
        data = (torch.randn(4, 128, generator=generator) * (1 + 50 * number + step % 7) for step in range(100))
        return [layer(x).sum().item() for x in data]

    layers, interval = [ft.QuantLinear(128, 64, recipe=DELAYED) for _ in range(2)], sys.getswitchinterval()
    want = [run(number) for number in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(run, range(2))) == want
    finally:
        sys.setswitchinterval(interval)


def test_autocast_leaves_float64_as_it_is() -> None:
    layer, x = ft.QuantLinear(32, 16, recipe=ft.MXFP8).double(), torch.randn(4, 32, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.nn.Linear(32, 16).double()(x).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@in_turn("name", ft.RECIPES)
def test_a_layer_without_inputs_returns_its_bias(name: str) -> None:
    layer, x = ft.QuantLinear(0, 8, recipe=ft.RECIPES[name]), torch.ones(16, 0, requires_grad=True)
    torch.nn.init.ones_(layer.bias)
    y = layer(x)
    y.sum().backward()
    assert torch.equal(y, torch.ones(16, 8))
    assert torch.equal(layer.bias.grad, torch.full((8,), 16.0))
    assert layer(torch.ones(2, 3, 0)).shape == (2, 3, 8)


def test_derivatives_that_layers_and_casts_lack_are_refused() -> None:
    layer, x = ft.QuantLinear(32, 16, recipe=ft.MXFP8), torch.randn(4, 32, requires_grad=True)
    dx = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="QuantLinear has no second derivative"):
        dx.square().sum().backward()
    weights = dict(layer.named_parameters())
    with pytest.raises(RuntimeError, match=r"no derivative within torch\.func\.grad, vjp and jacrev; got weight"):
        torch.func.grad(lambda weights: torch.func.functional_call(layer, weights, (x,)).sum())(weights)
    with pytest.raises(RuntimeError, match=r"fake_quantize has no derivative within torch\.func\.grad"):
        torch.vmap(torch.func.grad(lambda row: ft.fake_quantize(row, "e4m3").sum()))(x.detach())
    constant = torch.func.grad(lambda w: (w * ft.quantize(w.detach(), "e4m3")).sum())
    assert torch.equal(constant(torch.tensor([0.3])), torch.tensor([0.3125]))


def test_delayed_scales_that_no_layer_can_compute_are_refused_by_the_recipe() -> None:
    for options in ({"history": 0}, {"history": 2**20 + 1}, {"margin": 127}, {"margin": -127}):
        with pytest.raises(ValueError, match=r"must be an integer in .* \.\. "):
            ft.Delayed(**options)
    for fmt in ("nf4", fp.LogFMT(8)):
        with pytest.raises(ValueError, match="whose values a scale alone places; got weight_fmt"):
            ft.LinearRecipe(None, fmt, delayed=ft.Delayed())
