"""Published figures that a CPU reproduces, with their set-ups."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import reduce

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.all_reduces import ring, tree
from fpsim.analysis.systems.claims.claim import (
    CONDITIONAL,
    OPEN,
    RIGHT,
    UNSETTLED,
    WRONG,
    Claim,
    Figures,
    around,
    near,
)  # fmt: skip
from fpsim.analysis.systems.claims.probes import probed
from fpsim.analysis.systems.claims.samples import Floats, normal, relative_error, wide
from fpsim.casts.cast import encode, quantize
from fpsim.formats.named import BF16, E2M1, E4M3
from fpsim.products.matmul import matmul
from fpsim.scaling.recipes import MX, MX_CEIL, MX_EVEN, MX_RCEIL, NVFP4
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling

QUARTET2 = "IST-DASLab/Quartet-II, notebook on unbiasedness"
NVFP4_16X16 = Scaling(block=(16, 16), scale_format=E4M3, tensor_scale=True)


def _nvfp4(
    x: Floats, block_max: float, tensor_max: float = 448.0, rounding: str = "nearest_even", seed: int | None = None
) -> Floats:
    """Return x (n, 16) in E2M1 with E4M3 scales of its rows that take their largest magnitudes to block_max."""
    amax = np.abs(x).max(axis=1, keepdims=True)
    tensor = amax.max() / (block_max * tensor_max)
    scales = wide(quantize(amax / (block_max * tensor), E4M3, overflow="saturate")) * tensor
    codes = quantize(x / scales, E2M1, rounding=rounding, overflow="saturate", seed=seed)
    return np.asarray(wide(codes) * scales)


def _four_over_six(x: Floats) -> Floats:
    """Return x (n, 16) in NVFP4 whose blocks take 4 or 6 as their maximum, whichever has the smaller squared error."""
    tensor = np.abs(x).max() / (6 * 256)
    candidates = []
    for block_max in (6, 4):
        scales = wide(quantize(np.abs(x).max(axis=1, keepdims=True) / (block_max * tensor), E4M3)) * tensor
        candidates.append(wide(quantize(x / scales, E2M1, overflow="saturate")) * scales)
    squares = [((candidate - x) ** 2).sum(axis=1, keepdims=True) for candidate in candidates]
    return np.asarray(np.where(squares[1] < squares[0], candidates[1], candidates[0]))


def nvfp4_errors() -> Figures:
    """Return the mean squared errors of NVFP4's variants on normal data, times 1000."""
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
    """Return the bits of a product of stochastic NVFP4 operands that is averaged over draws."""
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
    """Return relative squared errors of MXFP4, nearest and stochastic, mean over deviations from 1 to 2."""
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
    """Return the mean of 1 that is rounded stochastically with the better of both scales, over all draws."""
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
    """Return the mean squared error of 10, 20, 30, 40 with scales for 6 and for 4."""
    x = np.array([10.0, 20.0, 30.0, 40.0])
    figures: Figures = {}
    for block_max in (6, 4):
        scale = float(quantize(np.float64(40 / block_max), E4M3))
        figures[f"scale for {block_max}"] = scale
        figures[f"mean squared error for {block_max}"] = float(
            np.mean((wide(quantize(x / scale, E2M1, overflow="saturate")) * scale - x) ** 2)
        )
    return figures


def split_products() -> Figures:
    """Return shares of float32 products from 3 x BF16 that are 0, 1, 2 and more ulps off."""
    x, y = normal(1 << 18), normal(1 << 18, seed=1)

    def split(value: np.ndarray) -> list[np.ndarray]:
        parts = []
        for _ in range(3):
            part = np.asarray(quantize(value, BF16, rounding="toward_zero"), np.float32)
            parts.append(part)
            value = value - part  # exact
        return parts

    (x1, x2, x3), (y1, y2, y3) = split(x), split(y)
    total = ((((x1 * y3 + x2 * y2) + x3 * y1) + x1 * y2) + x2 * y1) + x1 * y1
    right = np.asarray(wide(x) * wide(y), np.float32)
    ulps = np.abs(total.view(np.int32).astype(np.int64) - right.view(np.int32))
    return {f"{n} ulp, %": 100 * float(np.mean(ulps == n)) for n in range(5)}


