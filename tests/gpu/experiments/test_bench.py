"""fp.gpu.bench without a GPU: its calls in the simulator, and its rows from invented times."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.gpu.experiments.bench import bench, main, run, works_of
from fpsim.gpu.lab.bench_report import BenchReport, Speed
from fpsim.gpu.lab.bench_rows import ELEMENTS, SHORT, SIDE, SMALL_ELEMENTS, SMALL_SIDE, WORKS, BenchWork
from fpsim.testing import assert_bits_equal
from tests.gpu.experiments.fake_hardware import FakeGpu
from tests.gpu.simulator import bench as simulator
from tests.kit.processes import simulate

without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")


def row_of(report: BenchReport, name: str) -> Speed:
    (found,) = (row for row in report.rows if row.name == name)
    return found


# ---- what is called


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, npt.NDArray[Any]]:
    """Return the results of the calls in the simulator, by the names of their rows."""
    return simulate("tests.gpu.simulator.bench", tmp_path_factory.mktemp("bench") / "results.npz")


def test_what_is_timed_has_the_bits_of_the_cpu(simulated: dict[str, npt.NDArray[Any]]) -> None:
    names = [work.name for work in simulator.CALLED if work.function != "copy"]
    assert len(names) > 25
    for name in names:
        assert_bits_equal(simulated[f"gpu {name}"], simulated[f"cpu {name}"])


def test_a_copy_has_the_bits_of_its_source(simulated: dict[str, npt.NDArray[Any]]) -> None:
    source = simulator.HostArrays().floats("float32", (1, simulator.ELEMENTS))
    assert_bits_equal(simulated["gpu copy"], simulator.words(source))


def test_bytes_are_those_of_operands_and_results(simulated: dict[str, npt.NDArray[Any]]) -> None:
    for work in simulator.CALLED:
        if work.part in ("casts", "arithmetic"):  # scales are smaller than a byte per element
            assert work.moved == simulated[f"bytes {work.name}"], work.name


def test_rows_have_names_of_their_own_and_come_after_what_they_are_compared_with() -> None:
    names = [work.name for work in WORKS]
    assert len(set(names)) == len(names)
    assert set(SHORT) <= set(names)
    for i, work in enumerate(WORKS):
        assert work.beside in names[: i + 1]


# ---- rates


def test_rates_and_ratios_follow_from_the_median() -> None:
    gpu = FakeGpu(seconds={"encode E4M3": 5 / 3e12, "matmul hopper_e4m3_f32 promote 128": 0.5e-12})
    report = bench(hardware=gpu)
    copy, encoded = row_of(report, "copy"), row_of(report, "encode E4M3")
    assert copy.bandwidth == pytest.approx(4e12)
    assert (copy.size, copy.ratio, copy.met) == (ELEMENTS, 0, None)
    assert encoded.bandwidth == pytest.approx(3e12)
    assert encoded.rate == pytest.approx(3e12 / 5)
    assert encoded.ratio == pytest.approx(0.75)
    assert encoded.met is True
    product = row_of(report, "matmul hopper_e4m3_f32 promote 128")
    assert (product.size, product.beside, product.met) == (SIDE, "cuBLAS E4M3", True)
    assert product.rate == pytest.approx(2e12)
    assert product.ratio == pytest.approx(2)
    assert not any(row.error for row in report.rows)


def test_slow_rows_miss_what_is_asked() -> None:
    report = bench(hardware=FakeGpu(seconds={"encode E4M3": 5 / 2e12}), parts=["casts"])
    assert row_of(report, "encode E4M3").met is False
    assert "MISSED" in str(report)
    assert report.summary().startswith("15 of 16 speeds reach their targets; 0 of 17 rows failed")


def test_a_row_that_would_take_too_long_is_measured_at_a_small_size() -> None:
    name = "matmul hopper_e4m3_f32 promote 128"
    gpu = FakeGpu(seconds={name: 1e-9, "decode E4M3": 1e-6})
    report = bench(hardware=gpu, minutes=1)
    for row, size in ((row_of(report, name), SMALL_SIDE), (row_of(report, "decode E4M3"), SMALL_ELEMENTS)):
        assert (row.size, row.reduced, row.met, row.ratio) == (size, True, None, 0)
        assert "would take about" in row.note
        assert f"{row.name} {size}" in gpu.calls
    assert f"{name} {SIDE}" not in gpu.calls
    seconds = f"{ELEMENTS * 1e-6:.3g}"
    assert f"decode E4M3: {ELEMENTS} elements would take about {seconds} s; give more minutes" in str(report)
    assert row_of(report, "encode E4M3").size == ELEMENTS


def test_a_row_keeps_a_gpu_busy_while_the_next_call_is_launched() -> None:
    launch, bandwidth = 0.5e-3, 4.8e12  # seconds; of an H200
    for work in WORKS:
        assert work.is_product or work.moved * ELEMENTS / bandwidth > launch, work.name
    assert (SIDE / SMALL_SIDE) ** 3 * 5 * launch < 1  # what a small product takes to be launched misleads little


def test_little_room_makes_sizes_smaller() -> None:
    class Full(FakeGpu):
        def room(self) -> int:
            return 8 * ELEMENTS // 2

    copy = row_of(bench(hardware=Full(), parts=["casts"], short=True), "copy")
    assert copy.size == ELEMENTS // 4
    assert not copy.reduced


# ---- failures, time, files


def test_a_failing_row_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    report = bench(tmp_path, hardware=FakeGpu(fails=("copy", "add FP16", "cuBLAS E4M3")), parts=["arithmetic"])
    assert row_of(report, "add FP16").error == "RuntimeError: CUDA error: add FP16 was told to fail"
    assert row_of(report, "add E4M3").rate > 0
    assert row_of(report, "add E4M3").ratio == 0, "nothing is known of the copy"
    assert "add FP16: RuntimeError: CUDA error: add FP16 was told to fail" in str(report)
    assert BenchReport.load(tmp_path / "bench.json").rows == report.rows
    assert (
        (tmp_path / "bench.txt")
        .read_text()
        .splitlines()[-1]
        .startswith("0 of 9 speeds reach their targets; 2 of 11 rows failed")
    )


def test_without_time_rows_are_left_out_in_a_sentence() -> None:
    rows: list[Speed] = []
    run(FakeGpu(), works_of(["casts"], short=True), time.monotonic() - 1, rows.append)
    assert [bool(row.error) for row in rows] == [False, True, True, True]
    assert rows[-1].error == "no time was left; give more minutes"


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    class Interrupted(FakeGpu):
        def measure(self, work: BenchWork, size: int, seconds: float) -> list[float]:
            if work.name == "decode E4M3":
                raise KeyboardInterrupt
            return super().measure(work, size, seconds)

    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path, hardware=Interrupted(), parts=["casts"], short=True)
    assert [row.name for row in BenchReport.load(tmp_path / "bench.json").rows] == ["copy", "encode E4M3"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bench.json", "bench.txt"], "no drafts are left"


def test_unknown_parts_and_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="part must be one of casts, arithmetic, scaling, products"):
        bench(hardware=FakeGpu(), parts=["cast"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"results go to a folder that can be written to; got .*file"):
        bench(tmp_path / "file", hardware=FakeGpu())


def test_the_command_prints_its_table_and_writes_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--hardware", "tests.gpu.experiments.fake_hardware", "--out", str(tmp_path), "--short"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1].startswith("7 of 7 speeds reach their targets; 0 of 9 rows failed")
    read = json.loads((tmp_path / "bench.json").read_text())
    assert {"gpu", "driver", "cuda", "torch", "numba", "numba-cuda", "date"} <= set(read["about"])
    assert [row["name"] for row in read["rows"]] == ["copy", *(work.name for work in WORKS if work.name in SHORT)]
    assert main([*arguments[:2], "--out", "/dev/null/none"]) == 2
    assert "got '/dev/null/none': Not a directory" in capsys.readouterr().err


@without_gpu
def test_without_a_gpu_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "none")]) == 2
    assert "found no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
