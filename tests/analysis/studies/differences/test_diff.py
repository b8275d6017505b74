"""`fp.analysis.diff`: the first bit that parts is found where it was planted, beside products computed by hand."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
from fpsim.analysis.studies.differences.arithmetics import arithmetic  # noqa: E402
from fpsim.analysis.studies.differences.running import run  # noqa: E402
from tests.analysis.studies.differences.diff_cases import by_hand, found_by, inputs_of, watched  # noqa: E402
from tests.analysis.studies.differences.models import (  # noqa: E402
    Attentive,
    Convolutional,
    Named,
    images,
    mean_square,
    mlp,
    rows,
    tokens,
)

ft: Any = fp.torch


FP8, BF16 = ft.RECIPES["FP8_TENSOR"], ft.RECIPES["BF16"]


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (mlp, rows), "convolutional": (Convolutional, images), "attentive": (Attentive, tokens),
}  # fmt: skip


every_model = pytest.mark.parametrize("kind", list(MODELS))


def made(kind: str) -> tuple[Any, Any]:
    model, batch = MODELS[kind]
    return model(), batch()


def diff(*args: Any, **keywords: Any) -> Any:
    return fp.analysis.diff(*args, **keywords)


def planted(product: str = "fprop", **fields: Any) -> Any:
    """FP8_TENSOR with one product added otherwise."""
    return FP8.replace(**{product: getattr(FP8, product).replace(**fields)})


def bits(x: Any) -> Any:
    return np.asarray(x.detach().numpy() if isinstance(x, torch.Tensor) else x).astype(np.float32).view(np.uint32)


def test_another_promotion_in_one_layer_is_found_at_its_first_element() -> None:
    model, x = mlp(), rows()
    divergence = found_by(model, x, FP8, {"*": FP8, "2": planted(promote=64)})
    a, weight = inputs_of(model, "2", x), model[2].weight.detach().numpy()
    one, two = (by_hand(a, weight, model[2].bias, accumulate="hopper_e4m3_f32", promote=p) for p in (128, 64))
    differ = np.argwhere(one.view(np.uint32) != two.view(np.uint32))
    assert (divergence.layer, divergence.product, divergence.operand, divergence.cause) == (
        "2",
        "fprop",
        "",
        "arithmetic",
    )
    assert divergence.element == tuple(differ[0])
    assert divergence.count == len(differ)
    assert divergence.fmt == fp.BF16
    assert divergence.bits == tuple(int(fp.encode(y[divergence.element], fp.BF16)) for y in (one, two))
    assert "Their trees differ: terms 64..127: " in str(divergence)
    assert divergence.trees == tuple(
        fp.schedules.tree(fp.schedules.cutlass_2xacc(p), 512, n=128, accumulate="hopper_e4m3_f32") for p in (128, 64)
    )
    assert divergence.growth[0].differing == 0.0
    assert divergence.growth[1].differing == len(differ) / one.size


def test_split_k_in_one_layer_is_found_at_its_first_element() -> None:
    model, x = mlp(), rows()
    chained, split = fp.schedules.cublas("sm_90"), fp.schedules.cublas("sm_90", split_k=2)
    wide = BF16.replace(fprop=BF16.fprop.replace(out_fmt=None))  # sums of 14 bits would be the same in both orders
    divergence = found_by(model, x, chained, {"*": chained, "2": split}, recipe=wide)
    a, weight = (
        fp.cast(operand, "bf16") for operand in (inputs_of(model, "2", x, wide), model[2].weight.detach().numpy())
    )
    bias = model[2].bias.detach().numpy()
    one, two = (
        fp.matmul(a, weight.T, accumulate="hopper_bf16_f32", schedule=order, bias=bias) for order in (chained, split)
    )
    differ = np.argwhere(one.view(np.uint32) != two.view(np.uint32))
    assert (divergence.layer, divergence.element, divergence.count) == ("2", tuple(differ[0]), len(differ))
    assert divergence.bits == tuple(int(y.view(np.uint32)[divergence.element]) for y in (one, two))
    assert divergence.names == ("cublas('sm_90')", "the second")
    assert "adds them up from +0 for a sum of their own" in str(divergence)


def patches_by_hand(x: Any, weight: Any) -> Any:
    """Patches of the one-dimensional convolution of 7 places, one number at a time."""
    batch, channels, length = x.shape
    divergence = np.zeros((batch * length, 7 * channels), np.float32)
    for n, place, tap, c in np.ndindex(batch, length, 7, channels):
        at = place + tap - 3
        if 0 <= at < length:
            divergence[n * length + place, tap * channels + c] = x[n, c, at]
    taps = np.stack([weight[:, c, tap] for tap in range(7) for c in range(channels)], 1)
    return divergence, taps


def test_a_convolution_is_the_product_of_its_patches() -> None:
    model, x = Convolutional().eval(), images()
    seen: list[Any] = []
    handle = model.mix.register_forward_pre_hook(lambda _, args: seen.append(args[0].numpy()))
    ways = [{"mix": recipe} for recipe in (FP8, planted(promote=32))]  # whatever comes before is torch's
    with torch.no_grad():
        run(model, x, arithmetic("first", "torch"), None, lambda _: None)
    handle.remove()
    rows_, weight = patches_by_hand(seen[0], model.mix.weight.detach().numpy())
    divergence = found_by(model, x, *ways)
    one, two = (by_hand(rows_, weight, model.mix.bias, accumulate="hopper_e4m3_f32", promote=p) for p in (128, 32))
    differ = np.argwhere(one.view(np.uint32) != two.view(np.uint32))
    assert (divergence.layer, divergence.element, divergence.count) == ("mix", tuple(differ[0]), len(differ))
    assert divergence.names == ("the first", "the second")


@every_model
def test_halves_are_equal_on_hopper_and_blackwell(kind: str) -> None:
    model, batch = made(kind)
    assert not diff(model, batch, "H100", "B200", recipe="BF16", loss=mean_square)


@every_model
def test_fp8_differs_on_hopper_and_blackwell_by_the_bits_that_a_step_keeps(kind: str) -> None:
    model, batch = made(kind)
    divergence = found_by(model, batch, "H100", "B200")
    assert (divergence.cause, divergence.names) == ("arithmetic", ("H100", "B200"))
    assert "H100 keeps 13 fraction bits, B200 keeps 25 fraction bits." in str(divergence)
    k = divergence.trees[0].k
    assert divergence.trees == tuple(
        fp.schedules.tree(fp.schedules.cutlass_2xacc(128), k, accumulate=f"{arch}_e4m3_f32")
        for arch in ("hopper", "blackwell")
    )
    assert divergence.growth[-1].layer == "head" if kind != "mlp" else "4"


@every_model
def test_an_arithmetic_agrees_with_itself(kind: str) -> None:
    model, batch = made(kind)
    model.train()  # with dropout
    assert not diff(model, batch, "float32", "float32", loss=mean_square)
    assert not diff(model, batch, "H100", ft.RECIPES["FP8_TENSOR"], loss=mean_square)


@every_model
def test_the_model_and_the_batch_stay_as_they_are(kind: str) -> None:
    model, batch = made(kind)
    mean_square(model, batch).backward()
    before, gradients = copy.deepcopy(model), [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    original, noise = batch.clone(), torch.get_rng_state()
    diff(model, batch, "H100", "float32", loss=mean_square)
    assert torch.equal(torch.get_rng_state(), noise)
    assert torch.equal(batch, original)
    for one, two, gradient in zip(before.parameters(), model.parameters(), gradients, strict=True):
        fp.testing.assert_bits_equal(one.detach(), two.detach())
        assert (gradient is None) == (two.grad is None)
        if gradient is not None:
            fp.testing.assert_bits_equal(gradient, two.grad)
    for one, two in zip(before.buffers(), model.buffers(), strict=True):
        assert torch.equal(one, two)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in module.__dict__


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_torch_is_the_model_as_it_is(dtype: str) -> None:
    model, x = mlp().to(getattr(torch, dtype)), rows().reshape(4, 8, 256).to(getattr(torch, dtype))
    products, output = watched(model, x, "torch")
    y = model(x)
    mean_square(model, x).backward()
    assert torch.equal(output, y)
    gradients = {of.layer: of.result for of in products if of.product == "wgrad"}
    assert list(gradients) == ["4", "2", "0"]
    for layer, result in gradients.items():
        assert np.array_equal(result, model[int(layer)].weight.grad.double().numpy())
    last = [of for of in products if of.product == "fprop"][-1]
    assert np.array_equal(last.result, y.reshape(-1, 16).detach().double().numpy())


def test_float32_is_a_chain_of_fused_additions() -> None:
    model, x = mlp(), rows()
    products, _ = watched(model, x, "float32")
    first = products[0]
    want = fp.matmul(x.numpy(), model[0].weight.detach().numpy().T, accumulate=fp.FusedMultiplyAdd("fp32"))
    assert np.array_equal(bits(first.result), bits(want + model[0].bias.detach().numpy()))
    report = diff(model, x, "float32", "torch")  # torch's order depends on the processor, and may be this chain
    theirs, _ = watched(model, x, "torch")
    differing = [of for of, other in zip(products, theirs, strict=True) if not np.array_equal(of.result, other.result)]
    assert bool(report) == bool(differing)
    if report:
        assert (report.layer, report.product) == (differing[0].layer, differing[0].product)
        assert (report.cause, report.trees[1]) == ("arithmetic", None)
        terms = model[int(report.layer)].in_features
        assert (report.product, report.trees[0]) == ("fprop", fp.schedules.tree(fp.FusedMultiplyAdd("fp32"), terms))
        assert report.growth[-1].relative < 1e-6


def test_growth_and_kl_are_those_of_the_outputs() -> None:
    model, x = mlp(), rows()
    divergence = found_by(model, x, "torch", "DEEPSEEK_V3", logits=True)
    assert (divergence.cause, divergence.operand) == ("cast", "input")
    one, two = (
        run(model, x, arithmetic("first", way), None, lambda _: None).output.double()
        for way in ("torch", "DEEPSEEK_V3")
    )
    assert [(row.layer, row.product, row.call) for row in divergence.growth] == [
        (layer, "fprop", 0) for layer in ("0", "2", "4")
    ]
    last = divergence.growth[-1]
    assert last.relative == pytest.approx(float((two - one).norm() / one.norm()), rel=1e-12)
    assert last.differing == float((one != two).double().mean())
    kl = torch.nn.functional.kl_div(two.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="batchmean")
    assert divergence.kl == pytest.approx(float(kl), rel=1e-9)


def test_logits_are_what_they_are_said_to_be() -> None:
    model, x = mlp(), rows()
    whole = found_by(model, x, "H100", "B200", logits=True)
    assert found_by(model, x, "H100", "B200").kl is None  # nobody said that these are logits
    assert found_by(model, x, "H100", "B200", logits=lambda y: y[:, :4]).kl != whole.kl
    assert found_by(model, x, "H100", "B200", logits=False).kl is None
    assert found_by(Named(model), x, "H100", "B200").kl == whole.kl
    one = torch.nn.Sequential(model, torch.nn.Flatten(0))
    assert found_by(one, x, "H100", "B200").kl is None
    assert found_by(one, x, "H100", "B200", logits=True).kl is not None


@pytest.mark.parametrize("accumulate", [None, fp.FusedMultiplyAdd("fp32")])
def test_a_layer_of_the_recipe_fp32_counts_as_a_layer_of_torch(accumulate: Any) -> None:
    """FP32 quantises nothing: the trainer's layers in float32 follow FP8_TENSOR on chips, as torch's of_torch do."""
    model, x = mlp(), rows()
    product = ft.Product(accumulate)
    plain = ft.LinearRecipe(fprop=product, dgrad=product, wgrad=product)
    quantized = copy.deepcopy(model)
    ft.quantize_linears(quantized, plain)
    of_fp32 = diff(quantized, x, "H100", "B200")
    of_torch = diff(model, x, "H100", "B200")
    assert of_fp32
    assert (of_fp32.layer, of_fp32.element, of_fp32.bits, of_fp32.explanation) == (
        of_torch.layer, of_torch.element, of_torch.bits, of_torch.explanation,
    )  # fmt: skip
    assert not diff(quantized, x, "torch", "torch")


def test_equal_runs_say_what_added() -> None:
    chain = {"2": "float32"}
    same = diff(mlp(), rows(), {"*": "H100", **chain}, {"*": "B200", **chain}, recipe="BF16")
    units = "The first adds on hopper_bf16_f32 in one chain; the second adds on blackwell_bf16_f32 in one chain."
    chains = "The first adds by FusedMultiplyAdd(FP32); the second adds by FusedMultiplyAdd(FP32)."
    assert str(same).splitlines()[1:3] == [f"2 products: {units}", f"1 product: {chains}"]


def test_draws_of_numpy_and_python_are_the_same_in_both_runs() -> None:
    class Noisy(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            noise = random.random() + np.random.random()  # noqa: NPY002
            return super().forward(x * noise)

    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    assert not diff(Noisy(16, 8), rows()[:, :16], "torch", "torch")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states  # type: ignore[index] # noqa: NPY002
