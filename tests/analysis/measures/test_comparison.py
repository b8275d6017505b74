"""fp.analysis.compare: its rows are those of error, and its verdicts follow from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fpsim as fp

NORMAL = np.random.default_rng(0).standard_normal((96, 256)).astype(np.float32)
AFFINE = fp.Scaling(block=(1, 64), symmetric=False)


def test_every_row_is_what_error_says() -> None:
    x = NORMAL.copy()
    x[0, :4] = [np.nan, np.inf, -0.0, 1e9]
    scalings: list[Any] = [None, "amax", 0.5, fp.scalings.TILE_1X128, fp.scalings.NVFP4, fp.scalings.BLOCK_128X128]
    comparison = fp.analysis.compare(x, ["e4m3", "fp16", "int8"], ["nearest_even", "stochastic"], scalings, seed=3)
    assert len(comparison) == 2 * 2 * 6 + 2 * 3
    by_name = {str(scaling) if isinstance(scaling, float) else scaling for scaling in ("none", "amax", 0.5)}
    for row in comparison:
        options: dict[str, Any] = {"rounding": row.rounding, "seed": 3}
        if row.scaling in by_name:
            options["scale"] = {"none": None, "amax": "amax", "0.5": 0.5}[row.scaling]
        else:
            options["scaling"] = next(s for s in scalings if repr(s) == row.scaling)
        assert row.report == fp.analysis.error(x, row.format, **options)


def test_the_default_compares_twelve_ways() -> None:
    comparison = fp.analysis.compare(NORMAL)
    assert [row[:3] for row in comparison][:4] == [
        ("E4M3", "nearest_even", "none"),
        ("E4M3", "nearest_even", "amax"),
        ("E4M3", "nearest_even", "fp.scalings.TILE_1X128"),
        ("E5M2", "nearest_even", "none"),
    ]
    assert len(comparison) == 12
    assert comparison.best().format == "FP16"


def test_published_figures_of_normal_data() -> None:
    """Gaussian SQNR with a maximum's scale, to 0.1 dB, FP32 scales: E4M3, INT8, E2M1 and LogFMT-8."""
    x = np.random.default_rng(1).standard_normal((512, 1024)).astype(np.float32)
    of_16, of_32 = fp.Scaling(block=(1, 16)), fp.Scaling(block=(1, 32))
    scalings: list[Any] = [of_16, of_32, fp.scalings.TILE_1X128, fp.scalings.BLOCK_128X128, fp.scalings.TENSOR]
    rows = fp.analysis.compare(x, ["e4m3", "int8", "e2m1", "logfmt-8", "int4"], scalings=scalings)
    sqnr = {(row.format, row.scaling): row.report.sqnr_db for row in rows}
    want = {
        ("E4M3", of_16): 33.0, ("E4M3", of_32): 32.4, ("E4M3", fp.scalings.TILE_1X128): 31.79,
        ("E4M3", fp.scalings.BLOCK_128X128): 31.55, ("E4M3", fp.scalings.TENSOR): 31.54,
        ("INT8", of_32): 45.4, ("INT8", fp.scalings.TILE_1X128): 43.8, ("INT8", fp.scalings.BLOCK_128X128): 40.5,
        ("E2M1", of_16): 20.5, ("E2M1", fp.scalings.TILE_1X128): 19.3, ("E2M1", of_32): 19.9,
        ("LogFMT-8", fp.scalings.TILE_1X128): 37.0, ("INT4", of_32): 20.3, ("INT4", fp.scalings.TILE_1X128): 18.6,
    }  # fmt: skip
    for (name, scaling), value in want.items():
        assert sqnr[name, repr(scaling)] == pytest.approx(value, abs=0.15), (name, scaling)


def test_best_and_pareto_follow_from_the_rows() -> None:
    comparison = fp.analysis.compare(NORMAL, ["e4m3", "int8", "e2m1", "bf16"], scalings=[None, fp.scalings.TILE_1X128])
    assert comparison.best().report.sqnr_db == max(row.report.sqnr_db for row in comparison)
    assert comparison.best("mse").report.mse == min(row.report.mse for row in comparison)
    assert abs(comparison.best("gain").report.gain - 1) == min(abs(row.report.gain - 1) for row in comparison)
    front = comparison.pareto()
    for row in comparison:
        beaten = any(
            other.report.bits_per_value <= row.report.bits_per_value and other.report.sqnr_db > row.report.sqnr_db
            for other in comparison
        )
        assert (row in front) == (not beaten), row.name
    assert [row.report.bits_per_value for row in front] == sorted(row.report.bits_per_value for row in front)
    with pytest.raises(ValueError, match=r"metric must be one of .* Did you mean 'sqnr_db'"):
        comparison.best("sqnr")


def test_merged_halves_are_one_comparison() -> None:
    whole = fp.analysis.compare(NORMAL, ["e4m3", "e5m2"], scalings=[None, fp.scalings.TILE_1X128])
    halves = [fp.analysis.compare(part, ["e4m3", "e5m2"], scalings=[None, fp.scalings.TILE_1X128]) for part in
              np.split(NORMAL, 2)]  # fmt: skip
    merged = halves[0].merge(halves[1])
    for a, b in zip(merged, whole, strict=True):
        assert a[:3] == b[:3]
        assert (a.report.exact_rate, a.report.bits_per_value) == (b.report.exact_rate, b.report.bits_per_value)
        assert a.report.sqnr_db == pytest.approx(b.report.sqnr_db, abs=1e-11)
    with pytest.raises(ValueError, match="must have the same combinations"):
        whole.merge(fp.analysis.compare(NORMAL, "e4m3"))


