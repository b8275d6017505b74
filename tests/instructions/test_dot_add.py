"""fp.dot_add: every unit beside the oracle, what each rule claims in sums to work out by hand, and bad input."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.units.rows import KINDS, Rows, dot_add_rows, normal, random_rows

Array = npt.NDArray[Any]

every_unit = in_turn("unit", float_units())

# ---- beside the oracle


def lengths(unit: MatrixUnit) -> tuple[int, ...]:
    """One term or block, one step, several and a part of one."""
    least = unit.block or 1
    return (least, unit.terms, 2 * unit.terms + max(unit.terms // 2, least))


def check(rows: Rows, unit: MatrixUnit) -> None:
    """Compare rows with the oracle."""
    assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, unit, **rows.scales()), dot_add_rows(rows, unit))


@every_unit
@sweep("rows", 2, 20)
def test_a_unit_gives_the_bits_of_the_oracle(unit: MatrixUnit, rows: int) -> None:
    for i, terms in enumerate(lengths(unit)):
        for j, kind in enumerate(KINDS):
            if rows > 2 or (i + j + len(unit.name)) % 3 == 0:  # in part, every kind in one of the lengths
                check(random_rows(unit, kind, rows, terms), unit)


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_a_rule_gives_the_bits_of_the_oracle_in_many_rows(rule: Rule) -> None:
    for unit in [unit for unit in float_units() if unit.rule is rule][:2]:
        for kind in KINDS:
            check(random_rows(unit, kind, 100, unit.terms, seed=1), unit)


@st.composite
def any_rows(draw: st.DrawFn) -> tuple[Rows, MatrixUnit]:
    """Draw a row of any codes for any unit."""
    unit = draw(st.sampled_from(float_units()))
    blocks = draw(st.integers(1, 2 if unit.block else unit.terms + 1))
    terms = blocks * (unit.block or 1)

    def codes(element: Element, count: int) -> Array:
        code = st.integers(0, (1 << element.carrier.bits) - 1)
        return np.array([draw(st.lists(code, min_size=count, max_size=count))], element.dtype)

    operands = codes(unit.a, terms), codes(unit.b, terms), codes(unit.d, 1)[0]
    if not unit.scale:
        return Rows(*operands), unit
    scale = st.lists(st.integers(0, 255), min_size=blocks, max_size=blocks)
    return Rows(*operands, np.array([draw(scale)], np.uint8), np.array([draw(scale)], np.uint8)), unit


@settings(max_examples=100, deadline=None)
@given(any_rows())
def test_any_codes_give_the_bits_of_the_oracle(drawn: tuple[Rows, MatrixUnit]) -> None:
    check(*drawn)


# ---- how steps and operands go together


@every_unit
def test_many_terms_are_a_chain_of_steps(unit: MatrixUnit) -> None:
    rows = random_rows(unit, normal, 8, 3 * unit.terms)
    d = rows.c
    for start in range(0, 3 * unit.terms, unit.terms):
        part = slice(start, start + unit.terms)
        blocks = slice(start // (unit.block or 1), (start + unit.terms) // (unit.block or 1))
        scales = {name: codes[:, blocks] for name, codes in rows.scales().items()}
        d = fp.dot_add(rows.a[:, part], rows.b[:, part], d, unit, **scales)
    assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, unit, **rows.scales()), d)


@every_unit
def test_no_accumulator_is_plus_zero(unit: MatrixUnit) -> None:
    rows = random_rows(unit, normal, 4, unit.terms)
    want = fp.dot_add(rows.a, rows.b, np.zeros_like(rows.c), unit, **rows.scales())
    assert_bits_equal(fp.dot_add(rows.a, rows.b, None, unit, **rows.scales()), want)


def test_a_chain_of_fma_is_fp_fma() -> None:
    for kind in KINDS:
        rows = random_rows(fp.unit("cdna1_f32_f32"), kind, 20, 3)
        d = rows.c.view(np.float32)
        for k in range(3):
            d = fp.fma(rows.a[:, k].view(np.float32), rows.b[:, k].view(np.float32), d)
        assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, "cdna1_f32_f32").view(np.float32), d)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("hopper_e4m3_f32", ml_dtypes.float8_e4m3fn),
        ("hopper_e5m2_f16", ml_dtypes.float8_e5m2),
        ("blackwell_e2m1_f32", ml_dtypes.float4_e2m1fn),
        ("blackwell_e3m2_f32", ml_dtypes.float6_e3m2fn),
        ("cdna3_fp8_f32", ml_dtypes.float8_e4m3fnuz),
        ("ampere_f16_f16", np.float16),
        ("ampere_bf16_f32", ml_dtypes.bfloat16),
        ("ampere_tf32_f32", np.float32),
        ("hopper_f64_f64", np.float64),
    ],
)
def test_arrays_of_the_element_are_their_codes(name: str, dtype: Any) -> None:
    unit = fp.unit(name)
    rows = random_rows(unit, normal, 8, unit.terms)
    floats = np.dtype(f"f{unit.d.dtype.itemsize}")
    got = fp.dot_add(rows.a.view(dtype), rows.b.view(dtype), rows.c.view(floats), unit)
    assert_bits_equal(got, fp.dot_add(rows.a, rows.b, rows.c, name))


@every_unit
def test_the_result_is_codes_of_the_accumulator(unit: MatrixUnit) -> None:
    rows = random_rows(unit, normal, 3, unit.terms)
    got = fp.dot_add(rows.a, rows.b, rows.c, unit, **rows.scales())
    assert (got.dtype, got.shape) == (unit.d.dtype, (3,))


@pytest.mark.parametrize("name", ["hopper_mma_e4m3xe5m2_f32", "blackwell_mma_e4m3xe5m2_f32"])
def test_a_subnormal_e4m3_counts_with_its_own_exponent_where_it_becomes_float16(name: str) -> None:
    """Found with more rows: by the smallest exponent of E4M3, -6, the two small products would be cut off."""
    a, b = np.zeros((1, 8), np.uint8), np.zeros((1, 8), np.uint8)
    for place, x, y in ((0, 2.0**-9, 2.0**15), (1, 2.0**-2, 2.0**-16), (4, 2.0**-2, 2.0**-16)):
        a[0, place], b[0, place] = fp.encode(x, fp.E4M3), fp.encode(y, fp.E5M2)
    rows = Rows(a, b, np.zeros(1, np.uint32))
    check(rows, fp.unit(name))
    assert fp.dot_add(a, b, None, name).view(np.float32).tolist() == [64 + 2.0**-17]


@pytest.mark.parametrize("name", ["ampere_tf32_f32", "cdna3_xf32_f32"])
def test_tf32_operands_are_cut_and_not_rounded(name: str) -> None:
    cut, one = np.array([[0x3F801FFF]], np.uint32), np.array([[1]], np.float32)
    assert fp.dot_add(cut, one, None, name).view(np.float32).tolist() == [1.0]


# ---- what each rule claims, in numbers to work out by hand


class Case(NamedTuple):
    """c + sum(a * b) = d on a unit."""

    claim: str
    unit: str
    a: list[float]
    b: list[float]
    c: float
    d: float


INF, NAN = float("inf"), float("nan")
ULP, TOP = 2.0**-23, 2.0**127 * (2 - 2.0**-23)
CANCELS = [1.0, -1.0] + 14 * [0.0]  # a group of FP4 whose products add up to zero

CASES = [
    Case("hopper's fp8 keeps 13 fraction bits", "hopper_e4m3_f32", [1, 2**-7], [1, 2**-6], 0, 1 + 2**-13),
    Case("and cuts what lies below", "hopper_e4m3_f32", [1, 2**-7], [1, 2**-7], 0, 1),
    Case("which blackwell keeps", "blackwell_e4m3_f32", [1, 2**-7], [1, 2**-7], 0, 1 + 2**-14),
    Case("magnitudes are cut, not rounded down", "hopper_e4m3_f32", [1, -(2**-7)], [1, 2**-7], 0, 1),
    Case("a product is not normalised", "hopper_e4m3_f32", [1.5, 2**-7, 2**-7], [1.5, 2**-6, 2**-6], 0, 2.25 + 2**-12),
    Case("the accumulator is cut as well", "hopper_e4m3_f32", [0], [0], 1 + 1023 * ULP, 1),
    Case("a float32 result is cut", "ampere_f16_f32", [1, 1, 1], [1, ULP, ULP / 2], 0, 1 + ULP),
    Case("also below zero", "ampere_f16_f32", [-1, -1, -1], [1, ULP, ULP / 2], 0, -1 - ULP),
    Case("steps of four on volta", "volta_f16_f32", [1, 0, 0, 0, 1], [1, 0, 0, 0, ULP / 2], 0, 1),
    Case("a float16 result is rounded, ties to even", "ampere_f16_f16", [1, 2**-11], [1, 1], 0, 1),
    Case("once, from all bits kept", "ampere_f16_f16", [1, 2**-11, 2**-11], [1, 1, 2**-10], 0, 1 + 2**-10),
    Case("a float32 that is cut stays finite", "hopper_bf16_f32", [2.0**100], [1], TOP, TOP),
    Case("and is Inf from 2**128 on", "hopper_bf16_f32", [2.0**104], [1], TOP, INF),
    Case("a float16 is finite up to half an ulp", "hopper_f16_f16", [8], [1], 65504, 65504),
    Case("and Inf from there on", "hopper_f16_f16", [16], [1], 65504, INF),
    Case("zero is +0 on nvidia", "hopper_f16_f32", [-0.0], [1], -0.0, 0),
    Case("a negative sum that rounds to zero too", "hopper_f16_f16", [-(2.0**-24)], [2.0**-10], 0, 0),
    Case("a tiny product is cut from the floor", "hopper_bf16_f32", [2.0**-79], [2.0**-79], 0, 0),
    Case("and kept down to 25 bits below it", "hopper_bf16_f32", 16 * [2.0**-77], 16 * [2.0**-76], 0, 2.0**-149),
    Case("inf times zero is NaN", "hopper_f16_f32", [INF], [0], 1, NAN),
    Case("opposite infinities are NaN", "hopper_f16_f16", [INF], [1], -INF, NAN),
    Case("one infinity wins", "hopper_e5m2_f32", [-INF, 1], [1, 1], 1, -INF),
    Case("two passes join c with one rounding", "hopper_mma_e4m3_f32", 3 * [2**-9], 3 * [2**-9], 128, 128 + 2**-16),
    Case("where one pass cuts", "blackwell_e4m3_f32", 3 * [2**-9], 3 * [2**-9], 128, 128),
    Case("cdna1 adds exactly", "cdna1_bf16_f32", [2.0**100, -(2.0**100)], [1, 1], 2.0**-100, 2.0**-100),
    Case("and rounds ties to even", "cdna1_f16_f32", [1, 1], [1, ULP / 2], 0, 1),
    Case("keeps subnormals", "cdna1_bf16_f32", [2.0**-126], [0.5], 2.0**-149, 2.0**-127 + 2.0**-149),
    Case("and zero is +0", "cdna1_f16_f32", [-0.0], [1], -0.0, 0),
    Case("cdna2 flushes accumulators", "cdna2_f16_f32", [0], [0], 2.0**-127, 0),
    Case("and operands", "cdna2_f16_f32", [2.0**-15], [1], 0, 0),
    Case("and products, with their sign", "cdna2_bf16_f32", [-(2.0**-100)], [2.0**-100], -0.0, 0),
    Case("adds products in pairs", "cdna2_f16_f32", [1, 2**-12, -1, 2**-12], [1, 2**-12, 1, 2**-12], 0, 2**-24),
    Case("cdna3 rounds the accumulator down", "cdna3_bf16_f32", [2.0**60, -(2.0**60)], [1, 1], -1, -(2.0**36)),
    Case("to zero from above", "cdna3_bf16_f32", [2.0**60, -(2.0**60)], [1, 1], 1, 0),
    Case("has infinite products", "cdna3_bf16_f32", [2.0**64, 2.0**64], [2.0**64, -(2.0**63)], 0, INF),
    Case("its fp8 drops a small accumulator", "cdna3_fp8_f32", [16, -16], [64, 64], -(2.0**-20), 0),
    Case("and rounds down one that is larger", "cdna3_fp8_f32", [16, 0, -16], [64, 0, 64], -(2.0**-15), -(2.0**-14)),
]  # fmt: skip


def encoded(values: list[float], element: Element) -> Array:
    """One row of codes."""
    return fp.encode(np.array([values], np.float64), element.carrier).astype(element.dtype)


@in_turn("case", CASES)
def test_a_sum_by_hand(case: Case) -> None:
    unit = fp.unit(case.unit)
    floats = np.dtype(f"f{unit.d.dtype.itemsize}")
    c = np.array([case.c], floats)
    got = fp.dot_add(encoded(case.a, unit.a), encoded(case.b, unit.b), c, unit)
    assert_bits_equal(got.view(floats), np.array([case.d], floats))


NANS = {
    "hopper_f16_f32": 0x7FFFFFFF, "hopper_f16_f16": 0x7FFF, "hopper_mma_e4m3_f32": 0x7FFFFFFF,
    "hopper_e5m2_f16": 0x7FFF, "blackwell_mma_e5m2_f16": 0x7FFF,
    "cdna3_f16_f32": 0x7FFFFFFF, "cdna3_bf8_f32": 0x7FFFFFFF, "cdna1_f16_f32": 0x7FC00000, "cdna2_f16_f32": 0x7FC00000,
    "cdna3_f32_f32": 0x7FC00000, "hopper_f64_f64": 0x7FF8000000000000,
}  # fmt: skip


@in_turn("name", NANS)
def test_a_nan_loses_sign_and_payload(name: str) -> None:
    unit = fp.unit(name)
    zero, c = np.zeros((1, 1), unit.a.dtype), np.array([-1]).astype(unit.d.dtype)
    assert fp.dot_add(zero, zero, c, unit).tolist() == [NANS[name]]


def grouped(values: list[float], exponent: int, c: float) -> float:
    """Return a step of mxf4 with both scales of every block 2**exponent."""
    fp4 = encoded(values, fp.unit("blackwell_mxfp4_block32_f32").a)
    ones = encoded(len(values) * [1.0], fp.unit("blackwell_mxfp4_block32_f32").b)
    scale = np.full((1, len(values) // 32), 127 + exponent, np.uint8)
    got = fp.dot_add(fp4, ones, np.array([c], np.float32), "blackwell_mxfp4_block32_f32", scale_a=scale, scale_b=scale)
    return float(got.view(np.float32)[0])


def test_a_group_that_cancels_still_counts_with_its_scales() -> None:
    assert grouped(2 * CANCELS, 18, 5) == 4  # cut at 35 bits below 2**36
    assert grouped(32 * [0.0], 18, 5) == 5


def test_scales_multiply_products_and_not_the_accumulator() -> None:
    unit = fp.unit("blackwell_mxfp8_e4m3_f32")
    row = encoded([1.0] + 31 * [0.0], unit.a)
    scale_a, scale_b = np.array([[127 + 3]], np.uint8), np.array([[127 - 1]], np.uint8)
    got = fp.dot_add(row, row, np.array([1], np.float32), unit, scale_a=scale_a, scale_b=scale_b)
    assert got.view(np.float32).tolist() == [5.0]


@pytest.mark.parametrize(("name", "code"), [("blackwell_mxfp8_e4m3_f32", 0xFF), ("blackwell_nvfp4_f32", 0xFF)])
def test_a_scale_that_is_nan_makes_the_result_nan(name: str, code: int) -> None:
    unit = fp.unit(name)
    zeros, scale = np.zeros((1, unit.terms), np.uint8), np.full((1, unit.terms // unit.block), 0x38, np.uint8)
    got = fp.dot_add(zeros, zeros, None, unit, scale_a=np.full_like(scale, code), scale_b=scale)
    assert got.tolist() == [0x7FFFFFFF]


def test_a_scale_of_nvfp4_has_no_sign() -> None:
    unit = fp.unit("blackwell_nvfp4_f32")
    row, scale = encoded([1.0] + 15 * [0.0], unit.a), np.array([[0x38]], np.uint8)
    got = fp.dot_add(row, row, None, unit, scale_a=scale | 0x80, scale_b=scale)
    assert got.view(np.float32).tolist() == [1.0]


# ---- bad input

FP8 = np.zeros((2, 32), np.uint8)
FP4 = np.zeros((2, 64), np.uint8)
ACCUMULATOR = np.zeros(2, np.uint32)
SCALE = np.zeros((2, 1), np.uint8)
MXFP8 = "blackwell_mxfp8_e4m3_f32"


@in_turn(
    "call, words",
    [
        (lambda: fp.dot_add(FP8.view(ml_dtypes.float8_e5m2), FP8, ACCUMULATOR, "hopper_e4m3_f32"),
         r"hopper_e4m3_f32 takes a and b of e4m3 \(float8_e4m3fn .*got a as float8_e5m2.*hopper_e5m2_f32"),
        (lambda: fp.dot_add(FP8, np.zeros((2, 32), np.float16), ACCUMULATOR, "hopper_e4m3xe5m2_f32"),
         r"a of e4m3 .* and b of e5m2 .*got b as float16"),
        (lambda: fp.dot_add(FP8, FP8, np.zeros(2, np.float16), "hopper_e4m3_f32"), r"c of f32.*got c as float16"),
        (lambda: fp.dot_add(np.full((2, 32), 200, np.uint8), FP8, ACCUMULATOR, "blackwell_e2m1_f32"),
         r"a must lie in 0 \.\. 0xf, the codes of E2M1; got 0xc8"),
        (lambda: fp.dot_add(FP8, np.full((2, 32), -1), ACCUMULATOR, "hopper_e4m3_f32"), r"b must lie in 0 \.\. 0xff"),
        (lambda: fp.dot_add(FP8, FP8, np.full(2, 1 << 16), "hopper_e4m3_f16"), r"c must lie in 0 \.\. 0xffff"),
        (lambda: fp.dot_add(FP8, FP8[:, :16], ACCUMULATOR, "hopper_e4m3_f32"),
         r"a and b must have one shape \(N, K\); got \(2, 32\) and \(2, 16\)"),
        (lambda: fp.dot_add(FP8, FP8[:1], ACCUMULATOR, "hopper_e4m3_f32"), r"a and b must have one shape"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR[:1], "hopper_e4m3_f32"), r"c must have the shape \(2,\).*got \(1,\)"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, MXFP8), r"needs scale_a: ue8m0 codes, one per 32 terms"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, MXFP8, scale_a=SCALE), r"needs scale_b"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, "hopper_e4m3_f32", scale_b=SCALE), r"takes no block scales"),
        (lambda: fp.dot_add(FP8[:, :24], FP8[:, :24], ACCUMULATOR, MXFP8, scale_a=SCALE, scale_b=SCALE),
         r"K must be a multiple of blackwell_mxfp8_e4m3_f32's scale block of 32; got K = 24"),
        (lambda: fp.dot_add(FP4, FP4, ACCUMULATOR, "blackwell_nvfp4_f32", scale_a=SCALE, scale_b=SCALE),
         r"scale_a must have shape \(2, 4\); got \(2, 1\)"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, MXFP8, scale_a=SCALE + np.uint16(256), scale_b=SCALE),
         r"scale_a must lie in 0 \.\. 0xff"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, "hopper_e4m3_f31"), r"unit must be .*Did you mean 'hopper_e4m3"),
        (lambda: fp.dot_add(FP8, FP8, ACCUMULATOR, "pascal_f16_f16"), r"unit must be one of the 240 .*pascal_f16_f16"),
    ],
)  # fmt: skip
def test_bad_input_says_what_was_wanted(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){words}"):
        call()


@pytest.mark.parametrize("a", [[[1.0, 2.0]], [["1", "2"]]])
def test_what_is_neither_codes_nor_floats_of_a_dtype_is_refused(a: Any) -> None:
    with pytest.raises(TypeError, match="a must be"):
        fp.dot_add(a, a, None, "hopper_e4m3_f32")
