"""The products of quantised layers have the bits of fp.matmul on operands that are quantised by hand."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")

ft: Any = importlib.import_module("fpsim.torch")
trace: Any = importlib.import_module("fpsim.torch.trace")
mixing: Any = importlib.import_module("fpsim.torch.hadamard")

S = fp.scalings
DEEPGEMM: dict[str, Any] = {"accumulate": "hopper_e4m3_f32", "schedule": fp.schedules.deepgemm()}
MX: dict[str, Any] = {"accumulate": "blackwell_mxfp8_e4m3_f32"}
NVFP4: dict[str, Any] = {"accumulate": "blackwell_nvfp4_f32"}
MX_BACK, NVFP4_BACK = S.TE_MX.transposed(), S.NVFP4.transposed()
FLAT: dict[str, Any] = {"accumulate": "hopper_e4m3_f32"}
PROMOTED: dict[str, Any] = {"accumulate": "hopper_e4m3_f32", "promote": 128}
E5M2: dict[str, Any] = {"accumulate": "hopper_e5m2xe4m3_f32", "promote": 128}


def spread(w: Any) -> Any:
    """A matrix in 16x16 blocks as rows of 1x16: a scale of its own for each."""
    rows: dict[str, Any] = {name: np.repeat(getattr(w, name), 16, axis=0) for name in ("scales", "scale_codes")}
    return fp.Scaled(w.codes, fmt=w.fmt, scaling=S.NVFP4, tensor_scale=w.tensor_scale, **rows)


def hand(x: Any, fmt: Any, scaling: Any, **cast: Any) -> Any:
    return fp.cast(x, fmt, **cast) if scaling is None else fp.encode_scaled(x, fmt, scaling, **cast)


# recipe: formats of x, w, dy; scalings of x, w, dy, and of w, dy, x backwards; the arithmetic of each product
ROWS: dict[str, Any] = {
    "BF16": ("bf16", "bf16", "bf16", *[None] * 6, *[{"accumulate": "hopper_bf16_f32", "out_fmt": "bf16"}] * 3),
    "FP16": ("fp16", "fp16", "fp16", *[None] * 6, *[{"accumulate": "hopper_f16_f32", "out_fmt": "fp16"}] * 3),
    "FP8_RAW": ("e4m3", "e4m3", "e4m3", *[None] * 6, PROMOTED, PROMOTED, PROMOTED),
    "FP8_TENSOR": ("e4m3", "e4m3", "e4m3", *[S.TENSOR] * 6, PROMOTED, PROMOTED, PROMOTED),
    "TE_HYBRID": ("e4m3", "e4m3", "e5m2", *[S.TE_TENSOR] * 6, FLAT, E5M2, E5M2),
    "DEEPSEEK_V3": (
        "e4m3", "e4m3", "e4m3", S.TILE_1X128, S.BLOCK_128X128, S.TILE_1X128, S.BLOCK_128X128, S.TILE_128X1,
        S.TILE_128X1, DEEPGEMM, DEEPGEMM, DEEPGEMM,
    ),
    "DEEPSEEK_V3_UNPROMOTED": ("e4m3", "e4m3", "e4m3", *[S.ROW] * 3, *[S.COLUMN] * 3, FLAT, FLAT, FLAT),
    "MXFP8": ("e4m3", "e4m3", "e4m3", *[S.TE_MX] * 3, *[MX_BACK] * 3, MX, MX, MX),
}  # fmt: skip


@in_turn("name", ROWS)
def test_products_are_those_of_matmul_on_operands_quantised_by_hand(name: str) -> None:
    of_x, of_w, of_dy, sx, sw, sdy, sw_back, sdy_back, sx_back, fprop, dgrad, wgrad = ROWS[name]
    recipe = ft.RECIPES[name]
    torch.manual_seed(1)
    layer = ft.QuantLinear(256, 128, bias=False, recipe=recipe)
    x = (torch.randn(192, 256) * torch.randn(192, 1).exp()).requires_grad_()
    dy = torch.randn(192, 128) * 2.0**-6
    y = layer(x)
    dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
    raw = {"overflow": "saturate"} if name == "FP8_RAW" else {}
    ax, aw, ady = x.detach().numpy(), layer.weight.detach().numpy(), dy.numpy()
    if recipe.fprop.out_fmt is not None:
        fprop, dgrad = {"out_fmt": "bf16", **fprop}, {"out_fmt": "bf16", **dgrad}
    qx, qw, qdy = hand(ax, of_x, sx, **raw), hand(aw, of_w, sw, **raw), hand(ady, of_dy, sdy, **raw)
    turned = qw.T if sw is None else qw.transpose()
    fp.testing.assert_bits_equal(y.detach().numpy(), fp.matmul(qx, turned, **fprop).astype(np.float32))
    want = fp.matmul(qdy, hand(aw, of_w, sw_back, **raw), **dgrad).astype(np.float32)
    fp.testing.assert_bits_equal(dx.numpy(), want)
    kept = qx.decode() if recipe.requantize_input else ax
    left = hand(ady, of_dy, sdy_back, **raw)
    left = left.T if sdy_back is None else left.transpose()
    want = fp.matmul(left, hand(kept, of_x, sx_back, **raw), **wgrad).astype(np.float32)
    fp.testing.assert_bits_equal(dw.numpy(), want)


def test_nvfp4_has_square_weights_stochastic_gradients_and_a_hadamard_transform() -> None:
    recipe = ft.NVFP4.replace(seed=5)
    plan = importlib.import_module("fpsim.torch.plan").plan_of(recipe, "up")
    torch.manual_seed(1)
    layer = ft.QuantLinear(64, 48, bias=False, recipe=recipe, name="up")
    x, dy = torch.randn(32, 64, requires_grad=True), torch.randn(32, 48)
    y = layer(x)
    dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
    weight, square = layer.weight.detach().numpy(), S.NVFP4.replace(block=(16, 16))
    qx = fp.encode_scaled(x.detach().numpy(), "e2m1", S.NVFP4)
    rows = spread(fp.encode_scaled(weight, "e2m1", square))
    want = fp.matmul(qx, rows.transpose(), out_fmt="bf16", **NVFP4)
    fp.testing.assert_bits_equal(y.detach().numpy(), want.astype(np.float32))
    draws: dict[str, Any] = {"rounding": "stochastic", "seed": plan.grad.key}
    qdy = fp.encode_scaled(dy.numpy(), "e2m1", S.NVFP4, **draws)
    columns = spread(fp.encode_scaled(np.ascontiguousarray(weight.T), "e2m1", square)).transpose()
    fp.testing.assert_bits_equal(dx.numpy(), fp.matmul(qdy, columns, out_fmt="bf16", **NVFP4).astype(np.float32))
    mixed = [mixing.hadamard(each, 16, plan.signs) for each in (dy.numpy(), x.detach().numpy())]
    draws["seed"] = plan.grad_backward.key
    left = fp.encode_scaled(mixed[0], "e2m1", NVFP4_BACK, **draws).transpose()
    right = fp.encode_scaled(mixed[1], "e2m1", NVFP4_BACK)
    fp.testing.assert_bits_equal(dw.numpy(), fp.matmul(left, right, **NVFP4))


@in_turn("size", [2, 4, 16, 64])
def test_the_hadamard_transform_is_the_product_with_its_matrix(size: int) -> None:
    # of small integers every sum is exact, and so is the factor 1 / sqrt(size) of the sizes that are squares
    x = np.random.default_rng(0).integers(-64, 65, (2 * size, 5)).astype(np.float32)
    signs = 0xBEEF_1234_5678_9ABC
    flips = np.array([-1.0 if signs >> i & 1 else 1.0 for i in range(size)])
    matrix = np.array([[(-1) ** bin(i & j).count("1") for j in range(size)] for i in range(size)]) * flips
    want = np.einsum("ij,bjc->bic", matrix, x.reshape(2, size, 5)).reshape(x.shape)
    factor = np.float32(1) / np.sqrt(np.float32(size))
    got = mixing.hadamard(x, size, signs)
    if size == 2:  # the terms are rounded by the factor before they are added
        a, b = (x[i::2] * np.float32(factor * flips[i]) for i in (0, 1))
        want = np.stack((a + b, a - b), axis=1).reshape(x.shape)
        fp.testing.assert_bits_equal(got + np.float32(0), want + np.float32(0))
    else:
        fp.testing.assert_bits_equal(got + np.float32(0), (want * float(factor)).astype(np.float32) + np.float32(0))


def test_the_hadamard_transform_keeps_the_product() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-64, 65, (64, n)).astype(np.float32) for n in (24, 40))
    mixed = mixing.hadamard(a, 16, 0xBEEF).T @ mixing.hadamard(b, 16, 0xBEEF)  # quarters: exact in float32
    assert np.array_equal(mixed, a.T @ b)


def test_delayed_scales_are_those_of_the_class() -> None:
    recipe = ft.TE_DELAYED.replace(delayed=ft.Delayed(history=3))
    torch.manual_seed(1)
    layer = ft.QuantLinear(128, 64, bias=False, recipe=recipe)
    states = [fp.DelayedScaling(fmt, history=3) for fmt in ("e4m3", "e4m3", "e5m2")]
    for step in range(5):
        x, dy = (torch.randn(32, n) * 4.0 ** (step - 2) for n in (128, 64))
        x.requires_grad_()
        y = layer(x)
        dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
        qx, qw, qdy = (
            state.encode(np.ascontiguousarray(each.detach().numpy()))
            for state, each in zip(states, (x, layer.weight, dy), strict=True)
        )
        want = fp.matmul(qx, qw.transpose(), accumulate="hopper_e4m3_f32", out_fmt="bf16")
        fp.testing.assert_bits_equal(y.detach().numpy(), want.astype(np.float32))
        want = fp.matmul(qdy, qw, out_fmt="bf16", **E5M2)
        fp.testing.assert_bits_equal(dx.numpy(), want.astype(np.float32))
        fp.testing.assert_bits_equal(dw.numpy(), fp.matmul(qdy.transpose(), qx, **E5M2))
    for row, state in zip(layer.scales.numpy(), states, strict=True):
        arrays = state.state_dict()
        assert row[0] == arrays["encode_scales"].item()
        assert row[1:].tolist() == arrays["amax_history"].reshape(-1).tolist()
    assert "scales" in layer.state_dict()
    before = layer.scales.clone()
    layer.eval()
    layer(torch.randn(4, 128) * 1000)
    assert torch.equal(layer.scales, before)


def test_an_accumulator_adds_the_quantised_values() -> None:
    recipe = ft.LinearRecipe("e4m3", "e4m3", input_scaling=S.TILE_1X128, weight_scaling=S.TENSOR,
                             fprop=ft.Product(fp.Sequential(fp.BF16)))  # fmt: skip
    layer, x = ft.QuantLinear(128, 16, recipe=recipe), torch.randn(8, 128)
    qx = fp.quantize_scaled(x.numpy(), "e4m3", S.TILE_1X128)
    qw = fp.quantize_scaled(layer.weight.detach().numpy(), "e4m3", S.TENSOR)
    want = fp.matmul(qx, qw.T, accumulate=fp.Sequential(fp.BF16)).astype(np.float32) + layer.bias.detach().numpy()
    fp.testing.assert_bits_equal(layer(x).detach().numpy(), want)


def test_tf32_is_read_as_patterns_of_float32() -> None:
    mechanism: Any = importlib.import_module("fpsim.divergence.mechanism")
    plan: Any = importlib.import_module("fpsim.torch.plan")
    torch.manual_seed(0)
    recipe = ft.LinearRecipe("tf32", "tf32", "tf32", fprop=ft.Product("hopper_tf32_f32"))
    layer, x = ft.QuantLinear(64, 16, bias=False, recipe=recipe), torch.randn(8, 64)
    seen: list[Any] = []
    with trace.watching(seen.append):
        y = layer(x).detach().numpy()
    a, b = (fp.quantize(each.detach().numpy(), "tf32") for each in (x, layer.weight))
    fp.testing.assert_bits_equal(y, fp.matmul(a, b.T, accumulate="hopper_tf32_f32"))
    assert np.abs(y - a @ b.T).max() < 1e-5
    call = seen[0]
    of = mechanism.Product("", "fprop", call.a, call.b, plan.adds_of(call.how), call.result)
    assert mechanism.result_of(of, 3, 5)[0] == y[3, 5]


def test_a_stash_is_what_the_weight_gradient_reads() -> None:
    e5m6 = fp.Format("E5M6", 5, 6)
    recipe = ft.DEEPSEEK_V3.replace(stash_fmt=e5m6, stash_scaling=S.TILE_1X128_POW2, requantize_input=False)
    layer, x, dy = ft.QuantLinear(128, 64, False, recipe=recipe), torch.randn(128, 128), torch.randn(128, 64)
    (dw,) = torch.autograd.grad(layer(x), layer.weight, dy)
    kept = fp.quantize_scaled(x.numpy(), e5m6, S.TILE_1X128_POW2)
    left = fp.encode_scaled(dy.numpy(), "e4m3", S.TILE_128X1).transpose()
    want = fp.matmul(left, fp.encode_scaled(kept, "e4m3", S.TILE_128X1), **DEEPGEMM)
    fp.testing.assert_bits_equal(dw.numpy(), want)


def test_the_float32_backend_keeps_operands_and_formats_and_lets_torch_multiply() -> None:
    x = torch.randn(16, 128)
    torch.manual_seed(0)
    layer = ft.QuantLinear(128, 32, False, recipe=ft.RECIPES["FP8_TENSOR"], backend="float32")
    operands = (fp.quantize_scaled(each.detach().numpy(), "e4m3", S.TENSOR) for each in (x, layer.weight))
    want = torch.nn.functional.linear(*map(torch.from_numpy, operands)).numpy()
    fp.testing.assert_bits_equal(layer(x).detach().numpy(), fp.quantize(want, "bf16"))


def test_whoever_watches_sees_every_product_and_changes_none() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128))
    ft.quantize_linears(net, ft.DEEPSEEK_V3)
    x = torch.randn(128, 128)
    seen: list[Any] = []
    plain = torch.autograd.grad(net(x).square().sum(), net[0].weight)[0]
    with trace.watching(seen.append):
        watched = torch.autograd.grad(net(x).square().sum(), (net[0].weight, net[2].weight))[0]
    assert torch.equal(plain, watched)
    order = [("0", "fprop"), ("2", "fprop"), ("2", "dgrad"), ("2", "wgrad"), ("0", "wgrad")]
    assert [(call.layer, call.product) for call in seen] == order
    for call in seen:
        assert call.result.shape == (call.a.source.shape[0], call.b.source.shape[1])
        assert call.a.source.shape[1] == call.b.source.shape[0]


@in_turn(
    "fields, message",
    [
        ({"fprop": "hopper"}, r"fprop must be an fp.torch.Product; got 'hopper'"),
        ({"weight_fmt": "bf16"}, r"fprop needs a matrix unit for E4M3 x BF16 .* hopper has none"),
        ({"hadamard": np.ones(3)}, r"hadamard must be one of 0, 2, 4, .*; got array"),
        ({"hadamard": 12}, r"hadamard must be one of 0, 2, 4, .*; got 12"),
        ({"delayed": ft.Delayed()}, r"delayed scales are one per tensor; got input_scaling besides"),
        ({"stash_fmt": "bf16"}, r"stash_fmt says what is kept of x, .* Pass one"),
        ({"overflow": "clamp"}, r"overflow"),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_are_refused_in_a_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ft.DEEPSEEK_V3.replace(**fields)


@in_turn(
    "arguments, message",
    [
        ({"accumulate": "hoper_e4m3_f32"}, r"unit"),
        ({"schedule": fp.schedules.deepgemm()}, r"schedule is for matrix units; got accumulate=None"),
        ({"accumulate": "hopper", "promote": 128, "schedule": fp.schedules.FLAT}, r"promote is part of the schedule"),
        ({"accumulate": fp.Sequential(fp.Format("mine", 4, 4))}, r"an accumulator must have a named format"),
        ({"accumulate": 3}, r"accumulate must be a matrix unit, its name, an accumulator or None; got 3"),
    ],
)
def test_products_that_cannot_be_are_refused_in_a_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ft.Product(**arguments)


@in_turn("accumulate", [None, fp.Sequential(fp.FP32), "hopper"])
def test_results_beyond_fp8_saturate_whatever_multiplies(accumulate: Any) -> None:
    recipe = ft.LinearRecipe("e4m3", "e4m3", "e4m3", fprop=ft.Product(accumulate, out_fmt="e4m3"))
    for backend in ("emulated", "float32"):
        layer = ft.QuantLinear(32, 2, bias=False, recipe=recipe, backend=backend)
        torch.nn.init.constant_(layer.weight, 16.0)
        assert layer(torch.full((1, 32), 16.0)).tolist() == [[448.0, 448.0]]


def test_one_scale_for_all_rows_is_that_of_every_row() -> None:
    """A matrix unit reads a scale for each row and 32 terms, so scales that rows share are repeated."""
    layers = []
    for rows in (-1, 64):
        scaling = fp.scalings.MX.replace(block=(rows, 32))
        product = ft.Product("blackwell_mxfp8_e4m3_f32")
        recipe = ft.LinearRecipe("e4m3", "e4m3", None, scaling, scaling, fprop=product)
        torch.manual_seed(0)
        layers.append(ft.QuantLinear(96, 64, recipe=recipe))
    x = torch.randn(64, 96)
    assert torch.equal(layers[0](x), layers[1](x))


@in_turn("block, whole", [((16,), (1, 16)), ((-1,), (-1, -1)), ((9, 1, 16), (1, 16))])
def test_blocks_of_one_axis_or_three_are_those_of_a_matrix(block: Any, whole: Any) -> None:
    results, x = [], torch.randn(8, 64)
    for sizes in (block, whole):
        scaling = fp.scalings.NVFP4.replace(block=sizes)
        recipe = ft.LinearRecipe("e2m1", "e2m1", "e2m1", scaling, scaling, scaling, fprop=ft.Product("blackwell"))
        torch.manual_seed(0)
        layer = ft.QuantLinear(64, 32, recipe=recipe)
        replay = importlib.import_module("fpsim.torch.replay").ProductReplay(layer, x)
        results.append((layer(x), replay.part(slice(2, 4), slice(0, 32)), replay.over_terms(2)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backend must be one of emulated, float32, gpu, hardware, cpu; got 'tpu'"):
        ft.QuantLinear(8, 8, recipe=ft.MXFP8, backend="tpu")


@in_turn("schedule", fp.schedules.ROWS)
def test_schedules_are_read_back_from_what_they_show(schedule: Any) -> None:
    assert importlib.import_module("fpsim.schedules.written").parsed(repr(schedule)) == schedule


@in_turn("text", ["", "x", "__import__('os')", "deepgemm(1+1)", "Sequential(NOPE)", "deepgemm(a=1)"])
def test_other_texts_are_no_schedules(text: str) -> None:
    with pytest.raises(ValueError):
        importlib.import_module("fpsim.schedules.written").parsed(text)
