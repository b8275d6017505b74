"""Records of the benchmark: which rows run, what is kept, what changed. The works are fakes and nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as main
from benchmarks import compare, limits, memory
from benchmarks.compare import changes, text
from benchmarks.race import Work, again, race, spread
from benchmarks.row import RaceRow, chosen

LIMITS = dict.fromkeys(limits.UNITS, 1e12)
COUNTS = {"a": {"read": 4, "written": 1, "operations": {"scalar": 1.0}, "rows": ["encode"]}}


def record(rates: dict[str, float], spread: float = 0.0, drift: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a record with one contestant in each row."""
    rows = [
        {
            "name": name, "elements_per_second": {"fpsim": rate, "peer": 1.0}, "spread": {"fpsim": spread, "peer": 9.0},
            "limit": {"bound": "memory", "share": rate / 10},
        }
        for name, rate in rates.items()
    ]  # fmt: skip
    machine = {"processor": "Zen", "date": "2026-01-01"}
    return {"machine": machine, "rows": rows, "drift": drift, "limits": {"read": 2.0}} | more


def test_rows_are_chosen_by_a_part_or_a_pattern() -> None:
    assert chosen("encode E4M3, up", "")
    assert chosen("encode E4M3, up", "e4m3")
    assert not chosen("encode E4M3, up", "decode")
    assert chosen("encode E4M3, up", "encode*up")
    assert not chosen("encode E4M3, up", "E4M3*")  # a pattern is of the whole name


def test_a_change_within_the_noise_is_not_called_one() -> None:
    old, new = record({"a": 1.0, "b": 1.0, "c": 1.0}, spread=0.1), record({"a": 1.1, "b": 2.0, "c": 0.5}, spread=0.1)
    assert [change.word for change in changes(old, new)] == ["same", "faster", "slower"]
    quiet = record({"a": 1.0}), record({"a": 1.1})
    assert [change.word for change in changes(*quiet)] == ["faster"]
    # a core whose own limits moved by half says nothing of a row that moved by a third
    assert [change.word for change in changes(record({"a": 1.0}), record({"a": 1.3}, drift=0.5))] == ["same"]
    # as much slower as faster
    assert [change.word for change in changes(quiet[1], quiet[0])] == ["slower"]


def test_records_from_before_spreads_were_kept_have_their_fastest_turn() -> None:
    old = record({"a": 1.0})
    del old["rows"][0]["spread"]
    old["rows"][0]["best_elements_per_second"] = {"fpsim": 1.5}
    assert changes(old, record({"a": 1.3}))[0].word == "same"


def test_the_text_names_changes_shares_limits_and_rows_of_one_record_only() -> None:
    said = text(record({"a": 1.0, "gone": 1.0, "calm": 1.0}), record({"a": 2.0, "new": 1.0, "calm": 1.0}))
    assert "limits of the core: read 1.00x" in said
    assert "2.00x faster (noise 3%), 10% -> 20% of the limit" in said
    assert "1 of 2 rows are the same within their noise." in said
    assert "Only in the old record: gone." in said
    assert "New: new." in said
    other = record({"a": 1.0}, machine={"processor": "Lake", "date": "2026-01-02"})
    assert "The processors differ (now Lake)" in text(record({"a": 1.0}), other)


def test_a_file_that_is_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match=r"x\.json must be a record that `make bench` wrote"):
        compare.read(tmp_path / "x.json")


def test_a_spread_is_the_middle_half_of_the_turns() -> None:
    assert spread([1.0, 2.0, 3.0]) == 1.0
    assert spread([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 50.0]) == 0.0


def test_contestants_run_in_turns_and_each_warms_up_first() -> None:
    done: list[str] = []
    result = race({"x": lambda: done.append("x"), "y": again(lambda: done.append("y"), 2)}, turns=3, seconds=60)
    assert done == ["x", "y", "y"] * 4
    assert result.turns == 3
    assert set(result.spreads) == {"x", "y"}


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the rows by two fake ones and the limits by fake ones; return the list of rows that ran."""
    ran: list[str] = []

    def rows(size: int) -> Iterator[RaceRow]:
        for name in ("encode", "decode"):
            works: dict[str, Work] = {"fpsim": lambda name=name: ran.append(name), "peer": lambda: None}  # type: ignore[misc]
            yield RaceRow(name, works, {"peer": 0.0})

    monkeypatch.setattr(main, "GROUPS", (main.RowGroup("Fakes:", rows, 1 << 10),))
    monkeypatch.setattr(main, "thread_count", lambda: 1)
    monkeypatch.setattr(main, "counts", lambda _: COUNTS)
    monkeypatch.setattr(main, "load", lambda _: None)
    monkeypatch.setattr(memory, "report", lambda: None)
    monkeypatch.setattr(limits, "measure", lambda: dict(LIMITS))
    return ran


def test_a_record_keeps_processor_limits_and_shares(
    two_rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    assert main.main(["--out", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert kept["machine"]["processor"]
    assert kept["limits"] == LIMITS
    assert kept["drift"] == 0
    assert set(two_rows) == {"encode", "decode"}
    encode, decode = kept["rows"]
    assert decode["limit"] is None
    least = 5 / 1e12  # seconds for five bytes
    assert encode["limit"] == {"bound": "memory", "share": encode["elements_per_second"]["fpsim"] * least}
    assert "% of memory" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("encode"))


def test_some_rows_run_alone_and_leave_the_record_of_all(
    two_rows: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main.main(["--rows", "enc*"])
    assert set(two_rows) == {"encode"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench-rows.json"]


def test_two_records_are_compared_without_a_run(
    two_rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(record({"a": 1.0})))
    new.write_text(json.dumps(record({"a": 3.0})))
    assert main.main(["--compare", str(old), "--with", str(new)]) == 0
    assert "3.00x faster" in capsys.readouterr().out
    assert not two_rows
    assert main.main(["--compare", str(old), "--out", str(new)]) == 0
    assert "Only in the old record: a." in capsys.readouterr().out
