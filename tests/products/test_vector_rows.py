"""The rows in vectors, which fp.matmul takes where the processor has AVX-512 or AVX2, give the bits of the others."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import ELEMENTS, MatrixUnit
from fpsim.products.add_product import add_product
from fpsim.products.fast_units import is_fast, rows_of
from fpsim.products.kernels.promotion import ADD, COLUMNS_FIRST, PRODUCT, ROWS_FIRST
from fpsim.products.unit_product import Factors, UnitProduct
from fpsim.runtime.vectors import has_avx2, has_avx512
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import some_pairs, sweep
from tests.kit.units import changed
from tests.oracles.units.rows import KINDS, any_code, normal, random_rows, special, zeros
from tests.products.checks import (
    Product,
    chained,
    check,
    lengths,
    multiplied,
    random_product,
    results,
    take_other_loops,
)

f32 = np.float32

FP8, FP8_TO_HALF, HALF, SCALED = "hopper_e4m3_f32", "hopper_e4m3_f16", "hopper_f16_f32", "blackwell_mxfp8_e4m3_f32"
ALL = (FP8, FP8_TO_HALF, HALF, pytest.param(SCALED, marks=pytest.mark.slow))
WIDTHS = (1, 16, 31, 32, 33, 63, 64, 65, 129)  # of the groups of 16, 32 and 64 columns
HEIGHTS = (1, 2, 3, 5)  # rows are taken in pairs

needs_vectors = pytest.mark.skipif(not has_avx2(), reason="this processor, or numba's target, has no AVX2")
needs_avx512 = pytest.mark.skipif(not has_avx512(), reason="this processor, or numba's target, has no AVX-512")
EITHER = ["own", pytest.param("avx2", marks=needs_avx512)]  # which is a processor's own where it has no AVX-512


@pytest.fixture
def taken_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the rows of this processor, or with those that it would have without AVX-512."""
    if request.param == "avx2":
        take_other_loops(monkeypatch, rows_of="avx2")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the product of a unit by fused_row."""

    def product(p: Product, unit: MatrixUnit) -> Any:
        with monkeypatch.context() as patch:
            take_other_loops(patch, rows_of="plain")
            return multiplied(p, unit)

    return product


def test_rows_are_the_widest_that_the_processor_has() -> None:
    widest = "avx512" if has_avx512() else "avx2" if has_avx2() else "plain"
    for name in (FP8, FP8_TO_HALF, HALF, SCALED):
        is_chained = widest == "avx512" and "hopper_e4m3" in name
        assert rows_of(fp.unit(name)) == ("chained" if is_chained else widest)


@needs_vectors
@pytest.mark.parametrize("taken_rows", EITHER, indirect=True)
@pytest.mark.parametrize("name", ALL)
@sweep("pairs", some_pairs(KINDS), list(itertools.product(KINDS, KINDS)))
def test_both_kinds_of_rows_give_the_same_bits(name: str, pairs: Any, taken_rows: None, plain: Any) -> None:
    unit = fp.unit(name)
    shapes = itertools.cycle(itertools.product(HEIGHTS, WIDTHS))
    for (kind, other), (m, n) in zip(pairs, shapes, strict=False):
        for k in lengths(unit)[-2:]:
            c = random_product(unit, other, (m, unit.block or 1, n), seed=k).c
            p = random_product(unit, kind, (m, k, n))._replace(c=c)
            assert_bits_equal(results(multiplied(p, unit)), results(plain(p, unit)))


FACTORS = np.array([1.0, 0.0, -0.0, -3.0, 1 / 3, 2.0**-140, 3e38, np.inf, -np.inf, np.nan], f32)


def _joined(p: Product, unit: MatrixUnit, factors: Factors, cut: int) -> Any:
    """Partial sums of a step that join totals; with a cut, these join the totals of the slices before."""
    total, nothing = np.full(p.shape, -0.0, f32), np.zeros((0, 0), np.uint8)
    add_product(total, UnitProduct(unit, p.a, p.b, nothing, nothing, unit.terms, factors, cut * unit.terms))
    return total


@needs_vectors
@pytest.mark.parametrize("taken_rows", EITHER, indirect=True)
@pytest.mark.parametrize("name", [FP8, HALF])
@pytest.mark.parametrize("mode", [ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST])
def test_sums_join_alike_in_both_kinds_of_rows(
    name: str, mode: int, taken_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Join by factors of any size, for all widths of panels, in slices of which the last one is short."""
    unit, generator = fp.unit(name), np.random.default_rng(mode)
    shapes = itertools.cycle(itertools.product(HEIGHTS, WIDTHS))
    for (kind, cut), (m, n) in zip(itertools.product((normal, zeros, special) * 3, (0, 2)), shapes, strict=False):
        p = random_product(unit, kind, (m, 5 * unit.terms, n))
        rows, columns = (generator.choice(FACTORS, shape) for shape in ((m, 5), (5, n)))
        factors = Factors() if mode == ADD else Factors(rows, columns, mode)
        got = _joined(p, unit, factors, cut)
        with monkeypatch.context() as patch:
            take_other_loops(patch, rows_of="plain")
            assert_bits_equal(got, _joined(p, unit, factors, cut))


