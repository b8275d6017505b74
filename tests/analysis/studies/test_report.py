"""The page of a study is well formed, self-contained and safe with hostile names; files are complete or absent."""

from __future__ import annotations

import csv
import functools
import html
import importlib.util
import math
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.page import page, recommendation_table
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.studies.summaries import candidate_summaries, folded, hardest, rounding_summaries
from fpsim.display.wording import printable


def f32(*values: float) -> Any:
    """Make a float32 array."""
    return np.array(values, np.float32)


NORMAL = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


needs_page = pytest.mark.skipif(importlib.util.find_spec("jinja2") is None, reason="jinja2 is not installed")


HOSTILE = (
    "<script>alert(1)</script> $\\frac{a}{b}$ &amp; \"quoted\" 'x' \x1b[31m \x00 \u202e {{7*7}} {% x %} </style> ü 层"
)


VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Every tag is closed in order; ids, references and the cells of every table are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.numbers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data"):
                self.references.append(value or "")
            if name == "data-value":
                self.numbers.append(value or "")
            assert not name.startswith("on"), f"{name} runs a script"
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag == "table":
            self.rows = self.tables.setdefault(dict(attrs).get("aria-label") or "", [])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.rows and self.rows[-1] and {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@functools.cache
def small_study(names: tuple[str, ...] = ("a", "b")) -> StudyReport:
    x = np.random.default_rng(0).standard_normal((25, 20)).astype(np.float32)
    return fp.analysis.study({name: x * np.float32(4.0**-i) for i, name in enumerate(names)})


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert not checker.open
    return checker


@functools.cache
def checkpoint() -> StudyReport:
    """Make a model of 200 tensors: 80 weights, and other tensors, with integers that are left out."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (0.05 * rng.standard_normal(shape)).astype(np.float32)

    tensors: dict[str, Any] = {}
    for i in range(40):
        block = f"backbone.stages.{i // 8}.blocks.{i % 8}"
        tensors[f"{block}.conv1.weight"] = normal(16, 4, 3, 3)
        tensors[f"{block}.proj.weight"] = normal(16, 32)
        tensors[f"{block}.proj.bias"] = normal(16)
        tensors[f"{block}.bn.running_var"] = np.abs(normal(16))
        tensors[f"{block}.bn.num_batches_tracked"] = np.array(1000)
    tensors["backbone.stages.0.blocks.0.proj.weight"][3, 4] = np.nan
    tensors["backbone.stages.0.blocks.1.proj.weight"] = normal(16, 32) * np.float32(10) ** rng.uniform(-25, 5, (16, 32))
    return fp.analysis.study(tensors)


@functools.cache
def page_of(study: Callable[[], StudyReport]) -> str:
    """Its page, which most tests only read; those that ask what a page is made of make one anew."""
    return page(study(), ["errors.csv"])


@needs_page
def test_the_page_is_well_formed_and_refers_to_nothing_outside() -> None:
    pytest.importorskip("matplotlib")
    text = page_of(small_study)
    shown_page = checked(text)
    assert len(shown_page.ids) == len(set(shown_page.ids))
    assert "svg" in shown_page.seen
    assert shown_page.seen["script"] == 1  # the page's own lines, which it works without
    assert not {"link", "iframe", "img", "object", "form"} & shown_page.seen.keys()
    for reference in shown_page.references:
        if reference != "errors.csv":
            assert reference.startswith("#"), reference
            assert reference[1:] in shown_page.ids
    addresses = set(re.findall(r"https?://[^\s\"'<>]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert 'name="viewport"' in text
    assert "default-src 'none'" in text


@needs_page
def test_hostile_names_stay_text() -> None:
    pytest.importorskip("matplotlib")
    report = small_study((HOSTILE, "fine"))
    text = page(report, [])
    shown_page = checked(text)
    assert (
        shown_page.seen["script"] == shown_page.seen["style"] - shown_page.seen["svg"] == 1
    )  # matplotlib has a style in each figure
    assert not set("\x1b\x00\u202e") & set(text)
    assert "&lt;script&gt;" in text
    assert "{{7*7}}" in text
    assert [row[0] for row in shown_page.tables["Every tensor"][1:]].count(printable(HOSTILE)) == 1
    assert HOSTILE.partition(" ")[0] not in recommendation_table(report)


@needs_page
def test_the_page_answers_first_and_says_what_that_is_based_on() -> None:
    pytest.importorskip("matplotlib")
    report, text = small_study(), page_of(small_study)
    for words in ("an SQNR of at least 25 dB", "the seed (0)", "E4M3: 8 bits", "numpy", "Lost energy", "nearest even"):
        assert words in text
    order = ["<h1>", 'id="candidates"', 'id="exceptions"', 'id="groups"', 'id="roundings"', ">Method<"]
    assert [text.count(word) for word in order] == [1] * len(order)
    assert sorted(order, key=text.index) == order
    assert html.escape(report.answer) in text


@needs_page
def test_pictures_are_the_same_bytes_every_time() -> None:
    pytest.importorskip("matplotlib")
    assert page(small_study(), ["errors.csv"]) == page_of(small_study)


@needs_page
def test_200_tensors_fold_to_a_few_rows_and_one_picture() -> None:
    pytest.importorskip("matplotlib")
    report, text = checkpoint(), page_of(checkpoint)
    shown_page = checked(text)
    groups = shown_page.tables["Groups"][1:]
    assert len(report.recommendations) == 160
    assert len(groups) == len(report.groups) < 10
    assert sum(int(row[0].split()[0]) for row in groups) == 160
    assert len(shown_page.tables["Exceptions"]) - 1 <= 12
    assert len(shown_page.tables["Every tensor"]) - 1 == 160
    assert "40 tensors left out: each holds int64 and not floats (num_batches_tracked)" in text
    assert text.count("<figure>") == 1 + 2 + 1  # weights; gain and noise; ranges
    assert len(text) < 600_000
    assert shown_height(text) < 5 * 900


def shown_height(text: str) -> int:
    """About how many pixels high a page is at 1280 wide while its details are closed."""
    from fpsim.analysis.studies.figures import BOTTOM, ROW, TOP

    closed = text[: text.index('<div class="fold">')]
    closed = re.sub(r"</summary>.*?</details>", "</summary>", closed, flags=re.S)
    lines = sum(2 if "long" in row else 1 for row in re.findall(r"<tr.*?</tr>", closed, flags=re.S))
    figures = len(re.findall("<figure>", closed))
    return 300 + 75 * lines + figures * int(144 * (14 * ROW + TOP + BOTTOM))


@needs_page
def test_exceptions_are_what_no_candidate_suits_and_nan() -> None:
    report = checkpoint()
    rows = checked(page_of(checkpoint)).tables["Exceptions"][1:]
    assert {row[0].rpartition(".blocks.")[2]: row[1] for row in rows} == {
        "0.proj.weight": "1 NaN",
        **{
            one.tensor.rpartition(".blocks.")[2]: "no candidate is good enough"
            for one in report.recommendations
            if one.operand and not one.met
        },
    }


@needs_page
def test_numbers_can_be_sorted_and_names_are_whole_without_a_script() -> None:
    text = page_of(checkpoint)
    shown_page = checked(text)
    assert 'data-kind="number"' in text
    assert 'class="sortable filtered"' in text
    assert len(shown_page.numbers) > 160 * 8
    assert all(math.isnan(float(value)) or value for value in shown_page.numbers)
    assert "backbone.stages.4.blocks.7.conv1.weight" in {row[0] for row in shown_page.tables["Every tensor"]}


@needs_page
def test_figures_and_text_follow_the_page_into_the_dark() -> None:
    pytest.importorskip("matplotlib")
    text = page_of(small_study)
    light, dark = (set(re.findall(r"--([a-z0-9-]+):", part)) for part in text.partition("prefers-color-scheme")[::2])
    used = set(re.findall(r"var\(--([a-z0-9-]+)", text))
    assert used <= light
    assert used - dark == set()
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.S))
    assert "var(--ink, #222222)" in figures
    assert not re.findall(r"(?:fill|stroke): (?:#000000|#222222|black)", figures)


@needs_page
def test_data_without_a_value_has_a_page() -> None:
    pytest.importorskip("matplotlib")
    tensors = {"zeros": np.zeros((3, 3), np.float32), "none": np.zeros(0, np.float32), "nan": f32(np.nan, np.inf)}
    checked(page(fp.analysis.study(tensors), []))
    checked(page(fp.analysis.study(tensors, formats=("p3109_k6p3se", "E8M0", "FP64"), scalings=[None]), []))
    checked(page(fp.analysis.study({"w": f32(1, 2)}, formats="e4m3", roundings="nearest_even"), []))


@needs_page
def test_steps_are_told_with_the_worst_and_how_amax_moves() -> None:
    x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    steps = [fp.analysis.tensor("w", x * np.float32(2.0**-i), step=i, role="matrix") for i in (1, 3)]
    text = page(fp.analysis.study(steps), [])
    row = checked(text).tables["Steps"][1]
    assert row[:2] == ["w", "4×"]
    assert row[2].count(",") == row[3].count(",") == 1
    assert "moves by up to 4 times" in text


def test_a_notebook_shows_the_answer_and_the_groups() -> None:
    report = small_study()
    text = report._repr_html_()
    checked(text)
    assert html.escape(report.answer) in text
    assert report.groups[0].title in text


def test_notes_of_one_kind_are_one_line() -> None:
    notes = [f"m.safetensors: layer{i}.{name} left out, it holds I64" for i in range(3) for name in "abcd"]
    assert folded([*notes, "x left out, it is empty", "read by halves", "read by halves"]) == [
        "12 tensors left out: each holds I64 (a, b, c and 1 more)",
        "x left out, it is empty",
        "read by halves",
    ]


def test_candidates_add_up_over_operands() -> None:
    report = checkpoint()
    summaries = candidate_summaries(report)
    assert len(summaries) == len(report.candidates)
    assert [one.bits for one in summaries] == sorted(one.bits for one in summaries)
    met = [row for row in report.recommendations if row.met]
    assert sum(one.chosen for one in summaries) == len(met)
    first = summaries[0]
    noise = sum(one.row.values * 10 ** (-one.worst.sqnr_db / 10) for one in first.judged) / first.values
    assert first.sqnr_db == pytest.approx(-10 * math.log10(noise))
    assert first.lowest_db <= first.sqnr_db
    for one in summaries:
        for candidate in one.judged:
            assert candidate.good or not candidate.chosen


def test_hardest_are_what_nothing_suits_then_the_largest_deficit() -> None:
    rows = hardest(checkpoint())
    assert [row.met for row in rows] == sorted(row.met for row in rows)
    deficits = [0.0 if math.isnan(row.deficit_db) else row.deficit_db for row in rows if row.met]
    assert deficits == sorted(deficits, reverse=True)


def test_truncation_shrinks_and_nearest_does_not() -> None:
    gains = {
        (row.format, row.rounding): row.median_gain for row in rounding_summaries(fp.analysis.study({"w": NORMAL}))
    }
    assert gains["E4M3", "toward_zero"] == pytest.approx(0.956, abs=0.003)
    assert gains["E4M3", "nearest_even"] == pytest.approx(1, abs=0.003)
    assert gains["E4M3", "stochastic"] == pytest.approx(1, abs=0.003)
    assert gains["BF16", "toward_zero"] == pytest.approx(0.9972, abs=0.0003)


def test_tables_hold_every_row(tmp_path: Path) -> None:
    report = small_study()
    files, _ = report.save(tmp_path)
    with (tmp_path / "errors.csv").open(encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert (
        len(rows)
        == len(report.errors)
        == 2 * (2 * 3 + 3 + 9)  # two formats in three roundings, three casts more, nine tiles
    )  # three roundings of four formats, E4M3 without a scale, nine with tiles
    assert {row["tiles"] == "" for row in rows} == {True, False}
    assert float(rows[0]["sqnr_db"]) == report.errors[0].report.sqnr_db
    with (tmp_path / "exponents.csv").open(encoding="utf-8") as opened:
        counts = sum(int(row["count"]) for row in csv.DictReader(opened))
    assert counts == 1000
    assert {file.name for file in files} == {file.name for file in tmp_path.iterdir()}
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "errors.parquet").to_pylist()
    assert [row["sqnr_db"] for row in table] == [float(row["sqnr_db"]) for row in rows]


@pytest.mark.parametrize("absent", ["matplotlib", "jinja2", "pyarrow"])
def test_without_a_package_the_rest_is_there_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    pytest.importorskip("pyarrow").array([1])  # which looks for pandas once, and cannot read what stands for none below
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else real(name))
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "report.html").write_text("of an earlier study")
    files, notes = small_study().save(tmp_path)
    assert {file.name for file in files} == {file.name for file in tmp_path.iterdir()}
    assert tmp_path / "errors.csv" in files
    assert (tmp_path / "report.html" in files) == (absent != "jinja2")
    assert (tmp_path / "errors.parquet" in files) == (absent != "pyarrow")
    (note,) = [note for note in notes if absent in note]
    assert note.endswith(
        "pip install pyarrow" if absent == "pyarrow" else "pip install -e '.[plot]' in the checkout of fpsim"
    )
    if absent == "matplotlib":
        text = (tmp_path / "report.html").read_text()
        assert "<svg" not in text
        assert html.escape(note, quote=False) in html.unescape(text)


def test_a_page_without_jinja2_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        ImportError, match=r"a page needs jinja2, which is not installed: pip install -e '\.\[plot\]' in"
    ):
        page(small_study(), [])


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
