"""Sweeps: a row for every point of a grid, computed once, and what fails is said in its row."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies import table
from fpsim.formats.rounding import Rounding
from tests.analysis.studies.counted import called, calls, product

pytest.importorskip("joblib", reason="several workers need joblib")
pytest.importorskip("pandas", reason="a sweep gives a data frame")

MX = fp.scalings.MX


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


def test_floats_of_any_width_are_the_float64_of_the_same_value(tmp_path: Path) -> None:
    numbers = {
        "a": np.float32(0.1), "b": np.float16(65504), "c": ml_dtypes.bfloat16(3.140625), "d": np.int64(7),
        "e": np.array(2.5), "f": np.bool_(True), "g": np.str_("w"),
    }  # fmt: skip
    frame = fp.analysis.sweep(lambda which: numbers, {"which": [0]}, out=tmp_path, workers=1)
    assert set(frame.error) == {""}
    assert [frame[name][0] for name in "abcdefg"] == [float(np.float32(0.1)), 65504.0, 3.140625, 7, 2.5, True, "w"]


def test_a_text_of_an_enum_is_its_value(tmp_path: Path) -> None:
    class Verdict(str, enum.Enum):  # noqa: UP042 - a StrEnum is written as its value anyway
        GOOD = "good"

    frame = fp.analysis.sweep(lambda which: Verdict.GOOD, {"which": [0]}, out=tmp_path, workers=1)
    assert frame["value"].tolist() == ["good"]


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


# ---- failures and refusals


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
    frame = sweep(workers=1)
    assert frame.error.tolist() == ["", "", ""]
    assert frame.value.tolist() == [0.5, 1.0, 1.5]


def test_results_that_are_no_figures_are_said_in_their_rows(tmp_path: Path) -> None:
    results = [np.zeros(3), {"a": object}, {1: 2}, 1j, 1 << 100_000]
    frame = fp.analysis.sweep(lambda i: results[i], {"i": range(5)}, out=tmp_path, workers=1)
    assert all(text.startswith("TypeError: measure must") for text in frame.error[:4])
    assert "got array([0., 0., 0.])" in frame.error[0]
    assert frame.error[4].startswith("ValueError: Exceeds the limit")


@pytest.mark.parametrize(
    ("grid", "error", "said"),
    [
        ({"a": [MX, dataclasses.replace(MX, infinity="one")]}, ValueError, r"both 'fp.scalings.MX'"),
        ({}, TypeError, r"grid must be a dictionary of one or more parameters and their values; got \{\}"),
        ([1], TypeError, r"grid must be a dictionary .* got \[1\]"),
        ({"a": "e4m3"}, TypeError, r"grid\['a'\] must be a list of values; got 'e4m3'\. Pass one value as \[value\]"),
        ({"a": 3}, TypeError, r"grid\['a'\] must be a list of values; got 3"),
        ({"a": []}, ValueError, r"grid\['a'\] must hold at least one value; got none"),
        ({"a": [1], "error": [2]}, ValueError, r"must not have a parameter 'error'"),
        ({"a": [1, np.int64(1)]}, ValueError, r"must hold values that look different; got 1 and 1"),
        ({"a": [1, "1"]}, ValueError, r"got 1 and '1', which are both '1' in a table"),
        ({"a": [math.nan, -math.nan]}, ValueError, r"got nan and nan"),
        ({"a": ["E4M3", fp.E4M3]}, ValueError, r"both 'E4M3' in a table"),
        ({"a": [object()]}, TypeError, r"grid\['a'\]: a value must be one that another process recognises"),
        ({"a": [lambda x: x]}, TypeError, r"recognises.* Pass its name, and look it up in the measure\."),
        ({"a": [{1, 2}]}, TypeError, r"recognises.*got \{1, 2\}"),
        ({"a": [np.zeros(2)]}, TypeError, r"recognises.*got array\(\[0\., 0\.\]\)"),
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
        fp.analysis.sweep(product, {"a": [1], "b": [1]}, out=tmp_path, client=3)  # type: ignore[arg-type]
