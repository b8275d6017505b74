"""Plans: reports, pictures, and bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.studies.planning.figure import _frontier
from fpsim.analysis.studies.planning.optimum import cheapest, optimum
from fpsim.analysis.studies.planning.report import Point
from fpsim.analysis.studies.planning.searches import most_careful
from tests.analysis.studies.planning.problems import PRODUCTS, USUAL, report, torch, usual
from tests.kit.sweeps import in_turn

plan = fp.analysis.plan


def test_a_report_without_a_model_is_planned_and_says_so() -> None:
    source = report(usual())
    object.__setattr__(source, "_measurer", None)
    planned = plan(source, bits=9)
    assert math.isnan(planned.measured)
    assert math.isnan(planned.gap)
    assert "It was not measured jointly." in str(planned)
    assert "Nothing was measured jointly: a report that was loaded has no model to run." in planned.notes


class TestTOML:
    """A plan is a recipe of training, which trains and quantises product by product."""

    @staticmethod
    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))

    def made_plan(self) -> Any:
        batches = [torch.randn(128, 128) for _ in range(2)]
        source = fp.analysis.sensitivity(
            self.model(), batches, lambda model, x: model(x).square().mean(),
            recipes=["BF16", "FP8_TENSOR", "DEEPSEEK_V3", "NVFP4"],
        )  # fmt: skip
        return plan(source, bits=7, random=1)

    def test_it_reads_back_as_the_same_recipes(self, tmp_path: Path) -> None:
        planned = self.made_plan()
        planned.to_toml(tmp_path / "plan.toml")
        again = fp.train.Recipe.from_toml(tmp_path / "plan.toml")
        assert again == planned.to_recipe()
        assert len(set(planned.assignment.values())) > 1
        for (layer, product), name in planned.assignment.items():
            assert again.linear_of(layer, product, 0, 1) == planned.recipes[name] == fp.torch.RECIPES[name]
        assert again.linear_of("another", "fprop", 0, 1) == fp.torch.RECIPES["FP32"]

    def test_quantised_layers_have_the_bits_of_the_plan(self, tmp_path: Path) -> None:
        planned = self.made_plan()
        planned.to_toml(tmp_path / "plan.toml")
        x = torch.randn(128, 128)
        grads = []
        for by_hand in (False, True):
            model = self.model()
            if by_hand:
                fp.torch.quantize_linears(model, fp.torch.RECIPES["FP32"])
                for layer in ("0", "2"):
                    names = [planned.assignment.get((layer, product), "FP32") for product in PRODUCTS]
                    model[int(layer)].follow(*(fp.torch.RECIPES[name] for name in names))
            else:
                as_it_is = self.model()
                assert fp.torch.quantize_linears(as_it_is, planned) == ["0", "2"]
                assert fp.torch.quantize_linears(model, tmp_path / "plan.toml") == ["0", "2"]
                assert [as_it_is[i].plan for i in (0, 2)] == [model[i].plan for i in (0, 2)]
            model(x).square().mean().backward()
            grads.append([parameter.grad.numpy() for parameter in model.parameters()])
        for got, want in zip(*grads, strict=True):
            fp.testing.assert_bits_equal(got, want)

    def test_it_stands_for_its_recipe(self) -> None:
        from fpsim.recipes.look_up import find as find_recipe
        from fpsim.recipes.look_up import find_either

        planned = self.made_plan()
        assert find_either(planned) == find_recipe(planned) == planned.to_recipe()
        x = torch.randn(128, 128)
        assert not fp.analysis.diff(self.model(), x, planned, planned.to_recipe())

    def test_what_has_a_plan_is_refused_with_its_name(self) -> None:
        class Diagnosed:
            plan = self.made_plan()

        with pytest.raises(TypeError, match=r"or an fp\.analysis\.Plan; got .* Pass its \.plan\."):
            fp.torch.quantize_linears(self.model(), Diagnosed())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"or an fp\.analysis\.Plan; got 5\.$"):
            fp.torch.quantize_linears(self.model(), 5)  # type: ignore[arg-type]

    def test_a_run_follows_it(self, tmp_path: Path) -> None:
        errors = usual(("first", "hidden"), hidden=9.0)
        planned = plan(report(errors), bits=9, random=0)
        planned.to_toml(tmp_path / "plan.toml", base=fp.train.recipes.DEEPSEEK_V3)
        recipe = fp.train.Recipe.from_toml(tmp_path / "plan.toml")
        assert recipe.optimizer == fp.train.recipes.DEEPSEEK_V3.optimizer
        layers = set(_layers_of_the_perceptron())
        renamed = dict(zip(("first", "hidden"), sorted(layers)[:2], strict=True))
        errors = {(renamed[layer], product, name): error for (layer, product, name), error in errors.items()}
        plan(report(errors), bits=9, random=0).to_toml(tmp_path / "mine.toml")
        run = fp.train.run(str(tmp_path / "mine.toml"), steps=2, model="perceptron")
        assert len(run.losses) == 2
        assert run.losses != fp.train.run("FP32", steps=2, model="perceptron").losses

    def test_names_with_signs_of_patterns_are_names(self) -> None:
        planned = plan(report(usual(("w[0]", "w0"))), bits=16, random=0)
        assert planned.to_recipe().overrides[0].holds("w[0]", 0, 1)
        assert not planned.to_recipe().overrides[0].holds("w0", 0, 1)


def _layers_of_the_perceptron() -> list[str]:
    from fpsim.train.layers import layers_of
    from fpsim.train.model import Perceptron

    return list(layers_of(Perceptron(0)))


def test_it_shows_itself() -> None:
    planned = plan(report(usual(b=5.0)), bits=9)
    assert "<table>" in planned._repr_html_()
    assert "additivity gap" in repr(planned)
    table = planned.to_frame()
    assert table.recipe.tolist() == [
        planned.assignment[slot] for slot in zip(table.layer, table["product"], strict=True)
    ]
    assert table.accumulator[0] == getattr(fp.torch.RECIPES[table.recipe[0]].accumulator("fprop"), "name", None)
    points = planned.frontier(5)
    assert [point.method for point in points] == ["milp", "greedy"] * (len(points) // 2)
    best = [point for point in points if point.method == "milp"]
    assert len(best) >= 5
    for one in planned.candidates:  # the best plan of as many bits is no worse
        assert min(point.predicted for point in best if point.cost <= one.cost) <= one.predicted
    pytest.importorskip("matplotlib").use("Agg")
    ax = planned.plot()
    assert ax.get_xlabel() == "bits a value"
    assert any("optimum" in text.get_text() for text in ax.texts)


@pytest.mark.parametrize("budget", [{"bits": 9}, {"bytes": 10**6}], ids=["bits", "bytes"])
def test_a_frontier_has_the_least_harm_of_every_budget(budget: dict[str, Any]) -> None:
    planned = plan(report(usual(b=5.0)), **budget)
    problem, search, count = planned._search.problem, planned._search, 9
    low, high = (problem.price(choice(problem)) for choice in (cheapest, most_careful))
    points = [point for point in search.frontier(count, []) if point.method == "milp"]
    for i, point in enumerate(points):
        best = optimum(problem, low + (high - low) * i // (count - 1))
        assert best is not None
        assert (point.cost, point.predicted) == (problem.cost(best.choice), search.predicted(best.choice))
    assert len(points) == count
    assert 2 < len({point.cost for point in points}) <= count


def test_the_figure_has_no_greedy_plan_below_the_best_ones() -> None:
    """Both are looked for at the same budgets, between which the greedy one may become cheaper first."""
    points = [
        Point("milp", 8, 8, 0.3),
        Point("greedy", 8, 8, 0.3),
        Point("milp", 9, 9, 0.1),
        Point("greedy", 9, 8.7, 0.2),
    ]
    assert _frontier(points, "milp") == [(8, 0.3), (8.7, 0.2), (9, 0.1)]
    assert _frontier(points, "greedy") == [(8, 0.3), (8.7, 0.2)]


@in_turn(
    "options, kind, message",
    [
        ({}, ValueError, r"either bits= or bytes= as its budget; got neither\."),
        ({"bits": 8, "bytes": 9}, ValueError, r"as its budget; got bits=8 and bytes=9\."),
        ({"bits": "8"}, TypeError, "bits must be a number; got '8'"),
        ({"bits": True}, TypeError, "bits must be a number; got True"),
        ({"bytes": -1}, ValueError, "bytes must be a positive number; got -1"),
        ({"bits": math.nan}, ValueError, "bits must be a positive number; got nan"),
        ({"bits": 4}, ValueError, r"bits must be at least 4\.\d+, which the cheapest plan takes \(NVFP4 for 9 of 9 "),
        ({"bytes": 5}, ValueError, r"bytes must be at least \d+ \(.* kB\), which the cheapest plan takes"),
        ({"bits": 9, "keep": "d*"}, ValueError, r"keep must match a layer of the plan; got 'd\*', which matches none"),
        ({"bits": 9, "keep": 5}, TypeError, "keep must be a shell pattern or several"),
        ({"bits": 9, "keep": "*"}, ValueError, r"keep must leave a layer to plan; got '\*', which matches all 3\."),
        ({"bits": 9, "groups": [()]}, TypeError, r"groups must be a shell pattern or several, .*; got \(\)\."),
        ({"bits": 9, "groups": ["x"]}, ValueError, "groups must match a layer of the plan; got 'x'"),
        ({"bits": 9, "groups": ["a", "[ab]"]}, ValueError, r"groups must not share a layer; got 'a' and '\[ab\]', "),
        ({"bits": 9, "groups": ["a"], "keep": "a"}, ValueError, "groups must match a layer of the plan; got 'a'"),
        ({"bits": 9, "each": "block"}, ValueError, "each must be one of product, layer; got 'block'"),
        ({"bits": 9, "by": "loss_change"}, ValueError, "which is 0 for dgrad and wgrad"),
        ({"bits": 9, "by": "loss"}, ValueError, "by must be one of gradient_error, output_error, loss_change"),
        ({"bits": 9, "random": -1}, ValueError, "random must be an integer >= 0"),
        ({"bits": 9, "out": 5}, TypeError, "out must be a text or a pathlib.Path"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_a_sentence(options: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        plan(report(usual()), **options)


def test_a_product_without_a_recipe_is_refused_unless_it_is_kept() -> None:
    errors = usual()
    for name in USUAL:
        errors["b", "dgrad", name] = math.inf
    with pytest.raises(ValueError, match="whose metric is finite; dgrad of b has none among BF16, DEEPSEEK_V3"):
        plan(report(errors), bits=9)
    assert plan(report(errors), bits=9, keep="b").kept == ("b",)
    with pytest.raises(TypeError, match=r"plan needs an fp\.analysis\.Sensitivity, or a list of budgets .*; got 5\."):
        plan(5, bits=9)  # type: ignore[arg-type]


def test_small_batches_are_named_where_they_are_the_reason() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 128))
    source = fp.analysis.sensitivity(
        model, [torch.randn(64, 128)], lambda model, x: model(x).square().mean(), recipes=["BF16", "DEEPSEEK_V3"]
    )
    (note,) = plan(source, bits=16, random=0).notes
    assert note.startswith("DEEPSEEK_V3 is not offered to wgrad of 0, since its 64 terms are not a multiple of 128, ")
    assert note.endswith("; measure with batches whose terms are a multiple of 128.")


def test_blocks_that_do_not_divide_a_sum_are_not_offered() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    source = fp.analysis.sensitivity(
        model, [torch.randn(128, 128)], lambda model, x: model(x).square().mean(), recipes=["BF16", "DEEPSEEK_V3"]
    )
    planned = plan(source, bits=16, random=0)
    sentence = (
        "DEEPSEEK_V3 is not offered to dgrad of 2, since its 10 terms are not a multiple of 128, the terms that share"
    )
    assert [note for note in planned.notes if note.startswith(sentence)]
    assert [note for note in planned.notes if note.startswith("DEEPSEEK_V3")] == list(planned.notes)
    cheap = plan(source, bits=8.4, random=0)
    assert [slot for slot, name in cheap.assignment.items() if name == "BF16"] == [("2", "dgrad")]


class TestBudgets:
    """Plans of budgets, which measure every product for itself and have no model to measure jointly."""

    @staticmethod
    def recording() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with fp.analysis.record(model, keep=1) as recording:
            model(torch.randn(128, 128)).square().mean().backward()
            optimizer.step()
        return recording

    def test_products_count_alike_and_nothing_is_measured_jointly(self) -> None:
        recording = self.recording()
        made = [
            fp.analysis.budget(recording, recipe=name, on=chip)
            for name, chip in (("DEEPSEEK_V3", "H100"), ("NVFP4", None))
        ]
        planned = plan(made, bits=8.5)
        rows = made[0].rows
        assert planned.predicted == pytest.approx(math.sqrt(math.fsum(row.joint**2 for row in rows)), rel=1e-6)
        assert planned.figure == "joint"
        assert math.isnan(planned.measured)
        assert "Nothing was measured jointly: budgets have no model to run." in planned.notes
        assert {choice.accumulator for choice in planned.choices} == {"hopper_e4m3_f32"}
        cheap = plan(made, bits=6)
        assert {choice.recipe for choice in cheap.choices} == {"DEEPSEEK_V3", "NVFP4"}
        assert cheap.predicted == min(one.predicted for one in cheap.candidates)

    def test_budgets_that_do_not_belong_together_are_refused(self, tmp_path: Path) -> None:
        recording = self.recording()
        one = fp.analysis.budget(recording, recipe="BF16")
        part = fp.analysis.budget(recording, recipe="DEEPSEEK_V3", layers="0")
        with pytest.raises(ValueError, match="budgets must be of one recipe each; got two of BF16"):
            plan([one, one], bits=9)
        with pytest.raises(ValueError, match="3 rows are missing, such as fprop of 2 in DEEPSEEK_V3, dgrad of 2 in"):
            plan([one, part], bits=9)
        with pytest.raises(ValueError, match="out must be None for budgets, which have no model to measure jointly"):
            plan(one, bits=16, out=tmp_path)
        with pytest.raises(
            ValueError, match="by of budgets must be 'joint', the error of a product; got 'loss_change'"
        ):
            plan(one, bits=16, by="loss_change")
        trained = fp.analysis.budget(recording, recipe=fp.train.recipes.FP8_DELAYED)
        with pytest.raises(
            ValueError, match=r"budgets must have a recipe of fp\.torch\.RECIPES .* got 'FP8_DELAYED' on 'H100'"
        ):
            plan(trained, bits=9)
