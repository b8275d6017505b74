"""Figures of channels and blocks: each is what the same function says of that part alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.measures.error_report import METRICS, NOISE
from fpsim.analysis.measures.passes import PIECE
from fpsim.analysis.measures.sums import ErrorSums, nothing
from fpsim.scaling.tiling import tiling


def sample(*shape: int, seed: int = 0) -> Any:
    """Normal values whose rows and columns differ in scale, with a zero, NaN and Inf."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 9, shape[-1:])
    x.reshape(-1)[[0, 3, 5]] = [0.0, np.nan, np.inf]
    return x.astype(np.float32)


def assert_part_is(parts: Any, number: int, want: Any) -> None:
    for name in (*METRICS, *NOISE):
        got = float(parts[name][number])
        assert got == want.to_dict()[name] or (np.isnan(got) and np.isnan(want.to_dict()[name])), (name, number)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_channel_has_the_figures_of_its_elements_alone(axis: int, dtype: Any) -> None:
    x = sample(6, 5, 40).astype(dtype)
    report = fp.analysis.error(x, "e4m3", scale=0.25, axis=axis)
    assert report.parts is not None
    assert report.parts.name == "channel"
    assert len(report.parts) == x.shape[axis]
    for i in range(x.shape[axis]):
        assert_part_is(report.parts, i, fp.analysis.error(np.take(x, i, axis), "e4m3", scale=0.25))
    whole = fp.analysis.error(x, "e4m3", scale=0.25)
    assert (report.count, report.exact_rate, report.max_ulp) == (whole.count, whole.exact_rate, whole.max_ulp)
    assert report.sqnr_db == pytest.approx(whole.sqnr_db, abs=1e-11)


@pytest.mark.parametrize("block", [(2, 16), (3, 7), (1, -1), (-1, 1), (-1, -1), 16, (1, 1000)])
def test_a_block_has_the_figures_of_its_elements_alone(block: Any) -> None:
    x = sample(2, 8, 40)
    report = fp.analysis.error(x, "e2m1", block=block)
    assert report.parts is not None
    assert report.parts.name == "block"
    cut = tiling(x.shape, fp.Scaling(block=block).block)
    matrices = x.reshape(cut.shape)
    number = 0
    for matrix in matrices:
        for row in range(0, cut.rows, cut.tile_rows):
            for column in range(0, cut.columns, cut.tile_columns):
                part = matrix[row : row + cut.tile_rows, column : column + cut.tile_columns]
                assert_part_is(report.parts, number, fp.analysis.error(np.ascontiguousarray(part), "e2m1"))
                number += 1
    assert number == len(report.parts)


def test_parts_longer_than_a_piece_are_measured_in_several() -> None:
    x = np.random.default_rng(1).standard_normal((2, PIECE + 777)).astype(np.float32)
    for options in ({"axis": 0}, {"block": (1, -1)}):
        report = fp.analysis.error(x, "e5m2", **options)
        assert report.parts is not None
        for i in range(2):
            assert_part_is(report.parts, i, fp.analysis.error(x[i], "e5m2"))


@pytest.mark.parametrize("axis", [0, 1])
def test_roundings_by_position_are_those_of_the_whole_array(axis: int) -> None:
    x = np.random.default_rng(2).standard_normal((7, 50)).astype(np.float32)
    q = fp.quantize(x, "e4m3", rounding="stochastic", seed=4).astype(np.float64)
    report = fp.analysis.error(x, "e4m3", rounding="stochastic", seed=4, axis=axis)
    assert report.parts is not None
    np.testing.assert_allclose(report.parts["mse"], ((q - x) ** 2).mean(axis=1 - axis), rtol=1e-13)
    scaled = fp.analysis.error(x, "int8", scaling=fp.scalings.MX, axis=axis)
    assert scaled.parts is not None
    y = fp.quantize_scaled(x, "int8", fp.scalings.MX).astype(np.float64)
    np.testing.assert_allclose(scaled.parts["mse"], ((y - x) ** 2).mean(axis=1 - axis), rtol=1e-13)


