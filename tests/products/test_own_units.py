"""Units that stand in no table: fp.matmul is a chain of fp.dot_add, which is the oracle, or they mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.products.fast_units import is_fast
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.kit.units import changed, check_case, random_case, random_unit
from tests.products.checks import KERNELS

HALF, FP8 = "hopper_f16_f32", "hopper_e4m3_f32"
F32, F64, TF32, FNUZ = (ELEMENTS[name] for name in ("f32", "f64", "tf32", "fp8"))
DEEP = fp.Format("deep", 8, 7, bias=200)


@in_turn("terms", [1, 2, 3, 5, 6, 12, 20, 24, 28, 40, 64])
def test_no_term_of_a_step_is_dropped(terms: int) -> None:
    ones, unit = np.ones((2 * terms, 2 * terms), np.float16), changed(HALF, terms=terms)
    assert_bits_equal(fp.matmul(ones, ones, accumulate=unit), np.full(ones.shape, 2 * terms, np.float32))
    assert_bits_equal(fp.dot_add(ones, ones, None, unit).view(np.float32), np.full(2 * terms, 2 * terms, np.float32))


def test_facts_of_a_unit_may_be_numpy_integers() -> None:
    facts: dict[str, Any] = {"terms": np.int64(32), "fraction_bits": np.int32(13), "block": np.uint8(0)}
    same = replace(changed(FP8), name=FP8, **facts)
    assert same == fp.unit(FP8)
    assert repr(same) == repr(fp.unit(FP8))


@pytest.mark.parametrize("bits", [26, 27, 40])
def test_sums_of_more_fraction_bits_do_not_wrap_around(bits: int) -> None:
    most = np.full((16, 16), 65504, np.float16)  # whose product has a significand just below 4
    unit = changed(HALF, fraction_bits=bits)
    assert fp.matmul(most, most, accumulate=unit)[0, 0] == np.float32(16 * 65504.0**2)


OWN = {
    "12 terms": changed(HALF, terms=12),
    "24 terms": changed(HALF, terms=24),
    "64 terms": changed(FP8, terms=64),
    "27 bits": changed(HALF, fraction_bits=27),
    "no bits": changed(HALF, fraction_bits=0),
    "fewer bits than the result": changed(HALF, fraction_bits=13),
    "a high floor": changed(HALF, floor_exponent=3),
    "a low floor": changed(HALF, floor_exponent=-2000),
    "float32 operands": changed(HALF, a=F32, b=F32),
    "another operand": changed(HALF, a=TF32),
    "tf32 beside f16": changed(HALF, b=TF32),
    "deep operands": changed(HALF, a=Element("deep", DEEP, DEEP)),
    "NaN in the place of -0": changed(HALF, a=FNUZ, b=FNUZ),
    "sums in bf16": changed(HALF, d=ELEMENTS["bf16"], result_bits=7),
    "sums in e5m2": changed(HALF, d=ELEMENTS["e5m2"], result_bits=2),
    "sums in float64": changed(HALF, d=F64, result_bits=52),
    "f16 sums of 6 bits": changed("hopper_f16_f16", result_bits=6),
    "two steps to a block": changed("blackwell_mxfp8_e4m3_f32", terms=16),
    "MX of bf16": changed("blackwell_mxfp8_e4m3_f32", a=ELEMENTS["bf16"]),
    "80 terms of FP4": changed("blackwell_nvfp4_f32", terms=80),
    "FP4 to 9 bits": changed("blackwell_nvfp4_f32", result_bits=9),
    "short passes": changed("hopper_mma_e4m3_f32", terms=12),
    "passes of FP16 and FP6": changed("hopper_mma_e4m3_f32", a=ELEMENTS["f16"], b=ELEMENTS["e2m3"]),
    "fused f16": changed("cdna1_f32_f32", d=ELEMENTS["f16"], result_bits=10),
    "fused f64 of f32": changed("ampere_f64_f64", a=F32),
    "exact sums of 3 f16": changed("cdna1_f16_f32", terms=3),
    "exact sums of 9 f64": changed("ampere_f64_f64", terms=9),
    "exact tf32": changed("cdna1_f32_f32", a=TF32, b=TF32, terms=3),
    "exact to 8 bits": changed("cdna1_f32_f32", result_bits=8),
    "exact far above float64": changed("cdna1_f32_f32", a=Element("top", *[fp.Format("top", 5, 10, bias=-990)] * 2)),
    "a tree of 16": changed("cdna2_f16_f32", terms=16),
    "20 bits apart": changed("cdna3_f16_f32", fraction_bits=20),
    "apart with a floor": changed("cdna3_f16_f32", floor_exponent=-4),
    "even or odd": changed("cdna3_fp8_f32", terms=1),
    "even and odd of bf16": changed("cdna3_fp8_f32", a=ELEMENTS["bf16"], b=ELEMENTS["bf16"], terms=5),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_a_product_is_a_chain_of_instructions_and_those_are_the_oracles(name: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        check_case(random_case(OWN[name], rng), OWN[name], rng)


@sweep("seed", 1, 40)
@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_any_unit_that_means_something_multiplies_as_the_oracle(rule: Rule, seed: int) -> None:
    for number in range(25):
        rng = np.random.default_rng([seed, number])
        unit = random_unit(rng, rule)
        if not is_fast(unit):  # which needs a kernel of its own; the fuzzer draws those too
            check_case(random_case(unit, rng), unit, rng)


def test_all_units_of_the_tables_but_arms_are_fast() -> None:
    assert [unit.name for unit in float_units() if not is_fast(unit)] == ["arm_bf16_f32", "arm_ebf_bf16_f32"]
    assert len(KERNELS) > 20


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, unit = np.random.default_rng(1), OWN["12 terms"]
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((40, 50), (50, 30)))
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    monkeypatch.setattr("fpsim.products.add_product.PAIR_WORDS", 1000)
    monkeypatch.setenv("FPSIM_NUM_THREADS", "3")
    got = fp.matmul(a, b, accumulate=unit)
    pairs = np.repeat(a, 30, axis=0), np.tile(b.T, (40, 1))
    assert_bits_equal(got.view(np.uint32), fp.dot_add(*pairs, None, unit).reshape(40, 30))


# ---- what means nothing


MEANINGLESS: dict[str, tuple[str, dict[str, Any], str]] = {
    "f64 cut": (HALF, {"a": F64}, "FUSED takes products of up to 62 bits; f64 x f16 has 64. Take Rule.EXACT."),
    "bits": (HALF, {"fraction_bits": 56}, "fraction_bits must be at most 55 for 16 terms; got 56."),
    "terms": (HALF, {"terms": 1 << 17}, "terms must be at most 65536; got 131072."),
    "floor": (HALF, {"floor_exponent": 9999}, "floor_exponent must lie in -4096 .. 4096; got 9999."),
    "result": (HALF, {"result_bits": 24}, "result_bits must be at most the 23 mantissa bits of f32; got 24."),
    "half result": (HALF, {"d": ELEMENTS["f16"]}, "result_bits must be at most the 10 mantissa bits of f16; got 23."),
    "d": (HALF, {"d": ELEMENTS["e4m3"]}, "d must be an IEEE 754 element with its own codes, such as"),
    "tf32 d": (HALF, {"d": TF32}, "d must be an IEEE 754 element with its own codes, such as f32"),
    "wide d": (HALF, {"d": Element("wide", *[fp.Format("wide", 11, 4)] * 2)}, "d must be f64, or a format whose val"),
    "scale": (HALF, {"scale": "ue8m0", "block": 32}, "FUSED has no block scales: leave scale and block out, or take"),
    "no scale": (HALF, {"rule": Rule.SCALED}, "SCALED needs block scales: pass scale='ue8m0' and a block, or take"),
    "ue4m3": ("blackwell_mxfp8_e4m3_f32", {"scale": "ue4m3"}, "SCALED adds the exponents of scales, which must be"),
    "block": ("blackwell_mxfp8_e4m3_f32", {"terms": 64}, "the 64 terms of a step of SCALED share their scales: block"),
    "group": ("blackwell_nvfp4_f32", {"terms": 40}, "GROUPED adds groups of 16 products: terms must be a multiple"),
    "FP8 groups": ("blackwell_nvfp4_f32", {"a": FNUZ}, "GROUPED takes e2m1 operands; got fp8 and e2m1."),
    "passes": ("hopper_mma_e4m3_f32", {"terms": 30}, "TWO_PASSES takes two terms of every four first: terms must"),
    "passes of bf16": ("hopper_mma_e4m3_f32", {"a": ELEMENTS["bf16"]}, "TWO_PASSES reads its operands as FP16, which"),
    "exact cut": ("cdna1_f16_f32", {"fraction_bits": 9}, "EXACT cuts nothing: fraction_bits must be 0; got 9."),
    "tree of 6": ("cdna2_f16_f32", {"terms": 6}, "FLUSHED_TREE adds pairs of pairs: terms must be a power of two"),
    "tree of f16": ("cdna2_f16_f32", {"result_bits": 10}, "FLUSHED_TREE adds in float32: d must be f32 with 23 resu"),
    "tree of f64": ("cdna2_f16_f32", {"a": F64}, "FLUSHED_TREE multiplies in float32, which does not hold f64"),
    "apart": ("cdna3_f16_f32", {"fraction_bits": 33}, "fraction_bits of SEPARATE must be at most 32; got 33."),
}  # fmt: skip


@in_turn("name", MEANINGLESS)
def test_a_unit_that_means_nothing_is_refused_in_a_sentence(name: str) -> None:
    unit, changes, sentence = MEANINGLESS[name]
    with pytest.raises(ValueError) as refused:
        replace(fp.unit(unit), **changes)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_an_element_carries_its_own_codes_or_longer_ones() -> None:
    assert Element("mine", fp.BF16, fp.FP32).dtype == np.uint32
    with pytest.raises(ValueError, match="carrier must be E4M3 itself, or its layout of IEEE 754 with more mantissa b"):
        Element("mine", fp.E4M3, fp.FP16)
    with pytest.raises(TypeError, match=r"fmt must be an fp.Format, such as fp.E4M3; got <INT8"):
        Element("mine", fp.INT8, fp.INT8)  # type: ignore[arg-type]


def test_names_of_elements_mean_nothing() -> None:
    rng, named = np.random.default_rng(3), Element("a text", fp.FP32, fp.FP32)
    for name in (HALF, "hopper_tf32_f32", "cdna3_xf32_f32"):
        unit = fp.unit(name)
        other: MatrixUnit = replace(
            unit, a=Element("a", unit.a.fmt, unit.a.carrier), b=Element("b", unit.b.fmt, unit.b.carrier), d=named
        )
        check_case(random_case(other, rng), other, rng)
        assert other.rounding == unit.rounding
