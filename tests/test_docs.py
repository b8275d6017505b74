"""The examples of the docs run, and print what the pages say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.kit.processes import ROOT

PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if ">>>" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPSIM_NUM_THREADS", "1")  # a page prints the same, and starts the workers that it names alone
    results = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted > 2
    assert results.failed == 0


def test_links_and_paths_of_pages_exist() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(links) > 100
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []

    table = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("### Where would I change")[1].split("\n## ")[0]
    )
    paths = re.findall(r"`(\w+/[\w./]*)`", table)
    assert len(paths) > 20
    assert [path for path in paths if not any((folder / path).exists() for folder in (ROOT, ROOT / "fpsim"))] == []
