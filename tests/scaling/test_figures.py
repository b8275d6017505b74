"""Scaled quantisation gives published and known figures: SQNR of Gaussian data, transposition, uneven rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.loops import take_common_loops

Array = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def _common_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    take_common_loops(monkeypatch)


def sqnr(x: Array, y: Array) -> float:
    """Signal to quantisation noise in decibels."""
    noise = x.astype(np.float64) - y
    return float(10 * np.log10(np.mean(np.square(x, dtype=np.float64)) / np.mean(np.square(noise))))


# ---- Gaussian data

GAUSSIAN = [
    # format, block, with float32 scales, with powers of two rounded up
    ("E4M3", (1, 16), 33.0, 31.5),
    ("E4M3", (1, 32), 32.4, 31.5),
    ("E4M3", (1, 128), 31.79, 31.52),
    ("E4M3", (128, 128), 31.55, 31.52),
    ("E4M3", (-1, -1), 31.54, 31.52),
    ("INT8", (1, 32), 45.4, 41.6),
    ("INT8", (1, 128), 43.8, 40.8),
    ("INT8", (128, 128), 40.5, 36.0),
    ("E2M1", (1, 16), 20.5, 19.0),
    ("E2M1", (1, 128), 19.3, 18.1),
]


@pytest.mark.parametrize(("name", "block", "with_float32", "with_powers_of_two"), GAUSSIAN, ids=str)
def test_gaussian_data_has_the_known_sqnr(
    name: str, block: tuple[int, int], with_float32: float, with_powers_of_two: float
) -> None:
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    fmt = getattr(fp, name)
    for scale_format, want in ((fp.FP32, with_float32), (fp.E8M0, with_powers_of_two)):
        y = fp.quantize_scaled(x, fmt, fp.Scaling(block=block, scale_format=scale_format))
        assert sqnr(x, y) == pytest.approx(want, abs=0.1)


def test_one_scale_for_a_large_gaussian_tensor_costs_int8_several_decibels() -> None:
    x = np.random.default_rng(0).standard_normal((4096, 2048)).astype(np.float32)
    assert sqnr(x, fp.quantize_scaled(x, fp.INT8, fp.scalings.TENSOR)) == pytest.approx(38.3, abs=0.1)


# ---- rows of uneven size, as the gradients of tokens are


def uneven_rows(octaves: float, seed: int) -> Array:
    """A Gaussian matrix whose rows are multiplied with 2^(octaves * N(0, 1))."""
    generator = np.random.default_rng(seed)
    rows = np.exp2(octaves * generator.standard_normal((1024, 1)))
    return (rows * generator.standard_normal((1024, 1024))).astype(np.float32)


class Transposition(NamedTuple):
    """What it costs to go from 1x128 tiles to 128x1 tiles."""

    direct: float  # SQNR in dB of quantising the original in 128x1 tiles
    through_rows: float  # SQNR in dB of quantising in 1x128 tiles, and those values in 128x1 tiles
    changed: float  # part of the elements that the second quantisation changes
    direct_error: float  # relative rms error of the elements
    error_through_rows: float


def relative_error(x: Array, y: Array) -> float:
    """Root mean square of the elements' relative errors."""
    return float(np.sqrt(np.mean(np.square((y - x) / x, dtype=np.float64))))


def transposition(power_of_two: bool) -> Transposition:
    """The costs of one way to write scales."""
    end = "_POW2" * power_of_two
    along_rows, along_columns = (getattr(fp.scalings, f"{name}{end}") for name in ("TILE_1X128", "TILE_128X1"))
    x = uneven_rows(2, seed=4)
    q = fp.encode_scaled(x, fp.E4M3, along_rows)
    direct, through = fp.quantize_scaled(x, fp.E4M3, along_columns), q.requantize(along_columns).decode()
    changed = float(np.mean(through != q.decode()))
    return Transposition(
        sqnr(x, direct), sqnr(x, through), changed, relative_error(x, direct), relative_error(x, through)
    )


def test_transposed_tiles_with_float32_scales_change_nearly_every_element() -> None:
    cost = transposition(power_of_two=False)
    assert cost.direct == pytest.approx(34.25, abs=0.2)  # a few heavy rows decide it
    assert cost.through_rows == pytest.approx(29.81, abs=0.1)
    assert cost.changed == pytest.approx(0.993, abs=0.001)
    assert cost.direct_error == pytest.approx(0.0302, abs=0.0005)
    assert cost.error_through_rows == pytest.approx(0.0401, abs=0.0005)


def test_transposed_tiles_with_powers_of_two_change_only_what_underflows() -> None:
    cost = transposition(power_of_two=True)
    assert cost.direct == pytest.approx(31.53, abs=0.1)
    assert cost.through_rows == pytest.approx(cost.direct, abs=0.01)
    assert cost.changed == pytest.approx(0.0026, abs=0.0005)
    assert cost.direct_error == pytest.approx(0.0319, abs=0.0005)
    assert cost.error_through_rows == pytest.approx(cost.direct_error, abs=0.0001)


SEEDS = {4: 5, 6: 5, 8: 3}  # which rows are large is a matter of luck, and with it how many others vanish
UNEVEN = [
    # octaves, scaling, format, median of the rows' relative errors, part of the elements that become zero
    (4, "TENSOR", "E4M3", (0.029, 0.031), 0.19),
    (4, "BLOCK_128X128", "E4M3", (0.0265, 0.0275), 0.11),
    (4, "TILE_1X128", "E4M3", (0.0255, 0.0259), 0.0),
    (6, "TENSOR", "E4M3", (0.95, 1.0), 0.65),
    (6, "BLOCK_128X128", "E4M3", (0.08, 0.1), 0.39),
    (6, "TILE_1X128", "E4M3", (0.0255, 0.0259), 0.0),
    (6, "TENSOR", "E5M2", (0.052, 0.054), 0.04),
    (8, "BLOCK_128X128", "E4M3", (0.99, 1.0), 0.74),
    (8, "TILE_1X128", "E4M3", (0.0255, 0.0259), 0.0),
]


@pytest.mark.parametrize(("octaves", "scaling", "fmt", "median", "zeroed"), UNEVEN)
def test_blocks_lose_the_small_rows_beside_large_ones(
    octaves: int, scaling: str, fmt: str, median: tuple[float, float], zeroed: float
) -> None:
    x = uneven_rows(octaves, SEEDS[octaves])
    y = fp.quantize_scaled(x, getattr(fp, fmt), getattr(fp.scalings, scaling))
    exact = x.astype(np.float64)
    errors = np.linalg.norm(y - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert median[0] <= np.median(errors) <= median[1]
    assert np.mean((y == 0) & (x != 0)) == pytest.approx(zeroed, abs=0.04 if zeroed else 1e-4)
