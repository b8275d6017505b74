"""Vectors: damaged, edited and unknown files are refused, and the command that checks them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fpsim.scaling.file import load as load_arrays
from fpsim.scaling.file import save as save_arrays
from fpsim.testing import conformance
from fpsim.testing.conformance.files import save
from fpsim.testing.conformance.vectors import Vectors
from tests.testing.conformance.vector_cases import command


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match="its vectors cannot be used") as refusal:
        conformance.check(path)
    message = str(refusal.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def sealed(body: str) -> str:
    return f"{body}end sha256={hashlib.sha256(body.encode()).hexdigest()}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(" 08\n", " 09\n", 1), "its content differs from its digest"),
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: "", "the first line must be"),
        (lambda text: text.replace("conformance 1", "conformance 2", 1), "must be 'fpsim-conformance 1'"),
        (lambda text: text + "more\n", "cut short"),
        (lambda text: text.replace("set", "s\u00e9t", 1), "ASCII"),
        (lambda text: sealed("fpsim-conformance 1\nset cast format=E4M3\n"), "line 2: a set must have in="),
        (lambda text: sealed("fpsim-conformance 1\nset cast in=E4M9 out=E4M3 cases=0\n"), "line 2: format must be"),
        (lambda text: sealed("fpsim-conformance 1\nset cast in=E4M3 out=E4M3 cases=1\n100 0\n"), "line 3: '100' is no"),
        (lambda text: sealed("fpsim-conformance 1\nset cast in=E4M3 out=E4M3 cases=2\n1 0\n"), "must have 2 numbers"),
        (lambda text: sealed("fpsim-conformance 1\nset cast in=E4M3*99999 out=E4M3 cases=0\n"), "a count must be"),
    ],
)
def test_texts_that_are_damaged_or_edited_are_refused(
    text: Path, tmp_path: Path, change: Callable[[str], str], words: str
) -> None:
    changed = tmp_path / "changed.txt"
    changed.write_text(change(text.read_text()), encoding="utf-8")
    assert words in refused(changed)


def test_arrays_that_are_damaged_or_of_another_kind_are_refused(sets: list[Vectors], tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    save(sets[:3], path)
    arrays, header = load_arrays(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "damaged" in refused(path)
    for changed, words in (
        ((arrays, header | {"version": 2}), "version 1"),
        ((arrays, {"block": [1]}), "must be of the kind"),
        ((arrays | {"inputs": arrays["inputs"][1:]}, header), "too few numbers"),
        ((arrays | {"outputs": np.append(arrays["outputs"], arrays["outputs"])}, header), "more numbers than its sets"),
        ((arrays | {"outputs": arrays["outputs"] + np.uint64(256)}, header), "no codes of their formats"),
        (({"inputs": arrays["inputs"]}, header), "must have the arrays"),
    ):
        save_arrays(path, *changed)
        assert words in refused(path)


def test_outputs_that_fpsim_does_not_have_are_found_whatever_the_digest_says(few: Path, tmp_path: Path) -> None:
    lines = few.read_text().splitlines()[:-1]
    lines[6] = lines[6][:-1] + ("0" if lines[6][-1] != "0" else "1")
    edited = tmp_path / "edited.txt"
    edited.write_text(sealed("".join(f"{line}\n" for line in lines)))
    report = conformance.check(edited)
    assert [row.wrong for row in report.rows if row.wrong] == [1]
    with pytest.raises(ValueError, match="its outputs are not those of this fpsim: 1 of"):
        conformance.check(edited, command(tmp_path))


def test_sets_that_fpsim_cannot_compute_are_refused(tmp_path: Path) -> None:
    for line, words in (
        ("set casts in=E4M3 out=E4M3 cases=0", "kind of set must be one of"),
        ("set cast in=FP32 out=E4M3 cases=0", "must have the word 'from'"),
        (
            "set cast format=E4M3 from=FP32 rounding=stochastic overflow=nonfinite subnormals=keep in=FP32 out=E4M3 "
            "cases=1\n3f800000 38",
            "rounding must be one that needs no random numbers",
        ),
        ("set dot_add unit=hopper_e4m3_f32 terms=4 in=E4M3*4 out=FP32 cases=0", "must have in="),
        ("set scaled format=E4M3 scaling=MXX elements=32 in=FP32*32 out=E4M3*32,E8M0 cases=0", "scaling must be one"),
    ):
        path = tmp_path / "other.txt"
        path.write_text(sealed(f"fpsim-conformance 1\n{line}\n"))
        with pytest.raises(ValueError, match=words):
            conformance.check(path)


def test_the_command_line_makes_and_checks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    from fpsim.cli.main import main

    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main(["conformance", *words])
        assert isinstance(end.value.code, int)
        return end.value.code

    path = str(tmp_path / "vectors.npz")
    assert run("make", path) == 0
    assert run("check", path, "--only", "add") == 0
    assert "0 of 320 answers differ" in capfd.readouterr().out
    zeros = "import sys\nfor line in sys.stdin:\n    if line[0] != 's': print(0)"
    assert run("check", path, "--only", "add", "--run", command(tmp_path, zeros)) == 1
    capfd.readouterr()
    assert run("check", str(tmp_path / "absent.npz")) == 2
    assert run("make", str(tmp_path / "vectors.bin")) == 2
    assert capfd.readouterr().err.count("\n") == 2
