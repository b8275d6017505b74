"""fpsim.analysis.error, beside formulas that share nothing with it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.analysis.measures.candidates import amax_scale
from fpsim.analysis.measures.error_report import METRICS, NOISE, ErrorReport
from fpsim.analysis.measures.passes import LONG, SHORT
from tests.kit.sweeps import in_turn, sweep


def f32(*values: float) -> Any:
    """A float32 array."""
    return np.array(values, np.float32)


@pytest.mark.parametrize("fmt", ["int8", np.int8, fp.INT4, "uint4", "logfmt-8"], ids=str)
def test_formats_that_need_scales_say_so(fmt: Any) -> None:
    x = f32(1, 2)
    with pytest.raises(ValueError, match=r"error needs scales for \S+; got scaling=None. Pass scaling=fp.scalings"):
        fp.analysis.error(x, fmt)
    with pytest.raises(ValueError, match=r"error needs scales for \S+; got scale='amax'"):
        fp.analysis.error(x, fmt, scale="amax")
    with pytest.raises(ValueError, match=r"must be a float format; got .*, whose values need scales. Use fp.encode_s"):
        fp.encode(x, fmt)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_negative_values_that_an_unsigned_format_makes_zero_are_lost(dtype: type, scale: float | None) -> None:
    x = np.array([-1.0, 2.0, 3.0, -5.0], dtype)  # type: ignore[var-annotated]
    report = fp.analysis.error(x, fp.formats.p3109(8, 4, signed=False), scale=scale, overflow="saturate")
    assert (report.underflow_rate, report.lost_energy) == (0.5, 26 / 39)
    assert report.noise_by_cause["underflow"] == 1


@pytest.mark.parametrize("fmt", ["e4m3", "fp64"])
@pytest.mark.parametrize("size", [1e-200, 1e-161])
def test_an_sqnr_of_squares_below_float64s_range_is_unknown(fmt: str, size: float) -> None:
    x = np.random.default_rng(0).standard_normal(300) * size
    report = fp.analysis.error(x, fmt, axis=0) if fmt == "e4m3" else fp.analysis.error(x, fmt)
    if fmt == "fp64":
        assert report.sqnr_db == np.inf
        return
    assert np.isnan(report.sqnr_db)
    assert "no error" not in str(report)
    assert report.underflow_rate == 1
    assert report.max_relative == 1
    study = fp.analysis.study({"a.weight": np.resize(x, (64, 128))})
    assert study.recommendations[0].format == "float64"
    assert fp.analysis.error(np.append(x, 1.0), fmt).sqnr_db > 400


def test_a_printed_report_is_one_short_line_that_begins_with_the_sqnr() -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    report = fp.analysis.error(x, "e4m3", scale="amax", rounding="stochastic", seed=1)
    assert str(report).startswith(
        f"{report.sqnr_db:.1f} dB SQNR in E4M3 (stochastic, scale {report.scale:.3g}) over 4,096"
    )
    assert len(str(report)) < 140
    assert "fp.scalings.MX" in str(fp.analysis.error(x, "e4m3", scaling=fp.scalings.MX))
    assert str(fp.analysis.error(f32(1, 2), "e4m3")).startswith(
        "no error in E4M3 (nearest_even, no scale) over 2 values"
    )
    assert str(fp.analysis.error(f32(), "e4m3")).startswith("no data in E4M3")


DTYPES = (np.float32, np.float64, ml_dtypes.bfloat16)
FORMATS = (fp.E4M3, fp.E5M2, fp.FP16, fp.BF16, fp.E2M1)


def wide_sample(size: int = 5000, dtype: Any = np.float32) -> Any:
    """Values over forty binades with zeros of both signs, NaN and Inf."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal(size) * 2.0 ** rng.uniform(-25, 15, size)
    x[:6] = [0.0, -0.0, np.nan, np.inf, -np.inf, 448.0]
    return x.astype(dtype)


