"""The page of a study is well formed, self-contained and safe with hostile names; files are complete or absent."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim import files
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
    assert "pip install -e &#x27;.[plot]" in (tmp_path / "report.html").read_text() or any(
        "pip install -e '.[plot]' in the checkout" in note for note in notes
    )


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path, [path.name]) as drafts:
            (drafts / path.name).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


NAMES = ("a.csv", "b.csv", "report.html")


def save_study(folder: Path, text: str, names: tuple[str, ...] = NAMES) -> None:
    """Files that all hold the same text."""
    with replacing(folder, (*NAMES, "old.parquet")) as drafts:
        for name in names:
            (drafts / name).write_text(text)


def study_in(folder: Path) -> str:
    """The text of a study's files, which must be one and the same, beside files of somebody else."""
    assert sorted(file.name for file in folder.iterdir() if not file.name.startswith(".")) == sorted((*NAMES, *OTHERS))
    assert (folder / "notes" / "n.txt").read_text() == "notes"
    texts = {(folder / name).read_text() for name in NAMES}
    assert len(texts) == 1
    return texts.pop()


OTHERS = ("mine.txt", "notes")


def folder_of_a_study(parent: Path) -> Path:
    """A study with files of somebody else beside it."""
    folder = parent / "study"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "n.txt").write_text("notes")
    (folder / "mine.txt").write_text("mine")
    save_study(folder, "old")
    return folder


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("failing", range(12))
def test_a_rename_that_fails_leaves_the_old_study_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, exchanges: bool
) -> None:
    folder = folder_of_a_study(tmp_path)
    calls = []

    def fragile(real: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            calls.append(real.__name__)
            if len(calls) == failing + 1:
                raise OSError(5, "Input/output error")
            return real(*arguments, **keywords)

        return run

    def cannot(*paths: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(files, "exchange", fragile(files.exchange) if exchanges else cannot)
    monkeypatch.setattr(os, "rename", fragile(os.rename))
    monkeypatch.setattr(os, "link", fragile(os.link))
    failed = False
    try:
        save_study(folder, "new")
    except OSError:
        failed = True
    monkeypatch.undo()
    exchanged = "exchange" in calls and calls.index("exchange") != failing
    assert study_in(folder) == ("old" if failed and not exchanged else "new")
    # where a link or the exchange fails, there is another way
    assert failed == (failing < len(calls) and calls[failing] == "rename")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="exchanging folders is POSIX")
def test_a_killed_process_leaves_the_old_study_or_the_new_one(tmp_path: Path) -> None:
    folder = folder_of_a_study(tmp_path)
    program = (
        "import sys, pathlib; from tests.analysis.test_report import save_study\n"
        "folder, i = pathlib.Path(sys.argv[1]), 0\n"
        "print('ready', flush=True)\n"
        "while True:\n    save_study(folder, f'study {i}'); i += 1\n"
    )
    rng = np.random.default_rng(0)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.02 + 0.05 * rng.random())
            process.kill()
        left = next(tmp_path.glob(".study-writing-*/new/notes"), None)
        if left is not None:  # killed after the exchange; a later study brings it back
            left.rename(folder / "notes")
        assert study_in(folder).startswith(("old", "study "))


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    folder = folder_of_a_study(tmp_path)
    (folder / "notes").rename(tmp_path / "notes")
    for age, name in ((100, "young"), (90_000, "old")):
        for place in (tmp_path / f".study-writing-{name}", folder / f".writing-{name}"):
            (place / "new").mkdir(parents=True)
            (place / "new" / "a.csv").write_text("half")
            if place.parent == tmp_path and name == "old":
                (tmp_path / "notes").rename(place / "new" / "notes")
            os.utime(place, (time.time() - age,) * 2)
    save_study(folder, "new")
    assert study_in(folder) == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".study-writing-young", "study"]
    assert [path.name for path in folder.glob(".*")] == [".writing-young"]


def test_files_of_one_writer_are_swept_too(tmp_path: Path) -> None:
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / ".bench.txt-abcdefgh").write_text("half")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    files.write_whole(tmp_path / "bench.txt", "whole")
    fp.encode_scaled(f32(1, 2), "e4m3", fp.scalings.TENSOR).save(tmp_path / "q.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.txt", "q.npz"]


@pytest.mark.parametrize("where", ["inside", "link"])
def test_a_study_replaces_one_where_the_process_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = folder_of_a_study(tmp_path)
    (folder / "old.parquet").write_text("of an earlier study")
    if where == "inside":
        monkeypatch.chdir(folder)
        save_study(Path(), "new")
        assert (Path() / "a.csv").read_text() == "new"
    else:
        (tmp_path / "link").symlink_to(folder)
        save_study(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
    assert study_in(folder) == "new"


def test_half_surrogates_and_formulas_in_names_are_text(tmp_path: Path) -> None:
    names = ("\ud800w", "=HYPERLINK(1)", "+1", "-3", "@a", "\t=1", "w=1")
    x = f32(-1, -2)
    report = fp.analysis.study(dict.fromkeys(names, x), formats=("E4M3",), roundings=("nearest_even",))
    report.save(tmp_path)
    with (tmp_path / "errors.csv").open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    wanted = ["\\ud800w", "'=HYPERLINK(1)", "'+1", "'-3", "'@a", "'\t=1", "w=1"]
    assert list(dict.fromkeys(row["tensor"] for row in rows)) == wanted
    with (tmp_path / "exponents.csv").open(encoding="utf-8", newline="") as opened:
        assert {row["exponent"] for row in csv.DictReader(opened)} == {"0", "1"}
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "errors.parquet").to_pylist()
    assert list(dict.fromkeys(row["tensor"] for row in table)) == ["\\ud800w", *names[1:]]


def test_negative_numbers_of_tables_stay_numbers(tmp_path: Path) -> None:
    fp.analysis.study({"w": f32(0.25, 0.3)}, formats=("E4M3",), roundings=("nearest_even",)).save(tmp_path)
    with (tmp_path / "exponents.csv").open(encoding="utf-8", newline="") as opened:
        assert {row["exponent"] for row in csv.DictReader(opened)} == {"-2"}


def test_tables_of_an_earlier_study_do_not_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = fp.analysis.study({"w": np.ones(8, np.float32)}, formats=["e4m3"], roundings=["nearest_even"])
    (tmp_path / "errors.parquet").write_text("of another study")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    files, notes = report.save(tmp_path)
    assert "Parquet tables need pyarrow: pip install pyarrow" in notes
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in files)
