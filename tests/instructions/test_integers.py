"""fp.dot_add by units of integers: Python's integers, what processors gave, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import INTEGER_ROWS, integer_units
from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit
from fpsim.testing import assert_bits_equal
from tests.kit.integers import KINDS, integer_rows
from tests.kit.sweeps import in_turn
from tests.oracles.integers import dot_add_rows

Array = npt.NDArray[Any]

every_unit = in_turn("unit", integer_units())
S8 = INTEGER_ROWS["hopper_s8_s32"]
AMX = {"tdpbssd": "s8", "tdpbsud": "s8xu8", "tdpbusd": "u8xs8", "tdpbuud": "u8"}


@cache
def recorded() -> dict[str, Array]:
    """Return the results of an Intel Emerald Rapids (2026-11-26), by instruction and operand; tests/data/README.md."""
    with np.load(Path(__file__).parents[1] / "data" / "x86.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@every_unit
def test_a_unit_gives_the_sums_of_pythons_integers(unit: IntegerUnit) -> None:
    for kind in KINDS:
        for k in (1, unit.terms - 1, unit.terms, 2 * unit.terms + 3):
            rows = integer_rows(unit, kind, 12, k)
            want = dot_add_rows(*rows, unit.terms, unit.d.dtype, unit.saturates, unit.pair and unit.pair.dtype)
            got = fp.dot_add(*rows, unit)
            assert got.dtype == unit.d.dtype
            assert_bits_equal(got, want)


@in_turn("name", AMX)
def test_amx_gives_the_integers_of_the_processor(name: str) -> None:
    unit = fp.unit(f"x86_amx_{AMX[name]}_s32")
    a, b, c, d = (recorded()[f"{name}_{operand}"] for operand in "abcd")
    b = b.reshape(-1, 16, 16, 4).transpose(0, 1, 3, 2).reshape(-1, 64, 16)  # rows of four terms
    for x, y, z, want in zip(a.view(unit.a.dtype), b.view(unit.b.dtype), c, d, strict=True):
        rows, columns = np.repeat(x, 16, axis=0), np.tile(y.T, (16, 1))
        assert_bits_equal(fp.dot_add(rows, columns, z.reshape(-1), unit), want.reshape(-1))


@pytest.mark.parametrize("end", ["", "s"])
def test_vnni_gives_the_integers_of_the_processor(end: str) -> None:
    a, b, c, d = (recorded()[f"vpdpbusd{end}_{operand}"] for operand in "abcd")
    unit = fp.unit("x86_vnni_u8xs8_s32_sat" if end else "x86_vnni_u8xs8_s32")
    assert_bits_equal(fp.dot_add(a, b.view(np.int8), c, unit), d)
    at_an_end = (d == np.iinfo(np.int32).max) | (d == np.iinfo(np.int32).min)
    assert at_an_end.sum() > 50 if end else not at_an_end.any()


def test_avx2_gives_the_integers_of_the_processor() -> None:
    a, b, c, d = (recorded()[f"vpmaddubsw_{operand}"] for operand in "abcd")
    assert_bits_equal(fp.dot_add(a, b.view(np.int8), c, "x86_avx2_u8xs8_s32"), d)
    assert (fp.dot_add(a, b.view(np.int8), c, "x86_vnni_u8xs8_s32") != d).sum() > 100  # whose pairs are exact


def test_a_sum_that_saturates_depends_on_the_step_and_one_that_wraps_does_not() -> None:
    a, b = np.full((1, 64), -128, np.int8), np.full((1, 64), 127, np.int8)
    a[:, 32:] = 127  # the sum of all terms is within range, that of the first 32 is not
    c = np.array([np.iinfo(np.int32).min + 7], np.int32)
    exact = int(c[0]) + int((a.astype(int) * b).sum())
    for name, first in (("hopper_s8_s32_sat", 32), ("ampere_s8_s32_sat", 32)):
        assert fp.dot_add(a, b, c, name)[0] == np.iinfo(np.int32).min + 32 * 127 * 127
        assert fp.dot_add(a, b, c, replace(fp.unit(name), terms=2 * first))[0] == max(exact, np.iinfo(np.int32).min)
    for terms in (1, 3, 64):
        got = fp.dot_add(a, b, c, replace(fp.unit("hopper_s8_s32"), terms=terms))
        assert got[0] == (exact + 2**31) % 2**32 - 2**31


def test_unsigned_sums_saturate_at_both_of_their_ends() -> None:
    top = np.array([2**32 - 5], np.uint32)
    assert fp.dot_add([[255]], [[255]], top, "x86_vnni_u8_u32_sat")[0] == 2**32 - 1
    assert fp.dot_add([[255]], [[255]], top, "x86_vnni_u8_u32")[0] == 255 * 255 - 5


def test_four_bits_are_integers_of_a_byte_or_of_ml_dtypes() -> None:
    a, b = np.array([[-8, 7, -1]], np.int8), np.array([[15, 1, 2]], np.uint8)
    want = [-8 * 15 + 7 - 2]
    assert fp.dot_add(a, b, None, "turing_s4xu4_s32").tolist() == want
    narrow = a.astype(ml_dtypes.int4), b.astype(ml_dtypes.uint4)
    assert fp.dot_add(*narrow, None, "ada_s4xu4_s32_sat").tolist() == want
    assert fp.dot_add(a.astype(np.int64), b.tolist(), [1], "ada_s4xu4_s32").tolist() == [want[0] + 1]


def test_tensors_lists_and_no_terms_are_operands() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.tensor([[3, -4]], dtype=torch.int8), torch.tensor([[5, 6]], dtype=torch.int8)
    assert fp.dot_add(a, b, None, "hopper_s8_s32").tolist() == [-9]
    assert fp.dot_add([3, -4], [5, 6], 1, "hopper_s8_s32").tolist() == -8
    empty = np.zeros((2, 0), np.int8)
    assert fp.dot_add(empty, empty, [4, 5], "hopper_s8_s32").tolist() == [4, 5]
    assert fp.dot_add(empty[:0], empty[:0], None, "hopper_s8_s32").shape == (0,)


def test_operands_and_accumulators_are_not_changed() -> None:
    rows = integer_rows(S8, "uniform", 3, 40)
    copies = [x.copy() for x in rows]
    fp.dot_add(*rows, "hopper_s8_s32")
    c = rows.c.astype(np.int64)
    before = c.copy()
    fp.dot_add(rows.a.astype(np.int64), rows.b.astype(np.int64), c, "hopper_s8_s32")
    assert (c == before).all()
    for x, copy in zip(rows, copies, strict=True):
        assert_bits_equal(x, copy)


def test_names_are_found_in_the_spellings_of_others() -> None:
    want = fp.unit("hopper_s8_s32")
    for name in ("H100_s8_s32", "hopper_i8_i32", "sm_90_int8_int32", "Hopper_S8_S32"):
        assert fp.unit(name) is want
    assert fp.unit("A100_uint8xint8_int32").name == "ampere_u8xs8_s32"
    assert fp.unit(want) is want


def test_units_lists_those_of_integers_with_source_and_evidence() -> None:
    listed = [unit for unit in fp.units() if isinstance(unit, fp.IntegerUnit)]
    assert listed == list(integer_units())
    assert all(unit.source and unit.instruction for unit in listed)
    measured = {unit.name for unit in listed if unit.evidence == "hardware"}
    assert measured == {
        *(f"x86_amx_{pair}_s32" for pair in AMX.values()), "x86_vnni_u8xs8_s32", "x86_vnni_u8xs8_s32_sat",
        "x86_avx2_u8xs8_s32",
    }  # fmt: skip
    assert {unit.arch for unit in listed if unit.a.bits == 4} == {"turing", "ampere", "ada"}
    assert not [unit for unit in listed if unit.saturates and unit.arch in ("cdna1", "cdna2", "cdna3")]


WRONG: Any = 1
ONE, FLOAT = np.ones((1, 4), np.int8), np.ones((1, 4), np.float16)


@in_turn(
    "a, b, c, message",
    [
        (FLOAT, FLOAT, None, "multiplies integers: a must be an array of int8; got float16.*hopper_f16_f32"),
        (ONE, ONE, [0.5], "c must be an array of int32; got float64. Sums start at integers"),
        (ONE, ONE > 0, None, "b must be an array of int8; got bool"),
        (ONE.view(np.uint8), ONE, None, r"of s8 \(int8\); got uint8. hopper_u8xs8_s32 takes it. .*a.view\(np.int8\)"),
        (ONE, ONE, np.ones(1, np.uint32), r"takes c of s32 \(int32\); got uint32. Bit patterns"),
        ([[128]], [[1]], None, r"a must hold integers -128 .. 127 \(s8\); got 128"),
        ([[2**70]], [[1]], None, "got .*1180591620717411303424.*Pass integers -128 .. 127"),
        ("abc", ONE, None, "got 'abc'. Pass integers -128 .. 127"),
        (None, ONE, None, "got None. Pass integers"),
        (ONE, ONE[:, :3], None, "must have one shape"),
        (ONE, ONE, [1, 2], r"c must have the shape \(1,\)"),
        (fp.encode_scaled(np.ones((1, 4)), "int8", fp.scalings.ROW), ONE, None, "got Scaled. Pass a.codes"),
        (np.ma.masked_array(ONE, ONE > 0), ONE, None, "a must not be masked"),
    ],
)  # fmt: skip
def test_bad_operands_say_what_was_wanted(a: Any, b: Any, c: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fp.dot_add(a, b, c, S8)


@in_turn(
    "call, message",
    [
        (lambda: fp.dot_add(8 * ONE, ONE, None, "ampere_s4_s32"), r"a must hold integers -8 .. 7 \(s4\); got 8"),
        (lambda: fp.dot_add(ONE, ONE, None, S8, scale_a=ONE), "takes no block scales; got scale_a"),
        (lambda: fp.dot_add(ONE, ONE, None, "hopper_e4m3_f32"), "got a as int8. Units such as hopper_s8_s32"),
        (lambda: fp.schedules.tree("hopper_s8_s32", 64), "must be a matrix unit of floats here; got hopper_s8_s32"),
        (lambda: IntegerElement("s5", 5, True), "bits must be one of 4, 8, 16, 32; got 5"),
        (lambda: replace(S8, terms=0), "terms must be an integer >= 1"),
        (lambda: replace(S8, terms=1 << 17), "terms must be at most 65536"),
        (lambda: replace(S8, d=S8.a), "d must have 32 bits"),
        (lambda: replace(S8, a=S8.d), "a must have 4 or 8 bits; got s32"),
        (lambda: replace(S8, b=WRONG), "b must be an element of an integer unit"),
        (lambda: replace(S8, saturates=WRONG), "saturates must be True or False"),
    ],
)
def test_bad_input_says_what_was_wanted(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()
