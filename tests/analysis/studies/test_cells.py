"""Cells of sweeps: the file that keeps them, whatever is cut off or damaged, and what they are known by."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.cells import Cells, SweepCell
from fpsim.analysis.studies.identity import label, name_of, source_of, words
from fpsim.formats.rounding import Rounding
from tests.analysis.studies.counted import CELLS, product
from tests.analysis.studies.test_sweep import MX
from tests.kit.processes import python

pytest.importorskip("joblib", reason="several workers need joblib")
pytest.importorskip("pandas", reason="a sweep gives a data frame")


# ---- the file

SIGNALLING, QUIET = (struct.unpack(">d", bytes.fromhex(bits))[0] for bits in ("fff0000000000001", "7ff8000000000abc"))
VALUES: dict[str, Any] = {
    "tenth": 0.1, "tiny": 5e-324, "zero": -0.0, "infinite": -math.inf, "quiet": QUIET, "signalling": SIGNALLING,
    "none": None, "true": True, "one": 1, "real": 1.0, "large": 3**100, "text": '=1+1,"\n', "half": "\ud800",
    "empty": "",
}  # fmt: skip


def bits(value: Any) -> Any:
    """Return a value and its type, a float by its bits."""
    return type(value), struct.pack(">d", value) if isinstance(value, float) else value


def filled(folder: Path) -> bytes:
    """Return a file of three cells."""
    fp.analysis.sweep(product, {"a": [1, 2, 3], "b": [0.1]}, out=folder, workers=1)
    return (folder / CELLS).read_bytes()


def test_a_torn_last_line_costs_its_cell_alone(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    start = whole.rindex(b"\n", 0, -1) + 1
    done: list[tuple[float, str]] = []
    for end in range(start, len(whole)):
        (tmp_path / CELLS).write_bytes(whole[:end])
        fp.analysis.sweep(
            product, {"a": [1, 2, 3], "b": [0.1]}, out=tmp_path, workers=1, progress=lambda *now: done.append(now)
        )
        assert done == [(1.0, "3 of 3")]
        done.clear()
        assert (tmp_path / CELLS).read_bytes() == whole


@pytest.mark.parametrize("left", [b"", b'{"crc":"0'])
def test_a_sweep_that_ended_before_its_first_line_begins_anew(tmp_path: Path, left: bytes) -> None:
    (tmp_path / CELLS).write_bytes(left)
    assert filled(tmp_path).count(b"\n") == 4


def test_a_file_of_something_else_without_a_line_is_kept(tmp_path: Path) -> None:
    """A file that ended in its first line was emptied, whatever it held."""
    (tmp_path / CELLS).write_text('{"notes": "of another program"}')
    with pytest.raises(ValueError, match="does not begin like that of a sweep"):
        fp.analysis.sweep(product, {"a": [1], "b": [0.1]}, out=tmp_path, workers=1)
    assert (tmp_path / CELLS).read_text() == '{"notes": "of another program"}'


def test_damage_anywhere_costs_one_cell_or_is_refused(tmp_path: Path) -> None:
    whole = filled(tmp_path)
    header = whole.index(b"\n") + 1
    for i in range(0, len(whole), 7):
        (tmp_path / CELLS).write_bytes(whole[:i] + bytes([whole[i] ^ 0x11]) + whole[i + 1 :])
        if i < header:
            with pytest.raises(ValueError, match="does not begin like that of a sweep"):
                filled(tmp_path)
            continue
        filled(tmp_path)
        with Cells(tmp_path, name_of(product), source_of(product), ["a", "b"]) as cells:
            assert [cell.result is not None for cell in cells.finished.values()] == [True] * 3


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with Cells(tmp_path, "f", "0", ["a"]) as cells, pytest.raises(ValueError, match="to which one writes at the"):
        Cells(cells.folder, "f", "0", ["a"])
    Cells(tmp_path, "f", "0", ["a"]).close()


def test_the_last_line_of_a_cell_counts(tmp_path: Path) -> None:
    with Cells(tmp_path, "f", "0", ["a"]) as cells:
        cells.add(SweepCell("k", {"a": "1"}, None, "ValueError: no"))
        cells.add(SweepCell("k", {"a": "1"}, {"value": 2}))
    with Cells(tmp_path, "f", "0", ["a"]) as cells:
        assert cells.finished == {"k": SweepCell("k", {"a": "1"}, {"value": 2})}


def test_cells_of_something_else_are_not_mixed_in(tmp_path: Path) -> None:
    def of(n: int) -> Callable[..., int]:
        def measure(a: int) -> int:
            return a + n

        return measure

    fp.analysis.sweep(of(1), {"a": [1]}, out=tmp_path, workers=1)
    fp.analysis.sweep(of(1), {"a": [2]}, out=tmp_path, workers=1)
    with pytest.raises(ValueError, match=r"another version, with other code or other captured values\. Name another"):
        fp.analysis.sweep(of(2), {"a": [1]}, out=tmp_path, workers=1)
    with pytest.raises(
        ValueError, match=r"out must be a folder of results of .*counted\.product; got .*measure\. Name another"
    ):
        fp.analysis.sweep(product, {"a": [1], "b": [2]}, out=tmp_path, workers=1)
    fp.analysis.sweep(dict, {"a": [1]}, out=tmp_path / "dict", workers=1)
    with pytest.raises(ValueError, match=r"parameters a, b; got .*, whose parameters are a\. Name another folder"):
        fp.analysis.sweep(dict, {"a": [1], "b": [2]}, out=tmp_path / "dict", workers=1)


def test_a_table_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sweep.parquet").write_text("mine")
    with pytest.raises(ValueError, match=r"which holds sweep\.parquet and no cells\.jsonl\. Name another folder"):
        filled(tmp_path)
    assert (tmp_path / "sweep.parquet").read_text() == "mine"


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_back_from_the_file_with_every_bit(tmp_path: Path, workers: int) -> None:
    def measure(which: int) -> dict[str, Any]:
        return VALUES

    fp.analysis.sweep(measure, {"which": [1, 2]}, out=tmp_path, workers=workers)
    with Cells(tmp_path, name_of(measure), source_of(measure), ["which"]) as cells:
        assert len(cells.finished) == 2
        for cell in cells.finished.values():
            assert cell.result is not None
            assert {name: bits(value) for name, value in cell.result.items()} == {n: bits(v) for n, v in VALUES.items()}


# ---- what they are known by


def test_words_tell_values_apart_and_are_the_same_in_every_process() -> None:
    mine = fp.Format("mine", 3, 2)
    values = [
        1, 1.0, True, "1", None, (1,), [1], np.float32(0.1), 0.1, -0.0, 0.0, fp.E4M3, mine, fp.Format("mine", 2, 3),
        fp.INT8, MX, dataclasses.replace(MX, infinity="one"), fp.Chunked(fp.BF16), fp.Chunked(mine), np.sum, product,
        fp.unit("hopper_e4m3_f32"), fp.schedules.cublas("sm_90"), Rounding.UP, np.dtype("float32"), Path("x"),
    ]  # fmt: skip
    texts = [words(value) for value in values]
    assert len(set(texts)) == len(values)
    script = """
    import fpsim as fp
    from fpsim.analysis.studies.identity import words
    from tests.analysis.studies.counted import product
    values = [fp.Chunked(fp.Format("mine", 3, 2)), product, fp.schedules.cublas("sm_90")]
    print([words(value) for value in values])
    """
    assert python(script, PYTHONHASHSEED="7") == str([texts[18], texts[20], texts[22]])
    assert [label(v) for v in (mine, fp.INT8, fp.unit("hopper_e4m3_f32"))] == ["mine", "INT8", "hopper_e4m3_f32"]


def test_the_source_of_a_measure_is_its_code_without_comments(tmp_path: Path) -> None:
    def digest_of(text: str, name: str = "m") -> str:
        file = tmp_path / f"module{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("module", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return source_of(getattr(module, name))

    first = digest_of("def m(a):\n    return a in {'x', 'y'}\n")
    assert digest_of("# new\n\ndef m(a):  # why\n    return  a in {'x', 'y'}\n") == first
    assert digest_of("def m(a):\n    return a in {'x', 'z'}\n") != first
    assert digest_of("def m(a, b=1):\n    return a in {'x', 'y'}\n") != first
    beside = digest_of("m, other = lambda a: a in {'x', 'y'}, 1\n")
    assert digest_of("m, other = lambda a: a in {'x', 'y'}, 2\n") == beside
    assert digest_of("m, other = lambda a: a in {'x', 'z'}, 1\n") != beside
    wraps = "def wrap(f):\n    @functools.wraps(f)\n    def inner(a):\n        return f(a){}\n    return inner\n"
    for made in ("@functools.cache", "@numba.njit", "@functools.singledispatch", wraps.format("") + "@wrap"):
        texts = [f"import functools, numba\n{made}\ndef m(a):\n    return a + {number}\n" for number in (1, 1, 2)]
        one, same, other = map(digest_of, texts)
        assert one == same != other, made
    script = "import functools\n{}@wrap\ndef m(a): return a"
    assert digest_of(script.format(wraps.format(""))) != digest_of(script.format(wraps.format("+1")))
    kind = "class M:\n    def __init__(self, n): self.n = n\n    def __call__(self, a): return a{}\nm = M({})\n"
    assert len({digest_of(kind.format(add, n)) for add, n in (("", 1), ("+1", 1), ("", 2), ("", 1))}) == 3
    x, y = np.arange(3.0), np.arange(4.0)
    assert source_of(functools.partial(np.dot, x)) == source_of(functools.partial(np.dot, x.copy()))
    assert source_of(functools.partial(np.dot, x)) != source_of(functools.partial(np.dot, y))
