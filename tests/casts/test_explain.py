"""Explanations agree with the casts that they explain."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fpsim as fp
from fpsim.formats.rounding import NAMES
from tests.kit import processor
from tests.kit.sweeps import in_turn

FORMATS = [
    fp.E4M3,
    fp.E5M2,
    fp.E2M1,
    fp.E8M0,
    fp.E4M3FNUZ,
    fp.FP16,
    fp.format("p3109_k6p1ue"),
    fp.format("p3109_k8p4sf"),
]


def cast_one(x: float, fmt: fp.Format, **words: Any) -> int:
    return int(fp.encode(np.float64(x), fmt, **words))


@given(x=st.floats(width=32), fmt=st.sampled_from(FORMATS), mode=st.sampled_from(NAMES))
def test_the_explained_result_is_the_encoded_one(x: float, fmt: fp.Format, mode: str) -> None:
    told = fp.explain(x, fmt, rounding=mode, seed=7)
    assert told.code == cast_one(x, fmt, rounding=mode, seed=7)
    assert fmt.name in str(told)
    assert told.reason


@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), fmt=st.sampled_from(FORMATS))
def test_neighbours_enclose_the_value_and_the_fraction_places_it(x: float, fmt: fp.Format) -> None:
    told = fp.explain(x, fmt)
    if told.inner is None or told.outer is None or told.fraction is None:
        return
    inner, outer = Fraction(told.inner), Fraction(told.outer)
    assert inner + (outer - inner) * told.fraction == Fraction(x)
    assert abs(inner) <= abs(Fraction(x)) < abs(outer)
    if told.dropped_bits and "..." not in told.dropped_bits:
        assert Fraction(int(told.dropped_bits, 2), 2 ** len(told.dropped_bits)) == told.fraction


SMALL = fp.p3109_k6p3ue.smallest_subnormal


@in_turn(
    "x, fmt, words, reason",
    [
        (4.25, "E4M3", {}, "halfway, and nearest_even takes the neighbour with the even code"),
        (4.25, "E4M3", {"rounding": "RNA"}, "halfway, and nearest_away takes the neighbour away from zero"),
        (4.0, "E4M3", {}, "holds the value exactly"),
        (460.0, "E4M3", {}, "nearest_even takes the nearer neighbour"),
        (470.0, "E4M3", {}, "beyond the largest finite value, 448, and overflow='nonfinite' decides"),
        (470.0, "E4M3", {"overflow": "saturate"}, "448, and overflow='saturate' decides"),
        (470.0, "E4M3", {"rounding": "RTZ"}, "toward_zero drops what does not fit"),
        (500.0, "E4M3", {"rounding": "RTZ"}, "448, where toward_zero stops"),
        (500.0, "E4M3", {"rounding": "up"}, "448, and overflow='nonfinite' decides"),
        (-500.0, "E4M3", {"rounding": "up"}, "448, where up stops"),
        (452.0, "E4M3", {"rounding": "odd"}, "448, where odd stops"),
        (464.0, "E4M3", {}, "halfway"),
        (464.0, "E4M3", {"rounding": "RNA"}, "beyond the largest finite value"),
        (2.0**-9, "E4M3", {"subnormals": "flush"}, "would be 0.00195312, a subnormal, and subnormals='flush'"),
        (1e-5, "E4M3", {"subnormals": "flush"}, "nearest_even takes the nearer neighbour"),
        (3.25e-20, "p3109_k8p1se", {"subnormals": "flush"}, "nearest_even takes the nearer neighbour"),
        (math.inf, "E4M3", {}, "infinite"),
        (math.nan, "E4M3", {}, "NaN stays NaN"),
        (math.nan, "E2M1", {}, "has no NaN"),
        (1.03, "E4M3", {"rounding": "SR", "seed": 1}, "probability 0.24"),
        (3.0, "E8M0", {"rounding": "odd"}, "odd truncates here"),
        (3.0, "E8M0", {}, "takes the larger magnitude"),
        (-1.0, "E8M0", {}, "no negative values, and overflow='nonfinite' decides"),
        (0.0, "E8M0", {}, "no zero"),
        (1e-45, "E8M0", {}, "nothing below its smallest value"),
        (-0.0, "E4M3FNUZ", {}, "has no -0"),
        (-1e-9, "p3109_k6p3ue", {}, "this one rounds to zero"),
        (-0.6 * SMALL, "p3109_k6p3ue", {"overflow": "saturate"}, "overflow='saturate' decides"),
        (-0.6 * SMALL, "p3109_k6p3ue", {"subnormals": "flush"}, "subnormals='flush' makes this one zero"),
        (-0.1 * SMALL, "p3109_k6p3ue", {"rounding": "down", "overflow": "saturate"}, "overflow='saturate' decides"),
        (-math.inf, "p3109_k6p3ue", {}, "no negative values, and overflow='nonfinite' decides"),
    ],
)
def test_the_reason_names_what_decided(x: float, fmt: str, words: dict[str, Any], reason: str) -> None:
    assert reason in fp.explain(x, fmt, **words).reason


def test_neighbours_are_told_in_the_order_of_their_values() -> None:
    told = str(fp.explain(-4.25, fp.E4M3))
    assert "below    -4.5" in told
    assert "above    -4.0" in told
    assert "below    480.0, beyond the largest finite value" in str(fp.explain(500.0, fp.E4M3))


def test_a_value_just_past_a_tie_is_not_called_one_half() -> None:
    told = fp.explain(1 + 2**-4 + 2**-40, fp.E4M3)
    assert told.result == 1.125
    assert "just more than 1/2" in str(told)


def test_the_neighbour_beyond_the_range_has_no_code() -> None:
    assert "8.0, beyond the largest finite value" in str(fp.explain(7.0, fp.E2M1))


@pytest.mark.skipif(not processor.IS_SUPPORTED, reason="sets the state of x86 processors")
def test_subnormals_are_explained_while_the_processor_flushes_them() -> None:
    value = np.float32(3e-40)
    want = [str(fp.explain(value, fmt)) for fmt in (fp.BF16, "nf4")]
    with processor.processor_state(processor.STATES["flush both"]):
        got = [fp.explain(value, fmt) for fmt in (fp.BF16, "nf4")]
    assert [str(explanation) for explanation in got] == want


def test_explain_takes_a_single_float() -> None:
    with pytest.raises(ValueError, match="explain takes one value; got 2"):
        fp.explain(np.array([1.0, 2.0]), fp.E4M3)
    with pytest.raises(TypeError, match=r"got int64\. Convert"):
        fp.explain(np.array([1]), fp.E4M3)
    assert fp.explain(1, fp.E4M3).result == 1


def test_the_probability_is_that_of_the_random_bits() -> None:
    assert "probability 0;" in fp.explain(1.01, fp.E4M3, rounding="SR", seed=0, random_bits=1).reason
    assert "probability 0.08;" in fp.explain(1.01, fp.E4M3, rounding="SR", seed=0).reason
