"""The command line: exit codes, one line per bad file, no traceback.

What a process decides, such as what an import finds and what a signal does, is asked of processes of their own.
"""

from __future__ import annotations

import sys
import types
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli_cases import Command

pytest.importorskip("typer")


pytest.importorskip("rich")


def test_a_study_of_files_writes_the_report_and_shows_the_table(fpsim: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal(500).astype(np.float32))
    (tmp_path / "bad.safetensors").write_bytes(b"\x00" * 20)
    names = ("w.npy", "bad.safetensors", "absent.pt")
    options = ("--out", tmp_path / "out", "-f", "e4m3", "-f", "bf16")
    done = fpsim("study", *[tmp_path / name for name in names], *options)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("fpsim: ")]
    assert [line for line in lines if "bad.safetensors: damaged" in line or "absent.pt: no such file" in line] == lines
    assert len(lines) == 2
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("E4M3 without a scale for 1 weight")
    assert "report.html: the report" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "errors.csv").exists()


def model(folder: Path) -> Path:
    """Write a file of 60 tensors: weights, one with a NaN, biases, and integers, which a study leaves out."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    for i in range(20):
        name = f"backbone.stages.{i}.attention.output_projection"
        tensors[f"{name}.weight"] = rng.standard_normal((16, 16)).astype(np.float32)
        tensors[f"{name}.bias"] = rng.standard_normal(16).astype(np.float32)
        tensors[f"{name}.num_batches_tracked"] = np.arange(3)
    tensors["backbone.stages.3.attention.output_projection.weight"][2, 2] = np.nan
    np.savez(folder / "m.npz", **tensors)
    return folder / "m.npz"


@pytest.mark.parametrize("columns", [80, 120])
def test_many_tensors_fold_and_notes_of_one_kind_are_one_line(
    fpsim: Command, tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = fpsim("study", model(tmp_path), "--out", tmp_path / "out", "-f", "e4m3", "-r", "nearest_even")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines[:-2])) <= columns  # the last two are paths
    assert len([line for line in lines if "20 biases" in line]) == 1
    assert len([line for line in lines if line.startswith(" b") and ".weight" in line]) == 12
    assert "The hardest 12 of 20 operands; the report has them all." in lines
    assert sum("NaN or Inf in 1 tensor: " in line for line in lines) == 1
    words = " ".join(done.stdout.split())
    assert words.count("20 tensors left out: each holds int64") == 1


def test_names_are_cut_in_the_middle(fpsim: Command, tmp_path: Path) -> None:
    name = "an_encoder_" + "x" * 90 + "_projection"
    tensors: dict[str, Any] = {name: np.ones((4, 4), np.float32)}
    np.savez(tmp_path / "m.npz", **tensors)
    done = fpsim("study", tmp_path / "m.npz", "--out", tmp_path / "out", "-f", "e4m3")
    row = next(line for line in done.stdout.splitlines() if line.startswith(" an_enc"))
    assert row.split()[0].endswith("ojection")
    assert "…" in row
    assert name in (tmp_path / "out" / "report.html").read_text()


def test_requirements_and_scalings_are_those_of_the_function(fpsim: Command, tmp_path: Path) -> None:
    import fpsim as fp

    x = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)
    np.save(tmp_path / "w.npy", x)
    flags = ("--scaling", "mx", "--scaling", "none", "--min-sqnr", "17", "--max-lost", "0.1", "--budget-bits", "4.3")
    done = fpsim("study", tmp_path / "w.npy", "-o", tmp_path / "out", "-f", "e2m1", *flags, "--seed", "3")
    assert done.returncode == 0, done.stderr
    report = fp.analysis.study(
        {"w": x}, formats="e2m1", scalings=[fp.scalings.MX, None], min_sqnr=17, max_lost=0.1, budget_bits=4.3, seed=3
    )
    assert " ".join(done.stdout.split()).startswith(report.answer)
    assert "E2M1 with MX scales" in report.answer
    with (tmp_path / "out" / "errors.csv").open() as opened:
        assert len(opened.read().splitlines()) == 1 + len(report.errors)


def test_a_scheduler_is_asked_by_its_address(fpsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fpsim as fp

    class Client:
        def __init__(self, address: str) -> None:
            print("client of", address)

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *error: object) -> None:
            print("closed")

    def study(*arguments: Any, client: Any, **options: Any) -> Any:
        print("given a", type(client).__name__)
        return real(*arguments, **options)

    real = fp.analysis.study
    monkeypatch.setitem(sys.modules, "distributed", types.SimpleNamespace(Client=Client))
    monkeypatch.setattr(sys.modules[real.__module__], "study", study)
    np.save(tmp_path / "w.npy", np.ones((8, 8), np.float32))
    done = fpsim("study", tmp_path / "w.npy", "-o", tmp_path / "out", "--scheduler", "tcp://host:8786")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == ["client of tcp://host:8786", "given a Client", "closed"]


def test_without_distributed_a_scheduler_says_what_to_install(
    fpsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "w.npy", np.ones((8, 8), np.float32))
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = fpsim("study", tmp_path / "w.npy", "-o", tmp_path / "out", "--scheduler", "tcp://host:8786")
    assert done.returncode == 2
    assert "--scheduler needs distributed, which is not installed: pip install -e '.[dask]' in" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_jinja2_the_tables_are_there_and_say_what_to_install(
    fpsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "w.npy", np.ones((8, 8), np.float32))
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "jinja2" else find(name, *rest))
    done = fpsim("study", tmp_path / "w.npy", "-o", tmp_path / "out", "-f", "e4m3")
    assert done.returncode == 0, done.stderr
    assert "The page needs jinja2: pip install -e '.[plot]' in the checkout" in " ".join(done.stdout.split())
    assert "the report" not in done.stdout
    assert (tmp_path / "out" / "errors.csv").exists()
    assert not (tmp_path / "out" / "report.html").exists()


def test_nothing_to_study_is_bad_input_and_writes_nothing(fpsim: Command, tmp_path: Path) -> None:
    done = fpsim("study", tmp_path / "absent.npy", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "absent.npy: no such file" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("study", "--format", "e4m9"), "Did you mean 'E4M3'?"),
        (("study", "--rounding", "nearest"), "Did you mean 'nearest_even'?"),
        (("study", "--scaling", "TILE_1x12"), "Did you mean 'TILE_1X128'?"),
        (("study", "--max-lost", "2"), "--max-lost must be a number from 0 to 1; got 2.0."),
        (("explain", "abc", "e4m3"), "value must be a number"),
        (("explain", "1e400", "bf16"), "in the range of float64, 4.9e-324 to 1.8e308, or inf; got '1e400'."),
        (("explain", "0x1p2000", "bf16"), "in the range of float64, 4.9e-324 to 1.8e308, or inf; got '0x1p2000'."),
        (("explain", "1e-400", "bf16"), "in the range of float64, 4.9e-324 to 1.8e308, or inf; got '1e-400'."),
        (("formats", "e4m9"), "Did you mean 'E4M3'?"),
        (("units", "hoper"), "Did you mean 'hopper'?"),
    ],
)
def test_bad_words_give_one_line(fpsim: Command, arguments: tuple[str, ...], words: str) -> None:
    done = fpsim(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("fpsim: ")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_formats_describes_a_table_of_values(fpsim: Command) -> None:
    done = fpsim("formats", "nf4")
    assert done.returncode == 0
    assert done.stdout.startswith("<NF4: 4 bits, 16 finite values from -1 to 1")
    assert "values -1, -0.696193" in done.stdout
    told = fpsim("explain", "0.3", "nf4")
    assert "result   0.33791524171829224 = code 0xb" in told.stdout
