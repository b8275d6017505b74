"""fp.cpu.validate and fp.cpu.record on an emulated processor: differences are found, placed and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.cpu import validation
from fpsim.cpu.instructions import ROWS
from fpsim.cpu.report import CpuReport
from tests.cli_cases import Command

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("*.npz"))
MOST_BYTES = 250_000


# ---- reports


def test_a_processor_with_the_emulators_bits_is_right_and_every_rival_excluded(emulator: Any) -> None:
    emulator()
    report = fp.cpu.validate(values=3000)
    assert report.ok, str(report)
    assert list(dict.fromkeys(row.instruction for row in report.rows)) == [row.name for row in ROWS]
    assert not report.missing
    for row in ROWS:
        assert report.undecided(row.name) == [], row.name
    text = str(report)
    assert "VADDPH: 0 of 3,000 results differ from fp.add in FP16; those of 4 of 4 rivals do." in text
    assert f"{len(ROWS)} of {len(ROWS)} instructions equal in every bit" in text
    with pytest.raises(AttributeError):
        report.rows = ()  # type: ignore[misc]


def test_rivals_are_excluded_by_later_inputs_too(emulator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator()
    whole = fp.cpu.validate(["VADDPH"], values=300)
    monkeypatch.setattr(validation, "CHUNK", 7)
    parts = fp.cpu.validate(["VADDPH"], values=300)
    assert parts.rows == whole.rows
    assert any(0 < len(row.rivals) < row.others for row in whole.rows)


def test_a_changed_bit_is_found_and_said(emulator: Any, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    emulator("VADDPH")
    report = fp.cpu.validate(["VADDPH", "VSUBPH"], values=60, out=tmp_path / "out")
    assert not report.ok
    said = report.sentences()[0]
    assert said.startswith("VADDPH: 6 of 60 results differ from fp.add in FP16; the first on any bits: (")
    assert ": hardware 0x" in said
    assert report.sentences()[1].startswith("VSUBPH: 0 of 60 results differ")
    assert str(report).endswith("s.")
    assert "1 of 2 instructions equal in every bit" in str(report)
    frame = report.to_frame()
    assert list(frame.differing) == [1] * 6 + [0] * 6
    assert "hardware 0x" in report._repr_html_()
    kept = CpuReport.load(tmp_path / "out" / "cpu-validation.json")
    assert kept == report
    assert (tmp_path / "out" / "cpu-validation.txt").read_text() == f"{report}\n"


def test_a_file_that_is_no_report_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", '{"rows": [3]}'):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ValueError, match=r"report\.json is not a report that CpuReport\.save wrote\. Run fp\.cpu"):
            CpuReport.load(tmp_path / "report.json")


def test_instructions_that_are_missing_are_skipped_by_name(processor_with: Any) -> None:
    processor_with(frozenset())
    report = fp.cpu.validate(values=10)
    assert not report.ok
    assert not report.rows
    assert {name for name, _ in report.missing} == {row.name for row in ROWS}
    assert "Not VDPBF16PS and VCVTNEPS2BF16: this processor (imagined) has no avx512bf16." in report.sentences()


def test_comparisons_without_time_are_rows_with_an_error(emulator: Any) -> None:
    emulator()
    report = fp.cpu.validate(["VADDPH"], values=10, minutes=0)
    assert not report.ok
    assert {row.error for row in report.rows} == {"No time was left; give more minutes"}
    assert report.sentences()[0].endswith("No time was left; give more minutes.")


@pytest.mark.parametrize("minutes", [-1, float("nan"), float("inf"), 10**310])
def test_negative_and_infinite_minutes_are_refused(minutes: float) -> None:
    with pytest.raises(ValueError, match=f"minutes must be a finite number >= 0; got {minutes}"[:90]):
        fp.cpu.validate(["VADDPH"], values=10, minutes=minutes)


def test_minutes_that_are_no_number_are_refused() -> None:
    with pytest.raises(TypeError, match="minutes must be a number >= 0; got '7'"):
        fp.cpu.validate(values=10, minutes="7")  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_inputs() -> None:
    from fpsim.cpu.inputs import inputs_of

    first, again, other = (inputs_of("VDPBF16PS", 60, seed) for seed in (0, 0, 1))
    for kind in first:
        assert all(np.array_equal(x, y) for x, y in zip(first[kind], again[kind], strict=True))
        assert not np.array_equal(first[kind][0], other[kind][0])


# ---- recordings


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_emulator_gives_the_bits_of_the_recorded_processor(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    report = fp.cpu.replay(path)
    assert report.ok, str(report)
    assert {"vendor", "family", "model", "date"} <= report.about.keys()
    assert sum(row.compared for row in report.rows) > 5000


@pytest.fixture
def made(emulator: Any, tmp_path: Path) -> Path:
    emulator()
    assert fp.cpu.record(tmp_path / "made.npz", ["VADDPH", "VFMADDCPH", "VCVTPH2PS"], values=60).ok
    return tmp_path / "made.npz"


def test_a_recording_is_replayed_row_by_row_and_a_changed_bit_found(made: Path, tmp_path: Path) -> None:
    report = fp.cpu.replay(made)
    assert [row.compared for row in report.rows] == [10] * 6 + [20] * 6 + [60]
    assert report.about["processor"] == "imagined"
    with np.load(made) as read:
        data: dict[str, Any] = dict(read)
    place = int(np.flatnonzero((data["0.d"] & 0x7C00) < 0x7C00)[-1])  # no NaN, whose bits may change
    data["0.d"][place] ^= 1
    np.savez(tmp_path / "changed.npz", **data)
    changed = fp.cpu.replay(tmp_path / "changed.npz")
    assert not changed.ok
    assert [row.differing for row in changed.rows].index(1) == place // 10
    assert sum(row.differing for row in changed.rows) == 1


def test_results_that_differ_are_recorded_too(emulator: Any, tmp_path: Path) -> None:
    emulator("VADDPH")
    report = fp.cpu.record(tmp_path / "odd.npz", ["VADDPH"], values=60)
    assert sum(row.differing for row in report.rows) == 1
    assert fp.cpu.replay(tmp_path / "odd.npz").rows == report.rows


def test_a_processor_without_instructions_is_not_recorded(processor_with: Any, tmp_path: Path) -> None:
    processor_with(frozenset())
    with pytest.raises(fp.cpu.CpuError, match="this processor has no instruction to record"):
        fp.cpu.record(tmp_path / "none.npz")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused_in_a_sentence(made: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "one.npz.npy", np.ones(3))
    np.savez(tmp_path / "plain.npz", a=np.ones(3))
    old = {"format": "fpsim.cpu 0"}
    np.savez(tmp_path / "old.npz", meta=np.frombuffer(json.dumps(old).encode(), np.uint8))
    new = {"format": "fpsim.cpu 1", "about": {}, "entries": [["VNEWPH", {"any": 3}]]}
    np.savez(tmp_path / "new.npz", meta=np.frombuffer(json.dumps(new).encode(), np.uint8))
    with np.load(made) as read:
        arrays: dict[str, Any] = dict(read)
    for name, changes in {
        "list": {"meta": np.frombuffer(b"[1]", np.uint8)}, "words": {"meta": np.frombuffer(b"{bad", np.uint8)},
        "short": {"0.0": arrays["0.0"][1:], "0.1": arrays["0.1"][1:], "0.d": arrays["0.d"][1:]},
        "wide": {"0.d": arrays["0.d"].astype(np.uint32)},
    }.items():  # fmt: skip
        np.savez(tmp_path / f"{name}.npz", **(arrays | changes))
    np.savez(tmp_path / "missing.npz", meta=arrays["meta"])
    for name, method in (("method", 99), ("encrypted", 0)):  # what zipfile refuses by other exceptions
        damaged = bytearray(made.read_bytes())
        for start in (damaged.index(b"PK\1\2"), damaged.index(b"PK\1\2", damaged.index(b"PK\1\2") + 1)):
            damaged[start + 8] |= method == 0
            damaged[start + 10] = method or damaged[start + 10]
        (tmp_path / f"{name}.npz").write_bytes(damaged)
    bad = ("list", "words", "short", "wide", "missing", "method", "encrypted")
    for name, words in (
        *((f"{name}.npz", "it is damaged") for name in bad),
        ("text.npz", "damaged, or no .npz file"), ("one.npz.npy", "holds a single NumPy array"),
        ("plain.npz", "it has no metadata"), ("old.npz", "its format is 'fpsim.cpu 0'"),
        ("new.npz", "has the instruction 'VNEWPH', which this version does not know"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words) as refused:
            fp.cpu.replay(tmp_path / name)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="results go to a folder that can be written to"):
        fp.cpu.record("/dev/null/x.npz", values=1)


# ---- the command


def test_the_command_compares_prints_and_writes(fpsim: Command, emulator: Any, tmp_path: Path) -> None:
    emulator()
    words = ("validate", "--cpu", "--values", "30", "--out", tmp_path / "out")
    done = fpsim(*words, "-p", "VADDPH", "-p", "VMULPH")
    assert done.returncode == 0, done.stderr
    assert "VMULPH: 0 of 30 results differ from fp.multiply in FP16" in done.stdout
    assert (tmp_path / "out" / "cpu-validation.json").exists()
    emulator("VMULPH")
    assert fpsim(*words, "-p", "VMULPH").returncode == 1
    unknown = fpsim(*words, "-p", "VMULPS")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("fpsim: --part must be one of ")
    assert fpsim(*words, "-p", "VMULPH", "--minutes", "0").returncode == 2  # nothing was compared


def test_the_command_says_what_a_processor_lacks(fpsim: Command, processor_with: Any, tmp_path: Path) -> None:
    processor_with(frozenset())
    words = ("validate", "--cpu", "--out", tmp_path / "out")
    done = fpsim(*words)
    assert done.returncode == 2
    assert "has no avx512fp16" in done.stdout
    missing = fpsim(*words, "--part", "VADDPH")
    assert missing.returncode == 2
    assert missing.stderr.startswith("fpsim: VADDPH cannot be run here: ")


def test_the_command_runs_the_instructions_of_this_machine(fpsim: Command, tmp_path: Path) -> None:
    done = fpsim("validate", "--cpu", "--values", "100", "--out", tmp_path / "out")
    assert done.returncode == (0 if fp.cpu.available() else 2), done.stdout
