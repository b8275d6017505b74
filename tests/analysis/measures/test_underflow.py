"""fpsim.analysis.underflow, beside fpsim.quantize on every scaled array, and figures known from elsewhere."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
underflow = fp.analysis.underflow
ROUNDINGS = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "odd"]
SCALES = [-30, -24, -9, -3, -1, 0, 1, 2, 5, 8, 17, 30]


def f32(*values: float) -> Array:
    """A float32 array."""
    return np.array(values, np.float32)


def brute(x: Array, fmt: fp.Format, k: int, rounding: str, subnormals: str) -> tuple[int, int, int]:
    """Elements that are lost, subnormal and saturated, by rounding all of them."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        y = np.ldexp(x.astype(np.float64), k)
    q = np.abs(np.asarray(fp.quantize(y, fmt, rounding=rounding, overflow="saturate", subnormals=subnormals)))
    limit = fmt.max + float(fmt.ulp(fmt.max)) / 2  # from here on nearest-even goes beyond the largest value
    beyond = np.abs(y) >= limit if fmt.max_code & 1 else np.abs(y) > limit
    lost = (q == 0) & (y != 0)
    small = (q != 0) & (q < fmt.smallest_normal) & fmt.subnormals
    return tuple(int(np.count_nonzero(each)) for each in (lost, small, beyond & np.isfinite(y)))  # type: ignore[return-value]


def values(fmt: fp.Format) -> Array:
    """Values of many sizes, both signs, zeros, NaN, Inf, and the edges of a format with their neighbours."""
    rng = np.random.default_rng(0)
    edges = np.array([fmt.smallest_subnormal / 2, fmt.smallest_subnormal, fmt.smallest_normal, fmt.max])
    edges = np.concatenate([edges, edges * 1.5, [fmt.max + float(fmt.ulp(fmt.max)) / 2]])
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf)])
    wide = rng.standard_normal(2000) * 2.0 ** rng.integers(-40, 40, 2000)
    return np.concatenate([near, -near, wide, [0.0, -0.0, np.nan, np.inf, -np.inf]])


@in_turn("rounding", ROUNDINGS)
@pytest.mark.parametrize("subnormals", ["keep", "flush"])
@pytest.mark.parametrize("name", ["FP16", "BF16", "E4M3", "E5M2", "E2M1", "E3M2", "E4M3FNUZ", "FP32"])
def test_counts_are_those_of_rounding_every_scaled_value(name: str, subnormals: str, rounding: str) -> None:
    fmt = fp.format(name)
    x = values(fmt)
    report = underflow(x, fmt, SCALES, rounding=rounding, subnormals=subnormals)
    for row in report.rows:
        assert (row.lost, row.subnormal, row.saturated) == brute(x, fmt, row.log2_scale, rounding, subnormals)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_every_dtype_is_read_exactly(dtype: Any) -> None:
    width = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(1)
    if width <= 16:
        x: Array = np.arange(1 << width).astype(f"u{width // 8}").view(dtype)
    else:
        x = (rng.standard_normal(5000) * 2.0 ** rng.integers(-140, 120, 5000)).astype(dtype)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    report = underflow(x.reshape(-1, 4), fp.E4M3)
    for row in report.rows:
        assert (row.lost, row.subnormal, row.saturated) == brute(wide, fp.E4M3, row.log2_scale, "nearest_even", "keep")
    assert (report.zeros, report.nans) == (int(np.sum(wide == 0)), int(np.sum(np.isnan(wide))))
    assert report.count == x.size


def test_products_may_leave_float64() -> None:
    x = np.array([5e-324, -5e-324, 1.7e308, -1.7e308])
    report = underflow(x, fp.BF16, [-900, 900], rounding="up")
    assert [(row.lost, row.saturated) for row in report.rows] == [(1, 0), (1, 2)]  # -2^-174 becomes -0 too


def test_lost_energy_is_the_share_of_the_squares() -> None:
    x = np.random.default_rng(0).standard_normal(1000) * 2.0**-12
    report = underflow(x, fp.E4M3, [0, 4])
    for k, share in zip(report.scales, report.lost_energy, strict=True):
        lost = fp.quantize(x * 2.0**k, fp.E4M3) == 0
        assert share == pytest.approx(np.sum(x[lost] ** 2) / np.sum(x**2), rel=1e-12)


def test_the_best_scale_loses_least_and_headroom_saturates_next() -> None:
    x = f32(2.0**-11, 2.0**-8, 1.0, 100.0)
    report = underflow(x, fp.E4M3, range(-5, 6))
    assert report.best_scale == 2  # 2^-11 needs 2^2, and 2^3 takes 100 beyond 448
    assert (report.lost[5], report.saturated[5]) == (0.25, 0.0)
    assert (report.lost[7], report.saturated[7]) == (0.0, 0.0)
    assert (report.lost[8], report.saturated[8]) == (0.0, 0.25)
    assert report.headroom == 2


@pytest.mark.parametrize("name", ["FP16", "E4M3", "E5M2", "E2M1", "BF16"])
def test_headroom_is_exact_at_the_edge_of_the_range(name: str) -> None:
    fmt = fp.format(name)
    limit = fmt.max + float(fmt.ulp(fmt.max)) / 2
    for amax in (fmt.max, limit, np.nextafter(limit, 0), np.nextafter(limit, np.inf), 1.0, 1.99 * fmt.max):
        for shift in (-20, 0, 3):
            report = underflow(np.array([amax * 2.0**shift]), fmt, [0])
            k = report.headroom
            assert k is not None
            assert underflow(np.array([amax * 2.0**shift]), fmt, [k, k + 1]).saturated == (0.0, 1.0)


