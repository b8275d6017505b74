"""`fp.testing.assert_survives`: figures beside thresholds, and the worst value explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_survives
from tests.kit.sweeps import in_turn


def f32(values: Any) -> Any:
    return np.asarray(values, np.float32)


NORMAL = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
OFF: dict[str, Any] = {"sqnr_db": None, "overflow": None, "lost_energy": None}


def message(x: Any, fmt: Any, **keywords: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_survives(x, fmt, **keywords)
    return str(raised.value)


def test_it_is_one_function_in_both_places() -> None:
    assert fp.analysis.assert_survives is fp.testing.assert_survives


def test_what_survives_returns_its_report() -> None:
    assert assert_survives(NORMAL, "e4m3") == fp.analysis.error(NORMAL, "e4m3")
    tiles = fp.scalings.NVFP4
    want = fp.analysis.error(NORMAL, "e2m1", scaling=tiles)
    assert assert_survives(NORMAL, "e2m1", scaling=tiles).sqnr_db == want.sqnr_db


@in_turn(
    "name,figure",
    [("sqnr_db", "sqnr_db"), ("overflow", "beyond_rate"), ("lost_energy", "lost_energy"),
     ("underflow", "underflow_rate"), ("max_relative", "max_relative"), ("max_ulp", "max_ulp")],
)  # fmt: skip
def test_a_threshold_is_the_figure_itself_and_no_further(name: str, figure: str) -> None:
    x = np.concatenate([NORMAL.ravel() * np.float32(0.01), f32([500.0, -3000.0])])
    got = float(getattr(fp.analysis.error(x, "e4m3"), figure))
    worse = np.nextafter(got, np.inf if name == "sqnr_db" else -np.inf)
    assert_survives(x, "e4m3", **{**OFF, name: got})
    said = message(x, "e4m3", **{**OFF, name: float(worse)})
    assert said.startswith("16,386 values do not survive E4M3: ")
    assert "wanted at least" in said if name == "sqnr_db" else "wanted at most" in said


def test_every_broken_threshold_is_named() -> None:
    x = f32([1e-6, -1e-5, 700.0, 1.0])
    said = message(x, "e4m3", underflow=0.0, lost_energy=0.0)
    for words in ("values beyond the range 25.0 %, wanted at most 0 %", "values that become zero 50.0 %"):
        assert words in said
    assert "energy of values that become zero" in said
    assert "SQNR" not in said  # of what stays finite


@in_turn(
    "x,keywords,place,result",
    [
        (f32([[1, 2], [-900, 500]]), {}, (1, 0), "nan = code 0xff"),
        (f32([1.0, 2e-4, 9e-4]), {**OFF, "underflow": 0.0}, (2,), "0.0 = code 0x00"),
        (f32([1.0, 1.06, 17.0]), {**OFF, "sqnr_db": 60.0}, (2,), "16.0 = code 0x58"),
        (f32([1.0, 1.06, 17.0]), {**OFF, "max_relative": 0.01}, (2,), "16.0 = code 0x58"),
    ],
)  # fmt: skip
def test_the_worst_value_is_explained(x: Any, keywords: Any, place: tuple[int, ...], result: str) -> None:
    said = message(x, "e4m3", **keywords)
    assert f"The worst is at {place}:\n{fp.explain(x[place], 'e4m3')}" in said
    assert result in said


def test_under_scales_the_worst_value_is_explained_as_the_cast_sees_it() -> None:
    x = f32([[300, 300 / 13.1, 3, 0], [7, 6, 5, 4]])
    said = message(x, "e4m3", scaling=fp.scalings.ROW, sqnr_db=60.0)
    encoded = fp.encode_scaled(x, "e4m3", fp.scalings.ROW)
    place = tuple(int(i) for i in np.unravel_index(np.abs(encoded.decode() - x).argmax(), x.shape))
    scale = encoded.scales[place[0], 0]
    assert f"The worst is at {place}, {float(x[place])!r}, which with the scale {float(scale)!r} becomes" in said
    assert str(fp.explain(x[place] / scale, "e4m3", overflow=fp.scalings.ROW.overflow)) in said
    one = message(x, "e4m3", scale="amax", sqnr_db=60.0)
    assert "which with the scale" in one


def test_formats_of_listed_values_are_told_without_neighbours() -> None:
    said = message(NORMAL, "nf4", sqnr_db=60.0)
    assert "do not survive NF4: SQNR" in said
    assert said.endswith((", which becomes -1.0.", ", which becomes 1.0."))


def test_integers_and_draws_are_told_without_neighbours() -> None:
    said = message(NORMAL, "int8", scaling=fp.scalings.ROW, sqnr_db=60.0)
    assert "which with the scale" in said
    assert said.count("\n") == 1
    assert ", which becomes " in message(NORMAL, "e5m2", rounding="stochastic", seed=1, sqnr_db=60.0)


def test_tensors_zeros_and_infinities() -> None:
    torch = pytest.importorskip("torch")
    assert_survives(torch.randn(8, 8, requires_grad=True).bfloat16(), "e4m3", max_relative=None)
    assert_survives(np.zeros(3, np.float32), "e4m3")
    assert_survives(f32([np.inf, np.nan, 1.0]), "e4m3")
    assert "SQNR is unknown" in message(f32([np.nan]), "e4m3")
    assert "values beyond the range 100 %" in message(np.array([1e300]), "bf16")


@in_turn(
    "keywords,error,wanted",
    [
        ({"overflow": "saturate"}, ValueError, "overflow must be a threshold, a number or None; got 'saturate'. It"),
        ({"sqnr_db": float("nan")}, ValueError, "sqnr_db must be a threshold"),
        ({"underflow": True}, ValueError, "underflow must be a threshold"),
        ({"x": f32([])}, ValueError, r"x must hold a value; got an empty array, shape \(0,\)"),
        ({"x": np.array([1, 2])}, TypeError, "x must be an array of"),
        ({"fmt": fp.LogFMT(8), "scaling": fp.scalings.TILE_1X128, "max_ulp": 1}, ValueError, "max_ulp cannot be"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(keywords: Any, error: Any, wanted: str) -> None:
    arguments = {"x": NORMAL, "fmt": "e4m3", **keywords}
    with pytest.raises(error, match=wanted):
        assert_survives(arguments.pop("x"), arguments.pop("fmt"), **arguments)


def test_the_worst_value_is_that_of_the_measured_cast() -> None:
    half = np.array(
        [1e-4, 2e-7, 6e-8], np.float16
    )  # float16 does not hold the scale, in which x / scale is not computed
    said = message(half, "e4m3", scale=1e-9)
    assert "which with the scale 9.999999717180685e-10 becomes nan:\n100016.59375 in E4M3" in said
    amax = np.array(
        [3.0, -2.9, 1e-3], np.float32
    )  # amax / scale may be just above the largest value, which it then becomes
    said = message(amax, "e4m3", scale="amax", rounding="up", sqnr_db=90.0)
    assert "becomes nan" not in said


@pytest.mark.parametrize("x", [f32([256.1, 1.0625]), f32([[256.1, 1.0625]])])
def test_the_worst_error_in_ulps_is_not_the_largest_error(x: Any) -> None:
    said = message(x, "e4m3", **{**OFF, "max_ulp": 0.25})
    assert f"The worst is at {(*(0,) * (x.ndim - 1), 1)}:\n1.0625 in E4M3" in said
    assert "The worst is at" in message(x, "int8", scaling="tensor", **{**OFF, "max_ulp": 0.01})


@pytest.mark.parametrize("threshold", [{"sqnr_db": 60}, {"max_ulp": 0.1}, {"max_relative": 1e-3}])
def test_the_worst_value_is_one_that_the_metric_compares(threshold: Any) -> None:
    x = np.array([1.0, 2.0, 1e9, 0.3], np.float32)  # 1e9 overflows, which these thresholds allow
    with pytest.raises(AssertionError, match=r"The worst is at \(3,\)"):
        fp.testing.assert_survives(x, "e4m3", **{"sqnr_db": None, "overflow": None, **threshold})