def expected(x: Any, fmt: fp.Format, scale: float | None, **options: Any) -> dict[str, float]:
    """Every figure by its definition, elementwise and slowly, from the documented one-liner."""
    wide = x.dtype == np.float64
    kind = np.float64 if wide else np.float32
    with np.errstate(all="ignore"):
        scaled = x if scale is None else (x.astype(kind) / kind(scale)).astype(kind)
        q = fp.quantize(scaled, fmt, **options)
        y = q if scale is None else q * kind(scale)
    found = dict.fromkeys((*METRICS, *NOISE), 0.0)
    half = float(fmt.ulp(fmt.max)) / 2
    spacing = fmt.ulp(scaled).tolist()
    errors, ulps, relative, signal, products = [], [], [], [], []
    causes: dict[str, list[float]] = {name: [] for name in NOISE}
    rows = zip(x.tolist(), scaled.tolist(), q.tolist(), y.tolist(), spacing, strict=True)
    for value, inner, code, result, ulp in rows:
        found["nan_rate"] += math.isnan(value)
        found["exact_rate"] += result == value
        found["underflow_rate"] += value != 0 and result == 0
        found["subnormal_rate"] += 0 < abs(code) < fmt.smallest_normal
        found["overflow_rate"] += math.isfinite(value) and not math.isfinite(result)
        beyond = abs(inner) > fmt.max + half or (abs(inner) == fmt.max + half and fmt.max_code % 2 == 1)
        found["saturation_rate"] += beyond and abs(code) == fmt.max
        if math.isfinite(value) and math.isfinite(result):
            errors.append(result - value)
            products.append(result * value)
            at_top = beyond and abs(code) == fmt.max
            cause = "underflow" if value != 0 and result == 0 else "saturation" if at_top else ""
            cause = cause or ("subnormal" if 0 < abs(code) < fmt.smallest_normal else "normal")
            causes[f"noise_{cause}"].append((result - value) ** 2)
            signal.append(value * value)
            ulps.append(abs(result - value) / (ulp * (scale or 1)))
            if value:
                relative.append(abs(result - value) / abs(value))
    found = {name: value / len(x) for name, value in found.items()}
    noise = math.fsum(e * e for e in errors)
    energy = math.fsum(signal)
    found |= {name: math.fsum(terms) / noise if noise else math.nan for name, terms in causes.items()}
    found |= {
        "gain": math.fsum(products) / energy, "lost_energy": math.fsum(causes["noise_underflow"]) / energy,
        "count": len(x), "mse": noise / len(errors), "bias": math.fsum(errors) / len(errors),
        "sqnr_db": 10 * math.log10(math.fsum(signal) / noise) if noise else math.inf,
        "max_ulp": max(ulps), "mean_ulp": math.fsum(ulps) / len(ulps),
        "max_relative": max(relative), "mean_relative": math.fsum(relative) / len(relative),
    }  # fmt: skip
    return found


