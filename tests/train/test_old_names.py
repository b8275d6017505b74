"""Old names of the trainer work with a warning, in calls, on the command line, in pickles and in checkpoints."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.cli.main import main
from fpsim.train import checkpoint

torch = pytest.importorskip("torch")
SMALL: dict[str, Any] = {"steps": 1, "model": "perceptron", "batch": 16}


def test_accumulate_is_micro_batches() -> None:
    wanted = fp.train.run("BF16", micro_batches=2, **SMALL).losses
    with pytest.warns(DeprecationWarning, match="accumulate= is now called micro_batches="):
        assert fp.train.run("BF16", accumulate=2, **SMALL).losses == wanted  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="accumulate= is now called micro_batches="):
        settings = fp.train.Settings(accumulate=2)  # type: ignore[call-arg]
    assert settings == fp.train.Settings(micro_batches=2)
    with pytest.warns(DeprecationWarning, match=r"Settings.accumulate is now called Settings.micro_batches"):
        assert settings.accumulate == 2
    functions: tuple[Any, ...] = (fp.train.compare, fp.train.lockstep)
    for function in functions:
        with pytest.warns(DeprecationWarning, match="accumulate= is now called micro_batches="):
            function("BF16", accumulate=1, **SMALL)


def test_settings_pickled_under_the_old_name_load() -> None:
    settings = fp.train.Settings(micro_batches=3)
    fields = {"accumulate" if name == "micro_batches" else name: value for name, value in vars(settings).items()}
    old = object.__new__(fp.train.Settings)
    old.__setstate__(fields)
    assert old == settings == pickle.loads(pickle.dumps(settings))


def test_a_run_saved_under_the_old_name_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.train import runs

    today = runs.identity

    def before(trainer: Any) -> Any:
        fields = today(trainer)
        fields["settings"]["accumulate"] = fields["settings"].pop("micro_batches")
        return fields

    call: dict[str, Any] = {**SMALL, "steps": 2, "micro_batches": 2, "out": tmp_path / "run"}
    monkeypatch.setattr(runs, "identity", before)
    first = fp.train.run("BF16", **call)
    monkeypatch.undo()
    assert fp.train.run("BF16", **call).losses == first.losses
    assert checkpoint.steps(tmp_path / "run") == [2]
    assert fp.train.Run.load(tmp_path / "run").settings.micro_batches == 2
    with pytest.raises(ValueError, match=r"settings.micro_batches 2 instead of 1"):
        fp.train.run("BF16", **{**call, "micro_batches": 1})


def test_probe_is_gradient_probe() -> None:
    with pytest.warns(DeprecationWarning, match="fp.train.probe is now called fp.train.gradient_probe"):
        old = fp.train.probe("BF16", steps=0)
    assert old.equals(fp.train.gradient_probe("BF16", steps=0))


def test_the_command_takes_accumulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "BF16", "--seeds", "1", "--steps", "3", "--model", "perceptron", "--out", str(tmp_path)]
    for option in ("--accumulate", "--micro-batches"):  # the second call loads the run of the first
        with pytest.raises(SystemExit) as end:
            main([*words, option, "2"])
        assert end.value.code == 0
        assert ("--accumulate is now called --micro-batches" in capsys.readouterr().err) == (option == "--accumulate")
