"""Models with quantised linear layers: copies, states, compilation, and recipes."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")


torch_linear: Any = importlib.import_module("fpsim.torch.linear_products")


ft: Any = importlib.import_module("fpsim.torch")


# Small layers stand for large ones here, though few of their features are whole blocks.
pytestmark = pytest.mark.filterwarnings("ignore:.*the last block is filled up with zeros")


SR = ft.DEEPSEEK_V3.replace(grad_rounding="stochastic", seed=3)


S = fp.scalings


def layer_and_data(recipe: Any, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    """A layer of 320 to 192 features, x and dy of 2 x 75 tokens."""
    torch.manual_seed(0)
    layer = ft.QuantLinear(320, 192, dtype=dtype, recipe=recipe)
    x = (torch.randn(2, 75, 320) * torch.randn(2, 75, 1).exp()).to(dtype).requires_grad_()
    return layer, x, torch.randn(2, 75, 192).to(dtype)


def model() -> Any:
    """Two blocks and a head."""
    torch.manual_seed(0)
    block = torch.nn.ModuleDict
    return torch.nn.ModuleDict(
        {
            "blocks": torch.nn.ModuleList(
                [block({"up": torch.nn.Linear(8, 16), "down": torch.nn.Linear(16, 8)}) for _ in range(2)]
            ),
            "head": torch.nn.Linear(8, 2, bias=False),
        }
    )


def mlp() -> Any:
    """Three layers."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))


# ---- models


def test_patterns_choose_layers_and_keep_everything_else() -> None:
    net = model()
    parameters, layers = list(net.parameters()), list(net.modules())
    keys = list(net.state_dict())
    seen = []
    net["blocks"][0]["up"].register_forward_hook(lambda *_: seen.append(1))
    net["blocks"][1]["up"].register_buffer("extra", torch.ones(1))
    net["blocks"][0]["down"].eval()
    assert ft.quantize_linears(net, ft.MXFP8, "blocks.*", exclude="*.1.down") == [
        "blocks.0.up", "blocks.0.down", "blocks.1.up",
    ]  # fmt: skip
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert all(a is b for a, b in zip(net.modules(), layers, strict=True))
    assert [key for key in net.state_dict() if not key.endswith("extra")] == keys
    kinds = [type(net["blocks"][i][name]).__name__ for i in (0, 1) for name in ("up", "down")]
    assert kinds == ["QuantLinear", "QuantLinear", "QuantLinear", "Linear"]
    net["blocks"][0]["up"](torch.ones(1, 8))
    assert seen == [1]
    assert not net["blocks"][0]["down"].training
    assert net["blocks"][1]["up"].extra == 1
    assert ft.quantize_linears(net, ft.TE_HYBRID, ["*.down", "head"]) == ["blocks.1.down", "head"]
    assert net["blocks"][0]["up"].recipe is ft.MXFP8
    assert "recipe=fp.torch.MXFP8" in repr(net)


def test_tied_weights_and_shared_layers_stay_so() -> None:
    net = torch.nn.Module()
    net.embedding = torch.nn.Embedding(10, 8)
    net.first = torch.nn.Linear(8, 10, bias=False)
    net.first.weight = net.embedding.weight
    net.second = net.first
    assert ft.quantize_linears(net, ft.TE_HYBRID, "second") == ["first"]
    assert net.second is net.first
    assert net.first.weight is net.embedding.weight
    assert isinstance(net.first, ft.QuantLinear)


def test_a_model_that_is_a_layer_and_a_copy_of_one() -> None:
    linear = torch.nn.Linear(8, 4)
    other = ft.QuantLinear.from_linear(linear, SR)
    assert type(linear) is torch.nn.Linear
    assert sorted(linear.state_dict()) == ["bias", "weight"]
    assert other.weight is linear.weight
    assert ft.quantize_linears(linear, ft.TE_HYBRID) == [""]


def test_the_fused_path_of_transformer_layers_does_not_skip_quantised_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def forward(layer: Any, x: Any) -> Any:
        calls.append(layer)
        return layer.twin(x)

    monkeypatch.setattr(ft.QuantLinear, "forward", forward)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    twins = copy.deepcopy(layer)
    assert ft.quantize_linears(layer, ft.TE_HYBRID) == ["linear1", "linear2"]
    for name in ("linear1", "linear2"):
        object.__setattr__(getattr(layer, name), "twin", getattr(twins, name))
    with torch.no_grad():
        layer.eval()(torch.randn(2, 5, 32))
    assert calls == [layer.linear1, layer.linear2]


