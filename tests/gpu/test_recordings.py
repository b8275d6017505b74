"""Recordings of real GPUs, replayed on the CPU; and that a recording which differs is found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.gpu.experiments.record import main, record
from fpsim.gpu.lab.model import LibraryModel
from fpsim.gpu.lab.recording import MOST_BYTES, replay
from tests.gpu.experiments.fake_hardware import FakeGpu
from tests.kit.sweeps import case

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.npz"))
without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")


def about_recording(path: Path) -> dict[str, str]:
    """Return the GPU, driver, versions and date of a recording."""
    with np.load(path) as data:
        return dict(json.loads(data["meta"].tobytes())["about"])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_emulator_gives_the_bits_of_the_silicon(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    assert about_recording(path)["gpu"]
    replayed = replay(path)
    assert replayed
    # what no model gave when it was recorded is known, and stays as it was
    wrong = [entry for entry in replayed if entry.differing != entry.known]
    assert not wrong, wrong


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of the emulator."""
    path = tmp_path_factory.mktemp("recordings") / "emulator.npz"
    assert record(path, hardware=FakeGpu(), parts=["tensorwise", "blockwise"]) == []
    return path


def test_a_recording_of_the_emulator_is_equal(made: Path) -> None:
    replayed = replay(made)
    assert len(replayed) == 13
    assert all(entry.equal > 0 and not entry.differing and not entry.known for entry in replayed)
    assert about_recording(made)["gpu"] == "the emulator"
    assert made.stat().st_size < MOST_BYTES


def test_a_changed_bit_is_found(made: Path, tmp_path: Path) -> None:
    with np.load(made) as read:
        data: dict[str, Any] = dict(read)
    words = {i: data[f"{i}.d"] for i in range(13) if data[f"{i}.d"].dtype == np.uint32}
    changed = next(i for i, of in words.items() if np.isfinite(of.view(np.float32)).all())  # a NaN's bits may change
    data[f"{changed}.d"] = words[changed] ^ np.eye(*words[changed].shape, dtype=np.uint32)
    np.savez_compressed(tmp_path / "changed.npz", **data)
    replayed = replay(tmp_path / "changed.npz")
    assert replayed[changed].differing == min(words[changed].shape)
    assert replayed[changed].first.startswith("(0, 0): hardware 0x")
    assert not any(entry.differing for i, entry in enumerate(replayed) if i != changed)


def test_what_no_model_gives_is_known(tmp_path: Path) -> None:
    def plant(name: str, found: Any) -> Any:
        return found ^ found.dtype.type(1 << 8)

    record(tmp_path / "odd.npz", hardware=FakeGpu(plant=plant), parts=["blockwise"])
    found = replay(tmp_path / "odd.npz")
    assert all(entry.differing == entry.known > 0 for entry in found)


def test_the_model_that_fits_is_stored(tmp_path: Path) -> None:
    gpu = FakeGpu(models={"1x128_128x128": LibraryModel("deepgemm('1d2d')")}, fails=("1x128_1x128",))
    left_out = record(tmp_path / "other.npz", hardware=gpu, parts=["blockwise"])
    assert len(left_out) == 1
    assert "was told to fail" in left_out[0]
    replayed = replay(tmp_path / "other.npz")
    assert len(replayed) == 2
    assert not any(entry.differing for entry in replayed)


def test_other_files_are_refused(made: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"must be a recording of fpsim\.gpu\.record"):
        replay(tmp_path / "none.npz")
    old = np.frombuffer(json.dumps({"format": 0}).encode(), np.uint8)
    np.savez(tmp_path / "old.npz", meta=old)
    with pytest.raises(ValueError, match="has format 0; this version reads 1"):
        replay(tmp_path / "old.npz")
    with pytest.raises(ValueError, match="part must be one of"):
        record(tmp_path / "x.npz", hardware=FakeGpu(), parts=["tensor"])


class Interrupted(FakeGpu):
    """Ctrl-C comes during the second product."""

    def scaled_mm(self, *arguments: Any, **options: Any) -> Any:
        if self.calls:
            raise KeyboardInterrupt
        return super().scaled_mm(*arguments, **options)


def test_what_was_recorded_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "part.npz", hardware=Interrupted(), parts=["blockwise"])
    assert [entry.differing for entry in replay(tmp_path / "part.npz")] == [0]
    assert len(list(tmp_path.iterdir())) == 1, "no drafts are left"


def test_a_path_that_cannot_be_written_to_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = FakeGpu()
    with pytest.raises(ValueError, match="results go to a folder that can be written to"):
        record("/dev/null/x.npz", hardware=gpu, parts=["blockwise"])
    assert not gpu.calls
    assert main(["--hardware", "tests.gpu.experiments.fake_hardware", "--out", "/dev/null/x.npz"]) == 2
    assert capsys.readouterr().err.startswith("results go to a folder")


def test_a_recording_has_the_name_that_was_asked_for(tmp_path: Path) -> None:
    record(tmp_path / "h200", hardware=FakeGpu(), parts=["blockwise"])
    assert len(replay(tmp_path / "h200")) == 3


def test_the_command_records_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "fake.npz"
    assert main(["--hardware", "tests.gpu.experiments.fake_hardware", "--out", str(path), "--parts", "blockwise"]) == 0
    assert "3 equal in every bit" in capsys.readouterr().out
    assert len(fp.gpu.replay(path)) == 3


@without_gpu
def test_without_a_gpu_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "x.npz")]) == 2
    assert "found no CUDA device" in capsys.readouterr().err


def test_files_that_are_no_recordings_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "one.npz.npy", np.ones(3))
    np.savez(tmp_path / "plain.npz", a=np.ones(3))
    for name, words in (
        ("text.npz", "damaged, or no .npz file"),
        ("empty.npz", "damaged, or no .npz file"),
        ("one.npz.npy", "holds a single NumPy array"),
        ("plain.npz", "has no meta"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            replay(tmp_path / name)
        assert "pickle" not in str(refused.value)


def test_damaged_recordings_are_refused_in_a_sentence(made: Path, tmp_path: Path) -> None:
    with np.load(made) as read:
        arrays: dict[str, Any] = dict(read)
    texts = {"list": b"[1]", "words": b"{bad", "none": b'{"format": 1}', "bytes": b"\xff"}
    cases = {name: arrays | {"meta": np.frombuffer(text, np.uint8)} for name, text in texts.items()}
    cases["missing"] = {"meta": arrays["meta"]}
    cases["short"] = arrays | {"0.d": arrays["0.d"][1:]}
    for name, changed in cases.items():
        np.savez(tmp_path / f"{name}.npz", **changed)
    whole = bytearray(made.read_bytes())
    whole[len(whole) // 2] ^= 0x55
    (tmp_path / "bit.npz").write_bytes(whole)
    for name in (*cases, "bit"):
        with case(name), pytest.raises(ValueError, match=r"fpsim\.gpu\.record; it is damaged\. Record it"):
            replay(tmp_path / f"{name}.npz")