@in_turn("fmt", FORMATS)
@in_turn("overflow", ["nonfinite", "saturate", "saturate_finite"])
@in_turn("rounding", ["nearest_even", "toward_zero", "stochastic"])
@sweep("whole", False, True)
def test_every_figure_is_what_its_definition_says(fmt: fp.Format, overflow: str, rounding: str, whole: bool) -> None:
    options: dict[str, Any] = {"overflow": overflow, "rounding": rounding, "seed": 3}
    turn = FORMATS.index(fmt) + len(overflow) + len(rounding)  # so that every format has every pair of the two
    for i, (dtype, scale) in enumerate(itertools.product(DTYPES, (None, 2.0**-3, 0.3))):
        if not whole and (i + i // 3 + turn) % 3:
            continue
        x = wide_sample(250, dtype)
        report = fp.analysis.error(x, fmt, scale=scale, **options)
        kind = np.float64 if dtype == np.float64 else np.float32
        want = expected(x, fmt, None if scale is None else float(kind(scale)), **options)
        for name, value in want.items():
            assert report.to_dict()[name] == pytest.approx(
                value, rel=1e-12, abs=1e-11 if name == "sqnr_db" else 1e-300, nan_ok=True
            ), (name, dtype, scale)


def test_error_is_a_function_also_after_its_module_is_imported() -> None:
    import importlib

    importlib.import_module("fpsim.analysis.measures.rounding_error")
    assert callable(fp.analysis.error)
    assert "error" in dir(fp.analysis)
    with pytest.raises(AttributeError, match="no attribute 'eror'"):
        fp.analysis.eror  # noqa: B018


def test_stochastic_rounding_is_that_of_quantize_on_the_whole_array() -> None:
    x = np.random.default_rng(0).standard_normal(3 * SHORT + 17).astype(np.float32)
    report = fp.analysis.error(x, fp.E4M3, rounding="stochastic", seed=11)
    q = fp.quantize(x, fp.E4M3, rounding="stochastic", seed=11)
    assert report.exact_rate == np.mean(q == x)
    assert report.max_relative == np.max(np.abs(q.astype(float) - x) / np.abs(x.astype(float)))
    assert report.mse == pytest.approx(np.mean((q.astype(float) - x) ** 2), rel=1e-13)


def test_merge_of_parts_equals_one_pass() -> None:
    x = wide_sample(30_000)
    whole = fp.analysis.error(x, fp.E4M3)
    parts = [fp.analysis.error(part, fp.E4M3) for part in np.array_split(x, 7)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    for name in METRICS:
        exact = name.endswith("_rate") or name in ("count", "max_ulp", "max_relative")
        got, want = getattr(merged, name), getattr(whole, name)
        assert got == want if exact else got == pytest.approx(want, rel=1e-11), name


def test_merge_at_chunk_boundaries_is_bitwise_one_pass() -> None:
    x = np.random.default_rng(0).standard_normal(2 * SHORT + 5).astype(np.float32)
    parts = [fp.analysis.error(x[i : i + SHORT], fp.E5M2) for i in range(0, x.size, SHORT)]
    assert parts[0].merge(parts[1]).merge(parts[2]) == fp.analysis.error(x, fp.E5M2)


def test_merge_refuses_reports_of_other_roundings() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="same format; got E4M3 and E5M2"):
        fp.analysis.error(x, fp.E4M3).merge(fp.analysis.error(x, fp.E5M2))
    with pytest.raises(ValueError, match="same overflow"):
        fp.analysis.error(x, fp.E4M3).merge(fp.analysis.error(x, fp.E4M3, overflow="saturate"))
    different = fp.analysis.error(x, fp.E4M3, scale=2.0).merge(fp.analysis.error(x, fp.E4M3, scale=4.0))
    assert math.isnan(different.scale)


def test_negative_zero_counts_as_underflow() -> None:
    report = fp.analysis.error(f32(-1e-9, 1e-9, -0.0, 1.0), fp.E4M3)
    assert report.underflow_rate == 0.5


def test_no_data_and_no_error() -> None:
    empty = fp.analysis.error(np.zeros((0, 3), np.float32), fp.E4M3, scale="amax")
    assert empty.count == 0
    assert all(math.isnan(getattr(empty, name)) for name in METRICS if name != "count")
    nothing = fp.analysis.error(f32(np.nan, np.inf), fp.E4M3)
    assert math.isnan(nothing.sqnr_db)
    assert (nothing.nan_rate, nothing.overflow_rate) == (0.5, 0.0)
    assert fp.analysis.error(f32(1, 2), fp.E4M3).sqnr_db == math.inf
    assert fp.analysis.error(np.zeros(4, np.float32), fp.E4M3, scale="amax").scale == 1.0


def test_amax_scale_maps_amax_to_the_largest_value_in_every_rounding() -> None:
    rng = np.random.default_rng(5)
    for fmt, exponent in itertools.product((fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16), (-120, -60, 0, 60, 110)):
        x = (rng.standard_normal(200) * 2.0**exponent).astype(np.float32)
        for rounding in ("nearest_even", "up", "down", "stochastic"):
            report = fp.analysis.error(x, fmt, scale="amax", rounding=rounding, seed=1)
            assert report.overflow_rate == report.saturation_rate == 0, (fmt, exponent, rounding)
        assert report.scale == pytest.approx(float(np.abs(x).max()) / fmt.max, rel=2.0**-22)


@pytest.mark.parametrize("amax", [5e-324, 1e-45, 1.4e-43, 1e-40, 3e38, 1e300])
def test_amax_scale_stays_a_positive_float32(amax: float) -> None:
    for fmt in (*FORMATS, fp.E8M0):
        scale = amax_scale(amax, fmt)
        assert scale == np.float32(scale)
        assert 0 < scale < math.inf
        assert amax / scale <= fmt.max * (1 + 2.0**-22) or scale == np.finfo(np.float32).max


def test_errors_in_ulps_are_exact_at_every_exponent() -> None:
    """One value at a time, so that the mean is that value's figure."""
    values = [1.3, 5e-324, 2.0**-1030 * 1.3, 1.7e308, 2.0**-1022, 2.0**-126 * 1.7, 2.0**-149, 3.3e38, 460.0, 2.0**-10]
    for fmt in (*FORMATS, fp.FP32, fp.E8M0):
        for dtype in (np.float64, np.float32):
            with np.errstate(over="ignore"):
                sources = np.array(values).astype(dtype)
            for value in sources:
                x = np.array([value], dtype)
                q = float(fp.quantize(x, fmt, overflow="saturate")[0])
                report = fp.analysis.error(x, fmt, overflow="saturate")
                if np.isfinite(value):
                    want = abs(Fraction(q) - Fraction(float(value))) / Fraction(float(fmt.ulp(float(value))))
                    assert report.max_ulp == report.mean_ulp == float(want), (fmt, value)


def test_any_layout_and_byte_order_gives_the_same_report() -> None:
    x = wide_sample(6000).reshape(60, 100)
    want = fp.analysis.error(x.T.copy(), fp.E4M3, rounding="stochastic", seed=2)
    assert fp.analysis.error(x.T, fp.E4M3, rounding="stochastic", seed=2) == want
    assert fp.analysis.error(x.T.astype(">f4"), fp.E4M3, rounding="stochastic", seed=2) == want


@pytest.mark.parametrize("scale", ["max", 0.0, -1.0, math.nan, math.inf, 1e-60, True])
def test_a_bad_scale_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match="scale must be None, 'amax' or a positive finite number"):
        fp.analysis.error(np.ones(3, np.float32), fp.E4M3, scale=scale)


