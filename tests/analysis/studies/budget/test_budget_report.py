"""Tests of the words, numbers and pages of a budget, and of what it refuses."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.budget.row import FIGURES
from fpsim.analysis.studies.budget.tiles import WorstTile, WorstValue
from tests.analysis.studies.budget.recorded import INT8, linears, normal, one_layer, recorded
from tests.kit.sweeps import in_turn

torch: Any = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")
nn = torch.nn

# inputs here are small
pytestmark = pytest.mark.filterwarnings("ignore:.* had inputs of fewer than:UserWarning")


@pytest.fixture(scope="module")
def two_layers() -> Any:
    """Return a recording of two steps of two layers."""
    batches = [torch.randn(128, 128, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    return recorded(linears(128, 128, 128), *batches)


def budget(r: Any, recipe: Any = "DEEPSEEK_V3", **options: Any) -> Any:
    return fp.analysis.budget(r, recipe=recipe, **options)


# ---- what it says


def test_rows_are_those_of_layers_and_products_in_their_order(two_layers: Any) -> None:
    report = budget(two_layers)
    assert [(row.layer, row.product) for row in report.rows] == [
        (layer, product) for layer in ("0", "1") for product in ("fprop", "dgrad", "wgrad")
    ]
    assert report.row("1", "wgrad").operands == ("output_gradient", "input")
    assert report.row("0", "dgrad").shape == (128, 128, 128)
    assert (report.row("0", "fprop").unit, report.row("0", "fprop").schedule) == ("hopper_e4m3_f32", "deepgemm('1d2d')")
    assert (report.recipe, report.on, report.steps) == ("DEEPSEEK_V3", "H100", (1, 2))


def test_a_table_has_a_row_for_each_product_and_a_column_for_each_figure(two_layers: Any) -> None:
    pytest.importorskip("pandas")
    report = budget(two_layers, "FP16")
    table = report.to_frame()
    assert set(FIGURES) < set(table.columns)
    assert len(table) == len(report) == 6
    for name in FIGURES:
        assert [getattr(row, name) for row in report.rows] == pytest.approx(table[name].tolist(), nan_ok=True)
    assert table.inherited.isna().all()
    text, page = str(report), report._repr_html_()
    for row in report.rows:
        assert f"{row.joint:.2e}" in text
        assert f"<td>{row.joint:.2e}</td>" in page
    assert "inherited" not in text


def test_batches_add_up(two_layers: Any) -> None:
    both = budget(two_layers, "FP8_TENSOR")
    operands = two_layers.operands
    parts = []
    for step in (1, 2):
        one = fp.analysis.Recording(two_layers.model, (), keep=1)
        for (at, layer, which), x in operands.items():
            if at == step:
                one.keep_operand((at, layer, which), x)
        parts.append(budget(one, "FP8_TENSOR"))
    merged = parts[0].merge(parts[1])
    assert (merged.steps, merged.rows) == (both.steps, both.rows)
    assert merged.row("0", "fprop").batches == 2
    pooled = both.pooled("fprop")
    assert pooled.squares.joint == sum(row.squares.joint for row in both.rows if row.product == "fprop")
    assert both.pooled("fprop", exclude="1").squares == both.row("0", "fprop").squares
    with pytest.raises(ValueError, match="budgets to merge must have the same recipe; got FP8_TENSOR and BF16"):
        both.merge(budget(two_layers, "BF16"))
    with pytest.raises(ValueError, match="pooled needs a layer with fprop; got none"):
        both.pooled("fprop", exclude="*")


def test_a_file_gives_the_same_budget(two_layers: Any, tmp_path: Path) -> None:
    two_layers.save(tmp_path / "r.npz")
    again = fp.analysis.Recording.load(tmp_path / "r.npz")
    assert budget(again, "NVFP4", on="B200") == budget(two_layers, "NVFP4", on="B200")


def test_recipes_of_training_keep_their_layers_and_overrides(two_layers: Any, tmp_path: Path) -> None:
    from fpsim.train import Override, recipes

    mine = recipes.DEEPSEEK_V3.replace(
        name="mine", keep=("0",), overrides=(Override("1", products=("dgrad",), linear="BF16"),)
    )
    report = budget(two_layers, mine)
    assert [row.unit for row in report.rows] == [
        "torch", "torch", "torch", "hopper_e4m3_f32", "hopper_bf16_f32", "hopper_e4m3_f32",
    ]  # fmt: skip
    alone = budget(two_layers)
    assert report.row("1", "wgrad").squares == alone.row("1", "wgrad").squares
    assert report.row("1", "dgrad").squares == budget(two_layers, "BF16").row("1", "dgrad").squares
    pytest.importorskip("tomli_w")
    mine.to_toml(tmp_path / "mine.toml")
    assert budget(two_layers, str(tmp_path / "mine.toml")).rows == report.rows


def test_bf16_operands_of_autocast_are_exact_in_bf16() -> None:
    model = linears(128, 64)
    with fp.analysis.record(model, keep=1, formats=()) as r, torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(64, 128))
    row = budget(r, "BF16").row("0", "fprop")
    assert (row.rounding_a, row.rounding_b) == (0, 0)
    assert row.cast > 0
    assert row.joint == pytest.approx(row.cast, rel=1e-3)


def test_float64_operands_stay_float64() -> None:
    model = linears(128, 64).double()
    r = recorded(model, torch.randn(64, 128, dtype=torch.float64), gradients=[torch.ones(64, 64).double()])
    assert all(row.joint < 1e-14 for row in budget(r, "FP32").rows)
    assert budget(r, "BF16").row("0", "fprop").rounding_a > 1e-3


def test_the_block_around_it_changes_nothing(two_layers: Any) -> None:
    want = budget(two_layers)
    with torch.inference_mode():
        assert budget(two_layers) == want
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert budget(two_layers) == want


def test_a_model_that_is_one_layer_has_rows() -> None:
    r = recorded(nn.Linear(128, 64), torch.randn(64, 128))
    assert [row.product for row in budget(r).rows] == ["fprop", "dgrad", "wgrad"]


def test_lengths_that_no_block_divides_are_taken() -> None:
    r = one_layer(normal(100, 200), normal(72, 200, seed=1), normal(100, 72, seed=2))
    for name, chip in (("DEEPSEEK_V3", "H100"), ("MXFP8", "B200"), ("FP8_TENSOR", "H100")):
        for row in budget(r, name, on=chip).rows:
            assert row.joint == pytest.approx(row.closed, rel=0.15), (name, row.product)


# ---- what is left out


def test_what_multiplies_nothing_is_named() -> None:
    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(16, 32)
            self.mix = nn.Conv1d(32, 32, 3, padding=1)
            self.head = nn.Linear(32, 8)

        def forward(self, codes: Any) -> Any:
            x = self.tokens(codes)
            x = nn.functional.scaled_dot_product_attention(x, x, x)
            return self.head(self.mix(x.transpose(1, 2)).transpose(1, 2))

    model = Model()
    with fp.analysis.record(model, keep=1, formats=()) as r:
        model(torch.randint(0, 16, (8, 12)))
    report = budget(r, "BF16")
    assert report.layers == ("attention.scores", "attention.values", "mix", "head")
    assert report.notes == (
        "Left out, since an embedding looks rows up and multiplies nothing: tokens.",
        "Without dgrad and wgrad, since no output gradient was kept: attention, mix and head.",
    )
    assert str(report).splitlines()[-2:] == list(report.notes)
    assert budget(r, "BF16", layers="attention.scores").layers == ("attention.scores",)
    with pytest.raises(ValueError, match="budget needs the input and the weight of a layer that multiplies; got a"):
        budget(r, "BF16", layers="tokens")


def test_other_kernels_of_a_library_are_named() -> None:
    report = budget(one_layer(normal(64, 100), normal(32, 100, seed=1)), "BF16", on="H100 cuBLAS")
    assert report.notes[1] == (
        "cuBLAS takes nvjet for row-major operands where K and N are multiples of 8; for K = 100, N = 32 it takes a "
        "CUTLASS kernel. These are the bits of cublas('sm_90'): 0."
    )


def test_cublas_adds_in_one_slice_and_the_report_says_so() -> None:
    report = budget(one_layer(normal(64, 128), normal(32, 128, seed=1)), "BF16", on="H100 cuBLAS")
    assert "Added in one slice of K, though cuBLAS splits K for some shapes: fprop, dgrad and wgrad." in report.notes
    other = budget(one_layer(normal(64, 128), normal(32, 128, seed=1)), "BF16", on="H100")
    assert not any("slice" in note for note in other.notes)


def test_exact_products_have_no_cause() -> None:
    """A budget of operands that the recipe represents said that an error of 0 comes mostly from the sums."""
    signs = np.sign(normal(64, 128)).astype(np.float32)
    report = budget(one_layer(signs, signs[:32], signs[:, :32]), "BF16")
    assert report.answer == "No product has an error (1 layer, 3 products, BF16 on H100)."
    assert "mostly from" not in str(report) + str(report.worst())


# ---- the worst


def test_the_only_tile_has_100_percent_also_with_a_scale_of_zero() -> None:
    value = WorstValue((0, 0), 1e-30, 0.0, 0.0, 1.0)
    tile = WorstTile("input", (0, 1), (0, 1), 1.0, 1.0, fp.E4M3, "nearest_even", "saturate", (value,))
    assert "[0:1, 0:1]: 100 % of the error" in str(tile)


def test_the_worst_tile_holds_what_was_planted_and_explains_its_cast() -> None:
    x = np.full((64, 256), 1.0, np.float32)  # E4M3 holds all of it
    x[17, 200] = 300.7
    x[17, 130:140] = 0.001
    report = budget(one_layer(x, np.ones((32, 256), np.float32), np.ones((64, 32), np.float32)))
    worst = report.worst("0", "fprop")
    tile = worst.tiles[0]
    assert (tile.operand, tile.rows, tile.columns) == ("input", (17, 18), (128, 256))
    assert tile.share == 1.0
    place = tile.values[0].place
    assert place[0] == 17
    assert 128 <= place[1] < 256
    scale = fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128).scales[17, 1]
    assert tile.values[0].scale == scale
    values = fp.quantize_scaled(x, "e4m3", fp.scalings.TILE_1X128)
    for value in tile.values:
        assert (value.value, value.rounded) == (x[value.place], values[value.place])
    text = str(worst)
    assert text.startswith("0, fprop of input by weight: relative error ")
    assert str(fp.explain(np.float32(x[place] / scale), "e4m3", overflow="saturate_finite")).splitlines()[0] in text
    turned = report.worst("0", "wgrad").tiles[0]
    assert turned.operand == "input"
    assert turned.columns[0] <= turned.values[0].place[1] < turned.columns[1]


def test_the_worst_of_integers_and_of_stochastic_casts_have_places_and_no_cast_explained() -> None:
    r = one_layer(normal(64, 128), normal(64, 128, seed=1), normal(64, 64, seed=2))
    for recipe, chip in ((ft.LinearRecipe(**INT8), "H100"), (ft.NVFP4, "B200")):
        text = str(budget(r, recipe, on=chip).worst("0", "wgrad"))
        assert "output_gradient[" in text
        assert "of the error that rounding both operands makes" in text
    assert "after the Hadamard transform" in text


def test_overflow_is_infinite_and_ranked_first() -> None:
    model = linears(128, 128, 128)
    with torch.no_grad():
        model[1].weight.mul_(1e6)
    r = recorded(model, torch.randn(64, 128, generator=torch.Generator().manual_seed(0)))
    report = budget(r, "FP16")
    row = report.row("1", "fprop")
    assert row.joint == math.inf
    assert report.ranking[0][0] == "1"
    assert str(report).startswith("1 contributes most: its fprop overflows, mostly from ")


def test_products_that_are_zero_are_no_error() -> None:
    report = budget(one_layer(np.zeros((64, 128), np.float32), normal(32, 128), normal(64, 32, seed=1)))
    row = report.row("0", "fprop")
    assert (row.joint, row.rounding_b, row.severity) == (0, 0, 0)
    assert math.isnan(row.lines)


# ---- the picture


def test_the_picture_has_a_bar_of_the_error_for_each_product(two_layers: Any) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    report = budget(two_layers, "DEEPSEEK_V3_POW2")
    ax = report.plot()
    ends: dict[float, float] = {}
    for bar in ax.patches:
        if bar.get_height():
            y = round(bar.get_y() + bar.get_height() / 2, 6)
            ends[y] = max(ends.get(y, 0.0), bar.get_x() + bar.get_width())
    assert [ends[y] for y in sorted(ends)] == pytest.approx([row.joint for row in report.rows])
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[:2] == ["rounding a", "rounding b"]
    assert "inherited" not in legend
    assert ax.get_title(loc="left") == "DEEPSEEK_V3_POW2 on H100"
    ax = plt.figure().add_subplot()
    assert budget(two_layers, arriving=two_layers).plot(ax) is ax
    assert ax.get_legend().get_texts()[-1].get_text() == "inherited"
    plt.close("all")


# ---- what it refuses


def _nothing_kept() -> Any:
    model = linears(128, 64)
    with fp.analysis.record(model) as r:
        model(torch.randn(64, 128))
    return r


def _with_nan() -> Any:
    x = normal(64, 128)
    x[3, 4] = np.nan
    return one_layer(x, normal(64, 128))


BAD: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda r: budget(_nothing_kept()), ValueError, "got a recording without them. Record with keep=1 or more."),
    (lambda r: budget("r.npz"), TypeError, "recording must be a Recording, as fp.analysis.record returns it"),
    (lambda r: budget(r, layers="up*"), ValueError, "layers must be among the 2 that were kept; got 'up*'. Near it: '"),
    (lambda r: budget(r, layers=3), TypeError, "layers must be a shell pattern or several"),
    (lambda r: budget(r, "DEEPSEEK"), ValueError, "recipe must be one of .*DEEPSEEK_V3.*; got 'DEEPSEEK'"),
    (lambda r: budget(r, 3), TypeError, "recipe must be an fp.torch.LinearRecipe, an fp.train.Recipe, the name of one"),
    (lambda r: budget(r, on="H10"), ValueError, "on must be one of .*; got 'H10'. Did you mean 'H100'?"),
    (lambda r: budget(r, on="A100"), ValueError, "fprop on A100 needs a matrix unit for E4M3 x E4M3"),
    (lambda r: budget(r, on=[]), TypeError, r"on must be the name of a chip, .*; got \[\]"),
    (lambda r: budget(r, on=90), TypeError, "on must be the name of a chip, such as 'H100' or 'H100 cuBLAS'"),
    (lambda r: budget(_with_nan()), ValueError, "got 1 of 8192 values NaN or Inf in the input of '0' at step 1"),
    (lambda r: budget(r).row("2", "fprop"), ValueError, "layers must be among the 2 that were kept; got '2'. Near"),
    (lambda r: budget(r).worst("0", "up"), ValueError, "product must be one of fprop, dgrad, wgrad; got 'up'"),
    (lambda r: budget(r).merge(r), TypeError, "other must be a Budget; got"),
    (lambda r: budget(r, arriving=_with_nan()), ValueError, "got 1 of 8192 values NaN or Inf in the input of '0' at"),
    (
        lambda r: budget(r, arriving=one_layer(normal(64, 128), normal(64, 128))), ValueError,
        "arriving must be a recording of Sequential .*, the same model; got Sequential",
    ),
    (
        lambda r: budget(r, arriving=recorded(linears(128, 128, 128), torch.ones(64, 128), start=7)), ValueError,
        r"arriving must have kept one of the steps \[1, 2\] of the recording; got \[7\]",
    ),
    (
        lambda r: budget(r, arriving=recorded(linears(128, 128, 128), torch.ones(64, 128))), ValueError,
        r"arriving must be of the same batch; got an input of '0' of shape \(64, 128\) instead of \(128, 128\)",
    ),
    (
        lambda r: budget(one_layer(normal(10, 128), normal(16, 128)), "FP8_TENSOR", on="H100 cuBLAS"), ValueError,
        "0, wgrad: cuBLAS takes FP8 only where N and K are multiples of 16 .* leave the layer out by layers=",
    ),
    (
        lambda r: budget(one_layer(normal(10, 128), normal(16, 128), normal(10, 16)), "NVFP4", on="B200"), ValueError,
        "0, wgrad: the Hadamard transform of 16 terms needs a multiple of as many tokens; got 10",
    ),
]  # fmt: skip


@in_turn("call, kind, sentence", BAD)
def test_bad_input_is_refused_in_a_sentence(
    call: Callable[[Any], Any], kind: type[Exception], sentence: str, two_layers: Any
) -> None:
    with pytest.raises(kind, match=sentence.replace("*'", r"\*'").replace("'?", r"'\?")) as raised:
        call(two_layers)
    assert "\n" not in str(raised.value)


def test_runs_that_parted_are_told_from_one_that_inherits(two_layers: Any) -> None:
    model = linears(128, 128, 128, seed=1)
    batches = [torch.randn(128, 128, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    report = budget(two_layers, arriving=recorded(model, *batches))
    assert report.notes[0] == "Weights of the two runs differ at step 1, which counts as inherited: 0 and 1."
    same = budget(two_layers, arriving=two_layers)
    assert same.notes == ()
    assert all(row.inherited == 0 and row.total == row.joint for row in same.rows)
    part = budget(two_layers, arriving=recorded(linears(128, 128, 128), batches[0]))
    assert part.notes == (
        "Inherited errors are not known, since the arriving recording has no operands of step 2: 0 and 1.",
    )
    assert math.isnan(part.rows[0].inherited)
