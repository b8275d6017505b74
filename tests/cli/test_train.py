"""`fpsim train`: what it prints and writes, what it refuses in a line, Ctrl-C, and two processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import warnings
from pathlib import Path

import pytest

import fpsim as fp
from tests.kit.forks import fork

for package in ("typer", "rich", "pandas", "jinja2", "matplotlib", "pyarrow", "safetensors", "torch"):
    pytest.importorskip(package)

SMALL = ("--model", "perceptron", "--batch", "16")


def fpsim(arguments: list[str]) -> None:
    """`fpsim` in a process of its own."""
    from fpsim.cli.main import main

    main(arguments)


def train_and_save_often(arguments: list[str]) -> None:
    """Run `fpsim train` with Python's usual warnings: Ctrl-C may come in shutil, whose iterator then stays open."""
    from fpsim.train import settings

    warnings.simplefilter("ignore", ResourceWarning)
    settings.SAVED_EVERY = 0.05
    fpsim(arguments)


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that `fpsim train` ends with."""
    from fpsim.cli.main import main

    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["train", *arguments])
    assert end.value.code == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_recipes_are_trained_compared_and_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpsim.cli.main import main
    from fpsim.display import progress

    monkeypatch.setattr(progress, "LINES_EVERY", 1e9)  # a busy machine would be told of progress on stderr
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "MINE"\nlinear = "FP8_RAW"\n')
    with pytest.raises(SystemExit) as end:
        main(["train", str(mine), "--recipes", "BF16,fp32", "--steps", "3", "--out", str(tmp_path / "out"), *SMALL])
    assert end.value.code == 0
    said = capfd.readouterr()
    assert said.err == ""
    for word in ("MINE", "BF16", "FP32", "above", "3 seeds", "report.html"):
        assert word in said.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "recipes.parquet", "runs.parquet", "curves.parquet", "measured.parquet", "runs"}
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("BF17",), "recipe must be one of the 26 that fp.recipes.TRAINING or `fpsim recipes` lists, such as BF16,"),
        (("missing.toml",), "missing.toml"),
        (("BF16", "--steps", "0"), "steps must be an integer >= 1; got 0"),
        (("BF16", "--seeds", "0"), "seeds must be an integer >= 1; got 0"),
        (("BF16", "--model", "rnn"), "model must be one of transformer, perceptron; got 'rnn'"),
        (("BF16", "--backend", "tpu"), "backend must be one of"),
        (("BF16", "BF16"), "recipes must have names of their own"),
        (("bf17",), "got 'bf17'"),
        (("BF16", "--baseline", "FP32"), "baseline must be one of BF16; got 'FP32'"),
        (("BF16", "--text", "nowhere.txt"), "text must be a file that can be read"),
        (("BF16", "--recompute", "2"), "--recompute must be a finite number >= 0 up to 1; got 2.0"),
        (("BF16", "--micro-batches", "0"), "--micro-batches must be an integer >= 1; got 0."),
        (("BF16", "--recompute", "1", "--slices", "2"), "--slices and --recompute-layers need --recompute-by m, n or"),
        (("BF16", "--slices", "2"), "--recompute-by, --slices and --recompute-layers need --recompute"),
        (("BF16", "--recompute", "1", "--recompute-by", "rows"), "--recompute-by must be one of layer, m, n, k; got"),
        (("BF16", "--offload", "nan"), "offload must be a finite number >= 0 up to 1; got nan"),
        (
            ("BF16", "--recompute", "1", "--recompute-by", "m", "--recompute-layers", "qvk"),
            "--recompute-layers must name linear layers; 'qvk' matches none of",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capfd, *arguments, "--out", str(tmp_path / "out"))


def test_a_missing_gpu_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from fpsim.gpu.device.device import GpuError

    def compare(*_: object, **__: object) -> None:
        raise GpuError("fpsim.gpu needs an NVIDIA GPU")

    monkeypatch.setattr("fpsim.train.compare", compare)
    said = refusal(capfd, "BF16", "--backend", "gpu", "--out", str(tmp_path / "out"))
    assert said == "fpsim: fpsim.gpu needs an NVIDIA GPU"


def test_recomputation_in_slices_and_files_train_the_same_model(tmp_path: Path) -> None:
    from fpsim.cli.main import main

    again = ["--recompute", "1", "--recompute-by", "m", "--slices", "4", "--recompute-layers", "first"]
    plain, *others = (tmp_path / name for name in ("plain", "sliced", "files"))
    for out, options in zip((plain, *others), ([], again, ["--offload", "1"]), strict=True):
        with pytest.raises(SystemExit) as end:
            main(
                ["train", "BF16", "--seeds", "1", "--steps", "2", "--out", str(out), "--model", "perceptron", *options]
            )
        assert end.value.code == 0
    runs = [fp.train.Run.load(next((out / "runs").iterdir())) for out in (plain, *others)]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    assert len({run.digest for run in runs}) == 1


def test_without_recipes_it_says_what_it_would_do_and_asks_for_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capfd, "--seeds", "1", "--steps", "7", "--model", "perceptron", "--out", str(tmp_path / "out"))
    assert said.startswith(
        "fpsim: recipes must be named, such as `fpsim train BF16 DEEPSEEK_V3`; `fpsim recipes` lists"
    )
    assert "a small perceptron 1 time for 7 steps" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stopped", [False, True])
def test_names_of_recipes_are_whole_at_80_columns(
    stopped: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from rich.console import Console

    import fpsim as fp
    from fpsim.cli.train import _print_comparison
    from fpsim.recipes.training import TRAINING
    from fpsim.train.comparisons.comparison import Comparison

    pair = fp.train.compare("FP32", seeds=2, steps=1, model="perceptron", batch=16, measure=0).runs
    runs = [dataclasses.replace(each, recipe=recipe) for recipe in TRAINING.values() for each in pair]
    if stopped:  # and skipped steps, large losses and errors of gradients, so that no column is empty
        runs = [dataclasses.replace(each, losses=[50.0 * each.settings.seed]) for each in runs]
        runs[0] = dataclasses.replace(runs[0], stopped="Inf")
        runs[2].rows[0]["skipped"] = True
    probed = tuple({"recipe": name, "layer": "all", "relative_error": 1e-3} for name in TRAINING) if stopped else ()
    monkeypatch.setenv("COLUMNS", "80")
    capfd.readouterr()
    _print_comparison(Console(), Comparison(tuple(runs), "BF16_WEIGHTS_STOCHASTIC", probed), tmp_path)
    table, _, _ = capfd.readouterr().out.partition("2 seeds")
    rows = [line.split() for line in table.splitlines()]
    assert max(map(len, table.splitlines())) <= 80
    assert [row[0] for row in rows if row and row[0] in TRAINING] == list(TRAINING)
    assert ("stopped" in table, "…" in table) == (stopped, False)


def test_progress_ends_at_1() -> None:
    import fpsim as fp

    for options in ({"model": "perceptron", "batch": 16}, {"batch": 1}):
        shares: list[float] = []

        def keep(share: float, activity: str, shares: list[float] = shares) -> None:
            shares.append(share)

        fp.train.compare("FP32", seeds=1, steps=1, measure=0, progress=keep, **options)
        assert (shares == sorted(shares), shares[0], shares[-1]) == (True, 0.0, 1.0)


def test_recipes_are_listed_and_printed_as_toml(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fpsim.cli.main import main
    from fpsim.recipes.training import TRAINING
    from fpsim.recipes.training_recipe import Recipe

    def said(*arguments: str) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["recipes", *arguments])
        assert end.value.code == 0
        return capfd.readouterr().out

    monkeypatch.setenv("COLUMNS", "80")
    words = [line.split(" ")[1] for line in said().splitlines() if line.startswith(" ")]
    assert [word for word in words if word in TRAINING] == list(TRAINING)
    for name in ("NVFP4", "deepseek_v3_stash"):
        assert Recipe.from_toml(said(name)) == TRAINING[name.upper()]


def test_a_folder_of_other_runs_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import fpsim as fp

    fp.train.compare(["FP32"], seeds=1, steps=2, model="perceptron", batch=16, out=tmp_path)
    said = refusal(capfd, "FP32", "--seeds", "1", "--steps", "3", "--out", str(tmp_path), *SMALL)
    assert "settings.steps 2 instead of 3" in said


@pytest.mark.skipif(os.name != "posix", reason="signals as of POSIX")
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_call_goes_on_to_the_same_weights(kill: signal.Signals, tmp_path: Path) -> None:
    import pandas as pd

    import fpsim as fp
    from fpsim.cli.main import main
    from fpsim.train import checkpoint

    arguments = ["train", "FP32", "--seeds", "1", "--steps", "60", "--out", str(tmp_path), *SMALL]
    saved = tmp_path / "runs" / "FP32-0"
    with fork(tmp_path / "said", train_and_save_often, arguments) as process:
        until = time.monotonic() + 100
        while not list(saved.glob("step-*")) and process.lives and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid, kill)
        if kill is signal.SIGINT:  # Ctrl-C
            assert process.end(60) == 130, process.errors
            assert process.errors == "fpsim: Interrupted. The same call resumes where this one stopped.\n"
        else:
            assert process.end(60) == -signal.SIGKILL
    assert all(0 < step < 60 for step in checkpoint.steps(saved))
    assert checkpoint.steps(saved)  # so that the next call begins with it
    assert not (tmp_path / "report.html").exists()

    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    whole = fp.train.run("FP32", steps=60, model="perceptron", batch=16, out=tmp_path / "whole")
    resumed, uninterrupted = (checkpoint.load(folder) for folder in (saved, tmp_path / "whole"))
    assert resumed is not None
    assert uninterrupted is not None
    assert {name for name in resumed.arrays if name.endswith("weight")} > {"model/first.weight"}
    assert resumed.arrays.keys() == uninterrupted.arrays.keys()
    for name, array in resumed.arrays.items():  # weights, masters and moments
        fp.testing.assert_bits_equal(array, uninterrupted.arrays[name])
    assert pd.read_parquet(tmp_path / "curves.parquet").loss.tolist() == whole.losses


@pytest.mark.ranks
def test_two_processes_train_and_one_of_them_speaks(tmp_path: Path) -> None:
    # as torchrun starts them (tests/train/test_parallel.py)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ["train", "FP32", "--steps", "2", "--seeds", "1", "--out", str(tmp_path / "out"), *SMALL]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with contextlib.ExitStack() as both:
        first, second = (
            both.enter_context(fork(tmp_path / "said", fpsim, command, environment=shared | {"RANK": rank}))
            for rank in ("0", "1")
        )
        assert (first.end(), second.end()) == (0, 0), first.errors + second.errors
        assert first.out.count("report.html: the report") == 1
        assert second.out == ""
    assert (tmp_path / "out" / "report.html").is_file()
