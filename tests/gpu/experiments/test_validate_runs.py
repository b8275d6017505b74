"""fp.gpu.validate without a GPU: speeds, files, interrupts, processes, reports and commands."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.files import write_whole
from fpsim.gpu.experiments.train import train
from fpsim.gpu.experiments.validate import PARTS, main, validate
from fpsim.gpu.lab.bench_report import BenchReport
from fpsim.gpu.lab.lab import Lab
from fpsim.gpu.lab.report import ValidationReport, ValidationRow, difference
from tests.gpu.experiments.fake_hardware import FakeGpu

Words = npt.NDArray[Any]


without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")


def last_bit(name: str, found: Words) -> Words:
    """Return one element with another last bit."""
    changed = found.copy()
    changed.reshape(-1)[5] ^= found.dtype.type(1)
    return changed


# ---- speed, files, interrupts


def test_speeds_are_measured_and_recorded_beside_the_comparisons(tmp_path: Path) -> None:
    gpu = FakeGpu(fails=("decode E4M3",))
    report = validate(tmp_path, parts=["rowwise", "speed"], hardware=gpu, small=True)
    read = ValidationReport.load(tmp_path / "validation.json")
    assert read.speeds == report.speeds
    assert [row.name for row in read.speeds if row.error] == ["decode E4M3"]
    assert read.speeds[1].ratio == pytest.approx(1)
    assert report.all_equal, "speed is not a matter of bits"
    lines = str(report).splitlines()
    assert any(line.startswith("casts") and "GB/s" not in line and "of copy" in line for line in lines)
    assert lines[-2].startswith("speed: 6 of 7 speeds reach their targets; 1 of 9 rows failed")
    assert lines[-1].startswith("4 of 4 comparisons equal")


@pytest.mark.parametrize("command", [validate, fp.gpu.bench, partial(fp.gpu.record, "record.npz"), train])
def test_negative_minutes_are_refused_before_anything_else(command: Any) -> None:
    with pytest.raises(ValueError, match="minutes must be a finite number >= 0; got -1"):
        command(minutes=-1)


def test_all_that_compare_share_the_time_and_what_measures_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], float]] = []
    module = sys.modules["fpsim.gpu.experiments.validate"]  # whose name in its package is that of a function
    monkeypatch.setattr(module, "_in_processes", lambda parts, seconds, *_: calls.append((parts, seconds)))
    validate(
        parts=["speed", "casts", "arithmetic", "matmuls"],
        hardware="tests.gpu.experiments.fake_hardware",
        minutes=10,
        isolated=True,
    )
    (together, compared), (alone, measured) = calls
    assert (together, alone) == (["casts", "arithmetic", "matmuls"], ["speed"])
    assert compared == pytest.approx(600 * 3 / 5, abs=5)
    assert measured == pytest.approx(600, abs=5)  # those before took no time here


def test_speeds_come_from_a_process_of_their_own() -> None:
    report = validate(parts=["speed"], hardware="tests.gpu.experiments.fake_hardware", small=True, isolated=True)
    assert report.rows == ()
    assert len(report.speeds) == 9
    assert not any(row.error for row in report.speeds)


class Interrupted(FakeGpu):
    """Ctrl-C comes while it works on the second part."""

    def scaled_mm(self, *arguments: Any, **options: Any) -> Words:
        if options["recipe"] == "row":
            raise KeyboardInterrupt
        return super().scaled_mm(*arguments, **options)


def test_what_was_found_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        validate(tmp_path, parts=["blockwise", "rowwise", "tensorwise"], hardware=Interrupted(), small=True)
    rows = ValidationReport.load(tmp_path / "validation.json").rows
    assert [(row.part, row.equal) for row in rows] == [("blockwise", True)] * 3 + [("rowwise", False)]
    assert rows[-1].error == "interrupted, and all later parts"


def test_the_command_shows_what_was_found_before_an_interrupt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gpu.experiments.fake_hardware.scaled_mm", Interrupted().scaled_mm)
    arguments = [
        "--hardware",
        "tests.gpu.experiments.fake_hardware",
        "--small",
        "--together",
        "--out",
        str(tmp_path),
        "--parts",
    ]
    assert main([*arguments, "blockwise", "rowwise"]) == 130
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("3 of 4 comparisons equal")
    assert said.err == f"Interrupted; the results so far are in {tmp_path}.\n"


def planted_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, scaled_mm: str) -> str:
    """Return a module of hardware that all processes find, whose scaled products begin with some lines."""
    lines = "".join(f"    {line}\n" for line in (*scaled_mm.splitlines(), "return _GPU.scaled_mm(*a, **k)"))
    (folder / f"{name}.py").write_text(
        "import os, signal, time\nfrom tests.gpu.experiments.fake_hardware import *\n"
        "from tests.gpu.experiments.fake_hardware import _GPU\n"
        f"def scaled_mm(*a, **k):\n{lines}"
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return name


def test_an_interrupt_of_a_part_in_its_process_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = planted_module(
        tmp_path, monkeypatch, "slow_gpu",
        "if k['recipe'] == '128x128_1x128':\n    os.kill(os.getppid(), signal.SIGINT)\n    time.sleep(60)",
    )  # fmt: skip
    began = time.monotonic()
    try:
        code = main(["--hardware", hardware, "--small", "--out", str(tmp_path / "out"), "--parts", "blockwise"])
    except KeyboardInterrupt:  # which would end all tests
        pytest.fail("the command must answer an interrupt itself")
    assert code == 130
    assert time.monotonic() - began < 50
    rows = ValidationReport.load(tmp_path / "out" / "validation.json").rows
    assert [row.equal for row in rows] == [True, True, False]


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = FakeGpu()
    with pytest.raises(ValueError, match="results go to a folder that can be written to; got '/dev/null/none'"):
        validate("/dev/null/none", parts=["blockwise"], hardware=gpu)
    assert not gpu.calls
    assert main(["--hardware", "tests.gpu.experiments.fake_hardware", "--small", "--out", "/dev/null/none"]) == 2
    assert capsys.readouterr().err.startswith("results go to a folder")


def test_a_half_written_file_does_not_take_the_place_of_a_whole_one(tmp_path: Path) -> None:
    write_whole(tmp_path / "record.json", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "record.json", "new\ud800")
    assert (tmp_path / "record.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "record.json"]


# ---- casts and arithmetic


def test_checks_compare_and_find_planted_differences() -> None:
    def some(gpu: FakeGpu, part: str, words: str) -> list[ValidationRow]:
        return [case.run() for case in PARTS[part](Lab(gpu, small=True)) if case.name.startswith(words)]

    for part, words in (("casts", "fp.gpu.encode E4M3 up"), ("casts", "torch's cast to e4m3"),
                        ("casts", "PTX cvt.rn to e4m3"), ("arithmetic", "fp.gpu.sqrt E4M3"),
                        ("matmuls", "fp.gpu.matmul hopper_e4m3_f32")):  # fmt: skip
        fine = some(FakeGpu(), part, words)
        assert fine, words
        assert all(row.equal for row in fine), fine
        wrong = some(FakeGpu(plant=last_bit), part, words)
        assert all(row.differing + row.other_nans == 1 for row in wrong), wrong


def test_every_float32_comes_first() -> None:
    first = [case for case, _ in zip(PARTS["casts"](Lab(FakeGpu())), range(4), strict=False)]
    assert {case.inputs for case in first} == {"all 2**32 float32"}
    assert all(case.run().equal for case in first)


def test_torch_casts_name_the_policy() -> None:
    checks = [case for case in PARTS["casts"](Lab(FakeGpu(), small=True)) if case.name == "torch's cast to e4m3"]
    assert {check.run().model for check in checks} == {"overflow 'torch<2.12'"}


# ---- reports


def test_reports_come_back_from_json(tmp_path: Path) -> None:
    report = validate(tmp_path / "new", parts=["blockwise"], hardware=FakeGpu(plant=last_bit), small=True)
    read = ValidationReport.load(tmp_path / "new" / "validation.json")
    assert read.rows == report.rows
    assert read.about == report.about
    plain = json.loads((tmp_path / "new" / "validation.json").read_text())
    assert plain["rows"][0]["equal"] == plain["rows"][0]["compared"] - 1


@pytest.mark.parametrize("report", [ValidationReport, BenchReport])
@pytest.mark.parametrize("text", ["[]", "{", '{"rows": [{"part": 3}], "about": {}, "seconds": 1}', '{"rows": 3}'])
def test_files_of_something_else_are_no_reports(report: Any, text: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(ValueError, match=f"path must be a report that {report.__name__}.save wrote; got .*file.json"):
        report.load(tmp_path / "file.json")


def test_a_table_counts_rows_that_differ_and_errors() -> None:
    rows = [ValidationRow("casts", "encode", "a", 4, 1), ValidationRow("casts", "encode", "b"),
            ValidationRow("casts", "encode", "c", error="no GPU")]  # fmt: skip
    text = str(ValidationReport(tuple(rows)))
    assert "1 DIFFER, 1 error" in text
    assert "2 DIFFER" not in text
    assert "casts: 0 of 3 comparisons equal in every bit; 1 of 4 elements differ; 1 error\n" in text


def test_nans_are_equal_and_counted() -> None:
    got, want = np.array([0x7FC00000, 0x3F800000], np.uint32), np.array([0x7FFFFFFF, 0x3F800000], np.uint32)
    assert difference(got, want, "fp32") == (2, 0, 1, "")
    assert difference(got, want, "integer").differing == 1


# ---- commands


def test_the_command_runs_every_part_in_its_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(
        ["--hardware", "tests.gpu.experiments.fake_hardware", "--small", "--out", str(tmp_path), "--parts", "blockwise"]
    )
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].startswith("3 of 3 comparisons equal")
    assert ValidationReport.load(tmp_path / "validation.json").all_equal


def test_a_dead_process_costs_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = planted_module(
        tmp_path, monkeypatch, "dying_gpu", "if k['recipe'] == '1x128_1x128': os._exit(7)"
    )  # fmt: skip
    rows = validate(parts=["blockwise"], hardware=hardware, small=True, isolated=True).rows
    assert rows[0].equal
    assert (rows[-1].equal, rows[-1].error) == (False, "its process ended with 7: nothing was said")


@without_gpu
def test_without_a_gpu_the_commands_say_so_in_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "found no CUDA device" in said
    assert not (tmp_path / "none").exists()
    with pytest.raises(fp.gpu.GpuError, match="found no CUDA device"):
        fp.gpu.validate()
