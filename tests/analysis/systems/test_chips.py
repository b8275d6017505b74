"""The table of chips: the units' own operands, and what recipes fall back to."""

from __future__ import annotations

from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.systems.dispatch.chips import COLUMNS
from fpsim.matrix_units.catalogue import float_units


def test_marks_are_the_operands_of_the_units() -> None:
    table = fp.chips()
    for row in table:
        elements = {element.name for unit in float_units() if unit.arch == row.arch for element in (unit.a, unit.b)}
        assert {name for name in COLUMNS if row.mark(name)} == {
            name for name, words in COLUMNS.items() if elements & set(words)
        }, row
    listed = {word for words in COLUMNS.values() for word in words}
    scaled = {element.name for unit in float_units() for element in (unit.a, unit.b)}
    assert scaled <= listed, "every element of a unit has a column"
    assert {row.arch for row in table if row.arch} == {unit.arch for unit in float_units()}


def test_what_capabilities_have_fp8() -> None:
    """Source: CUDA C++ programming guide: FP8 from compute capability 8.9 on, BF16 from 8.0, FP16 from 7.0."""
    rows = [row for row in fp.chips() if row.arch and row.capability is not None]
    assert {row.capability for row in rows if row.mark("E4M3")} == {(8, 9), (9, 0), (10, 0), (10, 3)}
    assert {row.capability for row in rows if row.mark("BF16")} == {(8, 0), (8, 9), (9, 0), (10, 0), (10, 3)}
    assert all(row.mark("FP16") for row in rows)


@pytest.mark.parametrize(
    ("recipe", "arch", "unit"),
    [
        ("DEEPSEEK_V3", "hopper", "hopper_e4m3_f32"), ("DEEPSEEK_V3", "ampere", "BF16 operands on ampere_bf16_f32"),
        ("DEEPSEEK_V3", "volta", "FP16 operands on volta_f16_f32"), ("NVFP4", "blackwell", "blackwell_nvfp4_f32"),
        ("NVFP4", "hopper", "BF16 operands on hopper_bf16_f32"), ("BF16", "cdna3", "cdna3_bf16_f32"),
        ("FP32", "hopper", "torch's own product"),
    ],
)  # fmt: skip
def test_a_recipe_has_its_unit_or_falls_back(recipe: str, arch: str, unit: str) -> None:
    pytest.importorskip("torch")
    table = fp.chips(recipe)
    rows: list[Any] = [row for row in table if row.arch == arch]
    assert {row.products["fprop"] for row in rows} == {unit}
    assert f": {unit}" in str(table)
    assert list(table.to_frame().columns)[-3:] == ["fprop", "dgrad", "wgrad"]


def test_an_unknown_recipe_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="DEEPSEEK_V3"):
        fp.chips("DEEPSEEK_V4")
