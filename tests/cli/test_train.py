"""`fpsim train`: what it prints and writes, what it refuses in a line, Ctrl-C, and two processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.kit.forks import fork

for package in ("typer", "rich", "pandas", "jinja2", "matplotlib", "pyarrow", "safetensors", "torch"):
    pytest.importorskip(package)

SMALL = ("--model", "perceptron", "--batch", "16")


def fpsim(arguments: list[str]) -> None:
    """`fpsim` in a process of its own."""
    from fpsim.cli.main import main

    main(arguments)


def train_and_save_often(arguments: list[str]) -> None:
    from fpsim.train import runs

    runs.SAVED_EVERY = 0.05
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


def test_recipes_are_trained_compared_and_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from fpsim.cli.main import main

    mine = tmp_path / "mine.toml"
    mine.write_text('name = "MINE"\nlinear = "FP8_RAW"\n')
    with pytest.raises(SystemExit) as end:
        main(["train", str(mine), "--recipes", "BF16,fp32", "--steps", "3", "--out", str(tmp_path / "out"), *SMALL])
    assert end.value.code == 0
    said = capfd.readouterr()
    assert said.err == ""
    for word in ("MINE", "BF16", "FP32", "above BF16", "3 seeds", "report.html"):
        assert word in said.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "recipes.parquet", "runs.parquet", "curves.parquet", "measured.parquet", "runs"}
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("BF17",), "recipe must be one of the 24 that fp.train.recipes.ROWS lists, such as BF16,"),
        (("missing.toml",), "missing.toml"),
        (("BF16", "--steps", "0"), "steps must be an integer >= 1; got 0"),
        (("BF16", "--seeds", "0"), "seeds must be an integer >= 1; got 0"),
        (("BF16", "--model", "rnn"), "model must be one of transformer, perceptron; got 'rnn'"),
        (("BF16", "--backend", "tpu"), "backend must be one of"),
        (("BF16", "BF16"), "recipes must have names of their own"),
        (("BF16", "--baseline", "FP32"), "baseline must be one of BF16; got 'FP32'"),
        (("BF16", "--text", "nowhere.txt"), "text must be a file that can be read"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capfd, *arguments, "--out", str(tmp_path / "out"))


def test_a_folder_of_other_runs_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import fpsim as fp

    fp.train.compare(["FP32"], seeds=1, steps=2, model="perceptron", batch=16, out=tmp_path)
    said = refusal(capfd, "FP32", "--seeds", "1", "--steps", "3", "--out", str(tmp_path), *SMALL)
    assert "settings.steps 2 instead of 3" in said


@pytest.mark.skipif(os.name != "posix", reason="signals as of POSIX")
def test_ctrl_c_ends_with_130_and_the_same_call_goes_on(tmp_path: Path) -> None:
    import pandas as pd

    import fpsim as fp
    from fpsim.cli.main import main

    arguments = ["train", "FP32", "--seeds", "1", "--steps", "120", "--out", str(tmp_path), *SMALL]
    with fork(tmp_path / "said", train_and_save_often, arguments) as process:
        saved = tmp_path / "runs" / "FP32-0"
        until = time.monotonic() + 100
        while not list(saved.glob("step-*")) and process.lives and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGINT)
        assert process.end(60) == 130, process.errors
        assert process.errors == "fpsim: Interrupted.\n"
    (kept,) = saved.glob("step-*")
    assert 0 < int(kept.name.removeprefix("step-")[:6]) < 120
    assert not (tmp_path / "report.html").exists()

    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    whole = fp.train.run("FP32", steps=120, model="perceptron", batch=16)
    assert pd.read_parquet(tmp_path / "curves.parquet").loss.tolist() == whole.losses


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
