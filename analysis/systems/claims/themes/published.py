"""Published numbers that a CPU reproduces, with their set-ups."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import reduce

import numpy as np

from fpsim.analysis.measures.log_probabilities import divergence
from fpsim.analysis.systems.attention.attention import attention
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, UNSETTLED, Claim, Figures, around, near
from fpsim.analysis.systems.claims.ordered_layers import log_probabilities
from fpsim.analysis.systems.claims.probes import gradient_error
from fpsim.analysis.systems.claims.samples import Floats, normal, relative_error, wide
from fpsim.analysis.systems.collectives.reduction import all_reduce
from fpsim.casts.cast import encode, quantize
from fpsim.formats.named import BF16, E4M3, FP16
from fpsim.products.matmul import matmul


def split_products() -> Figures:
    """Return the percentages of products with errors of 0, 1, 2, 3 and 4 ulps if BF16 products emulate float32.

    Each float32 factor is split into three BF16 values; six products of them are added in float32, smallest first. The
    result is a dict, name -> number.
    """
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
    """Return the number of float32 results of Hopper's and Ada's FP8 units that have a bit set among bits 0 to 9.

    Also return for each unit whether some result has bit 10 set. The result is a dict, name -> number or bool.
    """
    a, b = (encode(normal(64, 128, seed=seed), E4M3) for seed in (0, 1))
    figures: Figures = {}
    for unit in ("hopper_e4m3_f32", "ada_e4m3_f32"):
        bits = matmul(a, b.T.copy(), accumulate=unit).view(np.uint32)
        figures[f"{unit}: results with a low bit"] = int(np.count_nonzero(bits & 0x3FF))
        figures[f"{unit}: results with bit 10"] = bool(np.any(bits & 0x400))
    return figures


def ring_in_bf16() -> Figures:
    """Return relative errors of BF16 all-reduces around a ring of 8 to 2048 ranks.

    Also return, for 8 and 2048 ranks, the errors of BF16 all-reduces by a tree, and of float32 sums that are rounded to
    BF16 at the end. The result is a dict, name -> number.
    """
    figures: Figures = {}
    for ranks in (8, 32, 128, 512, 2048):
        x = np.asarray(quantize(normal(ranks, 2048, seed=ranks), BF16), np.float32)
        exact = wide(x).sum(axis=0)
        figures[f"ring, {ranks} ranks"] = relative_error(all_reduce(x, BF16, algorithm="ring")[0], exact)
        if ranks in (8, 2048):
            figures[f"tree, {ranks} ranks"] = relative_error(all_reduce(x, BF16, algorithm="tree")[0], exact)
            figures[f"one float32 sum, {ranks} ranks"] = relative_error(quantize(x.sum(axis=0), BF16), exact)
    return figures


def _compensated_sum(values: list[float]) -> float:
    """Return the sum of values with a float, as Python 3.12's `sum` computes it.

    The rounding errors of adding floats to a float are added at the end; those of adding integers are not, and neither
    is that of adding the first float to the integers before it.
    """
    total: float = 0
    lost = 0.0
    for value in values:
        before, total = total, total + value
        if isinstance(value, float) and isinstance(before, float):
            lost += (before - total) + value if abs(before) >= abs(value) else (value - total) + before
    return total + lost


def shuffled_sums() -> Figures:
    """Add 8 numbers in 10,000 random orders, and count the different sums.

    They are added one after another, by the rule of Python 3.12's `sum`, and exactly. Two of the numbers, 1 and -1, are
    integers. Return the three counts as a dict, name -> number.
    """
    values = [1e-10, 1e-5, 1e-2, 1]
    values = values + [-value for value in values]
    generator = random.Random(42)
    plain, compensated, exact = set(), set(), set()
    for _ in range(10_000):
        generator.shuffle(values)
        plain.add(reduce(lambda total, value: total + value, values, 0.0))
        compensated.add(_compensated_sum(values))
        exact.add(float(sum(map(Fraction, values))))
    return {
        "results, added one after another": len(plain), "results, the sum of Python 3.12": len(compensated),
        "results, added exactly": len(exact),
    }  # fmt: skip


def bounds() -> Figures:
    """Compare a classical with a probabilistic bound on the rounding error of sums.

    Return (classical bound / probabilistic bound), and the share of errors that are within the probabilistic bound, for
    16 sums of 2^17 N(0, 1) terms in float32 and for 16 sums of 1000 terms in FP16. Terms are added one after another.
    The result is a dict, name -> number.
    """
    from fpsim.analysis.measures.drift.drift import drift
    from fpsim.sums.accumulators import Sequential

    figures: Figures = {}
    for fmt, length in (("fp32", 1 << 17), ("fp16", 1000)):
        (row,) = drift("normal", accumulators=[Sequential(fmt)], lengths=[length], trials=16).rows
        figures[f"{fmt}: classical over probabilistic bound"] = row.deterministic_bound / row.probabilistic_bound
        figures[f"{fmt}: within the probabilistic bound"] = row.coverage
    return figures


def nvfp4_forward() -> Figures:
    """Return errors of weight gradients with NVFP4 in all products, and in all but the forward product (BF16).

    An error is norm(difference from float32's gradients) / norm(float32's gradients). Also return the second error /
    the first. The result is a dict, name -> number.
    """
    from fpsim.train.comparisons.gradient_probe import with_one_product

    whole, forward = gradient_error("NVFP4"), gradient_error(with_one_product("NVFP4")[0])
    return {
        "gradient error, NVFP4": whole, "gradient error, fprop in BF16": forward,
        "share of the error that is left": forward / whole,
    }  # fmt: skip


def _repeated_maxima(repeats: int, rng: np.random.Generator) -> Floats:
    """Return float64 scores (512, 64) whose largest value, 0, occurs `repeats` times in each row.

    Three more scores of a row are in -11 .. -7, the others -Inf. rng: generator that draws places and values.
    """
    scores = np.full((512, 64), -np.inf)
    for row in scores:
        places = rng.permutation(64)
        row[places[:repeats]] = 0
        row[places[repeats : repeats + 3]] = -rng.uniform(7, 11, 3)
    return scores


def flash_rounding_bias() -> Figures:
    """Return the bias of BF16 flash attention's outputs if a row's largest score occurs once, and if it occurs twice.

    All values v are negative. There are two biases for each case: with the running output (before the division by the
    sum of weights) in BF16, and with the running output in float32. The result is a dict, name -> number.
    """
    rng = np.random.default_rng(0)
    values = quantize(-(1 + rng.random((64, 64))), BF16)
    queries, keys = np.zeros((512, 4)), np.zeros((64, 4))
    figures: Figures = {}
    for repeats in (1, 2):
        mask = _repeated_maxima(repeats, rng)
        for fmt in ("bf16", "fp32"):
            report = attention(queries, keys, values, "bf16_flash", mask=mask, unnormalised=fmt, output="fp32")
            figures[f"bias, maxima: {repeats}, product in {fmt.upper()}"] = report.bias
    return figures


def sampling_mismatch() -> Figures:
    """Return the ratios (difference in BF16) / (difference in FP16) of a random network's outputs in two orders.

    The products of the network add their terms in 1 slice of K in the first order, and in 8 slices in the second. The
    difference of the outputs is measured as a KL divergence, and as the mean |difference| of log-probabilities. There
    is a ratio of each for 4 and for 12 layers. The result is a dict, name -> number.
    """
    figures: Figures = {}
    for layers in (4, 12):
        kl, mean = [], []
        for fmt in (BF16, FP16):
            first, second = (log_probabilities(fmt, slices, layers) for slices in (1, 8))
            kl.append(float(divergence(first, second).mean()))
            mean.append(float(np.abs(first - second).mean()))
        figures[f"KL in BF16 over FP16, {layers} layers"] = kl[0] / kl[1]
        figures[f"mean difference in BF16 over FP16, {layers} layers"] = mean[0] / mean[1]
    return figures


# Number of keys -> keys of a block, and format of the running output.
FLASH_CASES = {256: [(16, "bf16")], 1024: [(16, "bf16"), (16, "fp32")], 4096: [(64, "bf16"), (16, "bf16")]}


def flash_deviation() -> Figures:
    """Return the relative error of BF16 flash attention / that of plain BF16 attention.

    There is a ratio for each distribution of inputs, number of keys and block size. Flash attention's running output is
    in FP32 in the ratios whose name ends in FP32, else in BF16. The result is a dict, name -> number.
    """
    figures: Figures = {}
    for word in ("N(0, 1)", "U(0, 1)"):
        for keys, cases in FLASH_CASES.items():
            rng = np.random.default_rng(0)
            draw = rng.standard_normal if word == "N(0, 1)" else rng.random
            q, k, v = draw((16, 64)), draw((keys, 64)), draw((keys, 64))
            plain = attention(q, k, v, "bf16").relative_error
            for block, fmt in cases:
                flash = attention(q, k, v, "bf16_flash", unnormalised=fmt, block=block)
                name = f"{word}, {keys} keys, blocks of {block}" + (", FP32" if fmt == "fp32" else "")
                figures[name] = flash.relative_error / plain
    return figures


CLAIMS = (
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
        "the printed code with seed 42: 10,000 shuffles, added one after another, as Python 3.12 adds, and exactly",
        CONDITIONAL,
        "102 are those of sum in Python 3.12 and 3.13, which compensates the rounding errors of floats, but not those "
        "of the integers 1 and -1. Plain additions, as in older Pythons, have 258.",
        experiment=shuffled_sums,
        expected={
            "results, added one after another": 258, "results, the sum of Python 3.12": 102,
            "results, added exactly": 1,
        },
    ),
    Claim(
        "P11", "sampling-mismatch", "Trainer and sampler differ up to 24 times less in FP16 than in BF16.",
        "arXiv:2510.26788",
        "random residual networks of 256 channels, all products on Hopper's units with K whole and in 8 slices",
        CONDITIONAL,
        "As a KL divergence: 3 times in 4 layers, 9 in 12, where three bits alone predict 8. The mean difference of "
        "log-probabilities is about the same: FP16 rounds to other neighbours more often, by less.",
        experiment=sampling_mismatch,
        expected={
            "KL in BF16 over FP16, 4 layers": (1.5, 24.0), "mean difference in BF16 over FP16, 4 layers": (0.2, 2.0),
            "KL in BF16 over FP16, 12 layers": (4.0, 24.0), "mean difference in BF16 over FP16, 12 layers": (0.5, 2.5),
        },
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
        "NVIDIA, arXiv:2509.25149", "fp.train.gradient_probe of the recipe NVFP4, and with its forward product in BF16",
        UNSETTLED, "It needs a long training. The direction shows in gradients, whose error falls by a fifth.",
        experiment=nvfp4_forward,
        expected={"gradient error, NVFP4": (0.15, 0.3), "gradient error, fprop in BF16": (0.09, 0.16),
                  "share of the error that is left": (0.7, 0.87)},
    ),
    Claim(
        "P14", "flash-rounding-bias", "BF16 flash attention rounds with a bias where a row's maximum repeats.",
        "arXiv:2510.04212",
        "512 rows of 64 scores, 1 or 2 of them the maximum, values of one sign; mean error away from zero", RIGHT,
        "Two maxima have weights of 1, so that half of the sums in BF16 are ties that small weights break in one "
        "direction: outputs grow. One maximum shrinks them, and a product in FP32 does neither.",
        experiment=flash_rounding_bias,
        expected={
            "bias, maxima: 1, product in BF16": (-1e-3, -3e-4), "bias, maxima: 1, product in FP32": (-1e-6, 1e-6),
            "bias, maxima: 2, product in BF16": (5e-4, 2e-3), "bias, maxima: 2, product in FP32": (-1e-6, 1e-6),
        },
    ),
    Claim(
        "P15", "flash-deviation", "Flash attention in BF16 deviates 10 times as much as plain attention.",
        "arXiv:2405.02803",
        "16 queries of 64 channels; error against float64 in multiples of plain attention's; running output in BF16 "
        "unless the figure says FP32",
        CONDITIONAL,
        "With a running output in BF16 it grows with the number of blocks, each of which rounds that output once more: "
        "10 times needs more than 64 blocks and values of one sign. With values of N(0, 1) it is 1.5 to 4 times, and "
        "with a running output in FP32, as kernels keep it, less than plain attention. The paper's own inputs and "
        "sizes are not known to us.",
        experiment=flash_deviation,
        expected={
            "N(0, 1), 256 keys, blocks of 16": (1.1, 1.8), "N(0, 1), 1024 keys, blocks of 16": (1.5, 2.4),
            "N(0, 1), 4096 keys, blocks of 64": (1.6, 2.6), "N(0, 1), 1024 keys, blocks of 16, FP32": (0.5, 0.95),
            "N(0, 1), 4096 keys, blocks of 16": (3.0, 4.6), "U(0, 1), 256 keys, blocks of 16": (2.0, 3.4),
            "U(0, 1), 1024 keys, blocks of 16": (3.8, 5.8), "U(0, 1), 4096 keys, blocks of 64": (4.0, 6.5),
            "U(0, 1), 4096 keys, blocks of 16": (12.0, 20.0), "U(0, 1), 1024 keys, blocks of 16, FP32": (0.9, 1.0),
        },
    ),
)  # fmt: skip
