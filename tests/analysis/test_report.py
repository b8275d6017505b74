"""The page of a study is well formed, self-contained and safe with hostile names; files are complete or absent."""

from __future__ import annotations

import csv
import importlib.util
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.page import page
from fpsim.analysis.studies.report import StudyReport
from fpsim.files import replacing


def f32(*values: float) -> Any:
    """A float32 array."""
    return np.array(values, np.float32)


HOSTILE = "<script>alert(1)</script> $\\frac{a}{b}$ &amp; \"quoted\" 'x' \x1b[31m \x00 \u202e ü 层"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Every tag is closed in order, and no id occurs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data"):
                self.references.append(value or "")
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def small_study(names: tuple[str, ...] = ("a", "b")) -> StudyReport:
    x = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    return fp.analysis.study({name: x * np.float32(4.0**-i) for i, name in enumerate(names)})


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    return checker


def test_the_page_is_well_formed_and_refers_to_nothing_outside() -> None:
    pytest.importorskip("matplotlib")
    text = page(small_study(), ["errors.csv"])
    found = checked(text)
    assert len(found.ids) == len(set(found.ids))
    assert "svg" in found.seen
    assert not {"script", "link", "iframe", "img", "object"} & found.seen
    for reference in found.references:
        if reference != "errors.csv":
            assert reference.startswith("#"), reference
            assert reference[1:] in found.ids
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "name='viewport'" in text


def test_hostile_names_stay_text() -> None:
    pytest.importorskip("matplotlib")
    text = page(small_study((HOSTILE, "fine")), [])
    assert "script" not in checked(text).seen
    assert not set("\x1b\x00\u202e") & set(text)
    assert "&lt;script&gt;" in text


def test_the_page_says_what_it_is_based_on() -> None:
    text = page(small_study(), [])
    for words in ("SQNR at least 25 dB", "Seed 0", "E4M3: 8 bits", "numpy", "Underflow", "nearest even"):
        assert words in text
    assert text.index("Recommendation</h2>") < text.index("Every number</h2>") < text.index("Method</h2>")


def test_pictures_are_the_same_bytes_every_time() -> None:
    pytest.importorskip("matplotlib")
    report = small_study()
    assert page(report, []) == page(report, [])


def test_many_tensors_are_pictured_in_part_and_the_page_says_so() -> None:
    pytest.importorskip("matplotlib")
    x = np.ones(4, np.float32)
    report = fp.analysis.study({f"t{i}": x for i in range(50)}, formats=("E4M3",), roundings=("nearest_even",))
    text = page(report, [])
    assert "the 48 tensors that are hardest to store; 2 more" in text


def test_data_without_a_value_can_be_drawn() -> None:
    pytest.importorskip("matplotlib")
    tensors = {"zeros": np.zeros(3, np.float32), "none": np.zeros(0, np.float32), "nan": f32(np.nan, np.inf)}
    checked(page(fp.analysis.study(tensors), []))
    checked(page(fp.analysis.study(tensors, formats=("p3109_k6p3se", "E8M0", "FP64")), []))


def test_tables_hold_every_row(tmp_path: Path) -> None:
    report = small_study()
    files, _ = report.save(tmp_path)
    with (tmp_path / "errors.csv").open(encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == 2 * 5 * 2 * 2
    assert float(rows[0]["sqnr_db"]) == report.errors[0].report.sqnr_db
    with (tmp_path / "exponents.csv").open(encoding="utf-8") as opened:
        counts = sum(int(row["count"]) for row in csv.DictReader(opened))
    assert counts == 1000
    assert {file.name for file in files} == {file.name for file in tmp_path.iterdir()}
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "errors.parquet").to_pylist()
    assert [row["sqnr_db"] for row in table] == [float(row["sqnr_db"]) for row in rows]


def test_without_matplotlib_and_pyarrow_the_tables_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name in ("matplotlib", "pyarrow") else real(name))
    monkeypatch.setitem(sys.modules, "pandas", None)
    files, notes = small_study().save(tmp_path)
    assert not [file for file in files if file.suffix == ".parquet"]
    assert any("pip install pyarrow" in note for note in notes)
    assert "pip install &#x27;fpsim-numerics[plot]" in (tmp_path / "report.html").read_text() or any(
        "fpsim-numerics[plot]" in note for note in notes
    )


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path) as drafts:
            (drafts / path.name).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_tables_of_an_earlier_study_do_not_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = fp.analysis.study({"w": np.ones(8, np.float32)}, formats=["e4m3"], roundings=["nearest_even"])
    (tmp_path / "errors.parquet").write_text("of another study")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    files, notes = report.save(tmp_path)
    assert "Parquet tables need pyarrow: pip install pyarrow" in notes
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in files)
