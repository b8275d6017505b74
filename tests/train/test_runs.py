"""Runs: saved as they go, killed at any moment, gone on with bit for bit, and refused where they are others."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.recipes.parts import Controller, Override
from fpsim.recipes.training_recipe import Recipe
from fpsim.testing import assert_bits_equal
from fpsim.train import recipes
from tests.kit.forks import fork
from tests.kit.sweeps import in_turn, sweep

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
from fpsim.train import OptimizerRecipe, checkpoint, runs, settings  # noqa: E402

STOCHASTIC = OptimizerRecipe(lr=1e-3, weights="bf16", masters=False, update_rounding="stochastic", first_moment="bf16")
MOVING = Recipe(
    "MOVING", recipes.FP8_DELAYED.linear, loss_factor=2.0**-9,
    controller=Controller("gradient_norm", high=1.0, low=0.999, patience=2, levels=("BF16", "NVFP4", "FP32")),
)  # fmt: skip
LEAVING = recipes.NVFP4.replace(
    name="LEAVING", overrides=(Override(start=0.4, linear="BF16"), Override("first", start=0.7, linear="FP32"))
)
RESUMED: dict[str, Recipe] = {
    "FP8_DELAYED": recipes.FP8_DELAYED,
    "FP16_DYNAMIC": recipes.FP16_DYNAMIC.replace(loss_factor=2.0**8),  # with steps that are left out
    "NVFP4": recipes.NVFP4.replace(optimizer=STOCHASTIC),
    "KAHAN": recipes.BF16_WEIGHTS_KAHAN,
    "MOVING": MOVING,
    "LEAVING": LEAVING,  # formats whose draws and scales are counted, and left
}


def short(recipe: Any, **options: Any) -> Any:
    options = {"steps": 8, "model": "perceptron", "measure": 2, **options}
    return fp.train.run(recipe, **options)


def lasting(rows: list[dict[str, Any]]) -> str:
    """Rows without how long they took, as a text in which NaN equals NaN."""
    return repr([{name: value for name, value in row.items() if name != "seconds"} for row in rows])


def saved(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    loaded = checkpoint.load(folder)
    assert loaded is not None
    facts = dict(loaded.facts["state"])
    facts["rows"] = lasting(facts["rows"])
    return loaded.arrays, facts


def require_same(folder: Path, whole: Path) -> None:
    """Weights, moments, counts of draws, scales, histories, traces, levels, losses and measurements are the same."""
    (arrays, facts), (wanted, wanted_facts) = saved(folder), saved(whole)
    assert arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        assert_bits_equal(array, wanted[name])
    assert repr(facts) == repr(wanted_facts)


@pytest.mark.parametrize("name", RESUMED)
@sweep("whole", False, True)
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(
    name: str, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = short(RESUMED[name], out=tmp_path / "whole")
    monkeypatch.setattr(settings, "SAVED_EVERY", 0.0)
    for stop in (1, 5) if whole or name == "MOVING" else (5,):
        seen: list[str] = []

        def interrupt(share: float, text: str, stop: int = stop, seen: list[str] = seen) -> None:
            seen.append(text)
            if len(seen) == stop:
                raise KeyboardInterrupt

        folder = tmp_path / str(stop)
        with pytest.raises(KeyboardInterrupt):
            short(RESUMED[name], out=folder, progress=interrupt)
        assert checkpoint.steps(folder) == ([stop - 1] if stop > 1 else [])
        short_run = short(RESUMED[name], out=folder)
        require_same(folder, tmp_path / "whole")
        assert short_run.losses == wanted.losses
        assert short_run.validation_loss == wanted.validation_loss
        assert repr(short_run.changes) == repr(wanted.changes)
        assert lasting(short_run.measured) == lasting(wanted.measured)


def test_the_resumed_recipes_do_what_they_are_there_for(tmp_path: Path) -> None:
    assert any(row["skipped"] for row in short(RESUMED["FP16_DYNAMIC"]).rows)
    assert {change["after"] for change in short(MOVING).changes} >= {1, 2}
    short(LEAVING, out=tmp_path)
    assert {"model/first.steps", "model/second.steps"} < saved(tmp_path)[0].keys()


def test_a_run_from_its_folder_has_the_changes_and_the_time(tmp_path: Path) -> None:
    run = short(MOVING, out=tmp_path)
    loaded = fp.train.Run.load(tmp_path)
    assert (repr(loaded.changes), loaded.seconds) == (repr(run.changes), run.seconds)
    assert loaded.changes


def train_aloud(name: str, folder: Path) -> None:
    """What a process that will be killed does: it saves after every step, and says so."""
    settings.SAVED_EVERY = 0.0
    print("ready")
    short(RESUMED[name], out=folder, steps=16, progress=lambda share, text: print(text))


def killed(name: str, folder: Path, draw: random.Random) -> None:
    """Start a run, and kill it at a random moment between its first step and its last."""
    after = draw.randrange(1, 10)
    with fork(folder.parent / "said", train_aloud, name, folder) as process:
        while process.out.count("\n") < 1 + after and process.lives:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.1)
        process.kill()
        assert process.out.startswith("ready"), process.errors


def kill_and_compare(name: str, kills: int, tmp_path: Path) -> None:
    draw, folder = random.Random(f"{name} {kills}"), tmp_path / "killed"
    for _ in range(kills):
        killed(name, folder, draw)
    assert checkpoint.steps(folder)
    short(RESUMED[name], out=folder, steps=16)
    short(RESUMED[name], out=tmp_path / "whole", steps=16)
    require_same(folder, tmp_path / "whole")


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
@pytest.mark.parametrize("name", ["NVFP4", "MOVING"])  # draws and masters; delayed scales and a controller
def test_a_killed_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    kill_and_compare(name, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
@pytest.mark.parametrize("name", ["FP8_DELAYED", "FP16_DYNAMIC", "NVFP4", "MOVING"])
def test_a_run_that_is_killed_again_and_again_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    kill_and_compare(name, 5, tmp_path)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = short(recipes.BF16, out=tmp_path)
    monkeypatch.setattr(fp.train.Trainer, "step", None)
    again = short(recipes.BF16, out=tmp_path)
    assert (again.losses, again.validation_loss) == (first.losses, first.validation_loss)
    assert again.checkpoint == tmp_path
    assert again.seconds == first.seconds


def test_a_run_that_diverged_is_kept_and_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = recipes.BF16.replace(optimizer=OptimizerRecipe(lr=1e20))
    with pytest.warns(RuntimeWarning, match=r"BF16: .* of step 1 (is|are) .*first of all: ") as caught:
        first = short(wild, out=tmp_path)
    assert [warning.filename for warning in caught] == [__file__]
    assert len(first.losses) == len(first.rows) == 2
    assert first.stopped
    assert first.validation_loss != first.validation_loss
    assert str(first) == f"BF16: stopped after 2 steps: {first.stopped}"
    assert saved(tmp_path)[1]["steps"] == 2
    assert saved(tmp_path)[1]["stopped"] == first.stopped
    monkeypatch.setattr(fp.train.Trainer, "step", None)
    with pytest.warns(RuntimeWarning, match="of step 1"):
        again = short(wild, out=tmp_path)
    assert (again.stopped, lasting(again.rows)) == (first.stopped, lasting(first.rows))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"recipe": recipes.BF16_MOMENTS},
         r"recipe 'BF16_MOMENTS'; got .*, whose recipe 'BF16' has optimizer.first_moment: none instead of BF16; "),
        ({"recipe": recipes.BF16.replace(source="me")}, "whose recipe 'BF16' has its name or source"),
        ({"recipe": recipes.MXFP8}, r"whose recipe 'BF16' has linear.input_fmt: BF16 instead of E4M3; .* and \d+ more"),
        ({"seed": 1}, "settings.seed 0 instead of 1"),
        ({"steps": 3}, "settings.steps 2 instead of 3"),
        ({"steps": 1}, "settings.steps 2 instead of 1"),
        ({"batch": 64}, "settings.batch 128 instead of 64"),
        ({"micro_batches": 2}, "settings.micro_batches 1 instead of 2"),
        ({"backend": "float32"}, "settings.backend 'emulated' instead of 'float32'"),
        ({"model": "transformer", "batch": 2}, "settings.model 'perceptron' instead of 'transformer'"),
    ],
)  # fmt: skip
def test_a_folder_of_another_run_is_refused_with_the_difference(
    other: dict[str, Any], said: str, tmp_path: Path
) -> None:
    short(recipes.BF16, steps=2, out=tmp_path)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match=said) as caught:
        short(**{"recipe": recipes.BF16, "steps": 2, "out": tmp_path, **other})
    assert "\n" not in str(caught.value)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()) == before


def test_a_folder_of_another_text_is_refused(tmp_path: Path) -> None:
    for name, words in (("one", "to be or not to be, "), ("other", "that is the question ")):
        (tmp_path / name).write_text(words * 400)
    options: dict[str, Any] = {"model": "transformer", "steps": 1, "batch": 2, "out": tmp_path / "run"}
    short(recipes.FP32, text=tmp_path / "one", **options)
    with pytest.raises(ValueError, match="one with data '"):
        short(recipes.FP32, text=tmp_path / "other", **options)
    (tmp_path / "moved").write_text("to be or not to be, " * 400)
    short(recipes.FP32, text=tmp_path / "moved", **options)  # the text counts, wherever it lies


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, {}, {"what": "else"})
    with pytest.raises(
        ValueError, match=r"out must be a new folder or that of a run; got .*, whose checkpoint is not of "
    ):
        short(recipes.FP32, out=tmp_path)


def test_how_often_products_are_measured_may_change(tmp_path: Path) -> None:
    short(recipes.BF16, steps=2, out=tmp_path)
    assert short(recipes.BF16, steps=2, measure=0, out=tmp_path).losses


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("deepsek_v3", ValueError, "Did you mean 'DEEPSEEK_V3'"),
        (5, TypeError, "recipe must be an fp.train.Recipe, the name of one, a TOML file or an fp.analysis.Plan; got 5"),
    ],
)
def test_an_unknown_recipe_is_refused(spec: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        short(spec)


@in_turn(
    "argument, value, error, said",
    [
        ("out", "", ValueError, "out must not be empty; got ''. Pass '.' for the current folder."),
        ("progress", 3, TypeError, "progress must be a function of a share and a text, or None; got 3"),
        ("ranks", 3, TypeError, "ranks must be an fpsim.train.Ranks or None; got 3"),
    ],
)
def test_other_arguments_are_refused_in_a_sentence(argument: str, value: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        fp.train.run("BF16", **{"steps": 1, "model": "perceptron", argument: value})


@in_turn("call", [fp.train.compare, fp.train.gradient_probe, fp.train.lockstep, fp.train.replay])
def test_progress_is_refused_before_the_first_step(call: Any) -> None:
    subject = short(recipes.BF16, steps=1) if call is fp.train.replay else "BF16"
    with pytest.raises(TypeError, match="progress must be a function of a share and a text, or None; got 3"):
        call(subject, progress=3)


def test_a_run_shows_its_rows_and_its_curve() -> None:
    pytest.importorskip("pandas")
    short_run = short("fp8-raw")
    assert len(short_run.to_frame()) == 8
    assert list(short_run.to_frame()["loss"]) == short_run.losses
    assert set(short_run.measurements()["step"]) == {0, 2, 4, 6}
    assert short_run.final_loss == pytest.approx(sum(short_run.losses) / 8)
    assert str(short_run).startswith("FP8_RAW: 8 steps in ")
    pytest.importorskip("matplotlib").use("agg")
    lines = short_run.plot().get_lines()
    assert list(lines[1].get_ydata()) == short_run.losses
    assert list(lines[0].get_ydata()) == runs.smoothed(short_run.losses)