def test_the_worst_part_is_named() -> None:
    x = np.ones((4, 6), np.float32)
    x[2] = 1e-9
    report = fp.analysis.error(x, "e4m3", axis=0)
    assert report.parts is not None
    assert report.parts.worst("underflow_rate") == report.parts.worst("gain") == report.parts.worst() == 2
    assert str(report).endswith("; worst channel 2")
    blocks = fp.analysis.error(x, "e4m3", block=(2, 3)).parts
    assert blocks is not None
    assert blocks.worst("lost_energy") in ((1, 0), (1, 1))
    with pytest.raises(ValueError, match=r"metric must be one of .* Did you mean 'sqnr_db'"):
        blocks.worst("sqnr")
    pytest.importorskip("pandas")
    assert report.to_frame()["channel"].tolist() == [0, 1, 2, 3]


def test_channels_of_two_parts_merge_and_blocks_do_not() -> None:
    x = sample(8, 30, seed=3)
    top, bottom = (fp.analysis.error(part, "e4m3", axis=1) for part in (x[:4], x[4:]))
    merged, whole = top.merge(bottom).parts, fp.analysis.error(x, "e4m3", axis=1).parts
    assert merged is not None
    assert whole is not None
    for name in ("count", "exact_rate", "max_relative"):
        np.testing.assert_array_equal(merged[name], whole[name])
    np.testing.assert_allclose(merged["sqnr_db"], whole["sqnr_db"], rtol=1e-12)
    blocks = [fp.analysis.error(part, "e4m3", block=(2, 2)) for part in (x[:4], x[4:])]
    assert blocks[0].merge(blocks[1]).parts is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": 2}, "axis must be one of the 2 axes of x; got 2"),
        ({"axis": True}, "axis must be one of the 2 axes of x; got True"),
        ({"axis": 0, "block": (1, 2)}, "are given by axis or by block"),
        ({"block": (0, 2)}, "block must be a tuple of tile sizes"),
        ({"block": "row"}, "block must be a tuple of tile sizes"),
    ],
)
def test_parts_that_do_not_exist_are_refused(options: dict[str, Any], message: str) -> None:
    for function in (lambda x: fp.analysis.error(x, "e4m3", **options), lambda x: fp.analysis.range(x, **options)):
        with pytest.raises(ValueError, match=message):
            function(np.ones((2, 3), np.float32))


def test_arrays_without_elements_have_parts_without_figures() -> None:
    report = fp.analysis.error(np.zeros((0, 3), np.float32), "e4m3", axis=1)
    assert report.parts is not None
    assert report.parts["count"].tolist() == [0, 0, 0]
    assert np.isnan(report.parts["sqnr_db"]).all()
    assert report.parts.worst() is None
    assert len(fp.analysis.error(np.zeros((0, 3), np.float32), "e4m3", axis=0).parts or ()) == 0


def test_ranges_of_channels_and_blocks() -> None:
    x = sample(4, 6)
    found = fp.analysis.range(x, axis=1).parts
    assert found is not None
    for i in range(6):
        alone = fp.analysis.range(x[:, i])
        assert (found.amax[i], found.smallest[i]) == (alone.amax, alone.smallest)
        assert found.dynamic_range[i] == pytest.approx(alone.dynamic_range)
    blocks = fp.analysis.range(x, block=(2, 3)).parts
    assert blocks is not None
    assert blocks.places == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert blocks.zeros[0] == 1 / 6


def test_sums_over_one_part_are_those_of_adding_it_to_nothing() -> None:
    x = np.array([0.3, -1e-9, 700.0, np.nan, np.inf, -0.0], np.float32)
    sums = fp.analysis.error(x, "e4m3").sums
    alone = ErrorSums(sums.counts[None], sums.totals[None], sums.maxima[None]).over_first_axis()
    assert alone == nothing().merge(alone) == sums


@pytest.mark.parametrize(
    "measure",
    [
        lambda x: fp.analysis.error(x, "e4m3", scaling="TILE_1X128"), lambda x: fp.analysis.error(x, "e4m3", axis=0),
        lambda x: fp.analysis.range(x, axis=0), fp.analysis.compare,
        lambda x: fp.analysis.drift(x, accumulators="hopper_bf16_f32", lengths=4),
    ],
)  # fmt: skip
def test_equal_reports_are_equal_also_with_nan_and_parts(measure: Any) -> None:
    x = np.random.default_rng(0).random((4, 8), np.float32)
    report, again = measure(x), measure(x)
    assert report == again == pickle.loads(pickle.dumps(report))
    assert hash(report) == hash(again)
    assert report != measure(2 * x + 1)
