"""Vectors: what they hold, other implementations at the end of a pipe, and files that are refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.named import NAMED
from fpsim.matrix_units.catalogue import integer_units
from fpsim.testing import conformance
from fpsim.testing.conformance.files import load, save
from fpsim.testing.conformance.vectors import Vectors
from tests.oracles import casts, scaling
from tests.oracles.integers import chain
from tests.testing.conformance.vector_cases import FOREIGN, command


@pytest.fixture(scope="module", params=[".txt", ".npz"])
def file(request: pytest.FixtureRequest, sets: list[Vectors], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("vectors") / f"vectors{request.param}"
    save(sets, path)
    return path


# ---- what they hold


def test_files_are_small_and_hold_every_kind(sets: list[Vectors], file: Path) -> None:
    assert file.stat().st_size < 1_200_000
    kinds = Counter(each.kind for each in sets)
    assert kinds["dot_add"] == len(fp.units())
    assert {"cast", "add", "fma", "sqrt", "matmul", "scaled"} <= kinds.keys()
    casts_to = {each.words["format"] for each in sets if each.kind == "cast"}
    assert casts_to == set(NAMED)
    for name in ("E4M3", "FP16"):
        to = [each.words for each in sets if each.kind == "cast" and each.words["format"] == name]
        policies = {(words["rounding"], words["overflow"]) for words in to}
        assert len(policies) == 18


def test_every_code_of_small_formats_is_decoded_and_has_its_square_root_taken(sets: list[Vectors]) -> None:
    decoded = {each.words["format"]: each for each in sets if each.kind == "decode"}
    assert decoded.keys() == {name for name, fmt in NAMED.items() if fmt.bits <= 8}
    for name, each in decoded.items():
        fmt = NAMED[name]
        assert each.inputs.ravel().tolist() == list(range(1 << fmt.bits))
        values = np.array([fmt.value_of(code) for code in range(1 << fmt.bits)], np.float32)
        fp.testing.assert_bits_equal(each.outputs.ravel().astype(np.uint32).view(np.float32), values)
    roots = [each for each in sets if each.kind == "sqrt" and each.words["format"] in ("E4M3", "E5M2")]
    assert {len(each.inputs) for each in roots} == {256}


def test_steps_of_integers_hold_sums_of_pythons_integers(sets: list[Vectors]) -> None:
    dots = {each.words["unit"]: each for each in sets if each.kind == "dot_add"}
    saturated = 0
    for unit in integer_units():
        each, k = dots[unit.name], 2 * unit.terms
        assert [str(field) for field in each.takes] == [f"{unit.a.name}*{k}", f"{unit.b.name}*{k}", unit.d.name]
        for row, (got,) in zip(each.inputs.tolist(), each.outputs.tolist(), strict=True):
            parts = zip((row[:k], row[k : 2 * k], row[2 * k :]), (unit.a, unit.b, unit.d), strict=True)
            a, b, (c,) = ([code - (code > of.highest) * 2**of.bits for code in codes] for codes, of in parts)
            want = chain(a, b, c, unit.terms, unit.d.dtype, unit.saturates, unit.pair and unit.pair.dtype)
            assert got == want % 2**32, (unit.name, row)
            saturated += want in (unit.d.lowest, unit.d.highest)
    assert saturated > 5


def test_every_cast_has_signalling_nans(sets: list[Vectors]) -> None:
    for each in sets:
        if each.kind == "cast":
            narrow = each.words["from"] == "FP32"
            signalling = {0x7F800001, 0xFF800001} if narrow else {0x7FF0000000000001, 0xFFF0000000000001}
            assert signalling <= set(each.inputs.ravel().tolist()), each.title


def test_only_takes_kinds_and_the_words_of_their_sets(few: Path) -> None:
    titles = [row.set for row in conformance.check(few, only=["cast:E5M2"]).rows]
    assert titles
    assert all("format=E5M2" in title for title in titles)
    both = conformance.check(few, only=["cast:e5m2", "sqrt:toward_zero", "cast:E5M2"]).rows
    assert len(both) == len(titles) + sum(row.set.startswith("sqrt") and "toward_zero" in row.set for row in both)
    assert len(both) > len(titles)
    with pytest.raises(ValueError, match=r"what follows cast: must be one of .*E4M3.*; got 'E9M9'"):
        conformance.check(few, only=["cast:E9M9"])


def test_a_format_of_casts_does_not_select_those_from_it(file: Path) -> None:
    titles = [row.set for row in conformance.check(file, only=["cast:FP32"]).rows]
    assert titles
    assert all("format=FP32 from=FP64" in title for title in titles)


def test_what_is_read_is_what_was_written(sets: list[Vectors], file: Path) -> None:
    for got, want in zip(load(file), sets, strict=True):
        assert got.line == want.line
        assert (got.inputs == want.inputs).all()
        assert (got.outputs == want.outputs).all()


def test_making_a_file_again_gives_the_same_bytes(text: Path, tmp_path: Path) -> None:
    conformance.make(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == text.read_bytes()


def test_fpsim_has_the_outputs_of_its_files(file: Path) -> None:
    report = conformance.check(file)
    assert report.ok
    assert sum(row.answered for row in report.rows) > 15_000


def test_casts_are_those_of_the_oracle(sets: list[Vectors]) -> None:
    checked = 0
    for each in sets:
        fmt = fp.format(each.words["format"]) if each.kind == "cast" else fp.E4M3
        if each.kind == "cast" and fmt in (fp.E4M3, fp.E5M2FNUZ, fp.E8M0, fp.BF16):
            source = each.takes[0].fmt
            x = each.inputs[:, 0].astype(each.takes[0].storage).view(np.float32 if source == fp.FP32 else np.float64)
            words = {word: each.words[word] for word in ("rounding", "overflow", "subnormals")}
            with np.errstate(invalid="ignore"):  # NumPy warns of signalling NaNs
                want = casts.encode_all(x, fmt, **words)
            assert (each.outputs[:, 0] == want).all(), each.title
            checked += 1
    assert checked > 60


def test_stochastic_casts_are_those_of_the_oracle_for_every_word(sets: list[Vectors]) -> None:
    chosen_sets = [each for each in sets if each.kind == "stochastic_cast"]
    assert {each.words["format"] for each in chosen_sets} == {"E4M3", "E5M2", "E2M1", "FP16", "BF16"}
    for each in chosen_sets:
        fmt = fp.format(each.words["format"])
        for (bits, word), (code,) in zip(each.inputs, each.outputs, strict=True):
            x = float(np.uint32(bits).view(np.float32))
            want = casts.encode(x, fmt, "stochastic", word=int(word))
            assert int(code) == want or (np.isnan(x) and fmt.has_nan), (each.title, hex(int(bits)), hex(int(word)))


def test_overflows_of_libraries_have_sets_where_they_differ(sets: list[Vectors]) -> None:
    told = Counter(each.words["overflow"] for each in sets if each.kind == "cast")
    assert told["ml_dtypes"] >= 3  # formats without NaN
    assert told["torch"] + told["torch<2.12"] + told["p3109_ovfinf"] >= 1
    titles = [each.title for each in sets]
    assert len(set(titles)) == len(titles)


def test_matrices_have_a_scale_of_the_array(sets: list[Vectors]) -> None:
    matrices = [each for each in sets if each.kind == "scaled_matrix"]
    assert {each.words["scaling"] for each in matrices} == {"NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"}
    for each in matrices:
        for x, out in zip(each.inputs, each.outputs, strict=True):
            values = x.astype(np.uint32).view(np.float32).reshape(2, 32)
            want = scaling.encode(values, fp.E2M1, getattr(fp.scalings, each.words["scaling"]))
            parts = want.codes.ravel(), np.asarray(want.scale_codes).ravel()
            assert (out[:68] == np.concatenate(parts)).all(), each.title
            got = np.uint32(out[68]).view(np.float32)
            assert got == want.tensor_scale or (np.isnan(got) and np.isnan(want.tensor_scale))


# ---- other implementations


def test_another_implementation_agrees_where_it_answers(text: Path, tmp_path: Path) -> None:
    report = conformance.check(text, command(tmp_path))
    assert report.ok, str(report)
    assert sum(row.answered for row in report.rows) > 3000
    assert "cases were not answered" in str(report)


def test_a_wrong_implementation_is_shown_where(few: Path, tmp_path: Path) -> None:
    wrong = FOREIGN.replace("and low & 1)", "and True)")  # ties away
    report = conformance.check(few, command(tmp_path, wrong), only=["cast"])
    assert not report
    sets = {row.set for row in report.rows if row.wrong}
    assert all("rounding=nearest_even" in each for each in sets)
    assert len(sets) == 9
    first = next(row.first for row in report.rows if row.wrong)
    assert ": got " in first
    assert ", want " in first


def test_any_nan_is_as_good_as_another_and_nothing_else_is(few: Path, tmp_path: Path) -> None:
    negative_nan = FOREIGN.replace("return sign | nan", "return (1 << exponents + bits) | nan")
    assert conformance.check(few, command(tmp_path, negative_nan), only=["cast"]).ok
    unsigned_zero = FOREIGN.replace("return sign | code", "return sign | code if code else 0")
    assert not conformance.check(few, command(tmp_path, unsigned_zero), only=["cast"]).ok


def test_a_folder_that_cannot_be_written_is_refused_before_vectors_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fpsim.testing.conformance.checking.chosen", lambda: pytest.fail("vectors were computed"))
    (tmp_path / "folder.txt").mkdir()
    for path in (tmp_path / "missing" / "v.txt", tmp_path / "missing" / "v.npz", tmp_path / "folder.txt"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)) as reason:
            conformance.make(path)
        assert reason.value.filename == str(path)


def test_an_implementation_that_answers_nothing_is_not_right(few: Path, tmp_path: Path) -> None:
    nothing = "import sys\nfor line in sys.stdin:\n    if not line.startswith('set'): print('?')"
    assert not conformance.check(few, command(tmp_path, nothing)).ok


@pytest.mark.parametrize(
    ("program", "words", "seconds"),
    [
        ("import sys; sys.exit('out of luck')", "ended with exit code 1; its last error line is 'out of luck'", 60),
        ("raise SystemExit(3)", "ended with exit code 3; it wrote no error", 60),
        ("", "must answer each of", 60),
        ("", "must answer each of", 1e300),
        ("import sys\nfor line in sys.stdin:\n    if line[0] != 's': print('zz')", "'zz' is no code of E4M3", 60),
        ("import sys\nfor line in sys.stdin:\n    if line[0] != 's': print('1 2')", "must have 1 numbers; got 2", 60),
        ("import time; time.sleep(60)", r"took more than 0\.1 s", 0.1),
    ],
)
def test_programs_that_do_not_answer_are_refused(
    few: Path, tmp_path: Path, program: str, words: str, seconds: float
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        conformance.check(few, command(tmp_path, program), only=["cast"], timeout=seconds)
    assert "\n" not in str(refusal.value)


def test_what_is_no_program_is_refused(few: Path) -> None:
    for program, words in (("/nowhere/mine", "could not be run"), ("", "got nothing"), ("'", "words as for a shell")):
        with pytest.raises(ValueError, match=words):
            conformance.check(few, program, only=["sqrt"])
    with pytest.raises(ValueError, match="timeout must be seconds"):
        conformance.check(few, timeout=0)
    with pytest.raises(ValueError, match="only must be one of"):
        conformance.check(few, only=["casts"])


@pytest.mark.parametrize("only", ["cast", [], [3], 3], ids=repr)
def test_only_is_a_list_of_texts(few: Path, only: Any) -> None:
    with pytest.raises(ValueError, match="only must be a list of one or more texts"):
        conformance.check(few, only=only)


def test_a_command_is_a_text(few: Path) -> None:
    words: Any = ["./mine", "--fast"]
    with pytest.raises(TypeError, match=r"command must be a text, such as './mine --fast', or None; got \['./mine'"):
        conformance.check(few, words)
