"""Sums of products that join an accumulator apart: every distance between the two, ties, cancellation, zeros."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products import add_product
from fpsim.runtime.vectors import has_avx512
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import some_pairs, sweep
from tests.oracles.units.rows import KINDS, normal
from tests.products.checks import Product, chained, check, lengths, multiplied, random_product, results

UNITS = ["cdna3_f16_f32", "cdna3_bf16_f32", "cdna3_xf32_f32", "cdna3_fp8_f32", "cdna1_f16_f32", "cdna1_bf16_f32"]
WIDTHS = (1, 16, 63, 64, 65, 128, 129)  # of the parts of 64 columns, and of a panel
f32 = np.float32


needs_vectors = pytest.mark.skipif(not has_avx512(), reason="this processor, or numba's target, has no AVX-512")


@pytest.fixture(params=[True, False], ids=["vectors", "plain"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in vectors, and the loops of processors without AVX-512."""
    if request.param and not has_avx512():
        pytest.skip("this processor, or numba's target, has no AVX-512")
    monkeypatch.setattr(add_product, "has_avx512", lambda: request.param)


def compared(p: Product, unit: MatrixUnit) -> None:
    """Fail unless a product has the bits of the other loops, which `check` holds against single steps."""
    with pytest.MonkeyPatch.context() as patch:
        got = multiplied(p, unit)
        patch.setattr(add_product, "has_avx512", lambda: False)
        assert_bits_equal(results(got), results(multiplied(p, unit)))


@needs_vectors
@pytest.mark.parametrize("name", UNITS)
@sweep("pairs", some_pairs(KINDS), list(itertools.product(KINDS, KINDS)))
def test_rows_in_vectors_have_the_bits_of_the_loops(name: str, pairs: Any) -> None:
    unit, shapes = fp.unit(name), itertools.cycle(itertools.product((1, 3), WIDTHS))
    for (kind, other), (m, n) in zip(pairs, shapes, strict=False):
        for k in lengths(unit)[-2:]:
            c = random_product(unit, other, (m, 1, n), seed=k).c
            compared(random_product(unit, kind, (m, k, n))._replace(c=c), unit)


@needs_vectors
@pytest.mark.parametrize("name", UNITS)
def test_sums_of_any_length_are_cut_and_rounded_alike(name: str) -> None:
    """Accumulators of few bits and of all, within and beyond the bits of the products' sum."""
    unit, rng = fp.unit(name), np.random.default_rng(9)
    m, n = 40, 200
    for bits in (1, 8, 16, 24):
        p = random_product(unit, normal, (m, unit.terms, n), seed=bits)
        c = np.ldexp(rng.integers(-(1 << bits), 1 << bits, (m, n)), rng.integers(-34, 30, (m, n)) - bits)
        compared(p._replace(c=c.astype(f32).view(np.uint32)), unit)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", UNITS)
def test_an_accumulator_may_lie_any_distance_from_the_products(name: str) -> None:
    unit, rng = fp.unit(name), np.random.default_rng(3)
    distances = np.arange(-60, 61)
    shape = (len(distances), unit.terms + 3)
    a = np.where(rng.random(shape) < 0.3, 0, rng.standard_normal(shape)).astype(f32)
    b = np.exp2(rng.integers(-3, 4, (shape[1], 24))) * rng.choice([-1.0, -1.25, 0, 1, 1.5, 1.75], (shape[1], 24))
    significands = np.array([1, -1, 2 - 2.0**-23, -2 + 2.0**-23, 1 + 2.0**-23, -1 - 2.0**-23, 0.0, -0.0])
    c = (np.exp2(distances)[:, None] * np.tile(significands, 3)).astype(f32)
    p = Product(fp.encode(a, unit.a.carrier), fp.encode(b.astype(f32), unit.b.carrier), c.view(np.uint32))
    check(p, unit)
    zeros = p._replace(a=np.zeros_like(p.a))  # +0 for -0 where no product counts
    check(zeros, unit)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", UNITS)
def test_products_may_end_half_way_between_two_sums(name: str) -> None:
    """One product of 1 and others around half of the last place of the accumulator, from either side."""
    unit = fp.unit(name)
    places = np.arange(-14, 1)
    a = np.ones((len(places), unit.terms), f32)
    a[:, -1] = np.exp2(places / 2 // 1)
    b = np.tile(np.array([[1, -1, 0, 0, 1, -1]], f32), (unit.terms, 1))
    b[-1] = [1, 1, 1, -1, -1, 0.5]
    sums = [2.0**24, -(2.0**24), 2.0**24 + 2, 2.0**25 - 2, 2.0**31, 2.0**32]
    c = np.tile(np.array(sums, f32), (len(places), 1))
    for sign in (1, -1):
        p = Product(fp.encode(a, unit.a.carrier), fp.encode(b, unit.b.carrier), (sign * c).view(np.uint32))
        assert_bits_equal(results(multiplied(p, unit)), chained(p, unit))
