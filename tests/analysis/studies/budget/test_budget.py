"""The error of products by cause: each against its definition, its closed form, and the bits of the layer."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.studies.budget.recorded import INT8, linears, normal, one_layer, recorded, transformer
from tests.kit.sweeps import in_turn

torch: Any = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")
PRODUCTS = ("fprop", "dgrad", "wgrad")


def relative(error: Any, reference: Any) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(reference))


def exact(x: Any, w: Any, dy: Any) -> dict[str, Any]:
    x, w, dy = (torch.from_numpy(array.astype(np.float64)) for array in (x, w, dy))
    pairs = {"fprop": (x, w.T), "dgrad": (dy, w), "wgrad": (dy.T, x)}
    return {product: (a.contiguous() @ b.contiguous()).numpy() for product, (a, b) in pairs.items()}


def ready(recipe: Any, chip: Any, x: Any, w: Any, dy: Any) -> dict[str, Any]:
    """Compute the three products of the layer itself."""
    layer = ft.QuantLinear(w.shape[1], w.shape[0], False, recipe=on_chip(recipe, chip), name="0")
    layer.weight = torch.nn.Parameter(torch.from_numpy(w.copy()))
    inputs = torch.from_numpy(x.copy()).requires_grad_()
    y = layer(inputs)
    y.backward(torch.from_numpy(dy))
    return {
        "fprop": y.detach().numpy(), "dgrad": inputs.grad.numpy(), "wgrad": layer.weight.grad.numpy(),
    }  # fmt: skip


def on_chip(recipe: Any, chip: Any) -> Any:
    from fpsim.recipes.hardware import placed

    return placed(recipe, chip).recipe


# ---- closed forms


def test_two_operands_of_e4m3_are_off_by_their_closed_form_each_and_in_quadrature() -> None:
    r = one_layer(normal(1024, 256), normal(128, 256, seed=1), normal(1024, 128, seed=2))
    want = 2.0**-4 / math.sqrt(8 * math.log(2))
    assert f"{want:.4f}" == "0.0265"
    for row in fp.analysis.budget(r, recipe="FP8_TENSOR").rows:
        assert row.closed_a == pytest.approx(want, rel=1e-12)
        assert row.closed_b == pytest.approx(want, rel=1e-12)
        for got in (row.rounding_a, row.rounding_b, row.stored_a, row.stored_b):
            assert got == pytest.approx(want, rel=0.03)
        assert row.joint == pytest.approx(row.closed, rel=0.02)
        assert abs(row.interplay) < 0.15 * row.joint


def test_integers_are_off_by_what_their_scales_say() -> None:
    r = one_layer(normal(512, 128), normal(128, 128, seed=1), normal(512, 128, seed=2))
    recipe = ft.LinearRecipe(**INT8 | {"input_scaling": fp.scalings.TILE_1X128})
    for row in fp.analysis.budget(r, recipe=recipe).rows:
        assert row.stored_a == pytest.approx(row.closed_a, rel=0.03)
        assert row.rounding_b == pytest.approx(row.closed_b, rel=0.05)
        assert row.closed_b < 0.02


def test_tf32_on_its_unit_is_off_by_its_closed_form() -> None:
    r = one_layer(normal(512, 256), normal(256, 256, seed=1))
    row = fp.analysis.budget(r, recipe=ft.LinearRecipe("tf32", "tf32", "tf32"), on="A100").row("0", "fprop")
    assert row.unit == "ampere_tf32_f32"
    assert row.joint == pytest.approx(row.closed, rel=0.03)


def test_the_cast_to_bf16_is_off_by_its_closed_form() -> None:
    r = one_layer(normal(512, 256), normal(256, 256, seed=1))
    row = fp.analysis.budget(r, recipe="BF16").row("0", "fprop")
    assert row.cast == pytest.approx(row.closed_cast, rel=0.03)
    assert f"{row.closed_cast:.2e}" == "1.66e-03"


def test_stochastic_rounding_has_twice_the_square() -> None:
    r = one_layer(normal(512, 128), normal(128, 128, seed=1), normal(512, 128, seed=2))
    recipe = ft.RECIPES["FP8_TENSOR"].replace(grad_rounding="stochastic")
    row = fp.analysis.budget(r, recipe=recipe).row("0", "dgrad")
    assert row.closed_a == pytest.approx(math.sqrt(2) * row.closed_b, rel=1e-12)
    assert row.stored_a == pytest.approx(row.closed_a, rel=0.03)


# ---- every cause by its definition


def test_joint_has_the_bits_of_the_layer() -> None:
    x, w, dy = normal(128, 128), normal(64, 128, seed=1), normal(128, 64, seed=2)
    r = one_layer(x, w, dy)
    for name, chip in (
        ("DEEPSEEK_V3", "H100"), ("DEEPSEEK_V3_POW2", "H100"), ("MXFP8", "B200"), ("NVFP4", "B200"),
        ("TE_HYBRID", "H100"), ("TE_DELAYED", "H100"), ("BF16", "A100"), ("FP16", "MI300X"), ("FP8_RAW", "H100"),
    ):  # fmt: skip
        report = fp.analysis.budget(r, recipe=name, on=chip)
        products, wanted = ready(ft.RECIPES[name], chip, x, w, dy), exact(x, w, dy)
        for product in PRODUCTS:
            error = products[product].astype(np.float64) - wanted[product]
            assert report.row("0", product).squares.joint == float(np.sum(error * error)), (name, product)


def test_each_cause_alone_is_what_it_says() -> None:
    """Compute each cause by hand, with the functions that users have."""
    x, w, dy = np.abs(normal(64, 512)), np.abs(normal(128, 512, seed=1)), normal(64, 128, seed=2)
    row = fp.analysis.budget(one_layer(x, w, dy), recipe="FP8_TENSOR").row("0", "fprop")
    a, b = (fp.encode_scaled(operand, "e4m3", fp.scalings.TENSOR) for operand in (x, w))
    qa, qb, reference = a.decode().astype(np.float64), b.decode().T.astype(np.float64), exact(x, w, dy)["fprop"]
    xa, xb = x.astype(np.float64), w.T.astype(np.float64)
    size = np.linalg.norm(reference)
    assert row.rounding_a == pytest.approx(np.linalg.norm((qa - xa) @ xb) / size, rel=1e-9)
    assert row.rounding_b == pytest.approx(np.linalg.norm(xa @ (qb - xb)) / size, rel=1e-9)
    assert row.scales == 0
    unit = "hopper_e4m3_f32"
    chain, promoted = (
        np.linalg.norm(fp.matmul(a, b.transpose(), accumulate=unit, promote=promote) - qa @ qb) / size
        for promote in (None, 128)
    )
    assert row.accumulator == pytest.approx(chain, rel=1e-9)
    assert row.sums == pytest.approx(promoted, rel=1e-9)
    assert row.promotion == pytest.approx(-math.sqrt(chain**2 - promoted**2), rel=1e-9)
    assert chain > 5 * promoted  # of numbers of one sign
    assert row.cast == pytest.approx(relative(fp.quantize(reference, "bf16") - reference, reference), rel=1e-9)
    joint = fp.matmul(a, b.transpose(), accumulate=unit, promote=128, out_fmt="bf16").astype(np.float64)
    assert row.joint == pytest.approx(relative(joint - reference, reference), rel=1e-9)


def test_causes_and_interplay_are_the_joint_error() -> None:
    r = recorded(linears(128, 256, 128), torch.randn(256, 128, generator=torch.Generator().manual_seed(0)))
    for recipe, chip in (("DEEPSEEK_V3_POW2", "H100"), ("NVFP4", "B200"), ("FP16", "H100 cuBLAS")):
        for row in fp.analysis.budget(r, recipe=recipe, on=chip).rows:
            names = ("rounding_a", "rounding_b", "scales", "accumulator", "promotion", "cast", "interplay")
            squares = math.fsum(math.copysign(getattr(row, name) ** 2, getattr(row, name)) for name in names)
            assert math.sqrt(squares) == pytest.approx(row.joint, rel=1e-9)
            assert row.local == row.joint


def test_scales_are_what_a_recipe_adds_to_exact_ones() -> None:
    x, w, dy = normal(256, 128), normal(128, 128, seed=1), normal(256, 128, seed=2)
    r = one_layer(x, w, dy)
    row = fp.analysis.budget(r, recipe="DEEPSEEK_V3_POW2").row("0", "fprop")
    squares = {}
    xa, xb = x.astype(np.float64), w.T.astype(np.float64)
    for suffix in ("", "_POW2"):
        tiles, blocks = (getattr(fp.scalings, f"{name}{suffix}") for name in ("TILE_1X128", "BLOCK_128X128"))
        da = fp.quantize_scaled(x, "e4m3", tiles).astype(np.float64) - xa
        db = fp.quantize_scaled(w, "e4m3", blocks).T.astype(np.float64) - xb
        squares[suffix] = np.linalg.norm(da @ xb) ** 2 + np.linalg.norm(xa @ db) ** 2
    more = (squares["_POW2"] - squares[""]) / np.linalg.norm(xa @ xb) ** 2
    assert row.scales == pytest.approx(math.copysign(math.sqrt(abs(more)), more), rel=1e-6)
    assert row.scales > 2e-3  # 31.5 dB in place of 31.8


def test_a_cast_without_scales_loses_its_range_and_nothing_else() -> None:
    x, w = normal(256, 128), normal(128, 128, seed=1)
    small = one_layer(x, np.float32(2.0**-14) * w)
    row = fp.analysis.budget(small, recipe="FP8_RAW").row("0", "fprop")
    assert row.rounding_b == pytest.approx(row.closed_b, rel=0.03)
    assert row.scales == pytest.approx(1.0, abs=1e-3)  # every weight becomes 0
    assert row.joint == 1.0
    half = fp.analysis.budget(one_layer(x, w), recipe="BF16").row("0", "fprop")
    assert half.scales == 0  # its range is float32's


def test_unpromoted_sums_of_numbers_of_one_sign_lose_what_is_published() -> None:
    """7.45e-2 of U[0, 1) at K = 4096 in the Frobenius norm, 5.6e-4 promoted every 128 terms: docs/matrix-units.md."""
    rng = np.random.default_rng(0)
    r = one_layer(rng.random((64, 4096), np.float32), rng.random((64, 4096), np.float32))
    row = fp.analysis.budget(r, recipe="FP8_TENSOR").row("0", "fprop")
    assert row.accumulator == pytest.approx(7.0e-2, rel=0.1)
    assert row.sums == pytest.approx(5.6e-4, rel=0.2)
    assert row.promotion < -0.06
    fast = fp.analysis.budget(r, recipe="FP8_TENSOR", on="H100 cuBLAS fast").row("0", "fprop")
    assert fast.promotion == 0
    assert fast.joint > 0.06 > 0.03 > row.joint
    assert fp.analysis.budget(r, recipe="FP8_TENSOR", on="B200").row("0", "fprop").accumulator < 1e-5


def test_delayed_scales_come_from_the_recorded_steps_before() -> None:
    x = [np.float32(4.0**i) * normal(64, 128, seed=i) for i in range(3)]
    model = linears(128, 128)
    recipe = ft.TE_DELAYED.replace(delayed=ft.Delayed(history=2))
    report = fp.analysis.budget(recorded(model, *map(torch.from_numpy, x)), recipe=recipe)
    of_x, of_w = (fp.DelayedScaling("e4m3", history=2) for _ in range(2))
    w, squares = model[0].weight.detach().numpy(), 0.0
    for batch in x:
        a, b = of_x.encode(batch), of_w.encode(w)
        y = fp.matmul(a, b.transpose(), accumulate="hopper_e4m3_f32", out_fmt="bf16").astype(np.float64)
        error = y - batch.astype(np.float64) @ w.T.astype(np.float64)
        squares += float(np.vdot(error, error))
    row = report.row("0", "fprop")
    assert (row.batches, report.steps) == (3, (1, 2, 3))
    assert row.squares.joint == pytest.approx(squares, rel=1e-12)
    assert row.scales > 0.1  # clipped: four times as large as what came before
    assert report.notes == (
        "Delayed scales of input, weight and output gradient are 1 at step 1, since no amax was recorded before it: 0.",
    )


def test_float32_has_sums_alone() -> None:
    r = one_layer(normal(64, 128), normal(32, 128, seed=1), normal(64, 32, seed=2))
    for row in fp.analysis.budget(r, recipe="FP32").rows:
        assert (row.rounding_a, row.rounding_b, row.scales, row.cast, row.promotion) == (0, 0, 0, 0, 0)
        assert 1e-8 < row.accumulator == row.joint < 1e-6
        assert row.unit == "torch"
        assert row.interplay == 0


def test_the_reference_is_better_by_far_than_what_is_measured() -> None:
    r = one_layer(normal(64, 4096), normal(32, 4096, seed=1), normal(64, 32, seed=2))
    for row in fp.analysis.budget(r, recipe="FP32").rows:
        assert 0 < row.reference_bound < 1e-3 * row.joint


# ---- models


def test_outlier_channels_leave_tiles_of_fp8_and_take_most_bits_of_int8() -> None:
    """One channel in 32 of the input 256 times as large, its weights as small: the function is the same."""
    x, w = normal(512, 256), normal(128, 256, seed=1)
    factors = np.where(np.arange(256) % 32 == 0, np.float32(256), np.float32(1))
    plain, outliers = one_layer(x, w), one_layer(x * factors, w / factors)
    int8 = ft.LinearRecipe(**INT8)

    def joint(r: Any, recipe: Any) -> float:
        return float(fp.analysis.budget(r, recipe=recipe).row("0", "fprop").joint)

    assert joint(outliers, "DEEPSEEK_V3") == pytest.approx(joint(plain, "DEEPSEEK_V3"), rel=0.1)
    lost = math.log2(joint(outliers, int8) / joint(plain, int8))
    assert 5 < lost < 8.5


@in_turn("where", ["0", "1", "2"])
def test_a_planted_bad_layer_is_named_first(where: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 128, generator=generator)

    def small(layer: Any) -> None:
        layer.weight.mul_(2.0**-12)

    def channel(layer: Any) -> None:
        layer.weight[5].mul_(3000.0)

    int8 = ft.LinearRecipe(**INT8)
    for plant, recipe in ((small, "FP8_RAW"), (channel, int8), (channel, "FP8_TENSOR")):
        model = linears(128, 128, 128, 128)
        bad = model[int(where)]
        with torch.no_grad():
            plant(bad)
        report = fp.analysis.budget(_each_alone(model, x), recipe=recipe)
        assert report.ranking[0][0] == where, (recipe, report.ranking)
        assert str(report).startswith(f"{where} contributes most: "), recipe
        assert report.ranking[0][1] > 2 * report.ranking[1][1]
        assert report.worst().row.layer == where


def _each_alone(model: Any, x: Any) -> Any:
    """Make a recording in which every layer reads normal values and gets normal gradients back."""

    class Apart(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for i, layer in enumerate(model):
                self.add_module(str(i), layer)

        def forward(self, x: Any) -> Any:
            return torch.stack([layer(x) for layer in self.children()])

    return recorded(Apart(), x)


def test_what_a_layer_inherits_and_what_it_adds_are_the_error_of_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The total of all weight gradients is what `fp.train.gradient_probe` finds, by other ways."""
    from fpsim.train import recipes
    from fpsim.train.comparisons import gradient_probe

    monkeypatch.setattr(gradient_probe, "SEQUENCES", 4)  # 256 tokens

    plain, low = transformer(0), transformer(0, recipe=recipes.DEEPSEEK_V3)
    probe = fp.train.gradient_probe("DEEPSEEK_V3", steps=0)
    report = fp.analysis.budget(plain, recipe=recipes.DEEPSEEK_V3, arriving=low)
    want = dict(zip(probe.layer, probe.relative_error, strict=True))
    for layer in report.layers:
        assert report.row(layer, "wgrad").total == pytest.approx(want[layer], rel=1e-4)  # torch's sums, not the probe's
    whole = report.pooled("wgrad", exclude="head")
    assert whole.total == pytest.approx(want["all"], rel=1e-4)
    assert math.hypot(whole.local, whole.inherited) == pytest.approx(whole.total, rel=0.05)
    assert report.row("blocks.0.attn.qkv", "fprop").inherited == 0  # nothing lies before it but float32
    assert report.row("head", "fprop").joint < 1e-6 < report.row("head", "fprop").inherited


