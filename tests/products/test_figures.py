"""The errors that the 14 bits of Hopper's FP8 products cause, compared with those known from two other programs.

Unless it says otherwise, a figure is the error of a product of 64 x K and K x 64 E4M3 matrices by hopper_e4m3_f32,
beside their exact product. The known figures were found with other samples, so that 20 % is what may be asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.loops import take_common_loops
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
SIZE = 64
UNIT = "hopper_e4m3_f32"


@pytest.fixture(autouse=True)
def _common_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    take_common_loops(monkeypatch)


class Operands(NamedTuple):
    """Two matrices in E4M3 and their product, which float64 holds exactly or nearly so."""

    a: Array
    b: Array
    exact: Array


def drawn(distribution: str, generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Values of a distribution."""
    if distribution == "uniform":
        return generator.random(shape)
    x = generator.standard_normal(shape)
    return {"normal": x, "absolute": np.abs(x), "shifted 0.25": x + 0.25, "shifted 0.5": x + 0.5}[distribution]


def operands(distribution: str, k: int, *, scaled: bool = False, rectified: bool = False, seed: int = 0) -> Operands:
    """Matrices of a distribution, as they are or scaled so that the largest magnitude is 448.

    rectified: negative elements of the first one become 0.
    """
    generator = np.random.default_rng(seed)
    x, y = drawn(distribution, generator, (SIZE, k)), drawn(distribution, generator, (k, SIZE))
    x = np.maximum(x, 0) if rectified else x
    factors = (448 / np.abs(x).max(), 448 / np.abs(y).max()) if scaled else (1, 1)
    a, b = (fp.cast((v * factor).astype(np.float32), fp.E4M3) for v, factor in zip((x, y), factors, strict=True))
    return Operands(a, b, a.astype(np.float64) @ b.astype(np.float64))


def errors(x: Operands, promote: int | None, unit: str = UNIT) -> Array:
    """Return the errors of all elements."""
    return fp.matmul(x.a, x.b, accumulate=unit, promote=promote) - x.exact


def relative(error: Array, exact: Array) -> float:
    """Return the root mean square of the error over that of the exact product."""
    return float(np.linalg.norm(error) / np.linalg.norm(exact))


def close(want: float) -> Any:
    return pytest.approx(want, rel=0.2)


# ---- K = 4096, by distribution

AT_4096 = [
    # distribution, scaled to 448, promote, median of the elements' relative errors, rms of errors / rms of the product
    ("normal", False, None, 9.4e-4, 1.3e-3),
    ("normal", False, 128, 1.2e-4, 1.3e-4),
    ("normal", True, None, 9.8e-4, 1.3e-3),
    ("normal", True, 128, 1.2e-4, 1.3e-4),
    ("uniform", False, None, 6.6e-2, 6.6e-2),
    ("uniform", False, 128, 5.0e-4, 5.0e-4),
    ("absolute", False, None, 7.0e-2, 7.0e-2),
    ("absolute", False, 128, 6.2e-4, 6.2e-4),
    ("shifted 0.25", False, None, 1.1e-3, 1.7e-3),
    ("shifted 0.25", False, 128, 4.3e-5, 5.4e-5),
    ("shifted 0.5", True, None, 6.8e-3, 7.1e-3),
]


@in_turn("distribution, scaled, promote, median, rms", AT_4096)
def test_the_error_at_4096_depends_on_the_distribution(
    distribution: str, scaled: bool, promote: int | None, median: float, rms: float
) -> None:
    x = operands(distribution, 4096, scaled=scaled)
    error = errors(x, promote)
    assert float(np.median(np.abs(error / x.exact))) == close(median)
    assert relative(error, x.exact) == close(rms)


@pytest.mark.parametrize("distribution", ["uniform", "absolute"])
def test_sums_of_positive_terms_only_lose(distribution: str) -> None:
    x = operands(distribution, 4096)
    assert np.all(errors(x, None) < 0)
    assert np.all(errors(x, 128) < 0)


def test_two_per_cent_is_no_property_of_the_unit() -> None:
    """DeepSeek-V3 says "nearly 2 %" at K = 4096: a high quantile for one distribution, and too low for another."""
    normal, uniform = operands("normal", 4096), operands("uniform", 4096)
    relative_errors = np.abs(errors(normal, None) / normal.exact)
    assert np.quantile(relative_errors, 0.98) == close(0.02)
    assert np.abs(errors(normal, None)).max() / np.abs(normal.exact).max() < 0.004
    assert np.abs(errors(uniform, None) / uniform.exact).min() > 0.06