def test_a_scaling_may_be_named() -> None:
    x = np.array([[0.1, 0.2, 0.3, 6.0]])
    assert fp.analysis.error(x, "e2m1", scaling="mx") == fp.analysis.error(x, "e2m1", scaling=fp.scalings.MX)
    with pytest.raises(ValueError, match=r"scaling must be one of .* got 'mxfp4'. Did you mean 'MX'\?"):
        fp.analysis.error(x, "e2m1", scaling="mxfp4")


def test_integers_of_python_are_values() -> None:
    assert fp.analysis.error([1, 500, 2], fp.E4M3) == fp.analysis.error([1.0, 500.0, 2.0], fp.E4M3)


def test_arrays_of_integers_and_missing_seeds_are_refused() -> None:
    with pytest.raises(TypeError, match="must be an array of float16"):
        fp.analysis.error(np.array([1, 2]), fp.E4M3)
    with pytest.raises(ValueError, match="needs a seed"):
        fp.analysis.error(np.ones(3), fp.E4M3, rounding="stochastic")


def test_a_report_shows_itself() -> None:
    report = fp.analysis.error(f32(0.1, 0.2), fp.E4M3)
    assert isinstance(report, ErrorReport)
    assert "sqnr_db" in report._repr_html_()
    pytest.importorskip("pandas")
    assert report.to_frame()["count"].tolist() == [2]


def test_an_amax_scale_too_small_for_float32_is_rounded_up() -> None:
    report = fp.analysis.error(np.array([1.0, 2.0, 0.3]), fp.FP64, scale="amax")
    assert report.scale > 0
    assert report.overflow_rate == 0


def test_a_scale_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must be"):
        fp.analysis.error(np.array([1.0]), fp.E4M3, scale=10**400)


