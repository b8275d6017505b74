"""Comparisons of recipes: what differs beside the noise of seeds, and what is kept, resumed, drawn and written."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp

for package in ("torch", "pandas", "jinja2", "matplotlib", "pyarrow", "safetensors"):
    pytest.importorskip(package)
import pandas as pd  # noqa: E402

from fpsim.train import Comparison, OptimizerRecipe, Settings, recipes  # noqa: E402
from fpsim.train.comparisons.answer import interval  # noqa: E402
from fpsim.train.comparisons.memory import memory_of, optimizer_bits  # noqa: E402
from tests.train.comparisons.comparison_cases import made  # noqa: E402


def small(names: Any, **options: Any) -> Comparison:
    """A comparison that takes seconds."""
    return fp.train.compare(names, **{"steps": 4, "model": "perceptron", "batch": 16, "measure": 2, **options})


# ---- what is said


def test_an_interval_is_that_of_students_t() -> None:
    got = interval([1.0, 2.0, 3.0])
    assert got.mean == 2.0
    assert got.half == pytest.approx(4.302652729749464 / math.sqrt(3), rel=1e-12)  # t of 2 degrees, from tables
    assert math.isnan(interval([1.0]).half)
    assert math.isnan(interval([]).mean)


def test_differences_are_taken_seed_by_seed() -> None:
    comparison = made({"BF16": [2.0, 3.0, 4.0], "OTHER": [2.5, 3.51, 4.49]})
    difference = comparison.difference("OTHER")
    assert difference.mean == pytest.approx(0.5)
    assert difference.half == pytest.approx(0.0248, abs=1e-4)  # that of the single losses would be 2.5
    assert comparison.verdict("OTHER") == "higher"


def test_verdicts_ask_whether_the_interval_has_0_in_it() -> None:
    comparison = made(
        {"BF16": [2.0, 2.1, 2.2], "UP": [2.5, 2.61, 2.7], "DOWN": [1.5, 1.61, 1.7], "LIKE": [2.01, 2.08, 2.21]}
    )
    assert {name: comparison.verdict(name) for name in comparison.recipes} == {
        "BF16": "same", "UP": "higher", "DOWN": "lower", "LIKE": "same"
    }  # fmt: skip
    assert comparison.answer.startswith(
        "After 25 steps and 3 seeds, LIKE cannot be told from BF16: the final losses differ by"
    )
    assert "; UP ends 0.50 nats" in comparison.answer
    assert "higher and DOWN ends 0.50 nats" in comparison.answer


def test_an_interval_that_is_too_wide_leaves_it_open() -> None:
    comparison = made({"BF16": [2.0, 2.1, 2.2], "LIKE": [2.01, 2.08, 2.21], "RAW": [2.31, 2.16, 2.3]})
    assert comparison.verdict("RAW") == "open"
    assert "LIKE cannot be told from BF16: the final losses differ by less than 0.044 nats" in comparison.answer
    assert (
        "RAW ends 0.16 nats above, but its seeds differ too much to rule out chance (−0.18 to 0.49)"
        in comparison.answer
    )
    assert "RAW" not in comparison.answer.split(":")[0]


def test_fewer_than_three_seeds_tell_nothing() -> None:
    comparison = made({"BF16": [2.0, 2.1], "UP": [5.0, 5.1]})
    assert comparison.verdict("UP") == "unknown"
    assert comparison.answer.startswith("2 seeds cannot tell recipes apart")
    assert "UP" not in comparison.answer
    assert made({"BF16": [2.0], "UP": [5.0]}).answer.startswith("1 seed cannot tell recipes apart")


def test_one_recipe_is_told_alone() -> None:
    comparison = made({"OTHER": [2.0, 2.1, 2.2]}, baseline="OTHER")
    assert comparison.answer == "OTHER ends at 2.100 ± 0.248 nats, mean of 3 seeds."


def test_stopped_runs_are_counted_and_left_out() -> None:
    losses = {"BF16": [2.0, 2.1, 2.2, 2.3], "BAD": [math.nan, 2.61, 2.7, 2.8]}
    comparison = made(losses, stopped=("BAD-0",))
    row = comparison.rows()[1]
    assert row["stopped"] == 1
    assert row["final_loss"] == pytest.approx((2.61 + 2.7 + 2.8) / 3)
    assert comparison.verdict("BAD") == "higher"
    assert comparison.answer.endswith("Ended early by Inf or NaN in the loss or in gradients: BAD in 1 of 4.")
    assert made(losses, stopped=("BAD-0", "BAD-1")).verdict("BAD") == "unknown"


def test_a_recipe_that_diverged_is_called_that_wherever_its_loss_ends() -> None:
    comparison = made({"BF16": [2.0, 2.1, 2.2], "WILD": [2.3, 2.3, 2.3], "UP": [2.5, 2.61, 2.7]})
    runs = [
        dataclasses.replace(run, losses=[2.3, 1.9e10, *run.losses[2:]]) if run.recipe.name == "WILD" else run
        for run in comparison.runs
    ]
    comparison = Comparison(tuple(runs), "BF16")
    assert (comparison.verdict("WILD"), comparison.rows()[1]["diverged"], comparison.rows()[1]["stopped"]) == (
        "diverged",
        3,
        0,
    )
    assert math.isnan(comparison.final_loss("WILD").mean)
    assert comparison.answer == (
        "After 3 seeds, UP ends 0.50 nats (0.49 to 0.52) higher than BF16. "
        "Diverged: WILD in 3 of 3 (up to 1.9e+10 nats)."
    )
    assert str(comparison.by_recipe["WILD"][0]).startswith(
        "WILD: diverged: the loss rose from 2.3 to 1.9e+10 at step 1, and"
    )
    alone = Comparison(comparison.by_recipe["WILD"], "WILD")
    assert alone.answer == "Diverged: WILD in 3 of 3 (up to 1.9e+10 nats)."
    some = Comparison((*comparison.by_recipe["BF16"][:2], comparison.by_recipe["WILD"][2]), "BF16")
    assert some.runs[2].failed


def test_a_loss_that_rises_less_is_no_divergence() -> None:
    run = made({"BF16": [2.0]}).runs[0]
    assert not dataclasses.replace(run, losses=[2.3, 23.0, 2.0]).diverged
    assert dataclasses.replace(run, losses=[2.3, 23.1, 2.0]).diverged
    assert not dataclasses.replace(run, losses=[]).diverged
    assert not dataclasses.replace(run, losses=[2.3, math.nan]).diverged


def test_a_learning_rate_of_50_diverges(tmp_path: Path) -> None:
    wild = recipes.FP32.replace(name="WILD", optimizer=OptimizerRecipe(lr=50.0))
    comparison = small(["FP32", wild], seeds=3, steps=25, out=tmp_path)
    assert max(comparison.by_recipe["WILD"][0].losses) > 1e6
    assert comparison.verdict("WILD") == "diverged"
    assert "nats higher" not in comparison.answer
    assert "diverged: the loss rose to" in (tmp_path / "report.html").read_text()


def test_the_table_has_what_a_recipe_costs() -> None:
    found = small(["FP32", "BF16", "BF16_WEIGHTS_NEAREST"], seeds=2).to_frame().set_index("recipe")
    assert found.seeds.tolist() == [2, 2, 2]
    assert found.time_ratio["FP32"] == 1.0
    assert found.weight_bytes["BF16"] == 2 * found.weight_bytes["BF16_WEIGHTS_NEAREST"]
    assert found.difference["BF16"] == 0.0
    assert found.lost_updates["BF16_WEIGHTS_NEAREST"] > found.lost_updates["FP32"]
    assert found.gradient_error.isna().all()  # the perceptron has no probe


# ---- bytes


def test_bytes_are_those_of_the_formats() -> None:
    assert optimizer_bits(OptimizerRecipe()) == (32, 64)
    assert optimizer_bits(OptimizerRecipe(weights="bf16", first_moment="bf16")) == (48, 48)
    assert optimizer_bits(OptimizerRecipe(weights="bf16", masters=False, update_rounding="kahan")) == (32, 64)
    settings = Settings(model="perceptron", batch=128)
    inputs = 128 * (128 + 256) * 4  # of the two layers, in float32
    head = 128 * 256 * 4
    kept = {name: memory_of(getattr(recipes, name), settings).activations for name in ("FP32", "BF16", "FP8_RAW")}
    assert kept == {"FP32": inputs + head, "BF16": (inputs + head) // 2, "FP8_RAW": (inputs + head) // 4}
    tiles = memory_of(recipes.DEEPSEEK_V3, settings).activations - inputs // 4 - head
    assert tiles == 128 * 3 * 4  # scales of 1x128 tiles, in float32


def test_stored_activations_count_as_they_are_stored() -> None:
    settings = Settings(batch=2)
    stash, plain = memory_of(recipes.DEEPSEEK_V3_STASH, settings), memory_of(recipes.DEEPSEEK_V3, settings)
    swiglu = 2 * 2 * 64 * 512  # layers, tokens, features: 16 bits as BF16, 8 and scales as E4M3
    proj = 2 * 2 * 64 * 128  # 12 bits in place of 8, and a scale of 8 bits in place of 32
    assert plain.activations - stash.activations == swiglu - swiglu // 128 * 4 - proj // 2 + proj // 128 * 3


# ---- runs


def test_a_comparison_is_a_function_of_its_arguments_and_of_runs() -> None:
    comparison = small(["BF16", "FP8_RAW"], seeds=2)
    alone = fp.train.run("FP8_RAW", steps=4, seed=1, model="perceptron", batch=16, measure=2)
    curves = comparison.curves()
    assert curves.columns[:4].tolist() == ["recipe", "seed", "step", "loss"]
    assert curves[(curves.recipe == "FP8_RAW") & (curves.seed == 1)].loss.tolist() == alone.losses
    measured = comparison.measurements()
    assert set(measured.step) == {0, 2}
    assert len(measured[(measured.recipe == "FP8_RAW") & (measured.seed == 1)]) == len(alone.measured)


def test_the_first_batches_of_a_seed_are_those_of_every_recipe() -> None:
    comparison = small(["FP32", recipes.FP32.replace(name="SAME")], seeds=3)
    assert comparison.difference("SAME") == (0.0, 0.0)
    assert comparison.verdict("SAME") == "same"
    assert "SAME cannot be told from FP32: the final losses are equal" in comparison.answer


@pytest.mark.usefixtures("without_figures")
def test_finished_runs_are_loaded_and_new_ones_join_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(["FP32", "BF16"], seeds=1, out=tmp_path)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["BF16-0", "FP32-0"]
    from fpsim.train.loop import Trainer

    stepped: list[str] = []
    step = Trainer.step

    def counted(self: Trainer) -> dict[str, Any]:
        stepped.append(f"{self.recipe.name}-{self.settings.seed}")
        return step(self)

    monkeypatch.setattr(Trainer, "step", counted)
    again = small(["FP32", "BF16"], seeds=1, out=tmp_path)
    assert not stepped
    assert [each.losses for each in again.runs] == [each.losses for each in first.runs]
    assert [each.validation_loss for each in again.runs] == [each.validation_loss for each in first.runs]
    more = small(["FP32", "BF16", "FP8_RAW"], seeds=2, out=tmp_path)
    assert sorted(set(stepped)) == ["BF16-1", "FP32-1", "FP8_RAW-0", "FP8_RAW-1"]
    assert more.by_recipe["BF16"][0].losses == first.by_recipe["BF16"][0].losses


@pytest.mark.usefixtures("without_figures")
def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.train import settings
    from fpsim.train.loop import Trainer

    monkeypatch.setattr(settings, "SAVED_EVERY", 0.0)
    step = Trainer.step
    done: list[int] = []

    def broken(self: Trainer) -> dict[str, Any]:
        if len(done) == 6:
            raise KeyboardInterrupt
        done.append(self.steps)
        return step(self)

    monkeypatch.setattr(Trainer, "step", broken)
    with pytest.raises(KeyboardInterrupt):
        small(["FP32", "BF16"], seeds=1, out=tmp_path)
    assert not list(tmp_path.glob("*.parquet"))
    monkeypatch.setattr(Trainer, "step", step)
    comparison = small(["FP32", "BF16"], seeds=1, out=tmp_path)
    assert [each.losses for each in comparison.runs] == [each.losses for each in small(["FP32", "BF16"], seeds=1).runs]
    assert len(pd.read_parquet(tmp_path / "curves.parquet")) == 8


def test_progress_goes_from_0_to_1() -> None:
    said: list[tuple[float, str]] = []
    small(["FP32", "BF16"], seeds=2, gradients=False, progress=lambda share, text: said.append((share, text)))
    shares = [share for share, _ in said]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert said[1][1].startswith("FP32, seed 0: step 1 of 4, loss ")


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ([], {}, "recipes must be one recipe or several; got none"),
        (["BF16", "bf16"], {}, "recipes must have names of their own"),
        (["BF16"], {"seeds": 0}, "seeds must be an integer >= 1; got 0"),
        (["BF16"], {"baseline": "FP32"}, "baseline must be one of BF16; got 'FP32'"),
        (["BF16"], {"model": "rnn"}, "model must be one of"),
        ([recipes.BF16.replace(keep=("nowhere",))], {}, "keep of recipe 'BF16' must name layers of the model"),
        (
            [recipes.BF16.replace(name="a b"), recipes.BF16.replace(name="a/b")], {"out": "x"},
            "recipes' names must lead to different folders",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused(names: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    options = {**options, **({"out": tmp_path / "x"} if "out" in options else {})}
    with pytest.raises(ValueError, match=re.escape(said)):
        small(names, **options)
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_trained_is_refused_before_the_first_run(tmp_path: Path) -> None:
    wrong = recipes.DEEPSEEK_V3.replace(name="WRONG")
    with pytest.raises(ValueError, match="wgrad of layer 'first' sums over 16 tokens"):
        small(["FP32", wrong], out=tmp_path)
    assert not (tmp_path / "runs").exists()
