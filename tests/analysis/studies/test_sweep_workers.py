"""Workers of sweeps: none lasts longer than its sweep, and no cell is lost however one of them ends."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.workers import Failure, run_over
from fpsim.runtime.threads import thread_count
from tests.analysis.studies.counted import CELLS, Unsayable, called, calls, product, swept
from tests.analysis.studies.test_cells import filled
from tests.kit.forks import fork

pytest.importorskip("joblib", reason="several workers need joblib")
pytest.importorskip("pandas", reason="a sweep gives a data frame")


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
    assert frame.error.tolist() == ["", "", "the worker process died (EXIT(3)), 3 times", "", "", ""]
    assert calls(marks) == {"0": 1, "1": 1, "2": 3, "3": 1, "4": 1, "5": 1}
    deadly.unlink()
    assert sweep(workers=1).value.tolist() == [0, 1, 2, 3, 4, 5]
    assert calls(marks) == {"0": 1, "1": 1, "2": 4, "3": 1, "4": 1, "5": 1}


def test_a_worker_that_dies_once_is_no_failure(tmp_path: Path) -> None:
    def task(a: int) -> int:
        called(tmp_path, a)
        if a == 1 and calls(tmp_path)["1"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return a

    assert sorted(run_over([0, 1, 2], task, workers=2)) == [(0, 0), (1, 1), (2, 2)]
    assert calls(tmp_path)["1"] == 2


def test_what_cannot_be_sent_fails_alone() -> None:
    def task(kind: Any) -> Any:
        if kind == "raise":
            raise Unsayable(1, 2)
        if kind == "exit":
            sys.exit(4)
        return (lambda: (yield))() if kind == "generator" else kind

    stream = (one for one in "ab")
    results = dict(run_over(["raise", "exit", "generator", stream, "fine"], task, workers=2))
    assert results[0] == Failure("Unsayable: 1 and 2")
    assert results[1] == Failure("SystemExit: 4")
    assert "a result must be something that cloudpickle can send to another process" in results[2].text
    assert isinstance(results[3], Failure)
    assert "a task must be something that cloudpickle can send" in results[3].text
    assert results[4] == "fine"


def test_a_measure_that_cannot_be_sent_is_refused_in_a_sentence(tmp_path: Path) -> None:
    stream = (one for one in "abc")
    with pytest.raises(TypeError, match=r"must be something that cloudpickle can send .* workers=1 sends nothing\."):
        fp.analysis.sweep(lambda a: next(stream), {"a": [1, 2]}, out=tmp_path, workers=2)


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
    results = run_over([0, 1, 2], task, workers=2)
    _, pid = next(results)
    results.close()
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

    assert len({pid for _, pid in run_over(range(8), task, workers=2)}) <= 2


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


def sweep_in_a_group(folder: Path) -> None:
    """`swept` in a process group of its own, as a script that ends with 130 at Ctrl-C."""
    os.setsid()
    try:
        swept(folder)
    except KeyboardInterrupt:
        sys.exit(130)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def group_is_empty(group: int) -> bool:
    """Say whether no process of a group lives, apart from zombies, which belong to whoever has to wait for them."""
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
    (tmp_path / "slow_from").write_text("6")
    with fork(tmp_path / "said", sweep_in_a_group, tmp_path) as run:
        wait_until(lambda: lines(tmp_path) == 6 and len(calls(tmp_path / "marks")) == 8)
        began = time.monotonic()
        if how is signal.SIGKILL:
            os.kill(run.pid, how)
        else:
            os.killpg(run.pid, how)  # as a terminal does: to the workers too
        assert run.end(20) == (130 if how is signal.SIGINT else -how)
        wait_until(lambda: group_is_empty(run.pid), 10)
        assert time.monotonic() - began < 15
        assert "Traceback" not in run.errors
    assert lines(tmp_path) == 6
    (tmp_path / "slow_from").write_text("30")
    swept(tmp_path, workers=2 if how is signal.SIGKILL else 1)  # one process finds the cells of several too
    assert calls(tmp_path / "marks") == {str(a): 2 if a in (6, 7) else 1 for a in range(30)}
    assert lines(tmp_path) == 30
