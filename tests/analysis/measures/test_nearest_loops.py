"""Rounding and measuring at once, beside the casts and the loops that measure what they give."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.measures import candidates
from fpsim.analysis.measures.loops import BLOCK
from fpsim.analysis.measures.sums import COUNTS, MAXIMA, TOTALS, ErrorSums
from tests.kit.sweeps import in_turn

FORMATS = (
    fp.E4M3, fp.E5M2, fp.FP16, fp.BF16, fp.E2M1, fp.E3M2, fp.E4M3FNUZ, fp.TF32, fp.p3109_k8p3se,
    fp.Format("long", 3, 12), fp.Format("short", 6, 1),
)  # fmt: skip
ROUNDINGS = ("nearest_even", "toward_zero")


def sample(fmt: fp.Format, scale: float, size: int, seed: int = 0) -> Any:
    """Values over the range of a format with a scale, halves between them among these, none beyond it."""
    rng = np.random.default_rng(seed)
    lowest, top = max(math.log2(fmt.smallest_subnormal) - 2, -95.0), min(fmt.max, 2.0**80)
    x = rng.choice([-1, 1], size) * 2.0 ** rng.uniform(lowest, math.log2(top), size)
    q = fp.quantize(x, fmt, overflow="saturate")
    x[::3] = q[::3]
    x[1::3] = q[1::3] + fmt.ulp(q[1::3]) / 2
    x[:2] = [0.0, -0.0]
    return (np.clip(x, -top, top) * scale).astype(np.float32)


def assert_same_sums(got: ErrorSums, want: ErrorSums) -> None:
    """Counts and maxima are the same, sums but for their rounding; the sum of errors, which cancel, as a whole."""
    np.testing.assert_array_equal(got.counts, want.counts, str(COUNTS))
    np.testing.assert_array_equal(got.maxima, want.maxima, str(MAXIMA))
    for name in TOTALS:
        room = np.sqrt(want["compared"] * want.noise) if name == "error" else np.abs(want[name])
        assert np.all(np.abs(got[name] - want[name]) <= 1e-13 * room), name


def by_casts(monkeypatch: pytest.MonkeyPatch, x: Any, fmt: fp.Format, **options: Any) -> Any:
    """The report of the casts and the loops that measure what they give."""
    with monkeypatch.context() as patch:
        patch.setattr(candidates, "nearest_plan", lambda *_: None)
        return fp.analysis.error(x, fmt, **options)


def at_once(monkeypatch: pytest.MonkeyPatch, x: Any, fmt: fp.Format, **options: Any) -> Any:
    """The report where nothing may be left to the casts."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("left to the casts")

    with monkeypatch.context() as patch:
        patch.setattr(candidates.FloatCast, "rounded", refuse)
        return fp.analysis.error(x, fmt, **options)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("scale", [None, 2.0**-5, 0.3, 1.7e12], ids=str)
def test_values_within_range_are_rounded_and_measured_as_by_the_casts(
    fmt: fp.Format, scale: float | None, rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 1.0 if scale is None else float(np.float32(scale))
    x = sample(fmt, one, 2 * BLOCK + 77)
    x = x[np.abs(x / np.float32(one)) <= fmt.max]
    if fmt.smallest_subnormal < 2.0**-100:
        x = x[(x == 0) | (np.abs(x / np.float32(one)) >= max(fmt.smallest_normal, 2.0**-100))]
    normal = x[np.abs(x / np.float32(one)) >= fmt.smallest_normal]
    for part in (x, normal, x[:1], x[2:9]):
        want = by_casts(monkeypatch, part, fmt, scale=scale, rounding=rounding)
        assert_same_sums(at_once(monkeypatch, part, fmt, scale=scale, rounding=rounding).sums, want.sums)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E2M1, fp.FP16, fp.BF16], ids=str)
