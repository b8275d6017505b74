"""4/6, IF4 and HiF4: codes and scales of an oracle and of the authors' programs, and the errors that they report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.clipping import kept
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT
from tests.oracles import adaptive as oracle

Array = npt.NDArray[Any]
MEASURES = ("mse", "mae", "abs_max")
FOUR_OR_SIX = fp.scalings.NVFP4_46
PLAIN = fp.Scaling(block=(1, 4), scale_format=fp.E4M3, adaptive="mse")


@cache
def recorded() -> dict[str, Array]:
    with np.load(ROOT / "tests" / "data" / "adaptive.npz") as arrays:
        return dict(arrays)


@cache
def gaussian() -> Array:
    return np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)


def tiles(count: int, size: int) -> Array:
    """Return rows of several sizes, of which none is zero."""
    rng = np.random.default_rng(7)
    return (rng.standard_normal((count, size)) * np.exp2(rng.uniform(-6, 2, (count, 1)))).astype(np.float32)


# ---- 4/6


@pytest.mark.parametrize("measure", MEASURES)
def test_four_or_six_is_that_of_the_oracle(measure: str) -> None:
    x = tiles(60, 16)
    q = fp.encode_scaled(x, fp.E2M1, FOUR_OR_SIX.replace(adaptive=measure))
    want = oracle.four_or_six(x, measure)
    assert_bits_equal(q.codes, np.array([tile.codes for tile in want], np.uint8))
    assert_bits_equal(q.scales.ravel(), np.array([tile.scale for tile in want]))
    assert_bits_equal(q.decode(), np.array([tile.values for tile in want]))
    assert_bits_equal(fp.quantize_scaled(x, fp.E2M1, FOUR_OR_SIX.replace(adaptive=measure)), q.decode())
    steps = q.codes[np.arange(60), np.abs(x).argmax(1)] & 7
    assert {6, 7} <= set(steps.tolist())  # both maxima occur


@pytest.mark.parametrize("measure", MEASURES)
def test_four_or_six_has_the_codes_of_fouroversix(measure: str) -> None:
    x = recorded()["x"]
    q = fp.encode_scaled(x, fp.E2M1, FOUR_OR_SIX.replace(adaptive=measure))
    differ = _differences(q, x, f"nvfp4_46_{measure}")
    assert differ == 1  # of 16,384: it multiplies with a reciprocal, which moves one quotient over a tie


def _differences(q: fp.Scaled, x: Array, name: str) -> int:
    """Return how many codes differ, in tiles whose scale does not underflow to 0; all their scales must agree."""
    packed, scales = recorded()[f"{name}_codes"], recorded()[f"{name}_scales"]
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(x.shape)
    assert q.scale_codes is not None
    empty = scales == 0  # tiles of zeros have the scale 1 here, and the smallest scale is 2**-9
    assert_bits_equal(q.scale_codes[~empty], scales[~empty])
    assert (np.abs(x).reshape(128, 8, 16).max(2)[empty] < 1e-7).all()
    return int(np.count_nonzero((q.codes != codes) & ~np.repeat(empty, 16, axis=1)))


def test_four_or_six_on_the_example_of_the_paper() -> None:
    x = np.array([[10, 20, 30, 40]], np.float32)
    six = fp.encode_scaled(x, "e2m1", PLAIN.replace(adaptive=""))
    assert six.scales.item() == 6.5
    assert round(float(np.mean((six.decode() - x) ** 2)), 3) == 4.328
    four = fp.encode_scaled(x, "e2m1", PLAIN)
    assert four.scales.item() == 10
    assert_bits_equal(four.decode(), x)


def test_a_tie_keeps_six() -> None:
    q = fp.encode_scaled(np.array([[6, 6, 0, 0]], np.float32), "e2m1", PLAIN)
    assert (q.scales.item(), q.codes.tolist()) == (1, [[7, 7, 0, 0]])


def test_four_or_six_with_stochastic_rounding_expects_65_64ths() -> None:
    x = np.zeros((20_000, 4), np.float32)
    x[:, 0] = 1
    values = fp.encode_scaled(x, "e2m1", PLAIN, scales=np.float32(17 / 96), rounding="stochastic", seed=1).decode()
    share = np.mean(values[:, 0] == values[:, 0].max())
    assert sorted(np.unique(values[:, 0]).tolist()) == pytest.approx([51 / 64, 17 / 16], rel=1e-7)
    assert abs(share - 14 / 17) < 4 * (14 / 17 * 3 / 17 / 20_000) ** 0.5
    assert abs(values[:, 0].mean() - 65 / 64) < 4 * (17 / 64) * (14 / 17 * 3 / 17 / 20_000) ** 0.5


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes_and_shapes_choose_by_their_own_values(dtype: Any) -> None:
    x = tiles(12, 40).astype(dtype)
    q = fp.encode_scaled(x, "e2m1", FOUR_OR_SIX)
    wide = x.astype(np.float64)
    errors = []
    for recipe in (FOUR_OR_SIX, FOUR_OR_SIX.replace(adaptive="")):
        error = (fp.quantize_scaled(x, "e2m1", recipe) - wide) ** 2
        errors.append(np.add.reduceat(error, [0, 16, 32], axis=1))
    assert (errors[0] <= errors[1]).all()
    assert (errors[0] < errors[1]).any()
    assert_bits_equal(q.T.decode(), q.decode().T)
    assert_bits_equal(fp.encode_scaled(np.ascontiguousarray(x.T).T, "e2m1", FOUR_OR_SIX).codes, q.codes)


# ---- IF4


@pytest.mark.parametrize("measure", MEASURES)
def test_if4_is_that_of_the_oracle(measure: str) -> None:
    x = tiles(60, 16)
    q = fp.encode_scaled(x, "if4", fp.scalings.IF4.replace(adaptive=measure))
    want, marks = oracle.if4(x, measure)
    assert q.scale_codes is not None
    assert ((q.scale_codes.ravel() & 0x80) != 0).tolist() == marks
    assert any(marks)
    assert not all(marks)
    assert_bits_equal(q.codes, np.array([tile.codes for tile in want], np.uint8))
    assert_bits_equal(q.scales.ravel(), np.array([tile.scale for tile in want]))
    assert_bits_equal(q.decode(), np.array([tile.values for tile in want]))


def test_if4_has_the_codes_of_fouroversix() -> None:
    x = recorded()["x"]
    q = fp.encode_scaled(x, fp.IF4, "IF4")
    assert _differences(q, x, "if4_mse") == 0
    exact = q.decode(np.float64)
    assert_bits_equal(exact.astype(np.float32), q.decode())
    assert q.nbytes * 8 == x.size * 4.5 + 32


# ---- HiF4


def test_hif4_is_that_of_the_oracle() -> None:
    x = tiles(40, 64)
    x[0], x[1] = 0, x[1] * np.float32(2.0**-60)  # a scale of 2**-48
    x[2] *= np.float32(2.0**22)  # the largest scale
    q = fp.encode_scaled(x, "hif4", "HIF4")
    assert q.zero_points is not None
    for row, (codes, scale, levels) in enumerate(zip(q.codes, q.scales.ravel(), q.zero_points.ravel(), strict=True)):
        want = oracle.hif4(x[row])
        assert codes.tolist() == want.quarters
        assert float(scale) == want.scale
        bits = [int(levels) >> i & 1 for i in range(24)]
        assert (bits[:8], bits[8:]) == (want.eights, want.fours)
    exponents = np.repeat([[int(z) >> i & 1 for i in range(8)] for z in q.zero_points.ravel()], 8, axis=1)
    exponents += np.repeat([[int(z) >> (8 + i) & 1 for i in range(16)] for z in q.zero_points.ravel()], 4, axis=1)
    signs = np.where(q.codes & 8, -1.0, 1.0)
    assert_bits_equal(q.decode(np.float64), signs * (q.codes & 7) / 4 * np.exp2(exponents) * q.scales.astype(float))
    assert_bits_equal(q.decode(), q.decode(np.float64).astype(np.float32))


def test_hif4_has_the_parts_that_its_authors_formula_gives() -> None:
    r = recorded()
    q = fp.encode_scaled(r["hif4_source"], fp.HIF4, fp.scalings.HIF4)
    assert q.zero_points is not None
    levels = q.zero_points.reshape(-1, 1)
    assert_bits_equal(q.scales.ravel(), r["hif4_scales"])
    assert np.array_equal(levels >> np.arange(8) & 1, r["hif4_eights"])
    assert np.array_equal(levels >> np.arange(8, 24) & 1, r["hif4_fours"])
    quarters = np.where(q.codes & 8, -1, 1) * (q.codes & 7).astype(int)
    assert np.array_equal(quarters, r["hif4_quarters"])
    assert q.nbytes * 8 == q.codes.size * 4.5


def test_hif4_keeps_its_parts_in_files_slices_and_transposed(tmp_path: Path) -> None:
    x = tiles(6, 150)
    q = fp.encode_scaled(x, "hif4", "HIF4")
    q.save(tmp_path / "q.npz")
    assert_bits_equal(fp.Scaled.load(tmp_path / "q.npz").decode(), q.decode())
    assert_bits_equal(q.blocks[2:4, 1].decode(), q.decode()[2:4, 64:128])
    assert_bits_equal(q.T.decode(), q.decode().T)
    columns = fp.encode_scaled(np.ascontiguousarray(x.T), "hif4", fp.scalings.HIF4.transposed())
    assert_bits_equal(columns.decode(), q.decode().T)
    for dtype in (np.float64, np.float16):
        assert fp.encode_scaled(x.astype(dtype), "hif4", "HIF4").decode().shape == x.shape
    assert fp.encode_scaled(np.zeros((0, 64), np.float32), "hif4", "HIF4").decode().shape == (0, 64)


def test_hif4_treats_nan_and_inf_as_the_scaling_says() -> None:
    x = tiles(4, 64)
    x[0, 5], x[1, 6], x[2] = np.nan, -np.inf, 0
    q = fp.encode_scaled(x, "hif4", "HIF4")
    values = q.decode()
    assert np.isnan(values[0]).all()
    assert q.codes[1, 6] == 15
    assert np.isfinite(values[1:]).all()
    assert (q.report.nan_tiles, q.report.infinite_tiles, q.report.zero_tiles) == (1, 1, 1)
    one = fp.encode_scaled(x, "hif4", fp.scalings.HIF4.replace(nan="element"))
    assert np.isfinite(one.decode()).all()
    assert kept(x, fp.HIF4, fp.scalings.HIF4, fp.Rounding.NEAREST_EVEN).sum() == 3 * 64 - 1


# ---- published errors


def test_errors_are_those_that_the_authors_report() -> None:
    mse = {
        name: fp.analysis.error(gaussian(), fmt, scaling=name).mse
        for fmt, name in (("e2m1", "NVFP4"), ("e2m1", "NVFP4_46"), ("e2m1", "MX"), ("hif4", "HIF4"), ("if4", "IF4"))
    }
    assert 9.00e-3 < mse["NVFP4"] < 9.06e-3  # 9.0 in the Quartet-II notebook
    assert 7.53e-3 < mse["NVFP4_46"] < 7.60e-3  # 7.6
    assert 0.234 < 1 - mse["HIF4"] / mse["NVFP4"] < 0.242  # 23.8 % in arXiv:2602.11287
    assert 0.474 < 1 - mse["HIF4"] / mse["MX"] < 0.482  # 47.8 %
    assert 0.675 < mse["IF4"] / mse["NVFP4"] < 0.686  # .68 in arXiv:2603.28765


def test_twice_the_scale_of_ocp_saturates_nothing() -> None:
    x = gaussian()[:64]
    ocp, twice = (fp.encode_scaled(x, fp.E4M3, name) for name in ("MX", "TRAINIUM_MX"))
    assert_bits_equal(twice.scales, 2 * ocp.scales)
    assert (twice.codes & 0x7F).max() < fp.E4M3.max_code == (ocp.codes & 0x7F).max()


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fp.encode_scaled(gaussian(), "e4m3", FOUR_OR_SIX), "adaptive='mse' chooses among codes of E2M1 or IF4"),
    (lambda: fp.encode_scaled(gaussian(), "if4", "NVFP4"), "IF4 needs scales in E4M3 of two levels and an error"),
    (lambda: fp.encode_scaled(gaussian(), "if4", "IF4", scales=1.0), "IF4 marks tiles of integers in its own scales"),
    (lambda: fp.encode_scaled(gaussian(), "hif4", "MX"), "HIF4 and scales in E6M2 belong together"),
    (lambda: fp.encode_scaled(gaussian(), "e2m1", "HIF4"), "HIF4 and scales in E6M2 belong together"),
    (lambda: fp.encode_scaled(gaussian(), "hif4", fp.scalings.HIF4.replace(block=(1, 32))), "HIF4 has tiles of 64"),
    (lambda: fp.encode_scaled(gaussian(), "hif4", "HIF4", rounding="up"), "HIF4 takes the nearest quarter; got"),
    (lambda: fp.encode_scaled(gaussian(), "hif4", "HIF4", scales=1.0), "HIF4 finds its own scales and exponents"),
    (lambda: fp.Scaling(adaptive="rmse"), "adaptive must be one of , mse, mae, abs_max; got 'rmse'"),
    (lambda: fp.Scaling(adaptive="mse", scale_format=fp.E8M0), "adaptive needs scale_rule='amax', quotient='amax/max'"),
    (lambda: fp.Scaling(tensor_top=256), "tensor_top must be a positive scale of FP32 with tensor_scale=True"),
    (lambda: FOUR_OR_SIX.replace(tensor_top=500), "tensor_top must be a positive scale of E4M3"),
    (lambda: fp.OnlineScaling("e2m1", FOUR_OR_SIX), "OnlineScaling needs elements that a scale alone places"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_combinations_that_mean_nothing_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_a_quantizer_without_the_choice_is_told_so() -> None:
    plain = fp.testing.check_quantizer(
        lambda x: fp.encode_scaled(x, "e2m1", "NVFP4"), "e2m1", scaling=FOUR_OR_SIX, raises=False
    )
    assert plain.causes == ("has tensor_top=None, not 256.0", "has adaptive='', not 'mse'")
    assert fp.testing.check_quantizer(
        lambda x: fp.encode_scaled(x, "e2m1", FOUR_OR_SIX), "e2m1", scaling=FOUR_OR_SIX
    ).ok
