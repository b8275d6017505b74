"""Messages: what was wanted, what came, what to do, in a line that fits on a screen."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.analysis.studies.differences.arithmetics import _base as base_of
from fpsim.cli.terminal import scaling_named as command_scaling
from fpsim.errors import shown, unknown
from fpsim.matrix_units.chips import resolve as find_chip
from fpsim.recipes.linear import linear_recipe
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.look_up import find_either, find_linear
from fpsim.recipes.written import _scaling_from as scaling_word
from fpsim.schedules.written import parsed
from tests.kit.refusal import refusal
from tests.kit.sweeps import in_turn


def message(word: str) -> str:
    with pytest.raises(ValueError, match="unit must be one of") as refused:
        fp.unit(word)
    return str(refused.value)


def test_an_unknown_unit_gives_the_nearest_three_their_number_and_how_to_list_them() -> None:
    assert message("hoper_e4m3_f32") == (
        "unit must be one of the 240 that fp.units() or `fpsim units` lists, such as hopper_e4m3_f32, "
        "hopper_mma_e4m3_f32, hopper_e5m2_f32; got 'hoper_e4m3_f32'. Did you mean 'hopper_e4m3_f32'?"
    )


@in_turn("arch", ["blackwell", "hopper", "pascal", ""])
def test_an_unknown_unit_is_refused_in_few_words(arch: str) -> None:
    assert len(message(f"{arch}_e9m9_f32")) < 250


def test_a_word_that_starts_a_name_comes_before_those_that_resemble_it() -> None:
    assert "such as blackwell_mxfp4_block32_f32, blackwell_mxfp4_block16_f32, " in message("blackwell_mxfp4")


def test_few_words_are_all_listed() -> None:
    assert str(unknown("mode", "upp", ["up", "down"])) == "mode must be one of up, down; got 'upp'. Did you mean 'up'?"


LISTED = r"must be one of the \d+ that .+ lists?, such as [^,]+, [^,]+, [^,]+[,;] "


@in_turn(
    "call",
    [
        lambda: loose.unit("hoper_e4m3_f32"),
        lambda: loose.format("e9m9"),
        lambda: find_chip("H1000"),
        lambda: loose.schedules.cublas("sm_90", family="gemv", option=99),
        lambda: find_recipe("DEEPSEEK"),
        lambda: find_either("DEEPSEEK"),
        lambda: find_linear("DEEPSEEK"),
        lambda: base_of("DEEPSEEK"),
        lambda: linear_recipe("DEEPSEEK"),
        lambda: scaling_word("TILE_1X129"),
        lambda: command_scaling("TILE_1X129"),
    ],
)
def test_of_long_lists_the_nearest_three_their_number_and_how_to_list_them_are_said(call: Callable[[], Any]) -> None:
    text = refusal(call)
    assert re.search(LISTED, text), text
    assert len(text) < 230


@in_turn(
    "call",
    [
        lambda: loose.policy("torchx"),
        lambda: loose.schedules.cublas("sm_99"),
        lambda: loose.schedules.cublas("sm_90", family="gemm"),
        lambda: parsed("cublass('sm_90')"),
        lambda: loose.train.recipes.BF16.replace(linaer="BF16"),
    ],
)
def test_lists_that_a_message_shows_whole_are_short(call: Callable[[], Any]) -> None:
    text = refusal(call)
    assert "must be one of " in text
    assert len(text) < 230


loose: Any = fp  # for calls that type checkers would refuse too


X = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)


E4M3 = fp.cast(X, "e4m3")


SCALED: Any = fp.encode_scaled(X, "e4m3", fp.scalings.MX)


UNIT: Any = fp.unit("hopper_e4m3_f32")


TREE: Any = fp.schedules.tree(fp.schedules.FLAT, 64)


SEVERAL = torch.arange(12).reshape(3, 4)


JUNK: list[Any] = [None, "junk", -1, 1.5, object(), [1], {"a": 1}, X, SEVERAL]


@in_turn(
    "made", [UNIT, fp.schedules.cublas("sm_90"), TREE, fp.scalings.MX, fp.INT4],
)  # fmt: skip
def test_objects_are_made_so_that_they_can_be_shown_or_not_at_all(made: Any) -> None:
    refused = 0
    for field in dataclasses.fields(made):
        for junk in JUNK:
            try:
                changed = dataclasses.replace(made, **{field.name: junk})
            except (TypeError, ValueError):
                refused += 1
            else:
                assert repr(changed)
    assert refused > 2 * len(dataclasses.fields(made))


@in_turn(
    "value, text",
    [
        ("word", "'word'"),
        (np.zeros((2, 3)), "an array of float64, shape (2, 3)"),
        (torch.zeros(2, 50), "an array of torch.float32, shape (2, 50)"),
        (np.array([1, 2]), "array([1, 2])"),
        ("x" * 200, "'" + "x" * 96 + "..."),
    ],
)
def test_values_are_shown_on_one_line(value: Any, text: str) -> None:
    assert shown(value) == text


def test_what_has_no_text_is_shown_by_its_type() -> None:
    assert shown(10**5000) == "an integer of 16610 bits"


@in_turn(
    "call, meant",
    [
        (lambda: fp.encode(X, "e4m3", overflow="clip"), "'saturate'"),
        (lambda: fp.encode(X, "e4m3", overflow="clamp"), "'saturate'"),
        (lambda: fp.encode(X, "e4m3", overflow="inf"), "'nonfinite'"),
        (lambda: fp.encode(X, "e4m3", rounding="trunc"), "'toward_zero'"),
        (lambda: fp.encode(X, "e4m2"), "'E4M3'"),
        (lambda: fp.unit("hopper_fp8"), "'hopper_e4m3_f32' or 'hopper_e5m2_f32'"),
        (lambda: fp.unit("h100_fp8"), "'hopper_e4m3_f32' or 'hopper_e5m2_f32'"),
        (lambda: fp.unit("h100"), "'hopper_e4m3_f32' or 'hopper_f16_f32' or 'hopper_bf16_f32'"),
        (lambda: fp.unit("sm_80_bf16"), "'ampere_bf16_f32'"),
        (lambda: fp.unit("MI300"), "'cdna3_f16_f32' or 'cdna3_bf16_f32'"),
        (lambda: fp.schedules.cublas("hoper"), "'hopper'"),
        (lambda: fp.units("hoper"), "'hopper'"),
    ],
)
def test_words_that_people_use_get_the_one_that_is_meant(call: Callable[[], Any], meant: str) -> None:
    assert f"Did you mean {meant}?" in refusal(call)


@in_turn("chip", ["A100", "sm_80", "MI300X"])
def test_a_chip_without_schedules_is_not_taken_for_another_one(chip: str) -> None:
    text = refusal(lambda: fp.schedules.cublas(chip))
    assert text.endswith(f"; got '{chip}', on which the order of cuBLAS is not known here.")


@in_turn(
    "find, hint",
    [
        (lambda: loose.quantise, ". Did you mean 'quantize'?"),
        (lambda: loose.E4M2, ". Did you mean 'E4M3'? Your own is fp.Format('E4M2', exponent_bits=4, mantissa_bits=2)."),
        (lambda: loose.scalings.MXFP8, ". Did you mean 'MX'?"),
        (lambda: loose.scalings.PER_TOKEN, ". Did you mean 'ROW'?"),
        (lambda: loose.schedules.cublass, ". Did you mean 'cublas'?"),
        (lambda: loose.torch.fake_quantise, ". Did you mean 'fake_quantize'?"),
        (lambda: loose.formats.e4m3, ". Did you mean 'E4M3'?"),
        (lambda: loose.testing.assert_bit_equal, ". Did you mean 'assert_bits_equal'?"),
        (lambda: loose.analysis.errors, ". Did you mean 'error'?"),
        (lambda: loose.gpu.mat_mul, ". Did you mean 'matmul'?"),
        (lambda: loose.something_else_entirely, "'something_else_entirely'"),
    ],
)
def test_a_missing_name_gets_the_nearest_one(find: Callable[[], Any], hint: str) -> None:
    with pytest.raises(AttributeError) as missing:
        find()
    assert str(missing.value).endswith(hint)


@in_turn("word", ["bf16", "float32", "fp8_e4m3"])
@in_turn(
    "call",
    [
        lambda how: fp.matmul(E4M3, E4M3.T, accumulate=how),
        lambda how: fp.dot(E4M3, E4M3, accumulate=how),
        lambda how: fp.schedules.tree(how, 64),
        fp.unit,
    ],
)
def test_a_format_in_place_of_a_unit_is_pointed_to_an_accumulator(word: str, call: Callable[[str], Any]) -> None:
    name = fp.format(word).name
    text = refusal(lambda: call(word))
    assert text.endswith(f"Sums in a format are an accumulator's: pass fp.Sequential(fp.{name}).")


def test_a_schedule_of_fused_additions_says_what_decoding_would_change() -> None:
    how: dict[str, Any] = {"accumulate": fp.FusedMultiplyAdd("fp32"), "schedule": fp.schedules.deepgemm()}
    assert refusal(lambda: fp.matmul(SCALED, SCALED.T, **how)) == (
        "an accumulator takes no Scaled operands, whose scales belong to sums of a matrix unit; got one. Pass "
        "accumulate='hopper_e4m3_f32', say; a.decode() has float32 values instead, whose products round otherwise."
    )


def test_a_floor_that_float32_does_not_reach_is_refused() -> None:
    largest = float(np.finfo(np.float32).max)
    fp.Scaling(amax_floor=largest)
    assert refusal(lambda: fp.Scaling(amax_floor=np.nextafter(largest, np.inf))).startswith(
        "amax_floor must be at most float32's largest value, 3.4028234663852886e+38, for scales are float32; got 3.40"
    )


FACES = ("torch", "gpu", "analysis", "testing", "probe", "schedules", "scalings", "formats")


@in_turn("face", FACES)
def test_a_face_lists_its_public_names_only(face: str) -> None:
    module = getattr(fp, face)
    listed = dir(module)
    assert set(module.__all__) <= set(listed) <= {*module.__all__, "ROWS"}
    for name in listed:
        assert hasattr(module, name)
