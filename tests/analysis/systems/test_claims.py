"""Every claim's experiment gives the figures that its verdict rests on; the table is resumable and complete."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fpsim as fp
from fpsim.analysis.systems.claims import claims as running
from fpsim.analysis.systems.claims.catalogue import CLAIMS, THEMES
from fpsim.analysis.systems.claims.claim import OPEN, RIGHT, UNSETTLED, Claim, holds
from fpsim.analysis.systems.claims.report import ClaimResult, ClaimsReport
from fpsim.analysis.systems.claims.themes.published import _compensated_sum
from tests.kit.processes import ROOT

SLOW = {  # train a model
    "backward-precision", "bf16-against-fp16", "error-monitors", "kept-layers", "learning-rate",
    "no-loss-scaling-in-v3", "nvfp4-forward", "one-fp8-format", "switching-precision",
}  # fmt: skip
EXPERIMENTS = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
    for name, claim in CLAIMS.items()
    if claim.experiment
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_figures_of_a_claim_are_the_expected_ones(name: str) -> None:
    row = fp.analysis.claims(name)[name]
    assert row.error == ""
    assert row.figures.keys() == CLAIMS[name].expected.keys()
    assert [(figure, row.figures[figure]) for figure in row.differing] == []


def test_every_row_of_the_facts_is_listed_once() -> None:
    numbers = [claim.number for rows in THEMES.values() for claim in rows]
    articles = [str(number) for number in range(1, 105)]
    assert sorted(numbers) == sorted([*articles, *(f"P{i}" for i in range(1, 16)), *(f"R{i}" for i in range(1, 9))])
    assert len(CLAIMS) == len(numbers)


def test_a_verdict_without_figures_is_of_a_document_or_open() -> None:
    for claim in CLAIMS.values():
        assert claim.experiment or claim.kind == "document" or claim.verdict in (UNSETTLED, OPEN), claim.name
        assert claim.reason.endswith("."), claim.name
        assert claim.source, claim.name


def _claim(figures: dict[str, Any], expected: dict[str, Any]) -> Claim:
    return Claim("0", "mine", "c", "s", "u", RIGHT, "It is.", experiment=lambda: figures, expected=expected)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [({"x": 1.5}, {"x": (0.0, 1.0)}), ({}, {"x": 1.0}), ({"x": 1.0, "y": 1.0}, {"x": 1.0}),
     ({"x": float("nan")}, {"x": (0.0, 1.0)}), ({"x": "no"}, {"x": (0.0, 1.0)})],
)  # fmt: skip
def test_a_figure_that_is_not_expected_takes_the_verdict_away(figures: Any, expected: Any) -> None:
    row = ClaimResult(_claim(figures, expected), figures)
    assert row.verdict == "differs here"
    assert "expected" in row.reason
    assert not ClaimsReport((row,)).ok


def test_a_figure_that_is_expected_keeps_the_verdict() -> None:
    assert holds(1.0, (0.5, 1.0))
    row = ClaimResult(_claim({"x": 1.0}, {"x": 1.0}), {"x": 1.0})
    assert (row.verdict, row.reason) == (RIGHT, "It is.")


def test_a_verdict_needs_an_experiment() -> None:
    with pytest.raises(ValueError, match="must have an experiment"):
        Claim("0", "mine", "c", "s", "u", RIGHT, "r")
    with pytest.raises(ValueError, match="come together"):
        Claim("0", "mine", "c", "s", "u", UNSETTLED, "r", expected={"x": 1})
    with pytest.raises(ValueError, match="verdict must be one of"):
        Claim("0", "mine", "c", "s", "u", "true", "r")


def test_finished_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fp.analysis.claims(["fp8-table", "bf16-range"], out=tmp_path)
    ran: list[str] = []
    figures = running._figures

    def counted(name: str) -> dict[str, Any]:
        ran.append(name)
        return figures(name)

    monkeypatch.setattr(running, "_figures", counted)
    second = fp.analysis.claims(["fp8-table", "bf16-range", "bytes-by-format"], out=tmp_path)
    assert ran == ["bytes-by-format"]
    assert second["fp8-table"].figures == first["fp8-table"].figures
    assert second["fp8-table"].seconds == first["fp8-table"].seconds


def test_a_row_that_failed_says_so_and_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, Any]:
        raise ArithmeticError("no figures today")

    working = CLAIMS["fp8-table"]
    monkeypatch.setitem(CLAIMS, "fp8-table", dataclasses.replace(working, experiment=fail))
    row = fp.analysis.claims("fp8-table", out=tmp_path)["fp8-table"]
    assert (row.verdict, row.reason) == ("failed", "ArithmeticError: no figures today")
    monkeypatch.setitem(CLAIMS, "fp8-table", working)
    assert fp.analysis.claims("fp8-table", out=tmp_path).ok


def test_claims_by_number_and_in_the_order_of_the_catalogue() -> None:
    report = fp.analysis.claims([12, "2", "BF16-RANGE", "fp8-table"])
    assert [row.name for row in report] == ["bf16-range", "fp8-table", "tensor-core-peaks"]
    assert report[12] is report["tensor-core-peaks"]
    with pytest.raises(ValueError, match="does not have the claim"):
        report["fp16-range"]


@pytest.mark.parametrize(
    ("word", "error", "words"),
    [("fp16-rnge", ValueError, r"that `fpsim claims --list` lists.*got 'fp16-rnge'. Did you mean 'fp16-range'\?"),
     (900, ValueError, "got 900"), (1.5, TypeError, "only must be names or numbers"), ([], ValueError, "at least one"),
     ([None], TypeError, "a claim must be a name or a number"), (True, TypeError, "a claim must be")],
)  # fmt: skip
def test_bad_names_are_refused(word: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fp.analysis.claims(word)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    fp.analysis.sweep(lambda x: x, {"x": [1.0]}, out=tmp_path, workers=1)
    with pytest.raises(ValueError, match="out must be a new folder or the folder of a run of claims"):
        fp.analysis.claims("fp8-table", out=tmp_path)


@pytest.mark.parametrize(("workers", "error"), [(0, ValueError), ("2", TypeError), (True, TypeError)])
def test_bad_workers_are_refused_for_a_single_claim_too(workers: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="workers must be an integer"):
        fp.analysis.claims("fp8-table", workers=workers)


def test_a_page_without_a_folder_is_refused_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fpsim.cli.main import main

    page = tmp_path / "none" / "page.md"
    with pytest.raises(SystemExit) as end:
        main(["claims", "--only", "12", "--out", str(tmp_path / "out"), "--page", str(page)])
    assert end.value.code == 2
    assert "fpsim: --page must be a file in a folder that exists" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_is_saved_and_read(tmp_path: Path) -> None:
    report = fp.analysis.claims(["fp8-table", "fp32-latency"])
    assert ClaimsReport.load(report.save(tmp_path / "claims.json")) == report
    (tmp_path / "other.json").write_text('{"claims": 1, "rows": [{"name": "none such"}]}')
    with pytest.raises(ValueError, match=r"must be a file that ClaimsReport\.save of this version wrote"):
        ClaimsReport.load(tmp_path / "other.json")


def test_a_report_as_table_frame_and_page() -> None:
    pytest.importorskip("pandas")
    report = fp.analysis.claims(["fp8-table", "fp32-latency"])
    assert "E4M3 largest: 448" in str(report)
    assert report.to_frame()["verdict"].tolist() == ["right", "cannot be settled here"]
    assert "| 6 | fp8-table |" in report.to_markdown()
    assert "fp8-table" in report._repr_html_()
    assert report.counts == {"right": 1, "cannot be settled here": 1}


def test_the_page_of_the_docs_lists_every_claim() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    lines = {line.split(" | ")[1]: line for line in page.splitlines() if line.startswith("| ") and " | " in line}
    for claim in CLAIMS.values():
        line = lines[claim.name]
        assert line.startswith(f"| {claim.number} | {claim.name} | {claim.claim} | {claim.source} |"), claim.name
        assert line.endswith(f"| {claim.verdict} | {claim.reason} |"), claim.name


def test_the_command(tmp_path: Path) -> None:
    from fpsim.cli.commands import app

    page = tmp_path / "page.md"
    done = CliRunner().invoke(
        app,
        [
            "claims",
            "--only",
            "fp8-table",
            "--only",
            "12",
            "--out",
            str(tmp_path),
            "--page",
            str(page),
            "--workers",
            "1",
        ],
    )
    assert done.exit_code == 0, done.output
    assert "2 claims: 2 right" in done.output
    assert "| 12 | tensor-core-peaks |" in page.read_text()
    listed = CliRunner().invoke(app, ["claims", "--list"])
    assert "fp16-range" in listed.output


def test_the_command_ends_with_1_where_a_figure_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.cli.commands import app

    other = dataclasses.replace(CLAIMS["bytes-by-format"], expected={"bytes in FP32": 5.0})
    monkeypatch.setitem(CLAIMS, "bytes-by-format", other)
    done = CliRunner().invoke(app, ["claims", "--only", "bytes-by-format", "--out", str(tmp_path), "--workers", "1"])
    assert done.exit_code == 1
    assert "differs here" in done.output


def test_reports_can_be_pickled() -> None:
    report = fp.analysis.claims(["fp8-table", np.int64(12)])  # type: ignore[list-item]
    assert pickle.loads(pickle.dumps(report)) == report
    assert copy.deepcopy(report) == report


def test_the_sum_of_python_3_12_is_that_of_the_interpreter() -> None:
    values = [1e-10, 1e-5, 1e-2, 1, -1e-10, -1e-5, -1e-2, -1]
    assert _compensated_sum([0.1] * 10) == 1.0
    assert _compensated_sum([1, 1e-10, -0.01, 0.01, 1e-05, -1e-05, -1e-10, -1]) == 8.274037096265818e-18
    if (3, 12) <= sys.version_info[:2] <= (3, 13):
        shuffled = [random.Random(seed).sample(values, 8) for seed in range(200)]
        assert [_compensated_sum(row) for row in shuffled] == [sum(row) for row in shuffled]