def hopper_low_bits() -> Figures:
    """Return how many FP8 results of Hopper's and Ada's units have one of the 10 low bits set."""
    a, b = (encode(normal(64, 128, seed=seed), E4M3) for seed in (0, 1))
    figures: Figures = {}
    for unit in ("hopper_e4m3_f32", "ada_e4m3_f32"):
        bits = matmul(a, b.T.copy(), accumulate=unit).view(np.uint32)
        figures[f"{unit}: results with a low bit"] = int(np.count_nonzero(bits & 0x3FF))
        figures[f"{unit}: results with bit 10"] = bool(np.any(bits & 0x400))
    return figures


def ring_in_bf16() -> Figures:
    """Return errors of BF16 all-reduces around a ring, by a tree, and in one float32 sum, by the number of ranks."""
    figures: Figures = {}
    for ranks in (8, 32, 128, 512, 2048):
        x = np.asarray(quantize(normal(ranks, 2048, seed=ranks), BF16), np.float32)
        exact = wide(x).sum(axis=0)
        figures[f"ring, {ranks} ranks"] = relative_error(ring(x), exact)
        if ranks in (8, 2048):
            figures[f"tree, {ranks} ranks"] = relative_error(tree(x), exact)
            figures[f"one float32 sum, {ranks} ranks"] = relative_error(quantize(x.sum(axis=0), BF16), exact)
    return figures


def shuffled_sums() -> Figures:
    """Return how many results 10,000 shuffled sums of 8 numbers have, added plainly, and exactly."""
    values = [1e-10, 1e-5, 1e-2, 1.0]
    values = values + [-value for value in values]
    generator = random.Random(42)
    plain, exact = set(), set()
    for _ in range(10_000):
        generator.shuffle(values)
        plain.add(reduce(lambda total, value: total + value, values, 0.0))
        exact.add(float(sum(map(Fraction, values))))
    return {"results, added one after another": len(plain), "results, added exactly": len(exact)}


def clipped_groups() -> Figures:
    """Return the share of FP4 groups whose maximum exceeds 6, by the rule of their power-of-two scale."""
    x = normal(512, 2048)
    spread = (x * np.exp2(np.random.default_rng(1).uniform(0, 4, (512, 64)).repeat(32, axis=1))).astype(np.float32)
    figures: Figures = {}
    for name, data in (("N(0, 1)", x), ("N(0, 1) x 2^U", spread)):
        amax = np.abs(data).reshape(-1, 32).max(axis=1)
        for rule, scaling in (("floor", MX), ("even", MX_EVEN), ("ceil", MX_CEIL)):
            scales = wide(encode_scaled(data, E2M1, scaling).scales).reshape(-1)
            figures[f"{rule}, {name}"] = float(np.mean(amax / scales > 6))
    return figures


def bounds() -> Figures:
    """Return both bounds and the error of float32 and FP16 sums of normal values."""
    from fpsim.analysis.measures.drift.drift import drift
    from fpsim.sums.accumulators import Sequential

    figures: Figures = {}
    for fmt, length in (("fp32", 1 << 17), ("fp16", 1000)):
        (row,) = drift("normal", accumulators=[Sequential(fmt)], lengths=[length], trials=16).rows
        figures[f"{fmt}: classical over probabilistic bound"] = row.deterministic_bound / row.probabilistic_bound
        figures[f"{fmt}: within the probabilistic bound"] = row.coverage
    return figures


