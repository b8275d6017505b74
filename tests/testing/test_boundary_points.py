"""The inputs that every check of a cast begins with."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from tests.oracles import casts

DTYPES = ("float16", "bfloat16", "float32", "float64")
FORMATS = ("e4m3", "e5m2", "e2m1", "e8m0", "fp16", "bf16", "p3109_k8p3se", "p3109_k8p1ue")


def patterns(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_are_sorted_and_each_pattern_stands_once(dtype: str) -> None:
    for fmt in (*FORMATS, "tf32", "fp32"):
        x = fp.testing.points(fmt, dtype)
        assert x.dtype == (ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)), fmt
        assert np.diff(np.sort(patterns(x))).all(), fmt
        values = x.astype(np.float64)
        assert (np.diff(values[np.isfinite(values)]) >= 0).all(), fmt
        nans = np.flatnonzero(np.isnan(values))
        assert set(nans) == {0, 1, 2, x.size - 3, x.size - 2, x.size - 1}, fmt
        zeros = np.flatnonzero(values == 0)
        assert np.signbit(values[zeros]).tolist() == [True, False], fmt


def test_points_hold_every_value_every_tie_and_their_neighbours() -> None:
    for fmt in map(fp.format, FORMATS):
        x = np.sort(patterns(fp.testing.points(fmt, "float64")))
        values = casts.values(fmt)
        finite = np.unique(np.abs(values[np.isfinite(values)]))
        unit = float(casts.spacing(fmt, casts.largest(fmt)))
        finite = np.append(finite, finite[-1] + unit)
        centres = np.append(finite, finite[:-1] + np.diff(finite) / 2)
        for sign, step in itertools.product((1, -1), (-np.inf, 0, np.inf)):
            near = sign * (np.nextafter(centres, step) if step else centres)
            wanted = patterns(near)
            places = np.minimum(np.searchsorted(x, wanted), x.size - 1)  # np.isin takes several times as long
            assert (x[places] == wanted).all(), (fmt, sign, step)


def test_in_a_dtype_that_does_not_hold_a_tie_its_two_neighbours_are_points() -> None:
    x = fp.testing.points("fp16", "bfloat16").astype(np.float64)
    values = x[np.isfinite(x)]
    assert not np.isin(1 + 2.0**-11, values)
    assert np.isin([1.0, 1 + 2.0**-7], values).all()


def test_more_around_gives_more_neighbours() -> None:
    one, three = (patterns(fp.testing.points("e4m3", around=around)) for around in (1, 3))
    assert np.isin(one, three).all()
    assert np.isin(patterns(np.array([1.0], np.float32)) + np.arange(-3, 4), three).all()
    assert not np.isin(patterns(np.array([1.0], np.float32)) + 3, one).any()


def test_the_edges_of_the_source_and_of_formats_in_between_are_points() -> None:
    x = fp.testing.points("e4m3")
    edges = np.array([65504, 65520, 2**-24, 2**-14, 3.4028235e38, 1e-45, 2.0**-126, 2.0**31, 0, np.inf], np.float32)
    assert np.isin(edges, x).all()


def test_points_are_about_as_many_as_promised() -> None:
    assert 1500 < fp.testing.points("e4m3").size < 1800
    assert fp.testing.points("bf16").size > 6 * 65280 - 1000


def test_points_of_fp64_reach_its_largest_value() -> None:
    assert np.isin([2.0**power * (1 + 2.0**-bit) for power in (-1000, 0, 1, 1000) for bit in (1, 52)],
                   fp.testing.points("fp64", "float64")).all()  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fp.testing.points("e4m3", "int8"),
            "dtype must be one of float16, bfloat16, float32, float64; got 'int8'.",
        ),
        (lambda: fp.testing.points("e4m3", around=-1), "around must be an integer >= 0; got -1."),
    ],
)
def test_bad_arguments_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        call()
    assert str(refusal.value) == message
