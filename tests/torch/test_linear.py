"""Quantised linear layers: their products are torch's of the quantised operands, and they stand in for plain ones."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")


ft: Any = importlib.import_module("fpsim.torch")


# Small layers stand for large ones here, though few of their features are whole blocks.
pytestmark = pytest.mark.filterwarnings("ignore:.*the last block is filled up with zeros")


BY_TORCH = dict.fromkeys(("fprop", "dgrad", "wgrad"), ft.Product())


SR = ft.DEEPSEEK_V3.replace(grad_rounding="stochastic", seed=3)


S = fp.scalings


def quantized(x: Any, fmt: Any, scaling: Any, **cast: Any) -> Any:
    """A tensor as NumPy functions quantise it."""
    array = x.detach().float().numpy()
    return torch.from_numpy(
        fp.quantize(array, fmt, **cast) if scaling is None else fp.quantize_scaled(array, fmt, scaling, **cast)
    )


def layer_and_data(recipe: Any, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    """A layer of 320 to 192 features, x and dy of 2 x 75 tokens."""
    torch.manual_seed(0)
    layer = ft.QuantLinear(320, 192, dtype=dtype, recipe=recipe)
    x = (torch.randn(2, 75, 320) * torch.randn(2, 75, 1).exp()).to(dtype).requires_grad_()
    return layer, x, torch.randn(2, 75, 192).to(dtype)


WRITTEN_OUT = {
    # recipe: (format forwards, backwards), then x, w, dy, w for dx, dy for dw, x for dw
    "TE_HYBRID": (("e4m3", "e5m2"), (S.TE_TENSOR,) * 6),
    "MXFP8": (("e4m3", "e4m3"), (*(S.TE_MX,) * 3, *(S.TE_MX.replace(block=(32, 1)),) * 3)),
    "DEEPSEEK_V3": (
        ("e4m3", "e4m3"),
        (S.TILE_1X128, S.BLOCK_128X128, S.TILE_1X128, S.BLOCK_128X128, S.TILE_128X1, S.TILE_128X1),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_products_without_a_unit_are_those_of_torch_on_quantised_operands(name: str, dtype: Any) -> None:
    layer, x, dy = layer_and_data(ft.RECIPES[name].replace(**BY_TORCH), dtype)
    (forwards, backwards), (of_x, of_w, of_dy, of_w_back, of_dy_back, of_x_back) = WRITTEN_OUT[name]
    y = layer(x)
    dx, dw, db = torch.autograd.grad(y, (x, layer.weight, layer.bias), dy)
    rows, dys = x.reshape(-1, 320), dy.reshape(-1, 192)
    x_q, w_q = quantized(rows, forwards, of_x), quantized(layer.weight, forwards, of_w)
    want = torch.nn.functional.linear(x_q, w_q, layer.bias.detach().float()).to(dtype)
    assert torch.equal(y, want.reshape(2, 75, 192))
    want = quantized(dys, backwards, of_dy) @ quantized(layer.weight, forwards, of_w_back)
    assert torch.equal(dx, want.to(dtype).reshape(2, 75, 320))
    x_back = quantized(x_q if name.startswith("DEEPSEEK") else rows, forwards, of_x_back)
    assert torch.equal(dw, (quantized(dys, backwards, of_dy_back).t() @ x_back).to(dtype))
    assert torch.equal(db, dys.float().sum(0).to(dtype))
    assert (y.dtype, dx.dtype, dw.dtype) == (dtype,) * 3


def test_a_recipe_of_nothing_is_a_plain_layer() -> None:
    layer, x, dy = layer_and_data(ft.LinearRecipe())
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    got, want = (torch.autograd.grad(y, (x, layer.weight, layer.bias), dy) for y in (layer(x), plain))
    assert torch.equal(layer(x), plain)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_casts_without_scales_and_float64_layers_work() -> None:
    recipe = ft.LinearRecipe("bf16", "bf16", "e5m2", rounding="toward_zero")
    layer, x, dy = layer_and_data(recipe, torch.float64)
    (dx,) = torch.autograd.grad(layer(x), x, dy)
    weight = torch.from_numpy(fp.quantize(layer.weight.detach().numpy(), "bf16", rounding="toward_zero"))
    want = torch.from_numpy(fp.quantize(dy.reshape(-1, 192).numpy(), "e5m2")) @ weight
    assert torch.equal(dx.reshape(-1, 320), want)


def test_only_gradients_that_are_wanted_are_computed() -> None:
    layer, x, dy = layer_and_data(ft.MXFP8)
    layer.weight.requires_grad_(False)
    y = layer(x.detach())
    y.backward(dy)
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def test_a_numpy_integer_is_a_seed() -> None:
    for seed in (np.int64(3), np.uint64(2**64 - 1)):
        recipe = ft.LinearRecipe("e4m3", rounding="stochastic", seed=seed)
        assert recipe == ft.LinearRecipe("e4m3", rounding="stochastic", seed=int(seed))
        assert type(recipe.seed) is int
    for bad in (np.int64(-1), np.float32(3), np.True_):
        with pytest.raises(ValueError, match=r"seed must be an integer in 0 .. 2\*\*64 - 1; got"):
            ft.LinearRecipe(seed=bad)


def test_stochastic_gradients_follow_from_seed_name_and_step() -> None:
    def gradients(recipe: Any, name: str, steps: int) -> list[Any]:
        layer, x, dy = layer_and_data(recipe)
        layer = ft.QuantLinear.from_linear(torch.nn.utils.skip_init(torch.nn.Linear, 320, 192), recipe, name)
        torch.nn.init.constant_(layer.weight, 0.5)
        torch.nn.init.zeros_(layer.bias)
        found = [torch.autograd.grad(layer(x), layer.weight, dy)[0] for _ in range(steps)]
        assert layer.steps == steps
        return found

    first, second = gradients(SR, "a", 2)
    again = gradients(SR, "a", 2)
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    others = [second, gradients(SR, "b", 1)[0], gradients(SR.replace(seed=4), "a", 1)[0]]
    assert not any(torch.equal(first, other) for other in others)


def test_steps_count_training_only_and_travel_with_the_state() -> None:
    layer, x, dy = layer_and_data(SR)
    layer(x)
    with torch.no_grad():
        layer(x)
    layer.eval()(x)
    assert layer.steps == 1
    layer.train()
    twin = ft.QuantLinear(320, 192, recipe=SR)
    twin.load_state_dict(layer.state_dict())
    assert twin.steps == 1
    both = [torch.autograd.grad(each(x), each.weight, dy)[0] for each in (layer, twin)]
    assert torch.equal(*both)
    assert sorted(layer.state_dict()) == ["bias", "steps", "weight"]
    twin.load_state_dict(torch.nn.Linear(320, 192).state_dict())
    assert twin.steps == 2
