"""fpsim.analysis.exponents, beside math.frexp."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.measures.exponent_range import EMPTY


def f32(*values: float) -> Any:
    """A float32 array."""
    return np.array(values, np.float32)


def test_counts_are_those_of_frexp() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.standard_normal(500) * 2.0 ** rng.integers(-1070, 1020, 500),
            [5e-324, 2.0**-1022, np.finfo(np.float64).max, 0.0, -0.0, np.inf, -np.inf, np.nan],
        ]
    )
    report = fp.analysis.exponents(x)
    finite = [abs(v) for v in x.tolist() if math.isfinite(v) and v]
    assert dict(report.counts) == Counter(math.frexp(v)[1] - 1 for v in finite)
    assert (report.zeros, report.infinities, report.nans) == (2 + int(np.sum(x[:500] == 0)), 2, 1)
    assert (report.amax, report.smallest, report.count) == (max(finite), min(finite), x.size)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_every_code_of_a_narrow_dtype_is_counted(dtype: type) -> None:
    width = np.dtype(dtype).itemsize * 8
    codes = np.arange(1 << min(width, 16), dtype=f"u{width // 8}") << (16 if width == 32 else 0)
    x: Any = codes.astype(f"u{width // 8}").view(dtype)
    report = fp.analysis.exponents(x)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = x.astype(np.float64).tolist()
    finite = [abs(v) for v in values if math.isfinite(v) and v]
    assert dict(report.counts) == Counter(math.frexp(v)[1] - 1 for v in finite)
    assert report.count == x.size


def test_merge_equals_one_pass_exactly() -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    x[:9] = [0, np.nan, np.inf] * 3
    merged = EMPTY
    for part in np.array_split(x, 6):
        merged = merged.merge(fp.analysis.exponents(part))
    assert merged == fp.analysis.exponents(x)


def test_shares_split_the_range_of_a_format() -> None:
    x = f32(2.0**-10, 2.0**-9, 2.0**-7, 2.0**-6, 448.0, 512.0, 0.0, np.nan)
    assert fp.analysis.exponents(x).shares("e4m3") == {
        "below": 1 / 8,
        "subnormal": 2 / 8,
        "normal": 2 / 8,
        "above": 1 / 8,
    }


def test_quantiles_and_empty_data() -> None:
    report = fp.analysis.exponents(f32(1, 1, 1, 2, 1024))
    assert [report.quantile(share) for share in (0.01, 0.6, 0.8, 1.0)] == [0, 0, 1, 10]
    empty = fp.analysis.exponents(np.zeros(0, np.float32))
    assert empty == EMPTY
    assert empty.quantile(0.5) is None
    assert math.isnan(empty.shares(fp.E4M3)["below"])


@pytest.mark.filterwarnings("error")
def test_magnitudes_reach_the_largest_and_the_smallest_float64() -> None:
    largest = float(np.finfo(np.float64).max)
    assert fp.analysis.range(np.array([1.0, largest])).quantiles[0.999] == largest
    assert fp.analysis.range(np.array([5e-324, 1e-323, 1.0])).magnitude(0.5) == 1e-323


def test_frames_hold_shares() -> None:
    pytest.importorskip("pandas")
    assert fp.analysis.exponents(f32(1, 1, 4, 0)).to_frame()["share"].tolist() == [0.5, 0.25]


@pytest.mark.filterwarnings("error")
def test_signalling_nans_of_channels_are_counted_without_a_warning() -> None:
    x = np.array([[0x7F800001, 0x3F800000]], np.uint32).view(np.float32)
    parts: Any = fp.analysis.range(x, axis=1).parts
    assert parts.amax.tolist() == [0, 1]
