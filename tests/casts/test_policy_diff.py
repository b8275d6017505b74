"""The list of differences between two policies is complete and exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.E8M0, fp.E4M3FNUZ, fp.format("p3109_k6p3ue"), fp.format("p3109_k5p1sf")]
PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"overflow": "nonfinite"}, {"overflow": "saturate"}),
    ({"overflow": "nonfinite"}, {"overflow": "saturate_finite"}),
    ({"rounding": "nearest_even"}, {"rounding": "nearest_away"}),
    ({"rounding": "up"}, {"rounding": "down"}),
    ({"rounding": "odd"}, {"rounding": "toward_zero"}),
    ({"subnormals": "keep"}, {"subnormals": "flush"}),
]


def covered(x: npt.NDArray[np.float64], differences: list[fp.Difference]) -> npt.NDArray[np.bool_]:
    """Whether each input lies in one of the intervals."""
    inside = np.zeros(x.shape, bool)
    for d in differences:
        above = (x > d.low) | ((x == d.low) & d.low_included)
        below = (x < d.high) | ((x == d.high) & d.high_included)
        inside |= np.isnan(x) if np.isnan(d.low) else above & below
    return inside


@in_turn("fmt", FORMATS)
@in_turn("pair", PAIRS)
def test_intervals_hold_exactly_the_inputs_that_differ(
    fmt: fp.Format, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    values = fmt.table()[np.isfinite(fmt.table())]
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, 1.5 * values, 1.75 * values, [np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300]])
    x = np.concatenate([x, np.nextafter(x, np.inf), np.nextafter(x, -np.inf)])
    differ = fp.encode(x, fmt, **pair[0]) != fp.encode(x, fmt, **pair[1])
    differences = fp.policy_diff(*pair, fmt)
    both_zeros = x == 0  # -0 and 0 are one number but two inputs
    np.testing.assert_array_equal(covered(x, differences)[~both_zeros], differ[~both_zeros])
    for d in differences:
        middle = d.low if d.low == d.high or np.isinf(d.low) or np.isinf(d.high) else d.low + (d.high - d.low) / 2
        if np.isfinite(middle) and (d.low < middle < d.high or d.low == d.high) and middle != 0:
            assert int(fp.encode(np.float64(middle), fmt, **pair[0])) == d.a_code
            assert int(fp.encode(np.float64(middle), fmt, **pair[1])) == d.b_code


def test_equal_policies_have_no_differences() -> None:
    assert fp.policy_diff("ieee", "ocp_nonsaturating", fp.E4M3) == []


def test_torch_changed_its_meaning_for_e4m3_alone() -> None:
    changed = [fmt.name for fmt in FORMATS if fp.policy_diff("torch", "torch<2.12", fmt)]
    assert changed == ["E4M3"]
    shown = [str(d) for d in fp.policy_diff("torch", "torch<2.12", fp.E4M3)]
    assert shown == ["[-inf, -464.0): -448.0 (0xfe) or nan (0xff)", "(464.0, inf]: 448.0 (0x7e) or nan (0x7f)"]


def test_nan_is_an_input_like_any_other() -> None:
    (difference,) = fp.policy_diff("ml_dtypes", "ieee", fp.E2M1)
    assert str(difference) == "nan: -0.0 (0x8) or 6.0 (0x7)"


def test_stochastic_policies_and_wide_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="deterministic"):
        fp.policy_diff({"rounding": "SR", "seed": 1}, "ieee", fp.E4M3)
    with pytest.raises(ValueError, match="up to 16 bits"):
        fp.policy_diff("ieee", "torch", fp.FP32)


def test_overflow_next_to_the_limit_of_float64_is_listed() -> None:
    wide = fp.Format("wide", 11, 3)  # the value after its largest one would be 2**1024
    differences = fp.policy_diff("ieee", "cuda_satfinite", wide)
    assert [(d.low, d.low_included, d.high) for d in differences[1:]] == [(1.9375 * 2.0**1023, True, np.inf)]
    assert (differences[0].low, differences[0].high) == (-np.inf, -1.9375 * 2.0**1023)
