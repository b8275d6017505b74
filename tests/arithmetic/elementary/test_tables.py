"""Tables of exact results on disk: read back as they were made, and made again where a file is damaged or absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.arithmetic.elementary import entries, tables
from fpsim.arithmetic.operation import ELEMENTARY
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

TEN = fp.Format("ten", 4, 5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder in which tables are kept, with none in memory."""
    monkeypatch.setattr(tables, "base_folder", lambda: tmp_path)
    tables.exact_table.cache_clear()
    return tmp_path


def as_lists(table: tables.ExactTable) -> list[list[int]]:
    """Return the columns of a table."""
    return [table.significands.tolist(), table.fields.tolist(), table.states.tolist()]


def read_again(name: str) -> tables.ExactTable:
    """Return a table that is not in memory."""
    tables.exact_table.cache_clear()
    return tables.exact_table(name, TEN, "keep")


def test_a_table_is_read_back_as_it_was_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = as_lists(read_again("exp"))
    (file,) = folder.glob("*.table")
    assert file.name.startswith("arithmetic.elementary.exp-")
    monkeypatch.setattr(tables, "_computed", lambda name, fmt: pytest.fail("it is on the disk"))
    assert as_lists(read_again("exp")) == made


def test_a_damaged_or_short_file_is_replaced(folder: Path) -> None:
    made = as_lists(read_again("log"))
    (file,) = folder.glob("*.table")
    whole = file.read_bytes()
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:100], b""):
        file.write_bytes(content)
        assert as_lists(read_again("log")) == made
        assert file.read_bytes() == whole


def test_results_do_not_need_a_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = as_lists(read_again("sin"))
    for place in (None, Path("/dev/null/no/folder")):
        monkeypatch.setattr(tables, "base_folder", lambda place=place: place)
        assert as_lists(read_again("sin")) == made


def test_functions_and_formats_have_files_of_their_own(folder: Path) -> None:
    for name, fmt in (("exp", TEN), ("exp2", TEN), ("exp", fp.Format("eleven", 5, 5))):
        tables.exact_table(name, fmt, "keep")
    assert len(list(folder.glob("*.table"))) == 3


def test_flushed_operands_are_zeros_of_their_sign() -> None:
    kept, flushed = (tables.exact_table("rsqrt", fp.E5M2, word) for word in ("keep", "flush"))
    for code in range(256):
        magnitude = code & 0x7F
        source = code & 0x80 if 0 < magnitude < 4 else code
        assert flushed.significands[code] == kept.significands[source]
        assert flushed.states[code] == kept.states[source]


@in_turn("name", ELEMENTARY)
def test_flushed_operands_keep_a_sign_that_their_format_has_for_no_zero(name: str) -> None:
    words: Any = {"out_fmt": "fp16", "input_subnormals": "flush", "flags": True}
    codes, zeros = np.array([0x01, 0x81, 0x07, 0x87], np.uint8), np.array([0.0, -0.0, 0.0, -0.0], np.float16)
    got, raised = getattr(fp, name)(codes, fmt="e4m3fnuz", **words)
    want, wanted = getattr(fp, name)(zeros, flags=True)
    assert_bits_equal(got, want.view(np.uint16))
    assert_bits_equal(raised, wanted)


def test_entries_near_a_power_of_two_keep_what_is_below_it() -> None:
    below, above = entries.exact_result("sigmoid", 100.0), entries.exact_result("softplus", 64.0)
    assert (below.exponent, below.significand) == (-1, 2**62 - 1)
    assert (above.exponent, above.significand) == (6, 2**61 + 1)
    tiny = entries.exact_result("cos", 2.0**-100)
    assert (tiny.exponent, tiny.significand) == (-1, 2**62 - 1)
    assert entries.exact_result("exp", -1e38).exponent == -entries.FARTHEST
    assert np.log2(float(entries.exact_result("exp2", 12.0).significand)) == 61
