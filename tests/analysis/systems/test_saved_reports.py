"""Files of reports on systems: whatever is missing in one is an error in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.scaling.file import save

X = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
REPORTS: dict[str, Callable[[], Any]] = {
    "collectives": lambda: fp.analysis.collectives.report(X, "bf16", permutations=0),
    "growth": lambda: fp.analysis.collectives.growth("bf16", ranks=(2, 4), size=64),
    "ledger": lambda: fp.analysis.ledger(1000, "FP16_MASTERS"),
    "accumulation": lambda: fp.analysis.accumulation(X),
    "underflow": lambda: fp.analysis.attention_underflow(),
    "caches": lambda: fp.analysis.kv_caches(X, X, 0 * X),
    "runs": lambda: fp.analysis.compare_runs({(1, "a", "b"): X}, {(1, "a", "b"): X[:2]}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_equals_itself_from_a_file_also_with_nan(name: str, tmp_path: Path) -> None:
    report = REPORTS[name]()
    report.save(tmp_path / "report.json")
    again = type(report).load(tmp_path / "report.json")
    assert again == report
    assert hash(again) == hash(report)


@pytest.mark.parametrize("name", REPORTS)
def test_a_file_without_one_of_its_parts_is_refused(name: str, tmp_path: Path) -> None:
    report, file = REPORTS[name](), tmp_path / "report.json"
    report.save(file)
    assert str(type(report).load(file)) == str(report)
    contents = json.loads(file.read_text())
    for part in contents:
        file.write_text(json.dumps({key: value for key, value in contents.items() if key != part}))
        with pytest.raises(ValueError, match=r"report\.json: wanted "):
            type(report).load(file)


def test_numbers_of_numpy_are_saved_as_those_of_python(tmp_path: Path) -> None:
    number: Any = np.int64(2)
    report = fp.analysis.collectives.report(X, "bf16", ["ring"], permutations=number)
    report.save(tmp_path / "report.json")
    assert type(report).load(tmp_path / "report.json") == report


def test_a_log_without_its_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.npz"
    save(path, {"t0": np.zeros(3, np.float32)}, {"kind": "tensor log", "keys": [[1, "a"]]})
    with pytest.raises(ValueError, match=r"log.npz: wanted a tensor log as save\(\) wrote it"):
        fp.analysis.TensorLog.load(path)
