"""What docs/scaling.md says of the edges: what is cut, infinite or beyond float32, and what each counts as."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.loops import take_common_loops
from tests.scaling.checks import check

Array = npt.NDArray[Any]
INF, LARGEST = np.inf, np.finfo(np.float32).max


def counted(q: fp.Scaled) -> dict[str, int]:
    """What the report counts besides tiles, without zeros."""
    return {name: count for name, count in q.report.to_dict().items() if count and name != "tiles"}


# ---- two levels


def test_the_elements_of_transformer_engines_two_levels_see_the_float32_t_in_float64_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1 / g, which is not rounded to float32, would give other codes."""
    take_common_loops(monkeypatch)
    x = np.random.default_rng(0).standard_normal((512, 512))
    q = fp.encode_scaled(x, fp.FP16, fp.scalings.TE_NVFP4)
    assert q.scale_codes is not None
    assert q.tensor_scale is not None
    g = np.float32(448 * fp.FP16.max / np.abs(x).max())
    b = fp.decode(q.scale_codes, "e4m3", np.float64).repeat(16, axis=1)
    by_t, by_g = (x * np.minimum(1 / (b * t), LARGEST) for t in (np.float64(q.tensor_scale), 1 / np.float64(g)))
    assert_bits_equal(q.codes, fp.encode(by_t, fp.FP16, overflow="saturate"))
    assert np.any(q.codes != fp.encode(by_g, fp.FP16, overflow="saturate"))


@pytest.mark.parametrize(("name", "t", "clamped"), [("TE_NVFP4", 1 / LARGEST, 1), ("NVFP4", 2.0**-126, 2)])
def test_a_tensor_scale_that_is_cut_counts_once_beside_the_tiles(name: str, t: float, clamped: int) -> None:
    q = fp.encode_scaled(np.full((1, 16), 1e-42, np.float32), fp.E2M1, getattr(fp.scalings, name))
    assert q.tensor_scale == np.float32(t)
    assert counted(q) == {"clamped_low": clamped}  # NVFP4's tile has the smallest scale besides


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.E5M2], ids=str)
@pytest.mark.parametrize("name", ["NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"])
def test_finite_float64_arrays_have_finite_scales_of_two_levels(name: str, scale_format: fp.Format) -> None:
    how = getattr(fp.scalings, name).replace(scale_format=scale_format, smallest_scale=None)
    for amax in (3e38, 1e39, 2e42, 1e43, 1e300):
        q = check(np.array([[amax, -1.0] + [0.5] * 30, [1e40] + [1.0] * 31]), fp.E2M1, how)
        assert np.isfinite(q.scales).all()
        assert np.isfinite(q.decode(np.float64)).all()


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.E5M2, fp.E3M4], ids=str)
def test_an_array_beyond_float32_gets_the_largest_scale_that_its_encode_scale_can_undo(scale_format: fp.Format) -> None:
    how = fp.scalings.TE_NVFP4.replace(scale_format=scale_format)
    t = fp.encode_scaled(np.full((1, 16), 1e300), fp.E2M1, how).tensor_scale
    assert t is not None
    near = np.float32(1) / t
    larger = np.float32(1) / np.nextafter(near, np.float32(0))  # of the encode scale before it
    assert np.isfinite(t * np.float32(scale_format.max))
    assert larger == t or np.float64(larger) * scale_format.max > np.finfo(np.float32).max


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.BF16], ids=str)  # with BF16 float32 cannot hold Smax * max
@pytest.mark.parametrize("division", ["divide", "multiply"])
def test_an_infinite_amax_makes_two_levels_nan_throughout(division: str, scale_format: fp.Format) -> None:
    x = np.array([[INF] + [1.0] * 31], np.float32)
    how = fp.scalings.NVFP4.replace(infinity="propagate", division=division, scale_format=scale_format)
    q = fp.encode_scaled(x, fp.E2M1, how)
    assert q.tensor_scale == INF
    assert_bits_equal(q.scales, np.array([[np.nan, INF]], np.float32))
    assert np.isnan(q.decode()).all()
    assert counted(q) == {"infinite_tiles": 1, "clamped_low": 1}


