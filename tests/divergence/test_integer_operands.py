"""Operands in integer formats: zero points and codes of both signs."""

from __future__ import annotations

import dataclasses

import numpy as np

import fpsim as fp
from fpsim.divergence.divergence import Divergence, equal, first_divergence
from fpsim.divergence.product import Product
from tests.divergence.test_divergence import Adds, Operand

CHAIN = Adds(None, fp.FusedMultiplyAdd("fp32"))
X = np.random.default_rng(0).uniform(0, 1, (4, 128)).astype(np.float32)
ONES = np.ones((128, 2), np.float32)


def difference(first: fp.Scaled, second: fp.Scaled) -> Divergence | None:
    """The first divergence of two products whose operands have these codes, scales and zero points."""
    of = [Operand(X, encoded, None) for encoded in (first, second)]
    x, y = (
        Product(
            "up", "fprop", a, Operand(ONES, ONES, None), CHAIN, fp.matmul(a.values, ONES, accumulate=CHAIN.accumulator)
        )
        for a in of
    )
    assert equal(x, y) == (first_divergence([x], [y]) is None)
    return first_divergence([x], [y])


def test_zero_points_that_differ_are_a_cast() -> None:
    encoded = fp.encode_scaled(X, fp.UINT8, fp.scalings.TILE_1X128.replace(symmetric=False))
    assert encoded.zero_points is not None
    other = dataclasses.replace(encoded, zero_points=encoded.zero_points + 1)
    assert difference(encoded, encoded) is None
    got = difference(encoded, other)
    assert got is not None
    assert (got.cause, got.operand, got.count) == ("cast", "a", X.size)
    assert "code 0xA3 minus the zero point 1, times the scale" in str(got)


def test_negative_codes_are_words_of_their_width() -> None:
    encoded = fp.encode_scaled(-X, fp.INT8, fp.scalings.TILE_1X128)
    codes = encoded.codes.copy()
    codes[0, 3] += 2
    got = difference(encoded, dataclasses.replace(encoded, codes=codes))
    assert got is not None
    assert f"code 0x{int(codes[0, 3]) & 0xFF:02X} times the scale" in str(got)