@pytest.mark.parametrize("name", ALL)
def test_accumulators_may_lie_far_from_the_products(name: str) -> None:
    """Cover exponents from below the last bit that is kept to the end; chained_row skips them from 2**100 on."""
    unit = fp.unit(name)
    least, most = unit.d.fmt.min_exponent - unit.d.fmt.mantissa_bits, unit.d.fmt.max_exponent
    exponents = np.arange(least, most + 1)
    generator = np.random.default_rng(3)
    c = np.ldexp(1 + generator.random((4, exponents.size)), exponents).astype(np.float64)
    c[1::2] *= -1
    codes = fp.encode(c, unit.d.fmt, rounding="toward_zero")
    for kind in (normal, zeros):
        check(random_product(unit, kind, (4, unit.terms, exponents.size))._replace(c=codes), unit)


@pytest.mark.parametrize("name", ALL)
def test_a_step_of_zeros_leaves_what_the_result_keeps(name: str) -> None:
    unit = fp.unit(name)
    values = np.array([0.0, -0.0, 1.0, -1.0, 1 + 2.0**-23, -(1 + 2.0**-13), np.inf, -np.inf, np.nan, 2.0**-20, -3e-8])
    c = np.tile(fp.encode(np.resize(values, 70), unit.d.fmt), (3, 1))
    for sign_a, sign_b in itertools.product((0.0, -0.0), repeat=2):
        a, b = (
            fp.encode(np.full(s, z), e.carrier) for s, z, e in (((3, 40), sign_a, unit.a), ((40, 70), sign_b, unit.b))
        )
        a, b = (x[:, : unit.terms] if i == 0 else x[: unit.terms] for i, x in enumerate((a, b)))
        p = random_product(unit, zeros, (3, unit.terms, 70))
        check(p._replace(a=np.resize(a, p.a.shape), b=np.resize(b, p.b.shape), c=c), unit)


@pytest.mark.parametrize("name", [FP8, FP8_TO_HALF])
def test_nan_payloads_of_an_accumulator_stay_nan(name: str) -> None:
    """The lowest bits of a float32 are not kept, and a NaN that has no others would become Inf."""
    unit = fp.unit(name)
    quiet_low = 0x7F800001 if name == FP8 else 0x7C01
    p = random_product(unit, normal, (3, unit.terms, 70))
    check(p._replace(c=np.full((3, 70), quiet_low, unit.d.dtype)), unit)


@pytest.mark.parametrize("name", [FP8, "hopper_e4m3xe5m2_f32", "hopper_e5m2_f32"])
def test_all_pairs_of_codes_give_single_products(name: str) -> None:
    unit, codes = fp.unit(name), np.arange(256, dtype=np.uint8)
    check(Product(codes[:, None], codes[None, :]), unit)
    for c in (1.0, -(2.0**-9), 448.0**2):  # of which the product and the sum cut each other
        check(Product(codes[:, None], codes[None, :], np.full((256, 256), fp.encode(c, fp.FP32))), unit)


@pytest.mark.parametrize("name", ALL)
def test_rows_of_any_signs_meet_in_pairs(name: str) -> None:
    """Terms are taken in another order for every pair of rows, by the signs of both."""
    unit = fp.unit(name)
    p = random_product(unit, normal, (9, 3 * unit.terms, 70))
    top = 1 << (unit.a.carrier.bits - 1)
    a = p.a & p.a.dtype.type(top - 1)
    a[1] |= p.a.dtype.type(top)
    a[2, ::2] |= p.a.dtype.type(top)
    a[3, 1::2] |= p.a.dtype.type(top)
    a[5:] = p.a[5:]
    check(p._replace(a=a), unit)


@pytest.mark.parametrize("name", ALL)
def test_a_row_of_specials_leaves_its_neighbours_alone(name: str) -> None:
    unit = fp.unit(name)
    rows = random_rows(unit, any_code, 7, 2 * unit.terms)
    p = random_product(unit, normal, (7, 2 * unit.terms, 70))
    for r in range(7):
        a = p.a.copy()
        a[r] = rows.a[r]
        check(p._replace(a=a), unit)


OWN = {
    "15 bits": changed(FP8, fraction_bits=15),
    "16 bits": changed(FP8, fraction_bits=16),
    "a high floor": changed(FP8_TO_HALF, floor_exponent=-13),
    "a low floor": changed(FP8, floor_exponent=-900),
    "all bits kept": changed(FP8, result_bits=13),
    "fewer bits": changed(FP8, result_bits=5),
    "FP16 cut at 13 bits": changed(FP8, a=ELEMENTS["f16"], b=ELEMENTS["f16"], result_bits=13),
    "FP4": changed(FP8, a=ELEMENTS["e2m1"], b=ELEMENTS["e2m1"]),
}


@pytest.mark.parametrize("name", OWN)
def test_units_of_ones_own_take_the_same_rows(name: str) -> None:
    """Multiply the largest operands too: the bound on sums decides which rows serve, and these reach it."""
    unit = OWN[name]
    assert is_fast(unit)
    for kind in KINDS:
        check(random_product(unit, kind, (3, 2 * unit.terms, 33)), unit)
    most = [np.full(s, e.fmt.max_code, e.dtype) for s, e in (((3, unit.terms), unit.a), ((unit.terms, 33), unit.b))]
    p = Product(most[0], most[1])
    check(p, unit)
    negated = most[1] | most[1].dtype.type(1 << (unit.b.fmt.bits - 1))
    check(p._replace(b=negated), unit)
    assert_bits_equal(results(multiplied(p, unit)), chained(p, unit))