@pytest.mark.parametrize(("scale_format", "one"), [(fp.E4M3, 1.03125), (fp.BF16, 1.001953125)], ids=str)
def test_an_infinite_amax_leaves_transformer_engines_other_tiles_with_t_1(scale_format: fp.Format, one: float) -> None:
    x = np.array([[INF] + [1.0] * 31], np.float32)
    how = fp.scalings.TE_NVFP4.replace(infinity="propagate", scale_format=scale_format)
    q = fp.encode_scaled(x, fp.E2M1, how)
    assert q.tensor_scale == 1
    assert q.scales[0, 0] == scale_format.max
    decoded = q.decode(dtype=np.float64)
    assert (decoded[0, 0], decoded[0, 20]) == (scale_format.max * 6, one)
    assert counted(q) == {"infinite_tiles": 1, "clamped_high": 1}


# ---- one level


@pytest.mark.parametrize(
    ("changes", "scale", "clamped"),
    [
        ({}, INF, 0),
        ({"quotient": "1/(max/amax)"}, INF, 0),
        ({"scale_format": "e8m0"}, 2.0**127, 1),
        ({"scale_format": "e8m0", "scale_rule": "rceil"}, 2.0**127, 1),
        ({"scale_format": "e8m0", "scale_rule": "nearest"}, 2.0**127, 1),
        ({"scale_format": "e8m0", "scale_rule": "floor"}, 2.0**120, 0),
        ({"scale_format": "e8m0", "scale_rule": "ceil"}, 2.0**120, 0),
        ({"scale_format": "e8m0", "scale_rule": "even"}, 2.0**120, 0),
        ({"scale_format": "e8m0", "quotient": "1/(max/amax)"}, 2.0**127, 0),
    ],
    ids=str,
)
def test_an_infinite_scale_counts_as_clamped_where_it_was_rounded_into_a_format_without_inf(
    changes: dict[str, Any], scale: float, clamped: int
) -> None:
    how = fp.scalings.ROW.replace(infinity="propagate", **changes)
    q = fp.encode_scaled(np.array([[INF, 1, -2]], np.float32), fp.E4M3, how)
    assert q.scales[0, 0] == scale
    assert counted(q) == {"infinite_tiles": 1, **({"clamped_high": 1} if clamped else {})}


@pytest.mark.parametrize(
    ("fmt", "symmetric", "infinite"),
    [
        (fp.E4M3, True, np.nan),
        (fp.E2M1, True, INF),
        (fp.INT8, True, INF),
        (fp.INT8, False, INF),
        (fp.UINT4, False, INF),
    ],
    ids=str,
)
def test_beside_an_infinite_scale_nothing_is_finite(fmt: Any, symmetric: bool, infinite: float) -> None:
    how = fp.scalings.ROW.replace(infinity="propagate", symmetric=symmetric)
    q = fp.encode_scaled(np.array([[INF, -INF, 1, -2, 0]], np.float32), fmt, how)
    np.testing.assert_array_equal(q.decode(), [[infinite, infinite, np.nan, np.nan, np.nan]])


@pytest.mark.parametrize(
    ("name", "scale", "clamped"),
    [
        ("ROW", LARGEST, 1),
        ("TE_TENSOR", np.float32(1) / np.float32(2.0**-128 + 2.0**-149), 1),
        ("NVFP4", LARGEST, 1),
        ("MX", 2.0**127, 1),
    ],
)
def test_a_float64_quotient_beyond_float32_gives_the_largest_scale(name: str, scale: float, clamped: int) -> None:
    q = fp.encode_scaled(np.array([[1e300, 1.0]]), fp.E2M1, getattr(fp.scalings, name))
    assert q.scales[0, 0] == scale
    assert not np.isnan(q.decode()).any()
    assert q.report.clamped_high == clamped


# ---- given scales


def test_given_scales_divide_or_multiply_and_need_not_give_the_same_codes_again() -> None:
    how, differ = fp.scalings.TE_1X128_FP32, False
    for seed in range(100):
        x = np.random.default_rng(seed).standard_normal((8, 128)).astype(np.float32)
        q = fp.encode_scaled(x, fp.FP16, how)
        again = fp.encode_scaled(x, fp.FP16, how, scales=q.scales)
        assert_bits_equal(again.codes, fp.encode(x * (1 / q.scales), fp.FP16, overflow="saturate"))
        differ |= bool(np.any(again.codes != q.codes))
    assert differ, "an encode scale is not the inverse of its inverse"