@pytest.mark.parametrize("name", ["DEEPSEEK_V3", "MXFP8"])
def test_features_that_are_no_whole_blocks_are_those_of_a_padded_layer(name: str) -> None:
    torch.manual_seed(0)
    layer, padded = torch.nn.Linear(100, 40), torch.nn.Linear(128, 128)
    with torch.no_grad():
        padded.weight.zero_()[:40, :100] = layer.weight
        padded.bias.zero_()[:40] = layer.bias
    with pytest.warns(UserWarning, match="the last block is filled up") as said:
        assert ft.quantize_linears(layer, name) == [""]
    assert str(said[0].message) == (
        f"fprop of layer '' sums 100 terms, no multiple of the {128 if name == 'DEEPSEEK_V3' else 32} that share a "
        f"scale in {name} (and 1 more like it): the last block is filled up with zeros, where fp.train and Transformer "
        "Engine refuse the layer and fp.analysis.plan does not offer the recipe. Pad the layer, or leave it out with "
        "exclude=."
    )
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ft.quantize_linears(padded, name)
    x, dy = torch.randn(32, 100), torch.randn(32, 40)
    wide_x, wide_dy = torch.nn.functional.pad(x, (0, 28)), torch.nn.functional.pad(dy, (0, 88))
    y, wide_y = layer(x.requires_grad_()), padded(wide_x.requires_grad_())
    y.backward(dy)
    wide_y.backward(wide_dy)
    assert_bits_equal(y, wide_y[:, :40].contiguous())
    assert_bits_equal(x.grad, wide_x.grad[:, :100].contiguous())
    assert_bits_equal(layer.weight.grad, padded.weight.grad[:40, :100].contiguous())


@pytest.mark.parametrize("recipe", [ft.DEEPSEEK_V3, SR], ids=["plain", "stochastic"])
def test_copies_states_and_pickles_are_complete(recipe: Any) -> None:
    net = mlp()
    ft.quantize_linears(net, recipe)
    x = torch.randn(4, 16)
    net(x)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    fresh = mlp()
    ft.quantize_linears(fresh, recipe)
    fresh.load_state_dict(net.state_dict())
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(buffer, weights_only=False), fresh):
        assert twin[0].recipe == recipe
        original = copy.deepcopy(net)
        both = [torch.autograd.grad(each(x).sum(), each[0].weight)[0] for each in (original, twin)]
        assert torch.equal(*both)
        assert torch.equal(original(x), twin(x))
    if recipe is ft.DEEPSEEK_V3:
        plain = mlp()
        plain.load_state_dict(net.state_dict())
        net.load_state_dict(plain.state_dict())