@pytest.mark.parametrize("options", [{}, {"scale": "amax"}, {"rounding": "stochastic", "seed": 1}], ids=str)
def test_the_number_of_threads_changes_nothing(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal(5 * LONG + 999).astype(np.float32)
    x[[7, 5 * SHORT]] = [np.nan, 1e9]
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
        found.append(fp.analysis.error(x, "e4m3", **options))
    assert found[0] == found[1] == found[2]


EDGES = [0.0, -0.0, 1.0, -1.3, 448.0, 464.0, -465.0, 2.0**-10, 3 * 2.0**-11, 2.0**-6, 1e-30, 1e30, math.inf, math.nan]


@given(
    st.lists(st.one_of(st.floats(width=32), st.sampled_from(EDGES)), max_size=40),
    st.sampled_from(["e4m3", "e5m2", "bf16", "e2m1"]),
    st.sampled_from(["nearest_even", "toward_zero", "up"]),
)
def test_figures_are_those_of_fractions(values: list[float], fmt: str, rounding: str) -> None:
    x = np.array(values, np.float32)
    q = fp.quantize(x, fmt, rounding=rounding)
    pairs = [(Fraction(a), Fraction(b)) for a, b in zip(x.tolist(), q.tolist(), strict=True) if math.isfinite(a + b)]
    report = fp.analysis.error(x, fmt, rounding=rounding)
    assert report.count == len(values)
    if not pairs:
        assert math.isnan(report.mse)
        return
    noise, signal = sum((b - a) ** 2 for a, b in pairs), sum(a * a for a, _ in pairs)
    assert report.mse == pytest.approx(float(noise / len(pairs)), rel=1e-15)
    total = float(sum(abs(b - a) for a, b in pairs))  # the sum of errors may cancel
    want = float(sum(b - a for a, b in pairs) / len(pairs))
    assert abs(report.bias - want) <= total * 2.0**-48
    if signal:
        assert report.gain == pytest.approx(float(sum(a * b for a, b in pairs) / signal), rel=1e-15)
        lost = sum(a * a for a, b in pairs if b == 0)
        assert report.lost_energy == pytest.approx(float(lost / signal), rel=1e-15)
        largest = float(max(abs(b - a) / abs(a) for a, b in pairs if a))
        assert report.max_relative == pytest.approx(largest, rel=3e-16)  # differences over many binades are rounded


@settings(max_examples=40)
@given(st.data())
def test_merging_is_associative_and_parts_are_the_whole(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(st.floats(width=32), st.sampled_from(EDGES)), min_size=3, max_size=60))
    x = np.array(values, np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, x.size), min_size=2, max_size=2)))
    a, b, c = (fp.analysis.error(part, "e4m3") for part in np.split(x, cuts))
    left, right, whole = a.merge(b).merge(c), a.merge(b.merge(c)), fp.analysis.error(x, "e4m3")
    for name in (*METRICS, *NOISE):
        got, other, want = (report.to_dict()[name] for report in (left, right, whole))
        if name.endswith("_rate") or name in ("count", "max_ulp", "max_relative"):
            assert got == other == want or all(math.isnan(value) for value in (got, other, want))
        elif name != "bias":  # which may cancel
            assert got == pytest.approx(want, rel=1e-13, abs=1e-11 if name == "sqnr_db" else 0, nan_ok=True)
            assert other == pytest.approx(want, rel=1e-13, abs=1e-11 if name == "sqnr_db" else 0, nan_ok=True)


@pytest.mark.parametrize("x", [np.zeros((0, 4)), np.full(5, np.nan), np.zeros(7), np.full(3, -np.inf)], ids=str)
def test_arrays_without_values_to_judge_give_unknown_figures(x: Any) -> None:
    report = fp.analysis.error(x.astype(np.float32), "e4m3", scale="amax", overflow="saturate")
    assert report.count == x.size
    for name in ("gain", "lost_energy", "mean_relative", "max_relative"):
        assert math.isnan(getattr(report, name))
    rows = fp.analysis.compare(x.astype(np.float32), ["e4m3", "int8"], scalings=[None, fp.scalings.TILE_1X128])
    assert all(math.isnan(row.report.gain) for row in rows)
    assert fp.analysis.range(x).amax == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fmt", ["e4m3", "int8"])
def test_a_tile_of_nan_leaves_the_errors_in_ulps_of_others(dtype: Any, fmt: str) -> None:
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(dtype)
    whole = fp.analysis.error(x[1:], fmt, scaling=fp.scalings.MX)
    x[0, 5] = np.nan
    report = fp.analysis.error(x, fmt, scaling=fp.scalings.MX)
    assert (report.max_ulp, report.mean_ulp) == (whole.max_ulp, pytest.approx(whole.mean_ulp, rel=1e-12))  # type: ignore[comparison-overlap]