@pytest.mark.parametrize(("rectified", "want"), [(False, 2.7e-2), (True, 1.5e-2)])
def test_the_largest_relative_error_of_a_sample(rectified: bool, want: float) -> None:
    """Elements below a tenth of the standard deviation do not count. Samples differ by a factor of 2: median of 12."""
    largest = []
    for seed in range(12):
        x = operands("normal", 4096, rectified=rectified, seed=seed)
        counts = np.abs(x.exact) > 0.1 * x.exact.std()
        largest.append(np.abs(errors(x, None) / x.exact)[counts].max())
    assert np.median(largest) == close(want)


# ---- growth with K, operands scaled to 448

GROWTH = [
    # distribution, K, relative error without promotion, with one every 128, every 512
    ("normal", 128, 1.2e-4, 1.3e-4, None),
    ("normal", 512, 3.4e-4, 1.3e-4, None),
    ("normal", 1024, 5.4e-4, 1.3e-4, 3.2e-4),
    ("normal", 4096, 1.33e-3, 1.3e-4, 3.2e-4),
    ("normal", 16384, 2.9e-3, 1.3e-4, 3.2e-4),
    ("uniform", 128, 5.7e-4, 5.6e-4, None),
    ("uniform", 512, 5.8e-3, 5.6e-4, None),
    ("uniform", 1024, 1.5e-2, 5.6e-4, 5.8e-3),
    ("uniform", 4096, 7.45e-2, 5.6e-4, 5.8e-3),
    ("uniform", 8192, 1.45e-1, 5.6e-4, 5.8e-3),
]


@in_turn("distribution, k, chained, every_128, every_512", GROWTH)
def test_the_error_grows_with_k_unless_sums_are_promoted(
    distribution: str, k: int, chained: float, every_128: float, every_512: float | None
) -> None:
    x = operands(distribution, k, scaled=True)
    for promote, want in ((None, chained), (128, every_128), (512, every_512)):
        if want is not None:
            assert relative(errors(x, promote), x.exact) == close(want)


@pytest.mark.parametrize(("promote", "gain"), [(32, 1600), (64, 480), (128, 130), (256, 39), (512, 12.8)])
def test_a_shorter_interval_of_promotion_is_better(promote: int, gain: float) -> None:
    x = operands("uniform", 4096)
    assert relative(errors(x, None), x.exact) / relative(errors(x, promote), x.exact) == close(gain)


@pytest.mark.parametrize(("distribution", "want"), [("normal", 2e-7), ("uniform", 1.1e-6)])
def test_25_fraction_bits_need_no_promotion(distribution: str, want: float) -> None:
    x = operands(distribution, 4096, scaled=True)
    assert relative(errors(x, None, "blackwell_e4m3_f32"), x.exact) == close(want)


# ---- a whole FP8 product: quantised by DeepSeek-V3's recipe, multiplied, promoted and scaled


def calc_diff(x: Array, y: Array) -> float:
    """DeepGEMM's measure of two products, nearly half the square of the relative error."""
    return float(1 - 2 * np.vdot(x, y) / (np.vdot(x, x) + np.vdot(y, y)))


def quantised_product(scaling_b: str, seed: int) -> float:
    """calc_diff of a 128 x 4096 x 128 product of N(0, 1) to that of the values before quantisation."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((128, 4096), dtype=np.float32)
    y = generator.standard_normal((4096, 128), dtype=np.float32)
    a = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    b = fp.encode_scaled(y, fp.E4M3, getattr(fp.scalings, scaling_b))
    got = fp.matmul(a, b, accumulate=UNIT, scale_order="product")
    return calc_diff(got.astype(np.float64), x.astype(np.float64) @ y.astype(np.float64))


@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_tiles_has_its_known_difference(seed: int) -> None:
    assert 6.4e-4 < quantised_product("TILE_128X1", seed) < 6.8e-4


def test_the_difference_of_deepgemm_is_the_noise_of_its_operands() -> None:
    """Half the noise of 1x128 tiles (31.79 dB) and of 128x128 blocks (31.55 dB): the accumulator adds nothing to it."""
    noise = 10**-3.179 + 10**-3.155
    assert np.mean([quantised_product("BLOCK_128X128", seed) for seed in range(4)]) == pytest.approx(
        noise / 2, rel=0.02
    )