def test_headroom_of_formats_that_end_near_float64_and_of_powers_of_two() -> None:
    assert underflow(np.array([1.0]), fp.Format("near", 10, 5, bias=-1), scales=[0]).headroom == 1023
    tie = np.array([1.5 * 2.0**127, 2.0**127])  # all significands of E8M0 are odd, so that the tie rounds to 2**128
    report = underflow(tie, "e8m0", scales=[0])
    assert (report.headroom, report.saturated) == (-1, (0.5,))
    measured = fp.analysis.error(tie, "e8m0", overflow="saturate")
    assert (measured.saturation_rate, measured.beyond_rate) == (0.5, 0.5)


def test_zeros_negative_ones_too_are_not_lost() -> None:
    report = underflow(f32(0.0, -0.0, 2.0**-30, 1.0), fp.FP16, [0])
    assert (report.lost, report.zeros) == ((0.25,), 2)


def test_log_normal_gradients_need_few_powers_of_two() -> None:
    """log2|g| ~ N(mu, 4) of which 23 % lie below 2^-25: 2^4.6 brings that to 3 %, 2^16 below 0.01 %."""
    g = np.exp2(np.random.default_rng(0).normal(-22.05, 4, 400_000)).astype(np.float32)
    report = underflow(g, fp.FP16, [0, 4, 5, 16])
    assert report.lost[0] == pytest.approx(0.23, rel=0.02)
    assert report.lost[1] > 0.03 > report.lost[2]
    assert report.lost[3] < 1e-4


def test_merged_parts_are_one_pass() -> None:
    x = values(fp.FP16)
    whole = underflow(x, fp.FP16)
    parts = [underflow(part, fp.FP16) for part in np.array_split(x, 5)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert (merged.lost, merged.subnormal, merged.saturated) == (whole.lost, whole.subnormal, whole.saturated)
    assert (merged.best_scale, merged.headroom, merged.nans) == (whole.best_scale, whole.headroom, whole.nans)
    with pytest.raises(ValueError, match="must have the same format; got FP16 and BF16"):
        whole.merge(underflow(x, fp.BF16))
    with pytest.raises(ValueError, match="must have the same scales"):
        whole.merge(underflow(x, fp.FP16, [0]))


@pytest.mark.parametrize("x", [np.zeros(0, np.float32), np.zeros(3, np.float32), np.full(3, np.nan, np.float32)])
def test_arrays_without_a_value_have_no_best_scale(x: Array) -> None:
    report = underflow(x, fp.FP16)
    assert report.best_scale is None
    assert report.headroom is None
    assert "no scale changes" in str(report)
    assert all(math.isnan(share) == (x.size == 0) for share in report.lost)
    assert math.isnan(report.lost_energy[0])


def test_rows_have_the_exponent_by_its_old_name_too() -> None:
    row = underflow(f32(1.0), fp.FP16, [3]).rows[0]
    with pytest.warns(DeprecationWarning, match=r"UnderflowRow\.scale is now called log2_scale"):
        assert row.scale == row.log2_scale == 3


def test_frames_pages_and_figures() -> None:
    pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    report = underflow(values(fp.FP16), fp.FP16)
    frame = report.to_frame()
    assert frame["log2_scale"].tolist() == list(range(-24, 25))
    assert frame["lost"].tolist() == list(report.lost)
    assert report._repr_html_().count("<tr>") == 50
    ax = report.plot()
    curves = [np.asarray(line.get_ydata()).tolist() for line in ax.get_lines()]
    assert [100 * share for share in report.lost] in curves
    assert [100 * share for share in report.saturated] in curves
    ax.figure.canvas.draw()
    matplotlib.pyplot.close(ax.figure)


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((np.arange(3), "fp16"), {}, TypeError, "x must be an array of float16, .*; got int64"),
    ((np.ones(3), "fp17"), {}, ValueError, "fp17"),
    ((np.ones(3), "fp64"), {}, ValueError, "float64 holds exactly; got FP64"),
    ((np.ones(3), "fp16"), {"scales": []}, ValueError, "scales must have at least one"),
    ((np.ones(3), "fp16"), {"scales": [0.5]}, TypeError, "scales must be integers k, .*; got 0.5 among them"),
    ((np.ones(3), "fp16"), {"scales": 3}, TypeError, "scales must be integers k"),
    ((np.ones(3), "fp16"), {"scales": np.array(3)}, TypeError, "scales must be integers k"),
    ((np.ones(3), "fp16"), {"scales": [1000]}, ValueError, "scales must be in -900 .. 900; got 1000"),
    (
        (np.ones(3), "fp16"),
        {"rounding": "stochastic"},
        ValueError,
        "rounding must be deterministic, .*; got 'stochastic'",
    ),
    ((np.ones(3), "fp16"), {"rounding": "nearst"}, ValueError, "rounding must be one of"),
    ((np.ones(3), "fp16"), {"subnormals": "drop"}, ValueError, "subnormals must be one of"),
]


@in_turn("arguments, keywords, kind, match", WRONG)
def test_bad_input_gets_one_clear_sentence(
    arguments: tuple[Any, ...], keywords: dict[str, Any], kind: type[Exception], match: str
) -> None:
    with pytest.raises(kind, match=match) as raised:
        underflow(*arguments, **keywords)
    assert "\n" not in str(raised.value)


def test_meta_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="meta device"):
        underflow(torch.empty(4, device="meta"), fp.FP16)
