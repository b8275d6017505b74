"""Sums of products that join an accumulator apart: every distance between the two, ties, cancellation, zeros."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.products.checks import Product, chained, check, multiplied, results

UNITS = ["cdna3_f16_f32", "cdna3_bf16_f32", "cdna3_xf32_f32", "cdna3_fp8_f32", "cdna1_f16_f32", "cdna1_bf16_f32"]
f32 = np.float32


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