@pytest.mark.slow
def test_the_trained_transformer_adds_up_and_lies_where_others_measured_it() -> None:
    """120 steps: weight gradients of E4M3 in 1x128 tiles near 3.6e-2; mean of three seeds, a quarter off at most."""
    from fpsim.train import recipes

    local, total = [], []
    for seed in range(3):
        plain = transformer(120, seed=seed)
        low = transformer(120, recipe=recipes.DEEPSEEK_V3, seed=seed)
        report = fp.analysis.budget(plain, recipe=recipes.DEEPSEEK_V3, arriving=low)
        for row in report.rows:
            assert row.interplay**2 < 0.1 * row.joint**2, (row.layer, row.product)
        whole = report.pooled("wgrad", exclude="head")
        local.append(whole.local)
        total.append(whole.total)
    assert np.mean(total) == pytest.approx(3.6e-2, rel=0.25)
    # what layers add themselves is most of it; how much, differs by a third between seeds and initial weights
    assert 0.5 < np.mean(local) / np.mean(total) < 1


@pytest.mark.slow
def test_a_layer_of_the_trained_transformer_that_is_planted_bad_is_named_first() -> None:
    def planted(name: str, factor: float, *, channel: bool) -> Any:
        def change(model: Any) -> None:
            weight = model.get_submodule(name).weight
            with torch.no_grad():
                (weight[5] if channel else weight).mul_(factor)

        return transformer(120, change)

    for name in ("blocks.0.attn.qkv", "blocks.0.attn.proj", "blocks.1.mlp.gate_up", "blocks.1.mlp.down"):
        small = fp.analysis.budget(planted(name, 2.0**-12, channel=False), recipe="FP8_RAW")
        assert small.ranking[0][0] == name
        assert small.row(name, "fprop").scales > 0.99
        one = fp.analysis.budget(planted(name, 3000.0, channel=True), recipe=ft.LinearRecipe(**INT8))
        assert one.ranking[0][0] == name
        assert one.answer.startswith(f"{name} contributes most: ")


@pytest.mark.slow
def test_outliers_of_the_trained_transformer_spare_fp8_and_not_int8() -> None:
    from fpsim.train.comparisons.gradient_probe import outlier_channels

    plain, outliers = transformer(120), transformer(120, outlier_channels)
    int8 = ft.LinearRecipe(**INT8)
    behind = [f"blocks.{i}.{layer}" for i in (0, 1) for layer in ("attn.qkv", "mlp.gate_up")]  # of the norms
    for recipe, least, most in (("DEEPSEEK_V3", 0.8, 1.3), (int8, 8.0, math.inf)):
        one, other = (fp.analysis.budget(r, recipe=recipe) for r in (plain, outliers))
        for layer in behind:
            assert least < other.row(layer, "fprop").joint / one.row(layer, "fprop").joint < most, (recipe, layer)
