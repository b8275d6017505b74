"""Plans: what is chosen, what it is measured beside, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.analysis.studies.planning.problems import PRODUCTS, USUAL, report, usual

plan = fp.analysis.plan


def test_a_planted_bad_layer_stays_in_high_precision() -> None:
    planned = plan(report(usual(b=20.0)), bits=10.9)  # a third of the products in BF16, the rest in FP8
    assert {choice.layer for choice in planned.choices if choice.recipe == "BF16"} == {"b"}
    assert {choice.recipe for choice in planned.choices if choice.layer != "b"} == {"DEEPSEEK_V3"}
    kept = planned["b", "wgrad"]
    assert (kept.dearer, kept.cheaper and kept.cheaper.recipe) == (None, "DEEPSEEK_V3")
    assert kept.cheaper is not None
    assert kept.cheaper.value == 20 * USUAL["DEEPSEEK_V3"]


def test_a_larger_budget_never_predicts_more() -> None:
    rng = np.random.default_rng(1)
    errors = {key: error * float(np.exp(rng.normal())) for key, error in usual().items()}
    source = report(errors)
    figures = [plan(source, bits=float(bits), random=0).predicted for bits in np.linspace(4.6, 16, 12)]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > 5 * figures[-1]


def test_predictions_add_squares_and_the_gap_is_what_is_measured_beyond_them() -> None:
    planned = plan(report(usual(), gap=1.25), bits=16)
    assert set(planned.assignment.values()) == {"BF16"}
    assert planned.predicted == pytest.approx(math.sqrt(9) * USUAL["BF16"], rel=1e-7)
    assert planned.gap == pytest.approx(0.25, rel=1e-5)
    assert "additivity gap +25 %" in str(planned)


def test_greedy_random_and_uniform_plans_stand_beside_it() -> None:
    source = report(usual(b=5.0))
    planned = plan(source, bits=9, random=3)
    assert [one.method for one in planned.candidates] == ["milp", "greedy", "random 1", "random 2", "random 3",
                                                        "uniform DEEPSEEK_V3"]  # fmt: skip
    assert all(one.cost <= 9 and one.joint is not None for one in planned.candidates)
    assert planned.chosen.harm == min(one.harm for one in planned.candidates)
    assert source._measurer.calls == len({tuple(one.assignment.items()) for one in planned.candidates})  # each once
    assert planned.to_frame("candidate").method[0] == "milp"
    assert plan(source, bits=9, random=3) == planned


def test_a_rival_that_is_better_when_measured_is_named() -> None:
    source = report(usual(b=5.0))

    joint = source._measurer.joint
    source._measurer.joint = lambda assignment, name: (
        joint(assignment, name) if name == "DEEPSEEK_V3" else _larger(joint(assignment, name))
    )
    answer = plan(source, bits=9).answer
    assert "The greedy plan is better with " in answer
    assert "harms do not add up here" in answer


def test_a_rival_without_a_number_is_not_the_best() -> None:
    """The first rival was called the best if its measured error was NaN."""
    source = report(usual(b=5.0))
    joint, calls = source._measurer.joint, iter([1.0, math.nan, 2.0])
    source._measurer.joint = lambda assignment, name: _larger(joint(assignment, name), next(calls, 3.0))
    answer = plan(source, bits=9).answer
    assert "nan" not in answer
    assert "The best other plan is the random " in answer


def _larger(row: Any, factor: float = 10) -> Any:
    from tests.analysis.studies.planning.problems import row as made

    return made("*", "*", "mixed", factor * row.gradient_error)


def test_groups_share_a_choice_and_kept_layers_have_none() -> None:
    errors = usual(("x.up", "x.gate", "x.down", "head"), head=50.0)
    planned = plan(report(errors), bits=9, keep="head", groups=[("*.up", "*.gate")])
    assert planned.kept == ("head",)
    assert "head" not in {choice.layer for choice in planned.choices}
    for product in PRODUCTS:
        assert planned["x.up", product].recipe == planned["x.gate", product].recipe
    whole = plan(report(errors), bits=9, each="layer")
    assert all(len({whole[layer, product].recipe for product in PRODUCTS}) == 1 for layer in ("x.up", "head"))
    assert whole.predicted >= plan(report(errors), bits=9).predicted


def test_bytes_count_the_copies_of_weights() -> None:
    size = 128 * 128
    planned = plan(report(usual()), bytes=3 * size * 2, random=0)  # one copy in BF16 of each layer
    assert planned.cost == 3 * size * 2
    assert {choice.recipe for choice in planned.choices} == {"BF16"}
    small = plan(report(usual()), bytes=3 * size * 1.2, random=0)
    assert small.cost <= 3 * size * 1.2
    assert all(small[layer, "fprop"].recipe == small[layer, "dgrad"].recipe for layer in "abc")  # one copy is cheaper
    assert all(small[layer, "wgrad"].recipe == "BF16" for layer in "abc")  # it reads no weight


def test_changes_of_the_loss_within_their_spread_count_as_nothing() -> None:
    errors = {key: error for key, error in usual(("a", "b")).items() if key[1] == "fprop"}
    changes = {("a", "fprop", "NVFP4"): (-0.9, 1.0), ("b", "fprop", "NVFP4"): (0.9, 1.0)}
    planned = plan(report(errors, changes=changes), bits=10, by="loss_change")
    assert (planned["a", "fprop"].recipe, planned["b", "fprop"].recipe) == ("NVFP4", "DEEPSEEK_V3")
    assert (planned["a", "fprop"].harm, planned["b", "fprop"].harm) == (0.0, 0.0)
    assert any("as 0, since" in note for note in planned.notes)
    assert plan(report(errors), bits=10).figure == "output_error"


def test_what_is_no_number_is_not_offered() -> None:
    errors = usual()
    errors["b", "dgrad", "NVFP4"] = math.inf
    del errors["c", "wgrad", "NVFP4"]
    planned = plan(report(errors), bits=5.5)
    assert "NVFP4" not in (planned["b", "dgrad"].recipe, planned["c", "wgrad"].recipe)
    assert "NVFP4 is not offered to dgrad of b, since its gradient_error is inf." in planned.notes
    assert "NVFP4 is not offered to wgrad of c, since the sensitivity has no row of it." in planned.notes


def test_a_plan_resumes_and_refuses_another_model(tmp_path: Path) -> None:
    whole = plan(report(usual(b=5.0)), bits=9)
    broken = report(usual(b=5.0))
    joint, calls = broken._measurer.joint, []

    def stops(assignment: Any, name: str) -> Any:
        calls.append(name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return joint(assignment, name)

    broken._measurer.joint = stops
    with pytest.raises(KeyboardInterrupt):
        plan(broken, bits=9, out=tmp_path)
    again = report(usual(b=5.0))
    assert plan(again, bits=9, out=tmp_path) == whole
    assert again._measurer.calls == len({tuple(one.assignment.items()) for one in whole.candidates}) - 2
    assert plan(report(usual(b=5.0)), bits=9, out=tmp_path) == whole
    loaded = fp.analysis.Sensitivity(*(getattr(again, name) for name in (
        "rows", "joint", "layers", "recipes", "losses", "model", "identity")))  # fmt: skip
    assert plan(loaded, bits=9, out=tmp_path) == whole  # all of it is known
    with pytest.raises(
        ValueError, match=r"out must be a folder of results of this fpsim.analysis.plan; got .* with another model,"
    ):
        plan(report(usual(b=5.0), identity="4567"), bits=9, out=tmp_path)


def test_what_was_measured_survives_a_cut_line(tmp_path: Path) -> None:
    whole = plan(report(usual(b=5.0)), bits=9, out=tmp_path)
    file = next(tmp_path.glob("*.jsonl"))
    file.write_bytes(file.read_bytes()[:-20])  # as a killed process leaves it
    again = report(usual(b=5.0))
    assert plan(again, bits=9, out=tmp_path) == whole
    assert again._measurer.calls == 1