def nvfp4_forward() -> Figures:
    """Return gradient errors of NVFP4, and with its forward product in BF16."""
    from fpsim.train.comparisons.gradient_probe import with_one_product

    return {
        "gradient error, NVFP4": probed("NVFP4").error,
        "gradient error, fprop in BF16": probed(with_one_product("NVFP4")[0]).error,
    }


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
        "P6", "split-products", "Products of 3 x BF16 are off by 0 ulp 56.11 %, 1 37.68, 2 5.36, 3 0.83, 4 0.02.",
        "AMD UG1603", "2^18 products of N(0, 1), truncating split, 6 products, float32 additions, smallest first",
        CONDITIONAL, "The shape is reproduced; the order of the additions is not published, and shifts the shares.",
        experiment=split_products,
        expected={
            "0 ulp, %": around(56.1, 4.0), "1 ulp, %": around(37.7, 5.0), "2 ulp, %": around(5.4, 1.5),
            "3 ulp, %": around(0.8, 0.5), "4 ulp, %": (0.0, 0.1),
        },
    ),
    Claim(
        "P7", "hopper-low-bits", "FP8 results of the H100 and Ada have 13 fraction bits: the 10 low bits are 0.",
        "DeepSeek-V3, arXiv:2412.19437, 3.3.2; docs/matrix-units.md", "64 x 128 x 64 in E4M3 on both units", RIGHT,
        "On units that were compared with the chips' output.", experiment=hopper_low_bits,
        expected={
            "hopper_e4m3_f32: results with a low bit": 0, "hopper_e4m3_f32: results with bit 10": True,
            "ada_e4m3_f32: results with a low bit": 0, "ada_e4m3_f32: results with bit 10": True,
        },
    ),
    Claim(
        "P8", "ring-bf16", "The error of a BF16 ring all-reduce grows with the square root of the ranks.",
        "Megatron-LM, issue 6199", "2048 elements of N(0, 1) a rank, in BF16; Frobenius error of the sum", RIGHT,
        "It doubles with 4 times the ranks. A tree grows with the logarithm only, and one float32 sum not at all.",
        experiment=ring_in_bf16,
        expected={
            "ring, 8 ranks": near(0.0037, 0.07), "ring, 32 ranks": near(0.0070, 0.07),
            "ring, 128 ranks": near(0.0135, 0.07), "ring, 512 ranks": near(0.0265, 0.07),
            "ring, 2048 ranks": near(0.0527, 0.07), "tree, 8 ranks": near(0.0031, 0.1),
            "tree, 2048 ranks": near(0.0059, 0.1), "one float32 sum, 8 ranks": near(0.0016, 0.1),
            "one float32 sum, 2048 ranks": near(0.0016, 0.1),
        },
    ),
    Claim(
        "P9", "shuffled-sums", "A sum of 8 shuffled numbers has 102 different results.",
        "Thinking Machines, Defeating Nondeterminism in LLM Inference, 2025",
        "the printed code with seed 42: 10,000 shuffles, added one after another from 0", WRONG,
        "258, by plain additions; 1 with the sum of Python 3.12 and later, which compensates.",
        experiment=shuffled_sums,
        expected={"results, added one after another": 258, "results, added exactly": 1},
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
    Claim(
        "P11", "sampling-mismatch", "Trainer and sampler differ up to 24 times less in FP16 than in BF16.",
        "arXiv:2510.26788", "-", OPEN,
        "Three more bits alone predict a factor of 8; the experiment is not written yet.",
    ),
    Claim(
        "P12", "probabilistic-bounds",
        "Probabilistic bounds of sums are one to two orders tighter than classical ones.",
        "arXiv:2411.18747", "fp.analysis.drift: sums of 2^17 (float32) and 1000 (FP16) values of N(0, 1), 16 trials",
        RIGHT, "And every trial is within them. The bound for tensor cores of the same paper is not checked.",
        experiment=bounds,
        expected={
            "fp32: classical over probabilistic bound": (10.0, 200.0), "fp32: within the probabilistic bound": 1.0,
            "fp16: classical over probabilistic bound": (5.0, 100.0), "fp16: within the probabilistic bound": 1.0,
        },
    ),
    Claim(
        "P13", "nvfp4-forward", "The forward product in BF16 takes NVFP4's loss error from 1.5 to 0.5 %.",
        "NVIDIA, arXiv:2509.25149", "fp.train.probe of the recipe NVFP4, and with its forward product in BF16",
        UNSETTLED, "It needs a long training. The direction shows in gradients, whose error nearly halves.",
        experiment=nvfp4_forward,
        expected={"gradient error, NVFP4": (0.15, 0.3), "gradient error, fprop in BF16": (0.09, 0.16)},
    ),
    Claim(
        "P14", "flash-rounding-bias", "BF16 flash attention rounds with a bias where a row's maximum repeats.",
        "arXiv:2510.04212", "-", OPEN, "The experiment is not written yet.",
    ),
    Claim(
        "P15", "flash-deviation", "Flash attention in BF16 deviates 10 times as much as plain attention.",
        "arXiv:2405.02803", "-", OPEN, "The experiment is not written yet.",
    ),
)  # fmt: skip
