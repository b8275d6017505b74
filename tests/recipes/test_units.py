"""A unit with block scales is chosen if as many terms of K share a scale as in the unit."""

from __future__ import annotations

from typing import Any

import pytest

import fpsim as fp
from fpsim.recipes.linear_recipe import LinearRecipe, Product
from fpsim.recipes.units import unit_for

FMTS = fp.E4M3, fp.E4M3
SCALED, PLAIN = "blackwell_mxfp8_e4m3_f32", "blackwell_e4m3_f32"


@pytest.mark.parametrize(
    ("block", "axis", "name"),
    [((1, 32), 1, SCALED), ((32,), 1, SCALED), ((32, 1), 0, SCALED), ((32, 32), 1, SCALED), ((128, 32), 1, SCALED),
     ((32, 128), 0, SCALED), ((32, 1), 1, PLAIN), ((1, 32), 0, PLAIN), ((32, 4), 1, PLAIN), ((-1, -1), 1, PLAIN),
     ((32, 128), 1, PLAIN)],
)  # fmt: skip
def test_the_terms_of_k_that_share_a_scale_decide(block: tuple[int, ...], axis: int, name: str) -> None:
    scaling = fp.Scaling(block=block, scale_format=fp.E8M0)
    assert unit_for("blackwell", FMTS, scaling, axis).name == name


def test_a_backward_scaling_that_is_the_same_chooses_the_same_unit() -> None:
    square: Any = fp.Scaling(block=(32, 32), scale_format=fp.E8M0)
    recipe = LinearRecipe(
        input_fmt="e4m3", weight_fmt="e4m3", grad_fmt="e4m3", input_scaling=square, weight_scaling=square,
        grad_scaling=square, fprop=Product("blackwell"), dgrad=Product("blackwell"), wgrad=Product("blackwell"),
    )  # fmt: skip
    units = [recipe.accumulator(product) for product in ("fprop", "dgrad", "wgrad")]
    assert [unit.name for unit in units] == [SCALED] * 3  # type: ignore[union-attr]
