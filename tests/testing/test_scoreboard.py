"""The page of other libraries' casts: what a row says, and what was not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks import scoreboard
from benchmarks.scoreboard import PeerCast, casts, checked, main, page
from tests.kit.processes import ROOT


def row(cast: PeerCast) -> str:
    """Return the row of one cast on a page."""
    return next(line for line in page([checked(cast)], {}, {}, "2026-01-01", "3").splitlines() if cast.call in line)


def test_a_right_cast_is_equal_and_a_wrong_one_has_its_cause() -> None:
    right = next(cast for cast in casts("ml_dtypes") if cast.fmt == "E4M3")
    assert row(right).endswith("| equal |")
    assert "| 0 of " in row(right)

    def through_fp16(x: Any) -> Any:
        return x.astype(np.float16).astype(ml_dtypes.float8_e4m3fn)

    wrong = right._replace(call="through_fp16(x)", fn=through_fp16)
    assert "it rounds to FP16 first" in row(wrong)
    assert "0x" in row(wrong)


@pytest.mark.parametrize("peer", ["torch", "torchao"])
def test_casts_by_torch_are_right_for_arrays_without_axes_and_only_promised_for_float32(peer: str) -> None:
    pytest.importorskip(peer)
    cast = next(cast for cast in casts(peer) if cast.fmt == "E4M3")
    assert row(cast).endswith("| equal |")


def test_the_command_writes_the_page_and_lists_what_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoreboard, "version", lambda name: "1.2" if name in ("ml_dtypes", "jax") else None)
    one = next(casts("ml_dtypes"))

    def moved() -> None:
        raise AttributeError("module 'jax.numpy' has no attribute 'float8_e4m3fn'")

    monkeypatch.setattr(scoreboard, "MAKERS", {"ml_dtypes": lambda: iter([one]), "jax": moved})
    main(["--out", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert "ml_dtypes 1.2" in text
    assert "1 of 1 casts do what they are meant to." in text
    assert "Not installed, and so not run: torch, numpy, gfloat, torchao, onnxruntime." in text
    assert "Not run: jax, AttributeError: module 'jax.numpy' has no attribute" in text


def test_the_page_in_the_docs_says_how_it_was_made() -> None:
    text = (ROOT / "docs" / "scoreboard.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    equal = sum(line.endswith("| equal |") for line in rows)
    assert f"{equal} of {len(rows)} casts do what they are meant to." in text
    assert "`make scoreboard` wrote this page on " in text
    assert {line.split(" | ")[0].strip("| ") for line in rows} <= set(scoreboard.PEERS)