@pytest.mark.parametrize("name", ["NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"])
def test_given_scales_are_those_of_both_levels(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    q = fp.encode_scaled(x, fp.E2M1, getattr(fp.scalings, name), scales=0.5)
    assert q.tensor_scale is None
    assert q.scale_codes is None
    assert_bits_equal(q.decode(), fp.quantize(x / np.float32(0.5), fp.E2M1, overflow="saturate") * np.float32(0.5))


def test_given_scales_leave_floors_bounds_and_infinities_aside() -> None:
    how = fp.scalings.ROW.replace(amax_floor=9.0, smallest_scale=1.0, zero_scale="smallest", infinity="one")
    x = np.array([[INF, 1.0], [0, 0]], np.float32)
    q = fp.encode_scaled(x, fp.E2M1, how, scales=2.0**-130)
    assert_bits_equal(q.scales, np.full((2, 1), 2.0**-130, np.float32))
    assert counted(q) == {"infinite_tiles": 1, "zero_tiles": 1}


# ---- LogFMT


@pytest.mark.parametrize(
    "changes",
    [
        {"amax_floor": 9.0},
        {"infinity": "propagate"},
        {"infinity": "one"},
        {"tensor_scale": True, "scale_format": "e4m3"},
        {"scale_format": "e8m0", "scale_rule": "floor", "zero_scale": "smallest"},
    ],
    ids=str,
)
def test_logfmt_takes_the_block_and_nan_of_a_scaling_alone(changes: dict[str, Any]) -> None:
    x = np.array([[0, 1e-30, INF, 3.0], [0, 0, 0, 0]], np.float32)
    q, want = (fp.encode_scaled(x, fp.LogFMT(8), how) for how in (fp.scalings.ROW.replace(**changes), fp.scalings.ROW))
    for name in ("codes", "scales", "zero_points"):
        assert_bits_equal(getattr(q, name), getattr(want, name))
    assert q.report == want.report
    assert (q.scale_codes, q.tensor_scale) == (None, None)


def test_an_infinity_beside_zeros_is_the_level_1_of_logfmt() -> None:
    x = np.array([[0, INF, -INF]], np.float32)
    assert_bits_equal(fp.quantize_scaled(x, fp.LogFMT(8), fp.scalings.ROW), np.array([[0, 1, -1]], np.float32))


def test_levels_of_logfmt_that_float32_cannot_hold_are_cut_and_not_counted() -> None:
    x = np.array([[1e40, -3e60], [1e-60, 3e-60]])
    q = fp.encode_scaled(x, fp.LogFMT(8), fp.scalings.ROW)
    assert_bits_equal(q.decode(), np.array([[LARGEST, -LARGEST], [0, 0]], np.float32))
    octaves = fp.encode_scaled(np.array([[2.0**-40, 2.0**-33, 1]], np.float32), fp.LogFMT(8), fp.scalings.ROW)
    assert_bits_equal(octaves.decode()[0, :2], np.array([0, 2.0**-32], np.float32))  # the nearer of 0 and the lowest
    assert counted(q) == counted(octaves) == {}


# ---- what reads scaled values


def test_the_error_of_float64_with_a_scaling_is_that_of_float32_values() -> None:
    x = np.full(16, 1 / 3)  # which is the largest value times the scale
    report = fp.analysis.error(x, fp.FP16, scaling=fp.scalings.ROW)
    noise = x - fp.quantize_scaled(x, fp.FP16, fp.scalings.ROW)
    assert report.sqnr_db == pytest.approx(10 * np.log10(np.sum(x**2) / np.sum(noise**2)), rel=1e-12)
    assert 140 < report.sqnr_db < 160


@pytest.mark.parametrize("nan", ["tile", "element"])
def test_delayed_scaling_takes_a_nan_for_an_element_whatever_the_scaling_says(nan: str) -> None:
    how = fp.scalings.TENSOR.replace(nan=nan)
    got = {
        fmt: fp.DelayedScaling(fmt, how).quantize(np.array([np.nan, 1], np.float32)).tolist()
        for fmt in ("int8", "e2m1")
    }
    assert got == {"int8": [127, 1], "e2m1": [6, 1]}
