"""Levels that follow a figure: the rule against traces written by hand."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import fpsim as fp
from fpsim.exact_json import from_json, to_json
from fpsim.recipes.parts import Controller
from fpsim.train.monitors import DECAY, Levels
from tests.kit.sweeps import in_turn

pytest.importorskip("torch")
RULE = Controller(high=0.5, low=0.1, patience=2, levels=("MXFP8", "BF16", "FP32"))


def levels_of(figures: list[float], below: list[float] | None = None, rule: Controller = RULE) -> list[int]:
    """The level in front of each step of a layer, and behind the last one."""
    levels, found = Levels(rule, ["up"]), [0]
    for step, figure in enumerate(figures):
        levels.see(step, {"up": figure}, None if below is None else {"up": below[step]})
        found.append(levels.levels["up"])
    return found


@in_turn(
    "figures, wanted",
    [
        ([0.6, 0.6], [0, 0, 1]),
        ([0.6, 0.5, 0.6], [0, 0, 0, 0]),  # not above high: the count begins again
        ([0.6, 0.05, 0.6, 0.6], [0, 0, 0, 0, 1]),
        ([0.6] * 9, [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]),  # a level at a time, and no further than the last
        ([0.05] * 4, [0] * 5),  # no lower than the recipe's own
        ([0.6, 0.6, 0.3, 0.3, 0.3], [0, 0, 1, 1, 1, 1]),  # between low and high nothing moves
        ([0.6, 0.6, 0.05, 0.05], [0, 0, 1, 1, 0]),
        ([0.6, 0.6, 0.05, 0.1, 0.05, 0.05], [0, 0, 1, 1, 1, 1, 0]),  # 0.1 is not below low
        ([math.nan, math.inf], [0, 0, 1]),  # no number is too high
        ([0.6] * 9 + [0.05, 0.05], [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 2]),
    ],
)
def test_a_layer_moves_after_so_many_steps_in_a_row(figures: list[float], wanted: list[int]) -> None:
    assert levels_of(figures) == wanted


def test_a_layer_comes_back_where_the_level_below_would_do() -> None:
    assert levels_of([0.6, 0.6, 0.0, 0.0, 0.0, 0.0], [0.6, 0.6, 0.6, 0.6, 0.05, 0.05]) == [0, 0, 1, 1, 1, 1, 0]
    assert levels_of([0.6, 0.6, 0.0, 0.0], [0.0, 0.0, math.nan, math.nan]) == [0, 0, 1, 1, 1]


def test_the_log_says_what_was_seen() -> None:
    levels = Levels(RULE, ["up", "down"])
    for step in range(4):
        levels.see(step, {"up": 0.6, "down": 0.2}, {"up": 0.7})
    assert levels.log == [(1, "up", "underflow", 0.6, 0, 1), (3, "up", "underflow", 0.6, 1, 2)]
    levels.see(4, {"up": 0.0}, {"up": 0.04})
    levels.see(5, {"up": 0.0}, {"up": 0.03})
    assert levels.log[2] == (5, "up", "underflow", 0.03, 2, 1)
    assert levels.raised == 1.0  # no figure at all counts as too high, so that both moved


def test_only_layers_of_the_pattern_have_levels() -> None:
    levels = Levels(Controller(layers="*.mlp.*", patience=1), ["blocks.0.mlp.up", "blocks.0.attn.qkv"])
    levels.see(0, {"blocks.0.mlp.up": 1.0, "blocks.0.attn.qkv": 1.0})
    assert levels.levels == {"blocks.0.mlp.up": 1}
    assert levels.recipe("blocks.0.attn.qkv", fp.torch.MXFP8) is fp.torch.MXFP8
    assert levels.recipe("blocks.0.mlp.up", fp.torch.MXFP8) is fp.torch.RECIPES["BF16"]
    assert levels.recipe("blocks.0.mlp.up", fp.torch.MXFP8, down=1) is fp.torch.MXFP8


def test_norms_are_compared_with_their_average_so_far() -> None:
    rule = Controller("gradient_norm", high=3.0, low=0.5, patience=1)
    assert levels_of([0.0, 0.0, 1e-9], rule=rule) == [0, 0, 0, 1]  # gradients after zeros alone are too high
    norms, average, seen = [2.0, 2.0, 8.0, 2.0, 0.1], 2.0, []
    for norm in norms:
        seen.append(norm / average)
        average = DECAY * average + (1 - DECAY) * norm
    assert [round(x, 3) for x in seen] == [1.0, 1.0, 4.0, 0.769, 0.039]
    assert levels_of(norms, rule=rule) == [0, 0, 0, 1, 1, 0]
    assert levels_of([0.0, 0.0, 0.0], rule=rule) == [0, 0, 0, 0]
    assert levels_of([2.0, math.inf, 2.0, 0.1], rule=rule) == [0, 0, 1, 1, 0]  # Inf stays out of the average


def test_saved_levels_go_on_as_if_nothing_had_happened() -> None:
    rule = Controller("gradient_norm", high=1.2, low=0.9, patience=2, levels=("BF16", "FP32"))
    norms: list[Any] = [1.0, 1.5, 2.0, math.nan, 3.0, 0.1, 0.2, 0.1, 0.3, 5.0, 5.0]
    whole, parts = Levels(rule, ["up"]), Levels(rule, ["up"])
    for step, norm in enumerate(norms):
        whole.see(step, {"up": norm})
        parts.see(step, {"up": norm})
        other = Levels(rule, ["up"])
        other.load(from_json(to_json(parts.state(), "state")))
        parts = other
    assert len(whole.log) > 2
    assert repr(parts.state()) == repr(whole.state())


def test_limits_follow_the_figure_that_is_watched() -> None:
    """A thousandth of the values beyond the range is much, where a thousandth that vanishes is not."""
    moved = {}
    for watch in ("underflow", "saturation", "at_maximum", "gradient_norm"):
        levels = Levels(Controller(watch, patience=1), ["up"])
        for step, figure in enumerate((2e-3, 2e-3, 5e-5, 5e-5)):
            levels.see(step, {"up": figure})
        moved[watch] = [(change.step, change.after) for change in levels.log]
    # of a norm the average follows: 2e-3 over 2e-3 is 1, and no step up
    assert moved == {"underflow": [], "saturation": [(0, 1), (1, 2), (2, 1), (3, 0)], "at_maximum": [],
                     "gradient_norm": []}  # fmt: skip
    assert Controller("saturation", high=0.5).limits == (0.5, 1e-4)
    assert Controller("underflow").limits == (0.05, 0.01)
    with pytest.raises(ValueError, match=r"low must be below high, .*; got 0\.01 and 0\.001"):
        Controller("underflow", high=1e-3)


def test_runs_in_several_threads_do_not_see_each_others_products() -> None:
    controller = Controller(watch="underflow", high=0.02, low=0.01, patience=1)
    raw = fp.recipes.FP8_RAW.replace(controller=controller)
    runs = (raw, raw.replace(loss_factor=2.0**-10), fp.recipes.FP32)

    def train(recipe: Any) -> Any:
        run = fp.train.run(recipe, steps=3, model="perceptron", measure=1)
        return run.digest, run.measured, run.changes

    want, interval = [train(recipe) for recipe in runs], sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(train, runs)) == want
    finally:
        sys.setswitchinterval(interval)
