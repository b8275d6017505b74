"""The two halves of the oracle agree: sorted tables say what fractions say."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import sweep
from tests.oracles import casts

SMALL = [
    fp.E2M1, fp.E3M2, fp.E4M3, fp.E4M3FNUZ, fp.E4M3_IEEE, fp.E8M0,
    fp.format("p3109_k5p1se"), fp.format("p3109_k4p1uf"), fp.format("p3109_k6p3ue"), fp.format("p3109_k5p2sf"),
    fp.Format("powers", 4, 0, infinities=True, nan="none"),
    fp.Format("subnormal", 1, 3),
    fp.Format("binades", 3, 2, signed=False, infinities=False, nan="none", subnormals=False),
]  # fmt: skip


@pytest.mark.parametrize("fmt", [*SMALL, fp.FP16, fp.BF16, fp.format("p3109_k11p5se")], ids=str)
def test_the_table_of_values_holds_the_fractions(fmt: fp.Format) -> None:
    assert_bits_equal(casts.values(fmt), [casts.value(fmt, code) for code in range(2 ** casts.width(fmt))])


def interesting(fmt: fp.Format) -> list[float]:
    """Values, midpoints and their float64 neighbours, the edges of the format, specials."""
    finite = sorted({abs(v) for v in casts.values(fmt) if math.isfinite(v)})
    unit = finite[-1] - finite[-2] or finite[-1]
    finite += [finite[-1] + unit, finite[-1] + 2 * unit, 2 * finite[-1], 4 * finite[-1]]
    middles = [float((Fraction(a) + Fraction(b)) / 2) for a, b in pairwise(finite)]
    centres = [*finite, *middles, finite[0] / 2, finite[1] / 4, finite[1] / 3]
    around = [v for c in centres for v in (math.nextafter(c, -math.inf), c, math.nextafter(c, math.inf))]
    positive = [abs(v) for v in [*around, math.inf, math.nan, 5e-324, 1.7e308]]
    return positive + [-v for v in positive]


@pytest.mark.parametrize("fmt", SMALL, ids=str)
@sweep("steps", (11, 83), (1, 4))
def test_the_lookup_encodes_as_fractions_do(fmt: fp.Format, steps: tuple[int, int]) -> None:
    x = interesting(fmt)[:: steps[casts.width(fmt) >= 7]]
    for rounding in casts.MODES:
        for overflow in casts.OVERFLOWS:
            for subnormals in casts.SUBNORMALS:
                want = [casts.encode(v, fmt, rounding, overflow, subnormals) for v in x]
                got = casts.encode_all(np.array(x), fmt, rounding, overflow, subnormals)
                assert_bits_equal(got, np.array(want, got.dtype))


def test_the_oracle_knows_the_published_corners() -> None:
    assert [casts.value(fp.E4M3, code) for code in (0x01, 0x08, 0x38, 0x7E)] == [2.0**-9, 2.0**-6, 1.0, 448.0]
    assert [casts.value(fp.E5M2, code) for code in (0x01, 0x7B, 0x7C)] == [2.0**-16, 57344.0, math.inf]
    assert [casts.value(fp.E8M0, code) for code in (0, 127, 254)] == [2.0**-127, 1.0, 2.0**127]
    assert casts.encode(464.0, fp.E4M3) == 0x7E  # OFP8: the tie above 448 goes to the even 448
    assert casts.encode(464.1, fp.E4M3) == 0x7F
    assert casts.encode(-464.1, fp.E4M3, overflow="saturate") == 0xFE
