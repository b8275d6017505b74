"""Recipes on hardware: units and schedules by the operands' formats and scales, by rows of data."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import fpsim as fp
from fpsim.matrix_units.chips import LIBRARIES, resolve
from fpsim.schedules.catalogue import ROWS as SCHEDULES
from fpsim.schedules.hardware import BLOCKS, HALF, ROW, ROWS, TENSOR, schedule_of
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")
hardware: Any = importlib.import_module("fpsim.recipes.hardware")
libraries: Any = importlib.import_module("fpsim.recipes.libraries")

FP8_ROWS = dict.fromkeys(("input_fmt", "weight_fmt", "grad_fmt"), "e4m3") | {
    "input_scaling": fp.scalings.ROW, "weight_scaling": fp.scalings.ROW, "grad_scaling": fp.scalings.ROW,
    "weight_scaling_backward": fp.scalings.COLUMN, "grad_scaling_backward": fp.scalings.COLUMN,
    "input_scaling_backward": fp.scalings.COLUMN,
}  # fmt: skip


def test_every_row_is_a_schedule_of_its_library_for_its_chip() -> None:
    libraries = {schedule.library for schedule in SCHEDULES}
    for row in ROWS:
        assert row.schedule.library == row.library.removesuffix(" fast")
        assert row.schedule.library in libraries
        assert row.schedule.arch in ("", row.arch)
        assert row.schedule.block_scaled == (row.scales == BLOCKS)
        assert row.schedule.source
    assert len({row[:4] for row in ROWS}) == len(ROWS) > 10


@in_turn(
    "recipe, words, unit, schedule",
    [
        ("DEEPSEEK_V3", "H100", "hopper_e4m3_f32", "deepgemm('1d2d')"),
        ("DEEPSEEK_V3", "H100 cuBLAS", "hopper_e4m3_f32", "cublas('sm_90', family='block_scaled')"),
        ("DEEPSEEK_V3", "h200 cutlass", "hopper_e4m3_f32", "cutlass_blockwise('a_first')"),
        ("DEEPSEEK_V3", "B200", "blackwell_e4m3_f32", "None"),
        ("FP8_TENSOR", "H100 cuBLAS", "hopper_e4m3_f32", "cublas('sm_90')"),
        ("FP8_TENSOR", "sm_90 cuBLAS fast", "hopper_e4m3_f32", "cublas('sm_90', fast_accum=True)"),
        ("FP8_TENSOR", "L40S cuBLAS", "ada_e4m3_f32", "cublas('sm_89')"),
        ("TE_DELAYED", "B200 cuBLAS", "blackwell_e4m3_f32", "cublas('sm_100')"),
        ("BF16", "H100 cuBLAS", "hopper_bf16_f32", "cublas('sm_90')"),
        ("BF16", "A100", "ampere_bf16_f32", "None"),
        ("FP16", "MI300X", "cdna3_f16_f32", "None"),
        ("MXFP8", "B200 DeepGEMM", "blackwell_mxfp8_e4m3_f32", "deepgemm('1d1d', 'sm_100')"),
        ("FP8_TENSOR", "hopper_e4m3_f32", "hopper_e4m3_f32", "None"),
        ("FP8_TENSOR", "H100_e4m3_f32", "hopper_e4m3_f32", "None"),
        ("FP8_TENSOR", "cublas('sm_90', split_k=4)", "hopper_e4m3_f32", "cublas('sm_90', split_k=4)"),
        ("FP8_TENSOR", None, "hopper_e4m3_f32", "None"),
        ("FP32", "H100 cuBLAS", "None", "None"),
    ],
)
def test_hardware_chooses_units_and_schedules(recipe: str, words: Any, unit: str, schedule: str) -> None:
    found = hardware.placed(ft.RECIPES[recipe], words).recipe
    adds = found.accumulator("fprop")
    assert (getattr(adds, "name", str(adds)), str(found.fprop.schedule)) == (unit, schedule)


def test_rows_of_torch_take_its_kernel() -> None:
    found = hardware.placed(ft.LinearRecipe(**FP8_ROWS), "H100 PyTorch").recipe
    assert found.wgrad == ft.Product("hopper_e4m3_f32", schedule=fp.schedules.torch_rowwise())
    assert libraries.scales_of(found, "dgrad") == ROW


def test_objects_are_taken_as_they_are() -> None:
    recipe = ft.RECIPES["FP8_TENSOR"]
    assert hardware.placed(recipe, fp.unit("hopper_e4m3_f32")).recipe.fprop.promote == 128
    plain = hardware.placed(recipe, fp.Pairwise("fp32")).recipe.fprop
    assert plain == ft.Product(fp.Pairwise("fp32"), out_fmt="bf16")
    how = fp.schedules.cublas("sm_90", split_k=3)
    assert hardware.placed(recipe, how).recipe.dgrad.schedule is how
    bare = ft.LinearRecipe("e4m3", "e4m3", "e4m3")
    assert hardware.placed(bare, how).recipe.accumulator("wgrad").name == "hopper_e4m3_f32"
    assert hardware.placed(bare, fp.schedules.FLAT).recipe == bare  # a schedule without a chip says nothing of units


def test_recipes_without_units_get_those_of_the_chip() -> None:
    bare = ft.LinearRecipe("e4m3", "e4m3", "e5m2")
    found = hardware.placed(bare, "H100").recipe
    assert [found.accumulator(name).name for name in ("fprop", "dgrad")] == [
        "hopper_e4m3_f32", "hopper_e5m2xe4m3_f32",
    ]  # fmt: skip
    integers = ft.LinearRecipe("int8", "int8", "int8", *[fp.scalings.TENSOR] * 3)
    placed = hardware.placed(integers, "H100")
    assert placed.recipe == integers
    assert placed.notes[0] == (
        "Added by torch in float32, since no matrix unit is known here for INT8 x INT8", "fprop",
    )  # fmt: skip


@in_turn(
    "recipe, words, sentence",
    [
        ("DEEPSEEK_V3", "A100", "fprop on A100 needs a matrix unit for E4M3 x E4M3 .* ampere has none"),
        ("BF16", "H1000", "on must be one of .*; got 'H1000'. Did you mean 'H100'"),
        ("NVFP4", "B200 cuBLAS", "fprop: how cuBLAS on B200 adds e2m1 x e2m1 with scales per 16 terms is not known"),
        ("BF16", "A100 cuBLAS", "fprop: the order of no library is known here on A100; got 'cuBLAS'"),
        ("BF16", "B200 CUTLASS", "the library on B200 must be one of cuBLAS, DeepGEMM; got 'CUTLASS'"),
        ("BF16", "hopper_e4m3_f32", "the unit of fprop must take the recipe's operands; got hopper_e4m3_f32"),
        ("BF16", "cublas('sm_91')", "chip must be one of"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(recipe: str, words: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        hardware.placed(ft.RECIPES[recipe], words)
    with pytest.raises(TypeError, match=r"on must be the name of a chip, such as 'H100' or 'H100 cuBLAS'.*; got 90"):
        hardware.placed(ft.RECIPES[recipe], 90)


def test_libraries_are_found_behind_any_name_of_a_chip() -> None:
    assert resolve("H100 SXM cuBLAS").library == "cuBLAS"
    assert resolve("gh200  CUBLAS FAST").library == "cuBLAS fast"
    assert {row.library for row in ROWS} == set(LIBRARIES)
    found = schedule_of(resolve("H100 cuBLAS"), fp.unit("hopper_bf16_f32"), TENSOR)
    assert found == next(row.schedule for row in ROWS if row.operands == HALF)
