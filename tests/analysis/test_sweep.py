"""Sweeps: every cell is computed once, none is lost however the process ends, and what fails is said in its row."""

from __future__ import annotations

import dataclasses
import doctest
import functools
import importlib
import importlib.util
import math
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies import table
from fpsim.analysis.studies.cells import Cell, Cells
from fpsim.analysis.studies.identity import label, name_of, source_of, words
from fpsim.analysis.studies.workers import Failure, run_over
from fpsim.formats.rounding import Rounding
from fpsim.runtime.threads import thread_count
from tests.kit.processes import ROOT, python

pytest.importorskip("joblib", reason="several workers need joblib")
pytest.importorskip("pandas", reason="a sweep gives a data frame")
CELLS = "cells.jsonl"
MX = fp.scalings.MX


def called(folder: Path, name: object) -> None:
    """Leave a mark for one call: workers share nothing but files."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def calls(folder: Path) -> dict[str, int]:
    """How often each name was called."""
    found: dict[str, int] = {}
    for mark in folder.glob("*"):
        name = mark.name.partition("-")[0]
        found[name] = found.get(name, 0) + 1
    return found


def product(a: int, b: float) -> float:
    """A measure that other processes import."""
    return a * b


# ---- what comes back


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_the_points_in_the_order_of_the_grid(tmp_path: Path, workers: int) -> None:
    frame = fp.analysis.sweep(product, {"a": [3, 1, 2], "b": [0.5, 0.1]}, out=tmp_path, workers=workers)
    assert list(frame.columns) == ["a", "b", "value", "error"]
    assert frame.a.tolist() == [3, 3, 1, 1, 2, 2]
    assert frame.value.tolist() == [3 * 0.5, 3 * 0.1, 0.5, 0.1, 1.0, 0.2]
    assert set(frame.error) == {""}


def test_finished_cells_are_not_computed_again_and_a_larger_grid_computes_what_is_new(tmp_path: Path) -> None:
    def measure(a: int, b: int) -> int:
        called(tmp_path / "marks", 10 * a + b)
        return 10 * a + b

    sweep = functools.partial(fp.analysis.sweep, measure, out=tmp_path / "out", workers=1)
    sweep({"a": [1, 2], "b": [3]})
    sweep({"b": [3], "a": np.arange(1, 3)})
    assert calls(tmp_path / "marks") == {"13": 1, "23": 1}
    frame = sweep({"a": [0, 2, 1], "b": [3, 4]})
    assert calls(tmp_path / "marks") == {"13": 1, "23": 1, "3": 1, "4": 1, "14": 1, "24": 1}
    assert frame.value.tolist() == [3, 4, 23, 24, 13, 14]


def test_reports_formats_scalings_and_roundings_are_told_by_name(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    grid: dict[str, Any] = {
        "fmt": [fp.E4M3, fp.Format("mine", 3, 2)],
        "rounding": [Rounding.UP, "down"],
        "scaling": [None, fp.scalings.MX],
    }
    frame = fp.analysis.sweep(functools.partial(fp.analysis.error, x), grid, out=tmp_path, workers=1)
    assert frame.fmt.tolist() == ["E4M3"] * 4 + ["mine"] * 4
    assert frame.rounding.tolist() == ["UP", "UP", "down", "down"] * 2
    assert frame.scaling.tolist() == [None, "fp.scalings.MX"] * 4
    assert frame.result_rounding.tolist() == ["up", "up", "down", "down"] * 2
    assert frame.sqnr_db[1] == fp.analysis.error(x, "e4m3", rounding="up", scaling=fp.scalings.MX).sqnr_db
    assert set(frame.error) == {""}


SIGNALLING, QUIET = (struct.unpack(">d", bytes.fromhex(bits))[0] for bits in ("fff0000000000001", "7ff8000000000abc"))
VALUES: dict[str, Any] = {
    "tenth": 0.1, "tiny": 5e-324, "zero": -0.0, "infinite": -math.inf, "quiet": QUIET, "signalling": SIGNALLING,
    "none": None, "true": True, "one": 1, "real": 1.0, "large": 3**100, "text": '=1+1,"\n', "half": "\ud800",
    "empty": "",
}  # fmt: skip


def bits(value: Any) -> Any:
    """A value and its type, a float by its bits."""
    return type(value), struct.pack(">d", value) if isinstance(value, float) else value


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_back_from_the_file_with_every_bit(tmp_path: Path, workers: int) -> None:
    def measure(which: int) -> dict[str, Any]:
        return VALUES

    fp.analysis.sweep(measure, {"which": [1, 2]}, out=tmp_path, workers=workers)
    with Cells(tmp_path, name_of(measure), source_of(measure), ["which"]) as cells:
        assert len(cells.found) == 2
        for cell in cells.found.values():
            assert cell.result is not None
            assert {name: bits(value) for name, value in cell.result.items()} == {n: bits(v) for n, v in VALUES.items()}


def test_floats_of_any_width_are_the_float64_of_the_same_value(tmp_path: Path) -> None:
    numbers = {
        "a": np.float32(0.1), "b": np.float16(65504), "c": ml_dtypes.bfloat16(3.140625), "d": np.int64(7),
        "e": np.array(2.5), "f": np.bool_(True), "g": np.str_("w"),
    }  # fmt: skip
    frame = fp.analysis.sweep(lambda which: numbers, {"which": [0]}, out=tmp_path, workers=1)
    assert set(frame.error) == {""}
    assert [frame[name][0] for name in "abcdefg"] == [float(np.float32(0.1)), 65504.0, 3.140625, 7, 2.5, True, "w"]


def test_the_table_on_disk_tells_nan_from_what_is_missing(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")

    def measure(a: int) -> dict[str, Any]:
        if a == 3:
            raise ValueError("three")
        return {"x": [math.nan, 0.5, None][a], "mixed": [1, "one", 1.5][a], "half": "\ud800"}

    frame = fp.analysis.sweep(measure, {"a": [0, 1, 2, 3]}, out=tmp_path, workers=1)
    rows = parquet.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert math.isnan(rows[0]["x"])
    assert [row["x"] for row in rows[1:]] == [0.5, None, None]
    assert [row["mixed"] for row in rows] == ["1", "one", "1.5", None]
    assert [row["error"] for row in rows] == ["", "", "", "ValueError: three"] == frame.error.tolist()
    assert math.isnan(frame.x[0])
    assert frame.x[2] is None
    assert frame.mixed.tolist() == [1, "one", 1.5, None]


def test_without_pyarrow_the_table_is_csv_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(table.importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"sweep\.csv is written, as Parquet needs pyarrow: pip install pyarrow"):
        fp.analysis.sweep(lambda a: {"x": a / 3, "t": "=A1"}, {"a": [1, 2]}, out=tmp_path, workers=1)
    assert (tmp_path / "sweep.csv").read_text().splitlines() == [
        "a,x,t,error", "1,0.3333333333333333,'=A1,", "2,0.6666666666666666,'=A1,",
    ]  # fmt: skip


def test_progress_counts_what_was_there_before(tmp_path: Path) -> None:
    said: list[tuple[float, str]] = []
    fp.analysis.sweep(lambda a: a, {"a": [1, 2]}, out=tmp_path / "a", workers=1, progress=lambda *now: said.append(now))
    assert said == [(0.5, "1 of 2"), (1.0, "2 of 2")]
    said.clear()
    measure = abs_of = lambda a: abs(a)
    fp.analysis.sweep(measure, {"a": [1, 2, 3]}, out=tmp_path / "b", workers=1)
    fp.analysis.sweep(
        abs_of, {"a": [1, 2, 3, 4]}, out=tmp_path / "b", workers=1, progress=lambda *now: said.append(now)
    )
    assert said == [(1.0, "4 of 4")]


# ---- failures


def test_a_cell_that_raises_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def measure(a: int) -> float:
        if a == 2 and broken.exists():
            raise RuntimeError("two\nlines")
        return a / 2

    sweep = functools.partial(fp.analysis.sweep, measure, {"a": [1, 2, 3]}, out=tmp_path / "out", workers=2)
    frame = sweep()
    assert frame.error.tolist() == ["", "RuntimeError: two lines", ""]
    assert frame.value[[0, 2]].tolist() == [0.5, 1.5]
    assert math.isnan(frame.value[1])
    broken.unlink()
    frame = sweep()
    assert frame.error.tolist() == ["", "", ""]
    assert frame.value.tolist() == [0.5, 1.0, 1.5]


def test_a_cell_that_ends_its_worker_is_tried_three_times_and_the_others_are_kept(tmp_path: Path) -> None:
    marks, deadly = tmp_path / "marks", tmp_path / "deadly"
    deadly.touch()

    def measure(a: int) -> int:
        called(marks, a)
        if a == 2 and deadly.exists():
            os._exit(3)
        return a

    sweep = functools.partial(fp.analysis.sweep, measure, {"a": range(6)}, out=tmp_path / "out", workers=2)
    frame = sweep()
    assert frame.error.tolist() == ["", "", "the worker process died (EXIT(3)), each of 3 times", "", "", ""]
    assert calls(marks) == {"0": 1, "1": 1, "2": 3, "3": 1, "4": 1, "5": 1}
    deadly.unlink()
    assert sweep().value.tolist() == [0, 1, 2, 3, 4, 5]
    assert calls(marks) == {"0": 1, "1": 1, "2": 4, "3": 1, "4": 1, "5": 1}


def test_a_worker_that_dies_once_is_no_failure(tmp_path: Path) -> None:
    def task(a: int) -> int:
        called(tmp_path, a)
        if a == 1 and calls(tmp_path)["1"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return a

    assert sorted(run_over([0, 1, 2], task, workers=2)) == [(0, 0), (1, 1), (2, 2)]
    assert calls(tmp_path)["1"] == 2


class Unsayable(Exception):
    """An exception that cannot be read back where it was sent."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def test_what_cannot_be_sent_fails_alone() -> None:
    def task(kind: str) -> Any:
        if kind == "raise":
            raise Unsayable(1, 2)
        if kind == "exit":
            sys.exit(4)
        return (lambda: (yield))() if kind == "generator" else kind

    found = dict(run_over(["raise", "exit", "generator", "fine"], task, workers=2))
    assert found[0] == Failure("Unsayable: 1 and 2")
    assert found[1] == Failure("SystemExit: 4")
    assert "a result must be something that cloudpickle can send to another process" in found[2].text
    assert found[3] == "fine"
    refused = dict(run_over([(one for one in "ab"), 1], str, workers=2))
    assert "a task must be something that cloudpickle can send" in refused[0].text
    assert refused[1] == "1"


