"""Recipes refuse fields of a wrong kind, and their methods unknown names, in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fpsim as fp
from tests.kit.refusal import refusal
from tests.kit.sweeps import in_turn
from tests.test_refusals import SEVERAL, X, loose


@in_turn(
    "call, words",
    [
        (lambda: loose.recipes.Delayed(amax=SEVERAL), "amax must be one of max, most_recent; got an array of torch."),
        (lambda: loose.recipes.LinearRecipe(name=[1]), "name must be a text; got [1]."),
        (lambda: loose.recipes.LinearRecipe(requantize_input="x"), "requantize_input must be True or False; got 'x'."),
        (lambda: loose.recipes.LinearRecipe(stash_scaling=X), "stash_scaling needs stash_fmt; got None."),
        (lambda: loose.recipes.LossScalingPolicy("x", scale=1e39), "scale must be positive and finite in float32; got"),
        (lambda: loose.recipes.LossScalingPolicy("x", lowest=None), "lowest must be a number; got None."),
        (lambda: loose.recipes.LossScalingPolicy("x", lowest=2, highest=1), "lowest must be at most highest; got 2"),
        (lambda: loose.recipes.LossScalingPolicy("x", lowest=2), "scale must be in lowest .. highest, which are 2 and"),
        (lambda: loose.recipes.LossScalingPolicy("x", scale=10**400), "scale must be a finite number > 0; got 1000"),
        (lambda: loose.recipes.OptimizerRecipe(lr=10**400), "lr must be a finite number >= 0; got 1000"),
        (lambda: fp.torch.MXFP8.operands("forward"), "product must be one of fprop, dgrad, wgrad; got 'forward'."),
        (lambda: fp.torch.MXFP8.accumulator("name"), "product must be one of fprop, dgrad, wgrad; got 'name'."),
        (lambda: fp.torch.MXFP8.cast_of("x", backward=False), "operand must be one of input, weight, grad; got 'x'."),
        (lambda: loose.recipes.OptimizerRecipe().lr_at(-1, 10), "step must be an integer >= 0; got -1."),
        (lambda: loose.recipes.OptimizerRecipe().lr_at(0, None), "steps_total must be an integer; got None."),
        (lambda: loose.recipes.OptimizerRecipe().format_of("lr"), "kind must be one of first_moment, second_moment, w"),
    ],
)
def test_junk_is_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    assert words in refusal(call)