def test_what_cannot_be_measured_is_unknown_and_what_does_not_exist_is_left_out() -> None:
    comparison = fp.analysis.compare(
        NORMAL, ["int8", "logfmt-8"], ["nearest_even", "up"], ["amax", AFFINE, fp.scalings.ROW]
    )
    log = next(row.report for row in comparison if row.format == "LogFMT-8")
    affine = next(row.report for row in comparison if row.scaling == repr(AFFINE))
    for report in (log, affine):
        assert math.isfinite(report.sqnr_db)
        assert math.isfinite(report.mean_relative)
        for name in ("max_ulp", "mean_ulp", "subnormal_rate", "saturation_rate"):
            assert math.isnan(getattr(report, name))
        assert all(math.isnan(report.noise_by_cause[cause]) for cause in ("normal", "subnormal", "saturation"))
    assert [line.partition(":")[0] for line in comparison.left_out] == [
        "INT8 with scaling amax", "LogFMT-8 with scaling amax", f"LogFMT-8 with {AFFINE!r}",
        "LogFMT-8 with fp.scalings.ROW",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="must allow a combination; got only INT8 with scaling none"):
        fp.analysis.compare(NORMAL, "int8", scalings=None)


def test_tables_are_compared_without_scales_too_unless_their_scales_have_a_place_in_them() -> None:
    formats, scalings = ["nf4", "hif8", "hif4", "if4"], [None, "amax", 0.5, fp.scalings.HIF4, fp.scalings.IF4]
    comparison = fp.analysis.compare(NORMAL[:4], formats, scalings=scalings)
    pairs = [(row.format, row.scaling) for row in comparison]
    assert pairs == [
        *((name, scale) for name in ("NF4", "HIF8") for scale in ("none", "amax", "0.5")),
        ("HIF4", "fp.scalings.HIF4"), ("IF4", "fp.scalings.IF4"),
    ]  # fmt: skip
    assert comparison.rows[1].report == fp.analysis.error(NORMAL[:4], "nf4", scale="amax")
    odd = fp.analysis.compare(NORMAL[:4], ["nf4", "e4m3"], "odd", scalings=None)
    assert [row.format for row in odd] == ["E4M3"]
    assert odd.left_out == ("NF4 with none: rounding 'odd' needs significands, which the table of NF4 has none of. Use "
                            "another mode.",)  # fmt: skip
    with pytest.raises(ValueError, match=r"error needs scales for HIF4; got .* Pass scaling=fp.scalings.HIF4"):
        fp.analysis.error(NORMAL, "hif4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"formats": []}, "formats must name at least one"),
        ({"formats": "e4m9"}, "format must be one of"),
        ({"scalings": np.ones((2, 2))}, r"scalings must be one or a list of several; got an array of shape \(2, 2\)"),
        ({"roundings": "nearest"}, "rounding must be one of"),
        ({"roundings": "stochastic"}, "needs a seed"),
        (
            {"scalings": "tile"},
            "scalings must be one of .*, None, 'amax' or a positive number; got 'tile'. Did you mean 'TILE_1X128'",
        ),
        ({"scalings": -1.0}, "scale must be None, 'amax' or a positive finite number"),
    ],
)
def test_unknown_words_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fp.analysis.compare(NORMAL, **arguments)


def test_a_comparison_shows_itself() -> None:
    comparison = fp.analysis.compare(NORMAL, ["e4m3", "e5m2", "e2m1"])
    assert str(comparison).splitlines()[-1].endswith("beaten by these")
    assert "E2M1" in comparison._repr_html_()
    pytest.importorskip("pandas")
    assert {"format", "rounding", "scaling", "gain", "lost_energy", "bits_per_value"} <= set(
        comparison.to_frame().columns
    )
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().add_subplot()
    assert comparison.plot(ax) is ax
    assert fp.analysis.error(NORMAL, "e4m3", axis=0).plot(ax) is ax
    assert fp.analysis.error(NORMAL, "e4m3").plot(ax) is ax


@pytest.mark.parametrize("x", [np.zeros((0, 3), np.float32), np.full(3, np.nan, np.float32), np.full(3, 1e-200)])
def test_combinations_without_a_known_sqnr_are_not_called_beaten(x: Any) -> None:
    assert str(fp.analysis.compare(x, ["e4m3", "bf16"], scalings=[None])) == "2 combinations without a known SQNR"


def test_scales_are_compared_once_under_the_names_of_plain_numbers() -> None:
    x = np.ones((2, 4), np.float32)
    scalings: list[Any] = [None, None, np.float32(0.5), 0.5, "MX", fp.scalings.MX]
    rows = fp.analysis.compare(x, "e4m3", scalings=scalings).rows
    assert [row.scaling for row in rows] == ["none", "0.5", "fp.scalings.MX"]
