"""Published numbers on blocks of 4-bit values: MXFP4, NVFP4, and NVFP4 with the better of two scales (4/6)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, Claim, Figures, around, near
from fpsim.analysis.systems.claims.samples import Floats, normal, relative_error, wide
from fpsim.casts.cast import quantize
from fpsim.formats.named import E2M1, E4M3
from fpsim.scaling.recipes import MX, MX_CEIL, MX_EVEN, MX_RCEIL, NVFP4
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling

QUARTET2 = "IST-DASLab/Quartet-II, notebook on unbiasedness"
NVFP4_16X16 = Scaling(block=(16, 16), scale_format=E4M3, tensor_scale=True)


def _nvfp4(
    x: Floats, block_max: float, tensor_max: float = 448.0, rounding: str = "nearest_even", seed: int | None = None
) -> Floats:
    """Return x (n, 16) as float64, rounded to E2M1 with an E4M3 scale that maps each row's amax to `block_max`.

    amax is the largest magnitude. E4M3 scales are multiplied by one float64 scale, for which the row with the largest
    amax has the E4M3 scale `tensor_max`. rounding, seed: rounding mode and seed of the E2M1 codes.
    """
    amax = np.abs(x).max(axis=1, keepdims=True)
    tensor = amax.max() / (block_max * tensor_max)
    scales = wide(quantize(amax / (block_max * tensor), E4M3, overflow="saturate")) * tensor
    codes = quantize(x / scales, E2M1, rounding=rounding, overflow="saturate", seed=seed)
    return np.asarray(wide(codes) * scales)


def _four_over_six(x: Floats) -> Floats:
    """Return x (n, 16) rounded to NVFP4 with scales that map a row's largest magnitude to 6 or to 4, as float64.

    Each row takes the scale with the smaller squared error, the one for 6 if both are equal.
    """
    candidates = [_nvfp4(x, block_max, 6 * 256 / block_max) for block_max in (6.0, 4.0)]
    squares = [((candidate - x) ** 2).sum(axis=1, keepdims=True) for candidate in candidates]
    return np.asarray(np.where(squares[1] < squares[0], candidates[1], candidates[0]))


def nvfp4_errors() -> Figures:
    """Return 1000 times the mean squared errors of five variants of NVFP4 on N(0, 1) data.

    Three round to nearest: with a scale for each 16 values, with the better of two scales (which map the largest
    magnitude to 4 or to 6), and with a scale for each 16x16 values. Two round stochastically, with a scale for each 16
    that maps the largest magnitude to 6 x 16/17 or to 6. The result is a dict, name -> number.
    """
    x = normal(1024, 1024)
    groups = wide(x).reshape(-1, 16)
    clipped = _nvfp4(groups, 6.0, rounding="stochastic", seed=1)
    spared = _nvfp4(groups, 6 * 16 / 17, rounding="stochastic", seed=1)
    return {
        "nearest": 1e3 * error(x, E2M1, scaling=NVFP4).mse,
        "4/6": 1e3 * float(np.mean((_four_over_six(groups) - groups) ** 2)),
        "16x16 blocks": 1e3 * error(x, E2M1, scaling=NVFP4_16X16).mse,
        "stochastic, largest to 6 x 16/17": 1e3 * float(np.mean((spared - groups) ** 2)),
        "stochastic, largest to 6": 1e3 * float(np.mean((clipped - groups) ** 2)),
    }


def averaged_products() -> Figures:
    """Return -log2 of the relative error of the mean of n products of NVFP4 operands, for n = 1, 4, 16 and 64.

    The products have the same operands, rounded stochastically with different random bits. The result is a dict,
    name -> number.
    """
    a, b = wide(normal(256, 256)), wide(normal(256, 256, seed=1))
    exact = a @ b
    mean, figures = np.zeros_like(exact), Figures()
    for draw in range(64):
        first, second = (
            _nvfp4(x.reshape(-1, 16), 6 * 16 / 17, rounding="stochastic", seed=2 * draw + i).reshape(256, 256)
            for i, x in enumerate((a, b.T))
        )
        mean += first @ second.T
        if draw + 1 in (1, 4, 16, 64):
            figures[f"bits, mean of {draw + 1}"] = -float(np.log2(relative_error(mean / (draw + 1), exact)))
    return figures


def mxfp4_errors() -> Figures:
    """Return the mean squared error / mean square of normal data in MXFP4, rounded to nearest and stochastically.

    Each is a mean over 16 standard deviations from 1 to 2; for rounding to nearest, the smallest and the largest of the
    16 are returned too. The result is a dict, name -> number.
    """
    x = normal(256, 2048)
    figures: Figures = {}
    for name, rounding in (("nearest", "nearest_even"), ("stochastic", "stochastic")):
        shares = [
            10 ** (-error(x * np.float32(sigma), E2M1, scaling=MX_RCEIL, rounding=rounding, seed=1).sqnr_db / 10)
            for sigma in np.linspace(1, 2, 16, endpoint=False)
        ]
        figures[name] = float(np.mean(shares))
        if name == "nearest":
            figures["nearest, least"], figures["nearest, most"] = float(min(shares)), float(max(shares))
    return figures


def four_over_six_bias() -> Figures:
    """Return the mean of 17 stochastic roundings of the value 1 to E2M1, with the better of two scales for each.

    The value is in a block whose largest magnitude is 17/16; one scale maps 17/16 to 6, the other to 4. Each rounding
    is made with both scales, and the result nearer to 1 counts. An unbiased rounding would have the mean 1. The 17
    random numbers are the middles of 17 equal parts of [0, 1). Also return how many roundings give 17/16, and the value
    that the others give. The result is a dict, name -> number.
    """
    draws = [(2 * i + 1, 34) for i in range(17)]  # the middle of each of 17 equal parts of [0, 1)
    values = []
    for above, parts in draws:
        outcomes = []
        for block_max in (6, 4):
            scale = Fraction(17, 16 * block_max)
            exact = Fraction(1) / scale
            low, high = (Fraction(float(quantize(np.float64(exact), E2M1, rounding=mode))) for mode in ("down", "up"))
            share = (exact - low) / (high - low)
            outcomes.append((high if Fraction(above, parts) < share else low) * scale)
        values.append(min(outcomes, key=lambda value: (value - 1) ** 2))
    return {
        "mean of the rounded 1": float(sum(values) / len(values)),
        "draws of 17 that give 17/16": sum(value == Fraction(17, 16) for value in values),
        "the others": float(min(values)),
    }


def four_over_six() -> Figures:
    """Round the values 10, 20, 30, 40 to E2M1 with two E4M3 scales, one that maps 40 to 6 and one that maps 40 to 4.

    Return the two scales and the mean squared error with each, as a dict, name -> number.
    """
    x = np.array([10.0, 20.0, 30.0, 40.0])
    figures: Figures = {}
    for block_max in (6, 4):
        scale = float(quantize(np.float64(40 / block_max), E4M3))
        figures[f"scale for {block_max}"] = scale
        figures[f"mean squared error for {block_max}"] = float(
            np.mean((wide(quantize(x / scale, E2M1, overflow="saturate")) * scale - x) ** 2)
        )
    return figures


def clipped_groups() -> Figures:
    """Return the share of groups of 32 values whose largest magnitude / scale exceeds 6, for three rules of MX scales.

    The rules are "floor", "even" and "ceil" of `fp.Scaling` (scale_rule). Data are N(0, 1) in one case; in the other,
    each group is also multiplied by 2^U with U uniform in 0 .. 4. The result is a dict, name -> number.
    """
    x = normal(512, 2048)
    spread = (x * np.exp2(np.random.default_rng(1).uniform(0, 4, (512, 64)).repeat(32, axis=1))).astype(np.float32)
    figures: Figures = {}
    for name, data in (("N(0, 1)", x), ("N(0, 1) x 2^U", spread)):
        amax = np.abs(data).reshape(-1, 32).max(axis=1)
        for rule, scaling in (("floor", MX), ("even", MX_EVEN), ("ceil", MX_CEIL)):
            scales = wide(encode_scaled(data, E2M1, scaling).scales).reshape(-1)
            figures[f"{rule}, {name}"] = float(np.mean(amax / scales > 6))
    return figures


CLAIMS = (
    Claim(
        "P1", "nvfp4-errors", "MSE of NVFP4 x 1000: nearest 9.0, 4/6 7.6, 16x16 blocks 12.4, stochastic 23.5.",
        QUARTET2,
        "2^20 values of N(0, 1) in groups of 16, E4M3 scales and a tensor scale; 4/6 has a tensor maximum of 256",
        RIGHT, "Stochastic: with the largest value at 6 x 16/17, so that none is clipped; at 6 it is 18.9.",
        experiment=nvfp4_errors,
        expected={
            "nearest": near(9.04, 0.01), "4/6": near(7.57, 0.01), "16x16 blocks": near(12.39, 0.01),
            "stochastic, largest to 6 x 16/17": near(23.53, 0.01), "stochastic, largest to 6": near(18.9, 0.01),
        },
    ),
    Claim(
        "P2", "averaged-products",
        "Averaging 1, 4, 16, 64 stochastic NVFP4 products gives 2.197, 3.196, 4.196, 5.197 bits.", QUARTET2,
        "products of 256 x 256 values of N(0, 1); bits are -log2 of the relative error", RIGHT,
        "A bit for each factor of 4: the rounding is unbiased.", experiment=averaged_products,
        expected={
            f"bits, mean of {n}": around(bits, 0.02) for n, bits in ((1, 2.197), (4, 3.196), (16, 4.196), (64, 5.197))
        },
    ),
    Claim(
        "P3", "mxfp4-errors", "MXFP4's relative squared error is 1.37e-2 to nearest and 2.77e-2 stochastic.",
        "Quartet, arXiv:2505.14669, table 2",
        "256 x 2048 values of N(0, sigma), blocks of 32, scale 2^ceil(log2(amax / 6)), mean over sigma in 1 .. "
        "2", RIGHT,
        "As a mean over a binade of sigma; one sigma gives 1.33e-2 to 1.41e-2.", experiment=mxfp4_errors,
        expected={
            "nearest": near(1.366e-2, 0.02), "nearest, least": near(1.326e-2, 0.02),
            "nearest, most": near(1.406e-2, 0.02), "stochastic": near(2.778e-2, 0.02),
        },
    ),
    Claim(
        "P4", "four-over-six-bias", "4/6 with stochastic rounding is biased: the mean of 1 is 65/64.",
        "a Lean proof in a public repository", "one 1 in a block of 16, all draws of a seventeenth, exactly", RIGHT,
        "The better of both scales is chosen after rounding: 17/16 with probability 14/17, else 51/64.",
        experiment=four_over_six_bias,
        expected={"mean of the rounded 1": 65 / 64, "draws of 17 that give 17/16": 14, "the others": 51 / 64},
    ),
    Claim(
        "P5", "four-over-six", "4/6 takes the error of 10, 20, 30, 40 from 4.33 to 0.", "4/6 (adaptive block maximum)",
        "E2M1 with E4M3 scales of 40/6 and 40/4", RIGHT, "The scale for 4 is 10, and every value is a multiple.",
        experiment=four_over_six,
        expected={
            "scale for 6": 6.5, "mean squared error for 6": around(4.328, 1e-3), "scale for 4": 10.0,
            "mean squared error for 4": 0.0,
        },
    ),
    Claim(
        "P10", "clipped-groups", "The floor rule of OCP clips about 37 % of FP4 groups.", "ROCm/aiter, issue 3212",
        "512 x 2048 values in groups of 32: share whose largest quotient exceeds 6", CONDITIONAL,
        "30 % on normal data, 42 % where the maxima are log-uniform. The even rule clips less, ceil nothing.",
        experiment=clipped_groups,
        expected={
            "floor, N(0, 1)": around(0.295, 0.01), "even, N(0, 1)": around(0.126, 0.01), "ceil, N(0, 1)": 0.0,
            "floor, N(0, 1) x 2^U": around(0.415, 0.01), "even, N(0, 1) x 2^U": around(0.22, 0.02),
            "ceil, N(0, 1) x 2^U": 0.0,
        },
    ),
)  # fmt: skip
