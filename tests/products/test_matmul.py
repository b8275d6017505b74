"""fp.matmul by matrix units: a chain of fp.dot_add for every element, however the product is cut up and promoted."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.kernels.fused_product import DECODED_BYTES
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.units.rows import KINDS, any_code, normal, special, tiny, wide, zeros
from tests.products.checks import (
    KERNELS,
    Product,
    anything,
    chained,
    check,
    extremes,
    lengths,
    multiplied,
    powers,
    random_product,
    results,
    with_scales,
)

every_unit = in_turn("unit", float_units())


every_kernel = in_turn("unit", KERNELS)


wide_units = [unit for unit in KERNELS if unit.a.name in ("bf16", "tf32", "xf32", "f32")]


every_wide_unit = pytest.mark.parametrize("unit", wide_units, ids=lambda unit: unit.name)


# ---- a chain of fp.dot_add for every element


BOTH_WAYS = ((2, 130), (129, 2))


TERMS = [normal, zeros, tiny, special]


IN_TURN = [(kind, BOTH_WAYS[i % 2]) for i, kind in enumerate(KINDS)]


@every_unit
@sweep("whole", False, True)
def test_a_product_is_a_chain_of_dot_add(unit: MatrixUnit, whole: bool) -> None:
    few = IN_TURN if unit in KERNELS else IN_TURN[float_units().index(unit) % 3 :: 3]  # others run on the same loops
    for kind, (m, n) in itertools.product(KINDS, BOTH_WAYS) if whole else few:
        check(random_product(unit, kind, (m, lengths(unit)[-1], n)), unit)


@every_kernel
@sweep("whole", False, True)
def test_a_product_of_any_shape_is_a_chain_of_dot_add(unit: MatrixUnit, whole: bool) -> None:
    for i, k in enumerate(lengths(unit)):
        for j, (m, n) in enumerate(((1, 1), (1, 127), (4, 128), (3, 257), (127, 1), (128, 128), (20, 15))):
            turn = i + j + KERNELS.index(unit)  # every shape with two lengths, of either kind
            if whole or turn % 2 == 0:
                for kind in (any_code, wide) if whole else ((any_code, wide)[turn // 2 % 2],):
                    check(random_product(unit, kind, (m, k, n)), unit)


@every_kernel
@pytest.mark.parametrize("kind", TERMS, ids=lambda kind: kind.__name__)
@sweep("whole", False, True)
def test_a_product_is_added_to_any_accumulator(unit: MatrixUnit, kind: Any, whole: bool) -> None:
    p = random_product(unit, kind, (3, lengths(unit)[-1], 129))
    others = KINDS if whole else KINDS[TERMS.index(kind) :: len(TERMS)]
    for c in (None, *(random_product(unit, other, (3, unit.block or 1, 129), seed=1).c for other in others)):
        check(p._replace(c=c), unit)


@every_kernel
def test_a_product_of_more_rows_than_a_block_is_a_chain_of_dot_add(unit: MatrixUnit) -> None:
    p = random_product(unit, normal, (1030, lengths(unit)[-1], 130))
    picked = [0, 1, 255, 256, 257, 511, 512, 513, 1023, 1024, 1029]
    got = multiplied(p, unit)
    assert_bits_equal(results(got)[picked], chained(p.rows(picked), unit))


@pytest.mark.parametrize("name", ["hopper_e4m3_f32", pytest.param("ampere_bf16_f32", marks=pytest.mark.slow)])
def test_a_product_of_very_many_terms_goes_on_where_its_first_half_stopped(name: str) -> None:
    unit, half = fp.unit(name), 1 << 19  # 14 rows of 2**20 terms take more than one block of decoded rows
    assert 14 * 2 * half * 5 > DECODED_BYTES
    some, rng = random_product(unit, normal, (256, unit.terms, 1)).a[:, 0], np.random.default_rng(0)
    a, b = (some[np.frombuffer(rng.bytes(rows * 2 * half), np.uint8)].reshape(rows, -1) for rows in (14, 2))
    p = Product(a, b.T.repeat(7, axis=1))
    first = fp.matmul(p.a[:, :half], p.b[:half], accumulate=unit)
    want = fp.matmul(p.a[:, half:], p.b[half:], first, accumulate=unit)
    assert_bits_equal(multiplied(p, unit), want)


@st.composite
def any_product(draw: st.DrawFn) -> tuple[Product, MatrixUnit]:
    """Draw a small product of any codes for any unit."""
    unit = draw(st.sampled_from(float_units()))
    m, n = draw(st.sampled_from([(1, 1), (2, 3), (3, 2)]))
    k = draw(st.integers(1, 2 if unit.block else unit.terms + 1)) * (unit.block or 1)
    return anything(unit, (m, k, n), lambda count: draw(st.binary(min_size=count, max_size=count))), unit


@settings(max_examples=200, deadline=None)
@given(any_product())
def test_any_codes_give_a_chain_of_dot_add(drawn: tuple[Product, MatrixUnit]) -> None:
    check(*drawn)


# ---- exponents


@every_wide_unit
@sweep("whole", False, True)
def test_exponents_may_lie_anywhere(unit: MatrixUnit, whole: bool) -> None:
    k, spreads = lengths(unit)[-1], (1, 12, 30)
    for i, left in enumerate(range(-120, 121, 16)):
        for j, right in enumerate(range(-120, 121, 16)):
            for spread in spreads if whole else spreads[(i + 2 * j) % 3 :][:1]:
                check(powers(unit, np.full((2, k), left), np.full((k, 3), right), spread), unit)


@every_wide_unit
def test_rows_and_columns_may_lie_far_apart(unit: MatrixUnit) -> None:
    k, generator = lengths(unit)[-1], np.random.default_rng(1)
    for top in range(-100, 121, 20):  # the largest exponent of either operand sets the window of all rows
        rows, columns = (generator.integers(top - 60, top + 1, count) for count in (40, 130))
        check(powers(unit, np.tile(rows[:, None], k), np.tile(columns, (k, 1)), 2), unit)


@every_wide_unit
def test_steps_may_lie_far_apart(unit: MatrixUnit) -> None:
    generator = np.random.default_rng(2)
    rows, columns = (generator.integers(-60, 60, 6).repeat(unit.terms) for _ in range(2))
    p = powers(unit, np.tile(rows, (5, 1)), np.tile(columns[:, None], 130), 2)
    check(p, unit)
    check(p._replace(c=random_product(unit, wide, (5, 1, 130)).c), unit)


@every_kernel
def test_a_sum_may_overflow_in_the_middle(unit: MatrixUnit) -> None:
    check(extremes(unit, (40, 4 * unit.terms, 130)), unit)


@every_kernel
def test_a_sum_may_cancel_its_accumulator(unit: MatrixUnit) -> None:
    p = random_product(unit, normal, (12, 2 * unit.terms, 130))
    sums = results(multiplied(p._replace(c=None), unit))
    near = sums + np.random.default_rng(4).integers(0, 3, sums.shape).astype(sums.dtype)
    check(p._replace(c=near ^ sums.dtype.type(unit.d.fmt.sign_bit)), unit)


MX = [unit for unit in KERNELS if unit.scale == "ue8m0"]


@pytest.mark.parametrize("unit", MX, ids=lambda unit: unit.name)
@pytest.mark.parametrize("kind", [normal, zeros, any_code], ids=lambda kind: kind.__name__)
def test_a_power_of_two_scale_may_be_any(unit: MatrixUnit, kind: Any) -> None:
    p = random_product(unit, kind, (256, unit.terms, 26))
    some = np.array([0, 1, 2, 30, 63, 64, 90, 91, 92, 100, 120, 126, 127, 128, 150, 163, 164, 165, 200, 230, 252, 253,
                     254, 255, 127, 127], np.uint8)  # fmt: skip
    check(with_scales(p, unit, np.arange(256, dtype=np.uint8), some), unit)


@pytest.mark.parametrize("kind", [normal, zeros, any_code], ids=lambda kind: kind.__name__)
def test_an_e4m3_scale_may_be_any(kind: Any) -> None:
    unit = fp.unit("blackwell_nvfp4_f32")
    p = random_product(unit, kind, (256, unit.terms, 24))
    some = np.array([*range(10), 0x38, 0x40, 0x7D, 0x7E, 0x7F, *range(0x80, 0x87), 0xFE, 0xFF], np.uint8)
    check(with_scales(p, unit, np.arange(256, dtype=np.uint8), some), unit)
    check(with_scales(p, unit, np.arange(256, dtype=np.uint8), some, vary=True), unit)
