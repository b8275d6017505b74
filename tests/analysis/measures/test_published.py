"""Figures from papers and libraries' trackers that the measures reproduce, with their set-ups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp

NORMAL = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)


def mse(x: Any, scaling: fp.Scaling, **options: Any) -> float:
    return fp.analysis.error(x, "e2m1", scaling=scaling, **options).mse


def test_nvfp4_of_normal_data() -> None:
    """9.0e-3 for N(0, 1) to nearest, in groups of 16 with E4M3 scales and a float32 scale of the tensor.

    Source: IST-DASLab/Quartet-II, the notebook on unbiasedness.
    """
    assert mse(NORMAL, fp.scalings.NVFP4) == pytest.approx(9.04e-3, rel=0.01)


def test_mxfp4_to_nearest_and_stochastic() -> None:
    """1.37e-2 to nearest and 2.77e-2 stochastic, relative, for blocks of 32 whose scale is 2**ceil(log2(amax / 6)).

    The published figures are means over sigma from 1 to 2, a binade. Source: Quartet, arXiv:2505.14669, table 2.
    """
    x = NORMAL[:256]
    sigmas = np.linspace(1, 2, 16, endpoint=False)
    found: dict[str, list[float]] = {"nearest_even": [], "stochastic": []}
    for sigma in sigmas:
        scaled = x * np.float32(sigma)
        for rounding, values in found.items():
            report = fp.analysis.error(scaled, "e2m1", scaling=fp.scalings.MX_RCEIL, rounding=rounding, seed=1)
            values.append(10 ** (-report.sqnr_db / 10))
    assert np.mean(found["nearest_even"]) == pytest.approx(1.366e-2, rel=0.02)
    assert np.mean(found["stochastic"]) == pytest.approx(2.778e-2, rel=0.02)


def test_the_floor_rule_clips_a_third_of_fp4_groups() -> None:
    """29.5 % of the groups of 32 normal values have a maximum beyond 6 with OCP's floor rule, none with ceil.

    Source: ROCm/aiter issue 3212 says about 37 %; normal data in groups of 32 give this.
    """
    x = NORMAL[:512]
    amax = np.abs(x).reshape(-1, 32).max(axis=1)
    for scaling, share in ((fp.scalings.MX, 0.295), (fp.scalings.MX_CEIL, 0.0), (fp.scalings.MX_EVEN, 0.126)):
        scales = fp.encode_scaled(x, "e2m1", scaling).scales.reshape(-1)
        assert np.mean(amax / scales > 6) == pytest.approx(share, abs=0.01)
    saturated = [
        fp.analysis.error(x, "e2m1", scaling=getattr(fp.scalings, n)).saturation_rate for n in ("MX", "MX_CEIL")
    ]
    assert saturated[0] > 0
    assert saturated[1] == 0


@pytest.mark.parametrize(
    ("fmt", "want"), [("e2m1", 19.69), ("e5m2", 25.54), ("e4m3", 31.51), ("bf16", 55.57), ("fp16", 73.65)]
)
def test_plateau_of_normal_data(fmt: str, want: float) -> None:
    """SQNR of N(0, 1) whose range fits. E2M1 has too little range for that: its figure is of rounding its normals."""
    if fmt == "e2m1":
        near = fp.Format("p2", exponent_bits=8, mantissa_bits=1)
        assert fp.analysis.error(NORMAL[:256], near).sqnr_db == pytest.approx(want, abs=0.1)
    else:
        assert fp.analysis.error(NORMAL[:256], fmt).sqnr_db == pytest.approx(want, abs=0.1)


@pytest.mark.parametrize(
    ("shift", "want"), [(-4, 31.5), (6, 31.5), (-6, 28.3), (-8, 16.8), (-10, 4.8)], ids=lambda value: str(value)
)
def test_range_of_e4m3_without_a_scale(shift: int, want: float) -> None:
    x = NORMAL[:256] * np.float32(2.0**shift)
    assert fp.analysis.error(x, "e4m3").sqnr_db == pytest.approx(want, abs=0.15)


def test_gain_tells_truncation_from_rounding() -> None:
    """0.956 for N(0, 1) truncated to E4M3, 0.999 to nearest; the mean error is 0 for both."""
    cut = fp.analysis.error(NORMAL, "e4m3", rounding="toward_zero")
    near = fp.analysis.error(NORMAL, "e4m3")
    assert (round(cut.gain, 3), round(near.gain, 3)) == (0.956, 0.999)
    assert abs(cut.bias) < 1e-4
    assert abs(near.bias) < 1e-4


def test_transposing_fp8_tiles() -> None:
    """1x128 tiles re-encoded as 128x1: float32 scales lose 4 dB, powers of two next to nothing."""
    x = NORMAL[:1024, :1024]
    for suffix, want in (("", 29.81), ("_POW2", 31.53)):
        rows, columns = (getattr(fp.scalings, f"TILE_{block}{suffix}") for block in ("1X128", "128X1"))
        first = fp.quantize_scaled(x, "e4m3", rows)
        second = fp.quantize_scaled(first, "e4m3", columns).astype(np.float64)
        direct = fp.analysis.error(x, "e4m3", scaling=rows).sqnr_db
        sqnr = 10 * np.log10(np.sum(x.astype(np.float64) ** 2) / np.sum((second - x) ** 2))
        if suffix:
            assert sqnr == pytest.approx(want, abs=0.1)
            assert sqnr == pytest.approx(direct, abs=0.01)
        else:
            assert direct - sqnr > 1.5


def test_token_imbalanced_gradients_need_scales_of_their_own() -> None:
    """Rows of 2**(6 N): one scale zeroes 65 % of them, 128x128 blocks 39 %, 1x128 tiles none.

    Source: the pattern is that of DeepSeek-V3, arXiv:2412.19437, appendix B.2.
    """
    rng = np.random.default_rng(0)
    x = NORMAL[:512, :1024] * np.float32(2.0) ** (6 * rng.standard_normal((512, 1))).astype(np.float32)
    zeroed = {}
    for name in ("TENSOR", "BLOCK_128X128", "TILE_1X128"):
        parts = fp.analysis.error(x, "e4m3", scaling=getattr(fp.scalings, name), axis=0).parts
        assert parts is not None
        zeroed[name] = float(np.mean(parts["underflow_rate"]))
    assert zeroed["TENSOR"] == pytest.approx(0.65, abs=0.05)
    assert zeroed["BLOCK_128X128"] == pytest.approx(0.39, abs=0.05)
    assert zeroed["TILE_1X128"] < 0.005
