"""fp.analysis.diff: gradients, recipes, two models, and what reports say."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
from tests.analysis.studies.differences.diff_cases import by_hand, found_by, inputs_of, watched  # noqa: E402
from tests.analysis.studies.differences.models import Attentive, Checkpointed, Routed, mean_square, mlp, rows, tokens  # noqa: E402

ft: Any = fp.torch


FP8, BF16 = ft.RECIPES["FP8_TENSOR"], ft.RECIPES["BF16"]


def diff(*args: Any, **keywords: Any) -> Any:
    return fp.analysis.diff(*args, **keywords)


def planted(product: str = "fprop", **fields: Any) -> Any:
    """FP8_TENSOR with one product added otherwise."""
    return FP8.replace(**{product: getattr(FP8, product).replace(**fields)})


@pytest.mark.parametrize(("product", "first"), [("dgrad", ("2", "dgrad")), ("wgrad", ("2", "wgrad"))])
def test_what_is_planted_in_a_gradient_is_found_there(product: str, first: tuple[str, str]) -> None:
    model, x = mlp(), rows(512)
    other = {"*": FP8, "2": planted(product, promote=64)}
    assert not diff(model, x, FP8, other)
    divergence = found_by(model, x, FP8, other, loss=mean_square)
    assert (divergence.layer, divergence.product) == first
    before = [row for row in divergence.growth if row.product == "fprop"]
    assert all(row.differing == 0 for row in before)
    assert [row.product for row in divergence.growth] == ["fprop"] * 3 + ["dgrad", "wgrad"] * 2 + ["wgrad"]


def test_shared_layers_have_a_row_for_each_call_and_idle_ones_none() -> None:
    divergence = found_by(Attentive().eval(), tokens(), "H100", "B200")
    calls = [(row.layer, row.call) for row in divergence.growth]
    names = ["block.self_attn.in_proj", "block.self_attn.out_proj", "block.linear1", "block.linear2"]
    assert calls == [(name, call) for call in (0, 1) for name in names] + [("head", 0)]


@pytest.mark.filterwarnings("ignore:.*the last block is filled up with zeros")
def test_quantised_layers_follow_their_own_recipe() -> None:
    model, x = mlp(), rows()
    ft.quantize_linears(model, ft.DEEPSEEK_V3, exclude="0")
    assert not diff(model, x, "torch", {"2": "H100", "4": ft.DEEPSEEK_V3})
    divergence = found_by(model, x, "torch", {"2": "B200", "4": "B200"}, loss=mean_square)
    assert (divergence.layer, divergence.cause) == ("2", "arithmetic")
    assert "B200: without deepgemm('1d2d'), which is not for B200." in str(divergence)
    assert not diff(model, x, "emulated", FP8, recipe=FP8)


def test_stochastic_and_delayed_recipes_are_the_same_in_both_runs() -> None:
    model, x = mlp(), rows()
    for recipe in (ft.NVFP4, ft.TE_DELAYED):
        assert not diff(model, x, "emulated", recipe, recipe=recipe, loss=mean_square)


def test_a_recipe_of_training_keeps_what_it_keeps() -> None:
    recipe = fp.train.recipes.DEEPSEEK_V3.replace(keep=("4",))
    model, x = mlp(), rows()
    assert not diff(model, x, recipe, {"0": ft.DEEPSEEK_V3, "2": ft.DEEPSEEK_V3, "4": ft.RECIPES["FP32"]})
    divergence = found_by(model, x, recipe, ft.DEEPSEEK_V3)
    assert (divergence.layer, divergence.cause) == ("4", "cast")


@pytest.mark.parametrize("way", ["torch", "float32", "hopper_bf16_f32", "hopper_e4m3_f32"])
def test_autocast_and_narrow_models_round_results_to_their_own_format(way: str) -> None:
    model, x = mlp(), rows()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, _ = watched(model, x, way)
    narrow, _ = watched(model.bfloat16(), x.bfloat16(), way)
    assert len(cast) == len(narrow) == 8
    for of in [*cast, *narrow]:
        assert of.adds.out_fmt == fp.BF16
        assert np.array_equal(of.result, fp.quantize(of.result, "bf16"))


def test_checkpoints_are_counted_once() -> None:
    divergence = found_by(Checkpointed(mlp()), rows(), "H100", "B200", loss=mean_square)
    assert [row.product for row in divergence.growth].count("fprop") == 3
    assert divergence.growth == tuple(
        dataclasses.replace(row, layer=f"inner.{row.layer}")
        for row in found_by(mlp(), rows(), "H100", "B200", loss=mean_square).growth
    )


def test_growth_ends_where_the_runs_go_different_ways() -> None:
    torch.manual_seed(0)
    model = Routed()
    batches = [torch.randn(8, 256) for _ in range(12)]
    divergences = [found_by(model, x, "H100", "B200") for x in batches]
    lengths = {len(divergence.growth) for divergence in divergences}
    assert lengths == {1, 3}  # no row of the last layer where inputs came another way
    assert all(divergence.layer == "first" for divergence in divergences)


def test_cublas_takes_the_kernels_of_its_operands_and_shapes() -> None:
    model, x = mlp(), rows()
    nvjet = fp.schedules.cublas("sm_90")
    assert not diff(model, x, "H100 cuBLAS", nvjet)
    divergence = found_by(model, x, "H100 cuBLAS", "B200 cuBLAS")
    assert "H100 cuBLAS keeps 13 fraction bits, B200 cuBLAS keeps 25 fraction bits." in str(divergence)
    assert not diff(model, x, "H100 cuBLAS", "B200 cuBLAS", recipe="BF16")


def test_a_report_is_a_table_a_picture_and_a_page() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    divergence = found_by(mlp(), rows(), "H100", "B200", loss=mean_square)
    row = divergence.to_frame().iloc[0]
    assert (row["layer"], row["product"], row["kl"]) == (divergence.layer, divergence.product, divergence.kl)
    table = divergence.to_frame("layer")
    assert list(table.columns) == ["layer", "product", "call", "size", "differing", "relative"]
    assert len(table) == len(divergence.growth) == 8
    ax = divergence.plot()
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    for product in ("fprop", "dgrad", "wgrad"):
        assert drawn[product] == [row.relative for row in divergence.growth if row.product == product and row.relative]
    assert len(divergence.plot_trees()) == 2
    page = divergence._repr_html_()
    assert page.count("<tr>") == 1 + sum(row.differing > 0 for row in divergence.growth)
    with pytest.raises(ValueError, match="by must be one of element, layer; got 'depth'"):
        divergence.to_frame("depth")


# ---- two models, two batches, compiled ones


def test_another_weight_is_found_in_the_second_model() -> None:
    model, x = mlp(), rows()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[2].weight[7, 3] = torch.nextafter(other[2].weight[7, 3], torch.tensor(9.0))
    divergence = found_by(model, x, "torch", "torch", second_model=other)
    assert (divergence.layer, divergence.operand, divergence.cause, divergence.count) == ("2", "weight", "operands", 1)
    assert divergence.element == (3, 7)
    assert "the weights themselves differ" in str(divergence)
    assert not diff(model, x, "H100", "H100", second_model=copy.deepcopy(model))


def test_another_batch_is_found_at_the_first_layer() -> None:
    model, x = mlp(), rows()
    other = x.clone()
    other[5, 9] += 1
    divergence = found_by(model, x, "torch", "torch", second_batch=other)
    assert (divergence.layer, divergence.operand, divergence.element, divergence.count) == ("0", "input", (5, 9), 1)


def test_equal_runs_say_what_the_hardware_does_not_compute() -> None:
    """Without remarks, two chips seemed to be equal in products that torch adds on both."""
    mixed = fp.torch.LinearRecipe("bf16", fp.INT8, "bf16", None, fp.scalings.ROW, None)
    explanation = found_by(mlp(), rows(), "H100", "B200", recipe=mixed).explanation
    assert explanation.startswith("No bit differs")
    assert "B200: added by torch in float32, since no matrix unit is known here for BF16 x INT8." in explanation


def test_no_difference_has_the_fields_of_one() -> None:
    model, x = mlp(), rows()
    divergence = found_by(model, x, "torch", "torch", logits=True)
    assert not divergence
    assert (divergence.cause, divergence.layer, divergence.product, divergence.element, divergence.kl) == (
        "none",
        "",
        "",
        None,
        0.0,
    )
    assert [(row.layer, row.differing, row.relative) for row in divergence.growth] == [
        (layer, 0.0, 0.0) for layer in ("0", "2", "4")
    ]
    assert divergence.size == 32 * (512 + 128 + 16)
    pytest.importorskip("matplotlib")
    assert divergence.plot() is not None
    assert divergence.plot_trees() == []
    assert "No bit differs" in divergence._repr_html_()


def test_compiled_models_are_compared_by_what_their_modules_give() -> None:
    model, x = mlp(), rows()
    assert not diff(model, x, "torch", "torch", second_model=torch.compile(model, backend="eager"))
    parts = copy.deepcopy(model)
    with torch.no_grad():
        parts[2].bias[4] += 1
    parts[2] = torch.compile(parts[2], backend="eager")
    divergence = found_by(model, x, "torch", "torch", second_model=parts)
    assert (divergence.layer, divergence.product, divergence.cause) == ("2", "output", "output")
    assert (divergence.element, divergence.count) == ((0, 4), 32)
    assert divergence.names == ("eager", "compiled")
    assert [row.layer for row in divergence.growth] == ["0", "1", "2", "3", "4", "the model"]
    assert "Everything up to the output of 1 was equal" in str(divergence)


def test_a_compiled_model_keeps_its_buffers_and_hooks() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 8), torch.nn.BatchNorm1d(8))
    compiled = torch.compile(model, backend="eager")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert not diff(model, rows(), "torch", "torch", second_model=compiled)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not any(module._forward_hooks for module in compiled.modules())


# ---- what is said


@pytest.mark.parametrize(("dtype", "recipe"), [(torch.bfloat16, "BF16"), (torch.float16, "FP16")])
def test_layers_of_sixteen_bits_stay_in_their_dtype(dtype: Any, recipe: str) -> None:
    model, x = mlp().to(dtype), rows().to(dtype)
    products, _ = watched(model, x, "H100")
    assert {str(product.a.fmt or product.b.fmt) for product in products} <= {recipe, "None"}
    assert all(np.array_equal(product.a.values, product.a.source) for product in products)  # no cast changes a value
    assert not diff(model, x, "H100", "H100", recipe=recipe)
    assert not diff(model, x, "H100", ft.RECIPES[recipe])


def test_both_sums_and_the_bias_are_shown() -> None:
    model, x = mlp(), rows()
    divergence = found_by(model, x, "H100", "B200")
    assert divergence.element is not None
    a, weight = inputs_of(model, "0", x), model[0].weight.detach().numpy()
    one, two = (
        by_hand(a, weight, model[0].bias, accumulate=unit, promote=128)
        for unit in ("hopper_e4m3_f32", "blackwell_e4m3_f32")
    )  # fmt: skip
    bias = model[0].bias.tolist()[divergence.element[1]]
    last = next(line for line in str(divergence).splitlines() if line.startswith("H100's sum is "))
    sums = [float(word.rstrip(".")) for word in last.replace(";", " ").split() if word.lstrip("-")[0].isdigit()]
    assert fp.quantize(np.array(sums[:2], np.float32) + np.float32(bias), "bf16").tolist() == [
        float(y[divergence.element]) for y in (one, two)
    ]
    assert sums[2] == bias
    assert sums[3:] == [float(f"{total + bias:.9g}") for total in sums[:2]]


def test_torch_is_called_by_its_dtype_and_library(capfd: Any) -> None:
    from fpsim.analysis.studies.differences.by_torch import library_of

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for m, k, n in ((16, 16, 16), (17, 16, 16), (3, 2048, 2), (1, 64, 64), (32, 64, 32)):
            x, weight = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
            capfd.readouterr()
            with torch.backends.mkldnn.verbose(1):
                torch.nn.functional.linear(x, weight)
            by_onednn = "exec,cpu,matmul" in capfd.readouterr().out
            assert (library_of(dtype, m * k * n) == "oneDNN") == by_onednn, (dtype, m, k, n)
    model, x = mlp().to(torch.bfloat16), rows().to(torch.bfloat16)
    products, _ = watched(model, x, "torch")
    assert {(product.place, product.dtype) for product in products} <= {("", "bfloat16"), ("(oneDNN)", "bfloat16")}
    by_recipe, _ = watched(model, x, "FP32")  # multiplied in float32 and rounded
    assert {(product.place, product.dtype, str(product.adds.out_fmt)) for product in by_recipe} == {("", "", "BF16")}
    assert "FP32 multiplies by torch in float32, in an order" in str(diff(model, x, fp.Sequential("bf16"), "FP32"))
    report = diff(model, x, "torch", fp.Sequential("bf16"))
    assert "torch multiplies by torch in bfloat16" in str(report)


def test_a_probed_model_is_an_arithmetic() -> None:
    model, x = mlp(), rows()
    unit = fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128), 256, a="e4m3")
    how = FP8.fprop.replace(promote=None, out_fmt=None, schedule=fp.schedules.cutlass_2xacc(128))
    alike = FP8.replace(fprop=how, dgrad=how, wgrad=how)
    assert not diff(model, x, unit, alike)
    assert diff(model, x, unit, "blackwell_e4m3_f32").cause == "arithmetic"
    chain = fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32")), 64)
    assert not diff(model, x, chain, "float32")
    with pytest.raises(ValueError, match="first must be a model of a product that equals a unit or an accumulator"):
        diff(model, x, fp.probe.sum(lambda x: x.sum(-1, dtype=np.float32), 8), "torch")


def test_what_is_not_compared_is_named() -> None:
    class Recurrent(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = torch.nn.LSTM(32, 64), torch.nn.Linear(64, 8)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0])

    divergence = diff(Recurrent(), torch.randn(16, 32), "H100", "B200")
    assert str(divergence).startswith(
        "Only 2 % of the model's weights and 2 % of its multiplications are seen; not seen: ls"
    )
    assert divergence.coverage.weights == 64 * 8 / (64 * 8 + 4 * 64 * (32 + 64))


def test_an_overflow_to_infinity_is_what_nearest_even_gives() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    text = str(fp.analysis.diff(model, torch.randn(8, 64) * 1e30, "FP16", "BF16"))
    assert "FP16 makes it -inf in FP16, as nearest even does: " in text
    assert "not what nearest even gives" not in text
    assert "differs in 100 % of its elements, none of which is finite in both runs." in text
