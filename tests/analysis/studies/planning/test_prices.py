"""Tests of the bits that recipes take of a budget beside those of encoded operands."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.planning.prices import OPERANDS, operand_bits, product_bits, scaling_of, weight_copy

RECIPES = dict(fp.torch.RECIPES)


@pytest.mark.parametrize("name", ["FP8_TENSOR", "DEEPSEEK_V3", "DEEPSEEK_V3_POW2", "MXFP8", "NVFP4"])
def test_bits_are_those_of_encoded_operands(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((256, 384), np.float32)
    recipe = RECIPES[name]
    for operand, backward in {pair for pairs in OPERANDS.values() for pair in pairs}:
        scaling = scaling_of(recipe, operand, backward=backward)
        report = fp.analysis.error(x, getattr(recipe, f"{operand}_fmt"), scaling=scaling)
        assert float(operand_bits(recipe, operand, x.size, backward=backward)) == report.bits_per_value * x.size


def test_operands_without_scales_take_their_bits() -> None:
    assert product_bits(RECIPES["FP32"], "dgrad", (10, 6)) == 16 * 32
    assert product_bits(RECIPES["FP16"], "wgrad", (10, 6)) == 16 * 16
    mixed = fp.torch.LinearRecipe(weight_fmt="e4m3", weight_scaling=fp.scalings.TENSOR)
    assert product_bits(mixed, "fprop", (10, 6)) == 10 * 32 + 6 * 8 + 32


def test_the_same_codes_are_one_copy() -> None:
    both = [weight_copy(RECIPES["BF16"], product, 64) for product in ("fprop", "dgrad")]
    assert both[0] == both[1]
    assert weight_copy(RECIPES["BF16"], "wgrad", 64) is None
    rows = weight_copy(RECIPES["MXFP8"], "fprop", 64)
    assert rows is not None
    assert rows != weight_copy(RECIPES["MXFP8"], "dgrad", 64)  # tiles along the other axis