@pytest.mark.parametrize("scale", [None, 1e-30, 0.3, 3e37, "amax"], ids=str)
def test_every_magnitude_is_measured_as_by_the_casts(
    fmt: fp.Format, scale: Any, rounding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each exponent, each by itself, so that every rule of what is left to the casts meets its edge."""
    rng = np.random.default_rng(1)
    sizes = np.ldexp(rng.uniform(1, 2, (280, 24)), np.arange(-152, 128)[:, None])
    with np.errstate(under="ignore"):
        x = (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float32)
    got = fp.analysis.error(x, fmt, scale=scale, axis=0, rounding=rounding)
    want = by_casts(monkeypatch, x, fmt, scale=scale, axis=0, rounding=rounding)
    assert got.parts is not None
    assert_same_sums(got.parts.sums, want.parts.sums)
    if scale == "amax":
        for row in (*x[:30], *x[30::6]):  # all that are subnormal, and some of the others
            report = fp.analysis.error(row, fmt, scale="amax", rounding=rounding)
            assert_same_sums(report.sums, by_casts(monkeypatch, row, fmt, scale="amax", rounding=rounding).sums)


@pytest.mark.parametrize("fmt", [fp.E2M1, fp.E5M2, fp.E4M3, fp.BF16], ids=str)
def test_sums_of_the_largest_steps_fit(fmt: fp.Format) -> None:
    """Ties are as far from their neighbours as a value can be: half an ulp each, over whole blocks."""
    x = np.full(2 * BLOCK, 1 + 2.0 ** -(fmt.mantissa_bits + 1), np.float32)
    for scale in (None, 0.75):
        report = fp.analysis.error(x if scale is None else x * np.float32(scale), fmt, scale=scale)
        assert report.mean_ulp == report.max_ulp == 0.5
        assert report.exact_rate == 0


@pytest.mark.parametrize("fmt", [fp.E2M1, fp.E5M2, fp.E4M3, fp.BF16], ids=str)
def test_sums_of_nearly_whole_steps_fit(fmt: fp.Format) -> None:
    """What is just below a value of the format is cut down by nearly an ulp, over whole blocks."""
    x = np.full(2 * BLOCK, np.nextafter(np.float32(1.5), np.float32(0)), np.float32)
    steps = 1 << (23 - fmt.mantissa_bits)
    report = fp.analysis.error(x, fmt, rounding="toward_zero")
    assert report.mean_ulp == report.max_ulp == 1 - 1 / steps
    assert report.exact_rate == 0


def test_what_is_just_above_half_the_smallest_value_is_measured_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    half = fp.E4M3.smallest_subnormal / 2
    for rounding, scale in itertools.product(ROUNDINGS, (None, 0.3, 1.9999998807907104, 1.0000001192092896)):
        one = np.float32(1.0 if scale is None else scale)
        x = np.float32(half) * one * (1 + np.arange(-40, 40, dtype=np.float32) * np.float32(2.0**-23))
        each = np.concatenate([x, 2 * x])[:, None]  # by itself: a part of one element
        options: Any = {"scale": scale, "rounding": rounding, "axis": 0}
        got = at_once(monkeypatch, each, fp.E4M3, **options)
        want = by_casts(monkeypatch, each, fp.E4M3, **options)
        assert_same_sums(got.parts.sums, want.parts.sums)


@pytest.mark.parametrize("scale", [None, 0.3], ids=str)
def test_blocks_beyond_the_range_are_left_to_the_casts_and_no_other(
    scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = sample(fp.E4M3, 0.3, 5 * BLOCK + 9)
    x[[5, 2 * BLOCK + 1, 3 * BLOCK]] = [np.nan, 1e9, -np.inf]
    got, want = fp.analysis.error(x, "e4m3", scale=scale), by_casts(monkeypatch, x, fp.E4M3, scale=scale)
    assert_same_sums(got.sums, want.sums)
    assert got.sums["nan"] == 1
    with pytest.raises(AssertionError, match="left to the casts"):
        at_once(monkeypatch, x, fp.E4M3, scale=scale)


@pytest.mark.parametrize(
    "options", [{"rounding": "up"}, {"rounding": "stochastic", "seed": 1}, {"subnormals": "flush"}], ids=str
)
def test_other_roundings_are_left_to_the_casts(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(fp.E4M3, 1.0, 500)
    with pytest.raises(AssertionError, match="left to the casts"):
        at_once(monkeypatch, x, fp.E4M3, **options)
    assert_same_sums(fp.analysis.error(x, "e4m3", **options).sums, by_casts(monkeypatch, x, fp.E4M3, **options).sums)


def test_zeros_alone_have_no_relative_error() -> None:
    report = fp.analysis.error(np.array([0.0, -0.0], np.float32), "e4m3")
    assert math.isnan(report.max_relative)
    assert report.exact_rate == 1
    assert report.underflow_rate == 0


@in_turn("scale", [2.0**-5, 1.0, 16.0, 2.0**60])
@in_turn("fmt", [fp.BF16, fp.TF32, fp.Format("wide", 8, 2)])
def test_zeros_have_no_part_in_errors_in_ulps(fmt: fp.Format, scale: float) -> None:
    """The ulp of a zero in a format as wide as float32 has an inverse that float32 lacks."""
    x = np.array([0.0, 1 + 0.25 * fmt.eps, -0.0, -1.0], np.float32) * np.float32(scale)
    report = fp.analysis.error(x, fmt, scale=scale)
    assert (report.max_ulp, report.mean_ulp) == (0.25, 0.25 / 4)


def test_candidates_side_by_side_are_measured_as_each_by_itself() -> None:
    x = np.stack([sample(fp.E4M3, 0.2, BLOCK, seed) for seed in range(3)])
    for data in (x, np.zeros(5, np.float32)):
        roundings = ["nearest_even", "toward_zero"]
        for row in fp.analysis.compare(data, ["e4m3", "bf16", "fp32"], roundings, [None, 0.3]):
            scale = None if row.scaling == "none" else 0.3
            assert row.report == fp.analysis.error(data, row.format, rounding=row.rounding, scale=scale), row.name