@pytest.mark.parametrize("name", [*ft.RECIPES, "stochastic"])
def test_training_lowers_the_loss(name: str) -> None:
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    ft.quantize_linears(net, SR if name == "stochastic" else ft.RECIPES[name])
    x = torch.randn(64, 16)
    target = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.mse_loss(net(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_autocast_rounds_inputs_and_results_and_leaves_the_products_alone() -> None:
    layer, x, _ = layer_and_data(ft.TE_HYBRID)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, layer(x.bfloat16()))


def test_the_operators_keep_their_contracts() -> None:
    layer, x, dy = layer_and_data(SR)
    x, dy = x.detach().reshape(-1, 320), dy.reshape(-1, 192)
    step = torch.tensor(4)
    torch.library.opcheck(torch_linear.product_op, (x, layer.weight, layer.bias, step, None, None, layer.plan, True))
    for of_x, of_weight in ((True, False), (False, True), (True, True)):
        arguments = (dy, x, layer.weight.detach(), step, None, None, layer.plan, of_x, of_weight)
        torch.library.opcheck(torch_linear._gradients_op, arguments)


# ---- recipes and errors


def test_recipes_are_values() -> None:
    assert ft.DEEPSEEK_V3.replace(seed=0) == ft.DEEPSEEK_V3
    assert repr(ft.DEEPSEEK_V3) == "fp.torch.DEEPSEEK_V3"
    assert repr(ft.LinearRecipe("e4m3", grad_fmt=fp.E5M2)) == "LinearRecipe(input_fmt=E4M3, grad_fmt=E5M2)"
    assert copy.deepcopy(SR) == SR != ft.DEEPSEEK_V3
    assert all(pickle.loads(pickle.dumps(recipe)) == recipe for recipe in ft.RECIPES.values())


@in_turn(
    "call, kind, message",
    [
        (lambda: ft.LinearRecipe("fp8"), ValueError, "input_fmt must be one of"),
        (lambda: ft.LinearRecipe("int8"), ValueError, "INT8 needs a scale"),
        (lambda: ft.LinearRecipe(input_scaling=S.MX), ValueError, "input_scaling needs input_fmt; got None"),
        (lambda: ft.LinearRecipe("e4m3", input_scaling="mxfp8"), ValueError, "input_scaling must be one of .*'MX'"),
        (lambda: ft.LinearRecipe("e4m3", input_scaling="same"), ValueError, "scaling must be one of .*got 'same'"),
        (lambda: ft.LinearRecipe("e4m3", input_scaling_backward="sam"), ValueError, "'same' or None; got 'sam'"),
        (lambda: ft.LinearRecipe("e4m3", rounding="nearest"), ValueError, "rounding must be one of"),
        (lambda: ft.LinearRecipe(seed=-1), ValueError, "seed must be an integer in"),
        (lambda: ft.QuantLinear(4, 4, recipe="mxfp8"), TypeError, "recipe must be an fp.torch.LinearRecipe"),
        (lambda: ft.QuantLinear.from_linear(torch.nn.ReLU(), SR), TypeError, "linear must be a torch.nn.Linear"),
        (lambda: ft.QuantLinear(4, 4, recipe=SR)(torch.ones(2, 8)), ValueError, "4 features in its last axis"),
        (lambda: ft.QuantLinear(4, 4, recipe=SR)(torch.ones(2, 4).int()), TypeError, "floats; got torch.int32"),
        (lambda: ft.quantize_linears([], SR), TypeError, "model must be a torch.nn.Module; got list"),
        (lambda: ft.quantize_linears(model(), SR, 3), TypeError, "pattern must be a shell pattern or several"),
        (lambda: ft.quantize_linears(model(), SR, [3]), TypeError, "pattern must be a shell pattern or several"),
        (
            lambda: ft.quantize_linears(model(), SR, "mlp.*", "head"), ValueError,
            r"pattern 'mlp.\*' without 'head' matches no torch.nn.Linear of the model, which has 'blocks.0.up', ",
        ),
        (
            lambda: ft.quantize_linears(ft.QuantLinear(4, 4, recipe=SR), SR), ValueError,
            "which has none. Quantised already: 1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_sentence(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_empty_batches_pass() -> None:
    layer = ft.QuantLinear(16, 4, recipe=ft.MXFP8)
    x = torch.ones(0, 16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert np.all(layer.weight.grad.numpy() == 0)


@pytest.mark.parametrize("backend", ["emulated", "gpu"])
def test_tensors_of_other_devices_are_refused_with_what_to_do(backend: str) -> None:
    elsewhere = type("Elsewhere", (torch.Tensor,), {"device": torch.device("cuda:0")})
    layer = ft.QuantLinear(128, 128, recipe=ft.MXFP8, backend=backend)
    with pytest.raises(
        ValueError,
        match=r"input must be a tensor on the CPU, whatever the backend; got one on cuda:0\. Use input\.cpu\(\): "
        r"backend='gpu' and 'hardware' bring what they multiply to the GPU themselves\.",
    ):
        layer(torch.ones(4, 128).as_subclass(elsewhere))


def test_a_model_stays_unchanged_if_it_cannot_be_quantised() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    delayed = (ft.TE_DELAYED.replace(delayed=ft.Delayed(history=history)) for history in (2, 3))
    products = zip(("fprop", "wgrad"), delayed, strict=True)
    clash = fp.recipes.BF16.replace(overrides=[fp.recipes.Override("1", (name,), linear=row) for name, row in products])
    cases = ((ft.MXFP8, "cuda", "backend must be one of"), (clash, "emulated", "must share the options"))
    for recipe, backend, reason in cases:
        with pytest.raises(ValueError, match=reason):
            ft.quantize_linears(model, recipe, backend=backend)
        assert [type(layer) for layer in model] == [torch.nn.Linear] * 2
