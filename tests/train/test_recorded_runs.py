"""Runs that tensor cores of a GPU trained, step by step, trained again by the emulator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fpsim as fp
from fpsim.gpu.experiments.train import CASES
from fpsim.gpu.lab.training import TrainingReport, TrainingRow

pytest.importorskip("torch")
# "On H100 cuBLAS" names one kernel, and a product of the head's has a shape for which cuBLAS takes another
pytestmark = pytest.mark.filterwarnings("ignore:.*These are the bits of cublas:UserWarning")

RECORDING = TrainingReport.load(Path(__file__).parents[1] / "gpu" / "recordings" / "training-h200-2026-11-27.json")
ROWS = {row.case: row for row in RECORDING.rows}
DIFFERS = "BF16 on H100 cuBLAS, width 128"  # in step 3, by the other kernel


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the text that the runs were trained on."""
    text = json.loads((Path(__file__).parents[1] / "data" / "training_digests.json").read_text())["text"]
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(4 * text, encoding="utf-8", newline="\n")
    return path


def digests(row: TrainingRow, text: Path) -> Iterator[str]:
    """Yield the digest of each step of a run on the emulator."""
    case = CASES[row.case]
    settings = fp.train.Settings(steps=len(row.digests), width=case.width, text=str(text), measure=0)
    trainer = fp.train.Trainer(case.training_recipe, settings)
    while True:
        yield trainer.step()["digest"]


def test_recordings_hold_runs_of_every_recipe_by_tensor_cores() -> None:
    assert set(ROWS) <= set(CASES)  # a case may be newer than the recording
    assert len(ROWS) == 13
    assert {row.backend for row in RECORDING.rows} == {"hardware"}
    assert [row.case for row in RECORDING.rows if not row.equal] == [DIFFERS]
    assert len(ROWS["DEEPSEEK_V3, width 128"].digests) == 1000


@pytest.mark.parametrize("name", [name for name in ROWS if not name.endswith("512")])
def test_the_first_step_has_the_digest_of_the_tensor_cores(name: str, story: Path) -> None:
    assert next(digests(ROWS[name], story)) == ROWS[name].digests[0]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(ROWS))
def test_every_step_has_the_digest_of_the_tensor_cores(name: str, story: Path) -> None:
    run = digests(ROWS[name], story)
    equal = [next(run) == theirs for theirs in ROWS[name].digests]
    assert equal == [True] * (len(equal) - 1) + [name != DIFFERS]
