"""The models: gradients against autograd in float64, causality, what is stored, and unit scaling."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.recipes.parts import Numerics
from fpsim.testing import assert_bits_equal
from fpsim.train.data import corpus
from fpsim.train.model import normal_numbers

torch = pytest.importorskip("torch")
from fpsim.train import model as models  # noqa: E402
from fpsim.train.activations import Storing, quantizer  # noqa: E402
from fpsim.train.operations.operations import TORCH, Operations  # noqa: E402
from fpsim.train.slices import SwiGLU  # noqa: E402

SMALL: dict[str, Any] = {"vocabulary": 11, "context": 6, "width": 8, "heads": 2, "layers": 2, "hidden": 12}


def small(parametrisation: str = "standard", seed: int = 0) -> Any:
    model = models.Transformer(models.Config(**SMALL, parametrisation=parametrisation), seed).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double()
    return model


def tokens(count: int = 3, length: int = 6) -> Any:
    return torch.randint(0, 11, (count, length), generator=torch.Generator().manual_seed(5))


def gradients_of(model: Any, inputs: Any, targets: Any) -> list[Any]:
    model.zero_grad(set_to_none=True)
    loss: Any = models.loss_of(model, inputs, targets, model.operations)
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def reference(model: Any, codes: Any, weights: dict[str, Any]) -> Any:
    """The transformer by single operations of torch, without any module or function of the project."""
    width, heads = 8, 2

    def norm(x: Any, name: str) -> Any:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]

    x = weights["tokens.weight"][codes] + weights["positions.weight"][: codes.shape[1]]
    for index in range(2):
        at = f"blocks.{index}"
        q, k, v = (norm(x, f"{at}.norm1") @ weights[f"{at}.attn.qkv.weight"].T).split(width, -1)
        mixed = []
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(width // heads)
            allowed = torch.ones(codes.shape[1], codes.shape[1]).tril().bool()
            shares = scores.exp() * allowed
            mixed.append(shares / shares.sum(-1, keepdim=True) @ v[..., part])
        x = x + torch.cat(mixed, -1) @ weights[f"{at}.attn.proj.weight"].T
        gate, up = (norm(x, f"{at}.norm2") @ weights[f"{at}.mlp.gate_up.weight"].T).chunk(2, -1)
        x = x + (gate / (1 + (-gate).exp()) * up) @ weights[f"{at}.mlp.down.weight"].T
    return norm(x, "norm") @ weights["head.weight"].T


def test_the_transformer_and_its_gradients_are_those_of_single_operations_in_float64() -> None:
    model, codes, targets = small(), tokens(), tokens().flip(0)
    weights = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    logits = reference(model, codes, weights)
    loss = -torch.log_softmax(logits, -1).gather(-1, targets[..., None]).mean()
    loss.backward()
    torch.testing.assert_close(model(codes), logits, rtol=1e-12, atol=1e-12)
    for (name, weight), gradient in zip(weights.items(), gradients_of(model, codes, targets), strict=True):
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-10, atol=1e-14, msg=name)


def test_the_backward_pass_of_swiglu_is_the_slope_of_its_forward_pass() -> None:
    x = torch.randn(3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(SwiGLU(TORCH), (x,))


@pytest.mark.parametrize("parametrisation", ["standard", "unit"])
def test_logits_do_not_depend_on_later_tokens(parametrisation: str) -> None:
    model, codes = small(parametrisation), tokens()
    before = model(codes).detach().numpy()
    for at in range(1, 6):
        other = codes.clone()
        other[:, at:] = (other[:, at:] + 1) % 11
        after = model(other).detach().numpy()
        assert_bits_equal(after[:, :at], before[:, :at])
        assert (after[:, at:] != before[:, at:]).all()


def test_the_gradients_of_the_perceptron_are_those_of_finite_differences() -> None:
    model = models.Perceptron(0).double()
    x = torch.randn(4, 128, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    targets = torch.tensor([1, 5, 9, 0])
    gradients = gradients_of(model, x, targets)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        place = int(gradient.abs().argmax())
        losses = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                parameter.view(-1)[place] += step
                losses.append(models.loss_of(model, x, targets, model.operations).item())
                parameter.view(-1)[place] -= step
        torch.testing.assert_close((losses[0] - losses[1]) / 2e-6, float(gradient.view(-1)[place]), rtol=1e-6, atol=0)


def test_the_first_loss_is_that_of_a_guess() -> None:
    data = corpus(None)
    model = models.Transformer(models.Config(len(data.vocabulary)), 0)
    inputs, targets = (torch.from_numpy(x) for x in data.batch(0, 0, batch=8, context=64))
    loss = models.loss_of(model, inputs, targets, model.operations).item()
    assert abs(loss - math.log(len(data.vocabulary))) < 0.1


def test_normal_numbers_are_sums_of_twelve_integers_of_philox() -> None:
    words = np.random.Philox(key=[5, 4], counter=[0, 0, 0, 9]).random_raw(6 * 70).tolist()
    want = []
    for i in range(70):
        halves = [half for word in words[6 * i : 6 * i + 6] for half in (word % 2**32, word // 2**32)]
        want.append(float(Fraction(sum(halves) - 6 * 2**32, 2**32)))
    got = normal_numbers(5, 9, (10, 7))
    assert got.shape == (10, 7)
    assert got.reshape(-1).tolist() == want
    many = normal_numbers(0, 0, (40000,))
    assert np.abs(many).max() < 6
    # means of 40,000 such numbers, of their squares and fourth powers: within 5 of their standard deviations
    for power, mean, deviation in ((1, 0, 1), (2, 1, 2**0.5), (4, 2.9, 9)):
        assert abs((many**power).mean() - mean) < 5 * deviation / 200


def test_weights_are_normal_numbers_times_the_deviation_rounded_once() -> None:
    model = models.Transformer(models.Config(11, layers=1, width=8, heads=2, hidden=12, context=6), 3)
    layers = (torch.nn.Linear, torch.nn.Embedding)
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, layers)]
    assert [name for name, _ in named][:3] == ["tokens", "positions", "blocks.0.attn.qkv"]
    for number, (name, module) in enumerate(named):
        deviation = 0.02 / math.sqrt(2) if name.endswith(("proj", "down")) else 0.02
        want = np.float32(normal_numbers(3, number, tuple(module.weight.shape)) * deviation)
        assert_bits_equal(module.weight.detach().numpy(), want)


def test_weights_follow_from_the_seed_alone() -> None:
    one, same, other = (models.Transformer(models.Config(11), seed).state_dict() for seed in (3, 3, 4))
    for name, weight in one.items():
        assert_bits_equal(same[name].numpy(), weight.numpy())
        assert "norm" in name or not torch.equal(other[name], weight)


def storing(model: Any, stash: Any) -> Any:
    for module in model.modules():
        if isinstance(module, Storing):
            module.store(stash)
    return model


@pytest.mark.parametrize("specified", [False, True])
@pytest.mark.parametrize("numerics", [Numerics(), Numerics("bf16", "bf16", "bf16")])
def test_what_is_stored_as_it_is_changes_no_bit(numerics: Numerics, specified: bool) -> None:
    operations = Operations(numerics, specified)
    seen = []
    codes = tokens()

    def keep(x: Any) -> Any:
        seen.append(tuple(x.shape))
        return x.clone()

    plain = models.Transformer(models.Config(**SMALL), 0, operations)
    stored = storing(models.Transformer(models.Config(**SMALL), 0, operations), keep)
    for one, other in zip(gradients_of(plain, codes, codes), gradients_of(stored, codes, codes), strict=True):
        assert_bits_equal(other.numpy(), one.numpy())
    activations = [(3, 6, 8)] * 3  # of norms, whoever computes them
    assert [shape for shape in seen if len(shape) == 3 and shape[-1] == 8][:3] == activations
    assert {shape[-1] for shape in seen} >= {8, 24, 6, 4}  # of norms, SwiGLU, shares of attention, and its values


def test_what_is_stored_changes_gradients_and_no_result() -> None:
    codes, results = tokens(), []
    for model in (small(), storing(small(), lambda x: torch.zeros_like(x))):
        results.append((model(codes).detach().numpy(), gradients_of(model, codes, codes)))
    assert_bits_equal(results[1][0], results[0][0])
    names = [name for name, _ in small().named_parameters()]
    changed = [name for name, a, b in zip(names, results[0][1], results[1][1], strict=True) if not torch.equal(a, b)]
    assert "head.weight" not in changed  # whose input no module here stores, and behind which nothing is stored
    assert {"blocks.1.mlp.gate_up.weight", "blocks.1.attn.qkv.weight", "norm.weight"} < set(changed)


def test_stored_activations_have_the_bits_of_the_cast() -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), requires_grad=True)
    act = SwiGLU(TORCH)
    stash = quantizer(spec())
    act.store(stash)
    act(x).sum().backward()
    rounded = torch.from_numpy(fp.quantize(x.detach().numpy(), "e4m3")).requires_grad_()
    SwiGLU(TORCH)(rounded).sum().backward()
    assert_bits_equal(x.grad.numpy(), rounded.grad.numpy())


def spec() -> str:
    from fpsim.recipes.cast_text import spec_text

    return spec_text(fp.E4M3, None, "nearest_even", None, "keep", 32)


# ---- unit scaling


def test_unit_scaling_has_the_function_and_the_gradients_of_its_factors() -> None:
    """Gradients of weights are those of autograd, but for one factor for each weight."""
    model, codes, targets = small("unit"), tokens(), tokens().flip(0)
    mine = gradients_of(model, codes, targets)
    original = models._Factors.apply
    models._Factors.apply = lambda x, forwards, backwards: x * forwards  # autograd's own gradient
    try:
        true = gradients_of(model, codes, targets)
        expected = model(codes)
    finally:
        models._Factors.apply = original
    assert_bits_equal(model(codes).detach().numpy(), expected.detach().numpy())
    for (name, _), gradient, wanted in zip(model.named_parameters(), mine, true, strict=True):
        ratio = float((gradient * wanted).sum() / (wanted * wanted).sum())
        assert ratio > 0
        torch.testing.assert_close(gradient, ratio * wanted, rtol=1e-9, atol=1e-12 * ratio, msg=name)


def test_a_linear_layer_of_unit_scaling_has_variances_of_1_in_both_passes() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = models.UnitLinear(256, 512)
    torch.nn.init.normal_(layer.linear.weight, generator=generator)
    x = torch.randn(4096, 256, generator=generator, requires_grad=True)
    y = layer(x)
    y.backward(torch.randn(4096, 512, generator=generator))
    for tensor in (layer.linear.weight, y, x.grad):
        assert abs(float(tensor.detach().var()) - 1) < 0.02


def test_every_operand_of_unit_scaling_fits_raw_fp8_at_the_start() -> None:
    from fpsim.torch.trace import watching
    from fpsim.train import Settings, Trainer, recipes
    from fpsim.train.monitors import figures

    calls: list[Any] = []
    trainer = Trainer(recipes.UNIT_SCALING, Settings(backend="float32", measure=0))
    with watching(calls.append):
        trainer.step()
    cast = [call for call in calls if call.layer != "head"]  # which stays in float32
    assert len(cast) == 24
    for call in cast:
        for operand in (call.a, call.b):
            assert 0.4 < np.var(operand.source, dtype=np.float64) < 2.5, (call.layer, call.product)
            assert figures(operand).underflow < 0.01  # of normal numbers 0.08 % lie below half of E4M3's smallest
            assert figures(operand).saturation == 0