def test_a_measure_that_cannot_be_sent_is_refused_in_a_sentence(tmp_path: Path) -> None:
    stream = (one for one in "abc")
    with pytest.raises(TypeError, match=r"must be something that cloudpickle can send .* workers=1 sends nothing\."):
        fp.analysis.sweep(lambda a: next(stream), {"a": [1, 2]}, out=tmp_path, workers=2)


def test_results_that_are_no_figures_are_said_in_their_rows(tmp_path: Path) -> None:
    results = [np.zeros(3), {"a": object}, {1: 2}, 1j, 1 << 100_000]
    frame = fp.analysis.sweep(lambda i: results[i], {"i": range(5)}, out=tmp_path, workers=1)
    assert all(text.startswith("TypeError: measure must") for text in frame.error[:4])
    assert "got array([0., 0., 0.])" in frame.error[0]
    assert frame.error[4].startswith("ValueError: Exceeds the limit")


# ---- workers


def test_workers_share_the_cores(tmp_path: Path) -> None:
    def measure(a: int) -> dict[str, int]:
        from fpsim.runtime.threads import thread_count

        return {"threads": thread_count(), "pid": os.getpid()}

    frame = fp.analysis.sweep(measure, {"a": range(4)}, out=tmp_path, workers=2)
    assert set(frame.threads) == {max(1, thread_count() // 2)}
    assert os.getpid() not in set(frame.pid)
    assert fp.analysis.sweep(measure, {"a": range(4)}, out=tmp_path / "here", workers=1).pid.unique() == [os.getpid()]


def test_leaving_the_loop_ends_the_workers(tmp_path: Path) -> None:
    def task(a: int) -> int:
        if a:
            time.sleep(60)
        return os.getpid()

    began = time.monotonic()
    found = run_over([0, 1, 2], task, workers=2)
    _, pid = next(found)
    found.close()
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.timeout(60)
def test_workers_that_grow_go_on() -> None:
    kept: list[Any] = []

    def task(a: int) -> int:
        process_executor = importlib.import_module("joblib.externals.loky.process_executor")
        vars(process_executor).update(_MAX_MEMORY_LEAK_SIZE=1e6, _MEMORY_LEAK_CHECK_DELAY=0.01)
        kept.append(np.ones(2_000_000))
        time.sleep(0.02)
        return os.getpid()

    assert len({pid for _, pid in run_over(range(12), task, workers=2)}) <= 2


def test_an_error_in_the_callback_ends_the_workers_at_once(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def measure(a: int) -> int:
        called(pids, os.getpid())
        time.sleep(60 if a else 0)
        return a

    def fail(share: float, text: str) -> None:
        wait_until(lambda: len(calls(pids)) == 2)
        raise KeyError(text)

    with pytest.raises(KeyError, match="1 of 3") as caught:
        fp.analysis.sweep(measure, {"a": range(3)}, out=tmp_path / "out", workers=2, progress=fail)
    for pid in calls(pids):  # while `caught` keeps every frame
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert caught.tb is not None


def test_a_finished_sweep_needs_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setitem(sys.modules, "joblib", None)
    frame = fp.analysis.sweep(product, {"a": [3, 1], "b": [0.1]}, out=tmp_path, workers=2)
    assert frame.value.tolist() == [3 * 0.1, 0.1]


SCRIPT = """
import os, sys, time
from pathlib import Path
import fpsim as fp
folder = Path(sys.argv[1])

def measure(a):
    (folder / "marks").mkdir(exist_ok=True)
    (folder / "marks" / f"{a}-{os.getpid()}-{time.monotonic_ns()}").touch()
    time.sleep(0.05)
    if a >= int(sys.argv[2]):
        time.sleep(60)
    return a / 3

try:
    fp.analysis.sweep(measure, {"a": range(30)}, out=folder / "out", workers=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def started(folder: Path, slow_from: int) -> subprocess.Popen[str]:
    """A sweep of 30 cells in a process group of its own; cells from some number on take a minute."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), str(folder), str(slow_from)], start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def group_is_empty(group: int) -> bool:
    """Whether no process of a group lives, zombies aside, which belong to whoever has to wait for them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    states = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False).stdout
    return all(state.startswith("Z") for state in states.split())


def lines(folder: Path) -> int:
    """Cells in the file, without the header."""
    file = folder / "out" / CELLS
    return file.read_bytes().count(b"\n") - 1 if file.exists() else 0


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_a_killed_or_interrupted_sweep_keeps_its_cells_and_its_workers_end(tmp_path: Path, how: signal.Signals) -> None:
    run = started(tmp_path, slow_from=6)
    wait_until(lambda: lines(tmp_path) == 6 and len(calls(tmp_path / "marks")) == 8)
    began = time.monotonic()
    if how is signal.SIGKILL:
        run.kill()
    else:
        os.killpg(run.pid, how)  # as a terminal does: to the workers too
    _, errors = run.communicate(timeout=20)
    wait_until(lambda: group_is_empty(run.pid), 10)
    assert time.monotonic() - began < 15
    assert run.returncode == (130 if how is signal.SIGINT else -how)
    assert "Traceback" not in errors
    assert lines(tmp_path) == 6
    again = started(tmp_path, slow_from=30)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert calls(tmp_path / "marks") == {str(a): 2 if a in (6, 7) else 1 for a in range(30)}
    assert lines(tmp_path) == 30


# ---- the file


def filled(folder: Path) -> bytes:
    """A file of three cells."""
    fp.analysis.sweep(product, {"a": [1, 2, 3], "b": [0.1]}, out=folder, workers=1)
    return (folder / CELLS).read_bytes()


def test_a_torn_last_line_costs_its_cell_alone(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    start = whole.rindex(b"\n", 0, -1) + 1
    done: list[tuple[float, str]] = []
    for end in range(start, len(whole)):
        (tmp_path / CELLS).write_bytes(whole[:end])
        fp.analysis.sweep(
            product, {"a": [1, 2, 3], "b": [0.1]}, out=tmp_path, workers=1, progress=lambda *now: done.append(now)
        )
        assert done == [(1.0, "3 of 3")]
        done.clear()
        assert (tmp_path / CELLS).read_bytes() == whole


@pytest.mark.parametrize("left", [b"", b'{"crc":"0'])
def test_a_sweep_that_ended_before_its_first_line_begins_anew(tmp_path: Path, left: bytes) -> None:
    (tmp_path / CELLS).write_bytes(left)
    assert filled(tmp_path).count(b"\n") == 4


def test_damage_anywhere_costs_one_cell_or_is_refused(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    header = whole.index(b"\n") + 1
    for i in range(0, len(whole), 7):
        (tmp_path / CELLS).write_bytes(whole[:i] + bytes([whole[i] ^ 0x11]) + whole[i + 1 :])
        if i < header:
            with pytest.raises(ValueError, match="does not begin as a sweep's"):
                filled(tmp_path)
            continue
        filled(tmp_path)
        with Cells(tmp_path, f"{__name__}.product", source_of(product), ["a", "b"]) as cells:
            assert [cell.result is not None for cell in cells.found.values()] == [True] * 3


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with Cells(tmp_path, "f", "0", ["a"]) as cells, pytest.raises(ValueError, match=r"which one does at the moment"):
        Cells(cells.folder, "f", "0", ["a"])
    Cells(tmp_path, "f", "0", ["a"]).close()


def test_the_last_line_of_a_cell_counts(tmp_path: Path) -> None:
    with Cells(tmp_path, "f", "0", ["a"]) as cells:
        cells.add(Cell("k", {"a": "1"}, None, "ValueError: no"))
        cells.add(Cell("k", {"a": "1"}, {"value": 2}))
    with Cells(tmp_path, "f", "0", ["a"]) as cells:
        assert cells.found == {"k": Cell("k", {"a": "1"}, {"value": 2})}


def test_cells_of_something_else_are_not_mixed_in(tmp_path: Path) -> None:
    def of(n: int) -> Callable[..., int]:
        def measure(a: int) -> int:
            return a + n

        return measure

    fp.analysis.sweep(of(1), {"a": [1]}, out=tmp_path, workers=1)
    fp.analysis.sweep(of(1), {"a": [2]}, out=tmp_path, workers=1)
    with pytest.raises(
        ValueError, match=r"another version of it, with other code or other captured values\. Name another"
    ):
        fp.analysis.sweep(of(2), {"a": [1]}, out=tmp_path, workers=1)
    with pytest.raises(ValueError, match=r"out must hold cells of .*test_sweep\.product; got .*measure\. Name another"):
        fp.analysis.sweep(product, {"a": [1], "b": [2]}, out=tmp_path, workers=1)
    fp.analysis.sweep(dict, {"a": [1]}, out=tmp_path / "dict", workers=1)
    with pytest.raises(ValueError, match=r"parameters a, b; got .*, which holds those of a\. Name another folder"):
        fp.analysis.sweep(dict, {"a": [1], "b": [2]}, out=tmp_path / "dict", workers=1)


def test_a_table_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sweep.parquet").write_text("mine")
    with pytest.raises(ValueError, match=r"which holds sweep\.parquet and no cells\.jsonl\. Name another"):
        filled(tmp_path)
    assert (tmp_path / "sweep.parquet").read_text() == "mine"


# ---- refusals


@pytest.mark.parametrize(
    ("grid", "error", "said"),
    [
        ({"a": [MX, dataclasses.replace(MX, infinity="one")]}, ValueError, r"both 'fp.scalings.MX'"),
        ({}, TypeError, r"grid must be a dictionary of parameters and their values; got \{\}"),
        ([1], TypeError, r"grid must be a dictionary .* got \[1\]"),
        ({"a": "e4m3"}, TypeError, r"grid\['a'\] must be a list of values; got 'e4m3'\. One value: \[value\]"),
        ({"a": 3}, TypeError, r"grid\['a'\] must be a list of values; got 3"),
        ({"a": []}, ValueError, r"grid\['a'\] must hold at least one value; got none"),
        ({"a": [1], "error": [2]}, ValueError, r"must not name a parameter 'error'"),
        ({"a": [1, np.int64(1)]}, ValueError, r"must hold values that look different; got 1 and 1"),
        ({"a": [1, "1"]}, ValueError, r"got 1 and '1', which are both '1' in a table"),
        ({"a": [math.nan, -math.nan]}, ValueError, r"got nan and nan"),
        ({"a": ["E4M3", fp.E4M3]}, ValueError, r"both 'E4M3' in a table"),
        ({"a": [object()]}, TypeError, r"grid\['a'\]: a value must be one that another process knows again"),
        ({"a": [lambda x: x]}, TypeError, r"knows again.* Pass its name, and look it up in the measure\."),
        ({"a": [{1, 2}]}, TypeError, r"knows again.*got \{1, 2\}"),
        ({"a": [np.zeros(2)]}, TypeError, r"knows again.*got array\(\[0\., 0\.\]\)"),
        ({"b": [1]}, TypeError, r"measure must take the grid's parameters b; got .*: missing a required argument: 'a'"),
    ],
)  # fmt: skip
def test_grids_that_cannot_be_kept_are_refused(tmp_path: Path, grid: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        fp.analysis.sweep(lambda a: 1, grid, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_other_arguments_are_refused(tmp_path: Path) -> None:
    grid = {"a": [1]}
    sweep: Any = functools.partial(fp.analysis.sweep, lambda a: a, grid, out=tmp_path)
    for change, error, said in (
        ({"out": tmp_path / "x.parquet"}, ValueError, r"out must be a folder; got .* sweep\.parquet in it"),
        ({"out": 3}, TypeError, r"out must be a text or a pathlib\.Path; got 3"),
        ({"workers": 0}, ValueError, r"workers must be an integer >= 1; got 0"),
        ({"workers": 2, "client": object()}, ValueError, r"workers must be left out where a client is given"),
    ):
        with pytest.raises(error, match=said):
            sweep(**change)
    with pytest.raises(TypeError, match=r"measure must be a function of the grid's parameters; got 3"):
        fp.analysis.sweep(3, grid, out=tmp_path)  # type: ignore[arg-type]


def test_missing_packages_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package, extra, arguments in (
        ("joblib.externals.loky", "sweep", {"workers": 2}),
        ("distributed", "dask", {"client": 1}),
    ):
        for name in (package, package.partition(".")[0]):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"not installed: pip install -e '\.\[{extra}\]'"):
            fp.analysis.sweep(product, {"a": [1, 2], "b": [1]}, out=tmp_path, **arguments)  # type: ignore[arg-type]


# ---- words


def test_words_tell_values_apart_and_are_the_same_in_every_process() -> None:
    mine = fp.Format("mine", 3, 2)
    values = [
        1, 1.0, True, "1", None, (1,), [1], np.float32(0.1), 0.1, -0.0, 0.0, fp.E4M3, mine, fp.Format("mine", 2, 3),
        fp.INT8, MX, dataclasses.replace(MX, infinity="one"), fp.Chunked(fp.BF16), fp.Chunked(mine), np.sum, product,
        fp.unit("hopper_e4m3_f32"), fp.schedules.cublas("sm_90"), Rounding.UP, np.dtype("float32"), Path("x"),
    ]  # fmt: skip
    texts = [words(value) for value in values]
    assert len(set(texts)) == len(values)
    script = """
    from tests.analysis.test_sweep import fp, product, words
    values = [fp.Chunked(fp.Format("mine", 3, 2)), product, fp.schedules.cublas("sm_90")]
    print([words(value) for value in values])
    """
    assert python(script, PYTHONHASHSEED="7") == str([texts[18], texts[20], texts[22]])
    assert [label(v) for v in (mine, fp.INT8, fp.unit("hopper_e4m3_f32"))] == ["mine", "INT8", "hopper_e4m3_f32"]


def test_the_source_of_a_measure_is_its_code_without_comments(tmp_path: Path) -> None:
    def digest_of(text: str, name: str = "m") -> str:
        file = tmp_path / f"module{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("module", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return source_of(getattr(module, name))

    first = digest_of("def m(a):\n    return a in {'x', 'y'}\n")
    assert digest_of("# new\n\ndef m(a):  # why\n    return  a in {'x', 'y'}\n") == first
    assert digest_of("def m(a):\n    return a in {'x', 'z'}\n") != first
    assert digest_of("def m(a, b=1):\n    return a in {'x', 'y'}\n") != first
    beside = digest_of("m, other = lambda a: a in {'x', 'y'}, 1\n")
    assert digest_of("m, other = lambda a: a in {'x', 'y'}, 2\n") == beside
    assert digest_of("m, other = lambda a: a in {'x', 'z'}, 1\n") != beside
    x, y = np.arange(3.0), np.arange(4.0)
    assert source_of(functools.partial(np.dot, x)) == source_of(functools.partial(np.dot, x.copy()))
    assert source_of(functools.partial(np.dot, x)) != source_of(functools.partial(np.dot, y))


# ---- dask


def test_a_cluster_computes_cells_and_errors_and_what_is_missing(tmp_path: Path, cluster: Any) -> None:
    def measure(a: int, b: int) -> float:
        called(tmp_path / "marks", f"{a}.{b}")
        if b == 0:
            sys.exit(1)
        return a / b

    client = cluster(n_workers=2, processes=False)
    sweep = functools.partial(fp.analysis.sweep, measure, out=tmp_path / "out")
    frame = sweep({"a": range(10), "b": [3, 7]}, client=client)
    assert frame.value.tolist() == [a / b for a in range(10) for b in (3, 7)]
    frame = sweep({"a": range(10), "b": [0, 3, 7]}, client=client)
    assert frame.error.tolist() == ["SystemExit: 1", "", ""] * 10
    assert set(calls(tmp_path / "marks").values()) == {1}
    client.close()
    with pytest.raises(RuntimeError, match=r"client must stay connected until the last task; got one that is 'closed'"):
        sweep({"a": range(10), "b": [0, 3, 7]}, client=client)


def test_a_lost_worker_of_a_cluster_is_said_in_its_row(tmp_path: Path, cluster: Any) -> None:
    dask = pytest.importorskip("dask", reason="client= needs dask.distributed")

    def measure(a: int) -> int:
        if a == 1:
            os._exit(3)
        return a

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        client = cluster(n_workers=1, processes=True)
        frame = fp.analysis.sweep(measure, {"a": range(3)}, out=tmp_path, client=client)
    assert frame.error[1].startswith("the worker died: KilledWorker")
    assert frame.value[[0, 2]].tolist() == [0, 2]


def test_what_is_no_client_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="client= needs dask.distributed")
    with pytest.raises(TypeError, match=r"client must be a dask\.distributed\.Client; got 3"):
        fp.analysis.sweep(product, {"a": [1], "b": [1]}, out=tmp_path, client=3)


# ---- the page


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "sweep.md"
    found = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 5
    assert found.failed == 0
