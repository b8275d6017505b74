"""`python -m fpsim.gpu train` without a GPU: runs of other backends, differences that are named, files, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.gpu.experiments import torch_trainers
from fpsim.gpu.experiments.train import CASES, TrainingCase, main, train
from fpsim.gpu.lab.training import TrainingReport, TrainingRow
from tests.gpu.simulator import training
from tests.kit.simulated import call

pytest.importorskip("torch")

TINY = TrainingCase("FP8_TENSOR", 128, 2)


@pytest.fixture(autouse=True)
def tiny_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, which the command can name too."""
    monkeypatch.setitem(CASES, TINY.name, TINY)


def test_a_backend_with_the_emulators_bits_is_equal_and_another_is_named(tmp_path: Path) -> None:
    report = train(tmp_path, cases=[TINY.name], backends=["emulated", "float32", "cpu"], minutes=5)
    base, same, other, without = report.rows
    assert (base.backend, base.equal, base.steps) == ("emulated", None, 2)
    assert (same.equal, same.digest, same.error) == (True, base.digest, "")
    assert (other.equal, other.steps) == (False, 1)
    assert "The first operation with another result is blocks.0.attn.qkv, fprop" in other.difference
    assert "torch.mm on a CPU multiplies BF16 and FP16 without scales" in without.error
    assert not report.all_equal
    assert TrainingReport.load(tmp_path / "training.json").rows == report.rows
    text = str(report)
    assert "equal" in text
    assert "differs" in text
    assert "1 of 2 compared runs have the digest of the emulator" in text  # the third compared nothing


@pytest.mark.slow
@pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")
def test_a_step_has_one_digest_with_cuda_simulated_and_nothing_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    """All loops as plain Python, products by simulated threads: the other extreme of compiled vector code."""
    done = call("tests.gpu.simulator.training:main", "gpu")
    training.main("emulated")
    assert (done.code, done.errors) == (0, "")
    assert done.out == capsys.readouterr().out


def test_only_equal_digests_are_success() -> None:
    equal = TrainingRow("BF16", "gpu", 3, True)
    assert TrainingReport((equal,), {}, 1.0).all_equal
    assert not TrainingReport((), {}, 1.0).all_equal
    assert not TrainingReport((equal, TrainingRow("BF16", "hardware", error="no unit")), {}, 1.0).all_equal


def test_the_command_of_one_case_writes_its_rows(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    assert main(["--case", TINY.name, "--rows", str(rows), "--backends", "emulated"]) == 0
    assert [json.loads(line)["backend"] for line in rows.read_text().splitlines()] == ["emulated", "emulated"]


def test_a_run_without_time_ends_after_fewer_steps() -> None:
    report = train(cases=[TINY.name], backends=["emulated"], minutes=0)
    assert [(row.steps, row.equal) for row in report.rows] == [(0, None), (0, None)]
    assert all("no step was taken" in row.error for row in report.rows)
    assert not report.all_equal


@pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")
def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "GPU" in capsys.readouterr().err


@pytest.mark.parametrize(("keywords", "words"), [
    ({"cases": ["BF17"]}, "cases must be one of"),
    ({"backends": ["tpu"]}, "backends must be one of"),
    ({"steps": 0, "isolated": True}, "steps must be a positive integer; got 0"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(**keywords)


def test_reports_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text("[]")
    with pytest.raises(ValueError, match="path must be a report of"):
        TrainingReport.load(tmp_path / "training.json")


@pytest.mark.parametrize("name", list(torch_trainers.TRAINERS))
def test_torchs_trainers_run(name: str) -> None:
    """On the CPU, where torch has the same functions."""
    seen = torch_trainers.TRAINERS[name](32, 2, None, "cpu")
    assert len(seen.losses) == len(seen.seconds) == 2
    assert all(4.0 < loss < 5.5 for loss in seen.losses)  # of a guess among some hundred characters: 4.6
