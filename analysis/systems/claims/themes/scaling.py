"""Claims about scales of quantised tensors."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, V3, WRONG, Claim, Figures, around, near
from fpsim.analysis.systems.claims.samples import cosine, normal, relative_error, wide
from fpsim.casts.cast import decode, quantize
from fpsim.formats.named import E2M1, E4M3, E5M2
from fpsim.recipes import training
from fpsim.recipes.linear import DEEPSEEK_V3
from fpsim.scaling.recipes import BLOCK_128X128, MX, ROW, TENSOR, TILE_1X128, TILE_1X128_POW2
from fpsim.scaling.scaled import encode_scaled, quantize_scaled


def tile_shapes() -> Figures:
    """Return the numbers of scales of a 256x512 array in 1x128 and 128x128 tiles, and two facts on DEEPSEEK_V3.

    The facts are whether the recipe has 1x128 tiles for activations, and 128x128 tiles for weights. The result is a
    dict, name -> number or bool.
    """
    x = normal(256, 512)
    return {
        "scales of 256x512 in 1x128 tiles": encode_scaled(x, E4M3, TILE_1X128).scales.size,
        "scales of 256x512 in 128x128 blocks": encode_scaled(x, E4M3, BLOCK_128X128).scales.size,
        "recipe's activations are 1x128": DEEPSEEK_V3.input_scaling == TILE_1X128,
        "recipe's weights are 128x128": DEEPSEEK_V3.weight_scaling == BLOCK_128X128,
    }


def _uneven_rows(spread: float) -> np.ndarray:
    """Return float32 N(0, 1) values (512, 1024), each row multiplied by 2**(spread * d) with d drawn from N(0, 1)."""
    factors = np.exp2(spread * np.random.default_rng(1).standard_normal((512, 1)))
    return normal(512, 1024) * factors.astype(np.float32)


def channel_scales() -> Figures:
    """Return the share of rows with an SQNR below 25 dB in E4M3 for four granularities of scales.

    These are one scale for all, and a scale for each 128x128 block, each row, and each 1x128 tile. Rows differ widely
    in magnitude. The result is a dict, name -> number.
    """
    weights = _uneven_rows(4.0)
    figures: Figures = {}
    cases = {"one scale": TENSOR, "128x128": BLOCK_128X128, "a scale a row": ROW, "1x128": TILE_1X128}
    for name, scaling in cases.items():
        parts = error(weights, E4M3, scaling=scaling, axis=0).parts
        assert parts is not None
        figures[f"rows below 25 dB, {name}"] = float(np.mean(parts["sqnr_db"] < 25))
    return figures


def softmax_scale() -> Figures:
    """Return the shares of values that become 0 in E4M3 with one scale and with 1x128 tiles.

    Each of 512 tokens is a row of N(0, 1) numbers times 2**(6 d), with d drawn from N(0, 1). Also return the
    number of scales of a 512x1024 input in the recipe DEEPSEEK_V3. The result is a dict, name -> number.
    """
    x = _uneven_rows(6.0)
    scaling = DEEPSEEK_V3.input_scaling
    assert scaling is not None
    return {
        "scales of a 512x1024 input in V3's recipe": encode_scaled(x, E4M3, scaling).scales.size,
        "values that become 0, one scale": error(x, E4M3, scaling=TENSOR).underflow_rate,
        "values that become 0, 1x128": error(x, E4M3, scaling=TILE_1X128).underflow_rate,
    }


def affine_quantizer() -> Figures:
    """Compare the affine quantiser s * (round(x / s + z) - z), with s = 1/16 and z = 3, with a cast to E4M3.

    Return the share of steps between the quantiser's results that are multiples of s, and the largest / the smallest
    step between values of E4M3. Also return the quantiser's result for 1e6, and its gradient in torch without and with
    a straight-through estimator, which passes gradients through the rounding. The result is a dict, name -> number.
    """
    import torch

    scale, zero = np.float32(1 / 16), np.float32(3)
    x = normal(1 << 16)
    affine = (np.round(x / scale + zero) - zero) * scale
    steps = np.diff(np.unique(affine))
    grid = np.diff(np.unique(quantize(x, E4M3)))
    point = torch.linspace(-2, 2, 9, requires_grad=True)
    affine_torch = (torch.round(point / float(scale) + float(zero)) - float(zero)) * float(scale)
    (rounded_gradient,) = torch.autograd.grad(affine_torch.sum(), point)
    plain = torch.linspace(-2, 2, 9, requires_grad=True)
    rounded = plain + (torch.round(plain / float(scale)) * float(scale) - plain).detach()  # straight-through estimator
    (passed_gradient,) = torch.autograd.grad(rounded.sum(), plain)
    return {
        "affine steps that are multiples of s": float(np.mean(steps % scale == 0)),
        "largest over smallest step of E4M3": float(grid.max() / grid.min()),
        "1e6 becomes": float((np.round(np.float32(1e6) / scale + zero) - zero) * scale),
        "gradient of round": float(rounded_gradient.abs().max()),
        "gradient with a straight-through estimator": float(passed_gradient.min()),
    }


def activation_bytes() -> Figures:
    """Return the bytes of E4M3 activations with a scale for each 1x128 tile, relative to FP32 and to BF16.

    Also return the bytes of the scales per code, for float32 scales and for powers of two (UE8M0). The result is a
    dict, name -> number.
    """
    x = normal(1024, 1024)
    plain = encode_scaled(x, E4M3, TILE_1X128).nbytes
    power = encode_scaled(x, E4M3, TILE_1X128_POW2).nbytes
    return {
        "of FP32": plain / (4 * x.size), "of BF16": plain / (2 * x.size),
        "scales, float32": plain / x.size - 1, "scales, UE8M0": power / x.size - 1,
    }  # fmt: skip


def truncation() -> Figures:
    """Return the mean and the largest |error| of values that are truncated, and rounded to nearest, to E4M3.

    The error of x > 0 with the rounded value r is (r - x) / r; its mean keeps the sign. The result is a dict, name ->
    number.
    """
    x = np.abs(normal(1 << 20))
    x = x[(x > E4M3.smallest_normal) & (x < E4M3.max)]
    figures: Figures = {}
    for name, rounding in (("cut", "toward_zero"), ("nearest", "nearest_even")):
        rounded = wide(quantize(x, E4M3, rounding=rounding))
        relative = (rounded - x) / rounded
        figures[f"mean error, {name}"] = float(relative.mean())
        figures[f"largest error, {name}"] = float(np.abs(relative).max())
    return figures


def clip_at_six() -> Figures:
    """Return the share of normally distributed gradients that clipping to -6 .. 6 changes, and the effect on direction.

    The effect is the cosine between clipped and unclipped gradients. There are a share and a cosine for each of the
    standard deviations 2^-10, 1, 2 and 8. Also return the largest values of E2M1, E4M3 and E5M2. The result is a dict,
    name -> number.
    """
    x = normal(1 << 18)
    figures: Figures = {"largest E2M1": E2M1.max, "largest E4M3": E4M3.max, "largest E5M2": E5M2.max}
    for exponent in (-10, 0, 1, 3):
        gradient = x * np.float32(2.0**exponent)
        clipped = np.clip(gradient, -6, 6)
        figures[f"clipped, deviation 2^{exponent}"] = float(np.mean(np.abs(gradient) > 6))
        figures[f"cosine, deviation 2^{exponent}"] = cosine(clipped, gradient)
    return figures


def old_scales() -> Figures:
    """Return the share of saturated values and the SQNR in E4M3 with a scale that is 1, 16 or 1000 steps old.

    The values have grown by 0.1 % in each step since the scale was computed from them. The result is a dict, name ->
    number.
    """
    x = normal(1 << 18)
    scale = float(np.float32(np.abs(x).max() / E4M3.max))
    figures: Figures = {}
    for age in (1, 16, 1000):
        grown = x * np.float32(1.001**age)
        report = error(grown, E4M3, scale=scale, overflow="saturate")
        figures[f"saturated, age {age}"] = report.saturation_rate
        figures[f"SQNR, age {age}, dB"] = report.sqnr_db
    return figures


def exponential_loss() -> Figures:
    """Return the cosines of the mean gradients of 65536 L and of exp(L) with the mean gradient of the loss L.

    L is the least-squares loss of one sample; gradients are averaged over 256 samples. The result is a dict, name ->
    number.
    """
    rng = np.random.default_rng(0)
    inputs, targets, weights = rng.standard_normal((256, 32)), rng.standard_normal(256), rng.standard_normal(32) / 8
    residuals = inputs @ weights - targets
    losses = residuals**2 / 2
    plain = (residuals[:, None] * inputs).mean(axis=0)
    scaled = (65536 * residuals[:, None] * inputs).mean(axis=0)
    exponential = (np.exp(losses) * residuals)[:, None] * inputs
    return {
        "cosine of S L": cosine(scaled, plain),
        "cosine of exp(L) a sample": cosine(exponential.mean(axis=0), plain),
    }


def quadrature() -> Figures:
    """Return relative errors e_A, e_B and e of the product A @ B with only A, only B, and both rounded to E4M3.

    Also return e / sqrt(e_A^2 + e_B^2). The result is a dict, name -> number.
    """
    a, b = normal(64, 2048), normal(2048, 64, seed=1)
    exact = wide(a) @ wide(b)
    a8, b8 = wide(quantize_scaled(a, E4M3, TILE_1X128)), wide(quantize_scaled(b.T.copy(), E4M3, TILE_1X128)).T
    first, second = relative_error(a8 @ b, exact), relative_error(a @ b8, exact)
    both = relative_error(a8 @ b8, exact)
    return {
        "error, only A in E4M3": first, "error, only B in E4M3": second, "error, both": both,
        "both over the root of the sum of squares": both / float(np.hypot(first, second)),
    }  # fmt: skip


def shared_exponent() -> Figures:
    """Check MX's scales on N(0, 1) values in E4M3 with a scale for each 32 of them.

    Return the share of scales that are powers of two 2^k, the share of decoded values that equal the code's value x
    2^k, and the bits per value, scales included. The result is a dict, name -> number.
    """
    x = normal(64, 1024)
    scaled = encode_scaled(x, E4M3, MX)
    values = wide(decode(scaled.codes, E4M3))
    scales = wide(scaled.scales)
    exponents = np.log2(np.repeat(scales.reshape(64, -1), 32, axis=1))
    return {
        "scales that are powers of two": float(np.mean(exponents == np.round(exponents))),
        "values equal to code x 2^k": float(np.mean(wide(scaled.decode()) == np.ldexp(values, exponents.astype(int)))),
        "bits per value, blocks of 32": 8 * scaled.nbytes / x.size,
    }


UNEVEN = "512 x 1024 values of N(0, 1), rows multiplied by 2^({} N), in E4M3"
CLAIMS = (
    Claim(
        "14", "tile-shapes", "Activations have scales of 1x128 tiles, weights of 128x128 blocks.", "S4",
        f"scales of a 256 x 512 array; the tiles of the recipe DEEPSEEK_V3 ({V3}, 3.3.2)", RIGHT,
        "A tile is a token's 128 channels; a block is 128 inputs by 128 outputs.", experiment=tile_shapes,
        expected={
            "scales of 256x512 in 1x128 tiles": 1024, "scales of 256x512 in 128x128 blocks": 8,
            "recipe's activations are 1x128": True, "recipe's weights are 128x128": True,
        },
    ),
    Claim(
        "15", "channel-scales", "DeepSeek's weights have a scale for each channel.", "S2",
        UNEVEN.format(4), WRONG,
        "DeepSeek-V3 has 128x128 blocks. A scale for each channel is a sound alternative: it saves rows that blocks "
        "lose where channels differ much.",
        experiment=channel_scales,
        expected={
            "rows below 25 dB, one scale": (0.25, 0.5), "rows below 25 dB, 128x128": (0.15, 0.35),
            "rows below 25 dB, a scale a row": 0.0, "rows below 25 dB, 1x128": 0.0,
        },
    ),
    Claim(
        "16", "layer-scales", "Activations have one dynamic range for each layer.", "S2",
        f"{UNEVEN.format(6)}; scales of the recipe DEEPSEEK_V3", WRONG,
        "V3 finds a scale for each 1x128 tile as it quantises, and leaves attention in high precision; one scale "
        "zeroes most tokens where they differ.",
        experiment=softmax_scale,
        expected={
            "scales of a 512x1024 input in V3's recipe": 4096, "values that become 0, one scale": (0.6, 0.75),
            "values that become 0, 1x128": (0.0, 1e-4),
        },
    ),
    Claim(
        "17", "affine-quantizer", "An FP8 quantizer is round(x / s + z), then (q - z) s.", "S2",
        "2^16 values of N(0, 1), s = 1/16, z = 3, beside casts to E4M3; gradients by torch", WRONG,
        "That is an integer quantizer: a uniform grid, a zero point, no limit, and no gradient without a "
        "straight-through estimator. FP8's steps grow with the value.",
        experiment=affine_quantizer,
        expected={
            "affine steps that are multiples of s": 1.0, "largest over smallest step of E4M3": (128.0, 256.0),
            "1e6 becomes": 1e6, "gradient of round": 0.0, "gradient with a straight-through estimator": 1.0,
        },
    ),
    Claim(
        "18", "qat-label", "DeepSeek trains by quantisation-aware training.", "S2",
        f"operands and weights of the recipe DEEPSEEK_V3 ({V3}, 3.3)", WRONG,
        "It trains in low precision: every product reads FP8, gradients too, and float32 weights are updated. "
        "Quantisation-aware training simulates a later inference in a high-precision training.",
        experiment=lambda: {
            "operands in FP8, of 3": [DEEPSEEK_V3.input_fmt, DEEPSEEK_V3.weight_fmt, DEEPSEEK_V3.grad_fmt].count(E4M3),
            "the optimizer's weights are float32": training.DEEPSEEK_V3.optimizer.weights is None,
        },
        expected={"operands in FP8, of 3": 3, "the optimizer's weights are float32": True},
    ),
    Claim(
        "19", "activation-bytes", "FP8 activations take a quarter of FP32's memory at 98 % of the accuracy.", "S2",
        "bytes of 2^20 values in 1x128 tiles, scales included", CONDITIONAL,
        "A quarter of FP32 and half of BF16, plus 3.1 % for float32 scales or 0.8 % for UE8M0; the 98 % has no source "
        "and no metric.",
        experiment=activation_bytes,
        expected={"of FP32": 33 / 128, "of BF16": 33 / 64, "scales, float32": 1 / 32, "scales, UE8M0": 1 / 128},
    ),
    Claim(
        "20", "truncation-bias", "Truncation and rounding errors must be told apart.", "S2",
        "2^20 magnitudes of N(0, 1) in E4M3's normal range; errors as shares of the result", RIGHT,
        "Truncation is biased and twice as far off: up to 12.5 %, always towards zero; nearest at most 6.25 %, nearly "
        "unbiased.",
        experiment=truncation,
        expected={
            "mean error, cut": around(-0.0465, 1e-3), "largest error, cut": (0.1249, 0.125),
            "mean error, nearest": (-2e-3, 2e-3), "largest error, nearest": (0.0624, 0.0625),
        },
    ),
    Claim(
        "21", "clip-at-six", "Gradients are clipped to [-6, 6], against overflow of FP8.", "S2",
        "2^18 values of N(0, 1) times 2^k: share that is clipped, cosine to what they were", WRONG,
        "6 is the largest E2M1; E4M3 reaches 448, E5M2 57344, and scales handle the range. Small gradients don't "
        "notice, large ones lose their direction. V3 clips the global norm at 1.",
        experiment=clip_at_six,
        expected={
            "largest E2M1": 6.0, "largest E4M3": 448.0, "largest E5M2": 57344.0,
            "clipped, deviation 2^-10": 0.0, "cosine, deviation 2^-10": around(1.0, 1e-12),
            "clipped, deviation 2^0": (0.0, 1e-5), "cosine, deviation 2^0": around(1.0, 1e-6),
            "clipped, deviation 2^1": (2e-3, 4e-3), "cosine, deviation 2^1": (0.999, 0.9999),
            "clipped, deviation 2^3": near(0.4533, 0.01), "cosine, deviation 2^3": around(0.924, 0.005),
        },
    ),
    Claim(
        "22", "old-scales", "Weights are calibrated again every 1000 steps.", "S2",
        "2^18 values of N(0, 1) that grow by 0.1 % a step, in E4M3 with the scale of an earlier step", CONDITIONAL,
        "V3 computes scales anew in each step; Transformer Engine's delayed scales follow a history of 1024 maxima by "
        "default. Old scales are harmless while values don't grow: at this rate scales that are 1000 steps old cost "
        "15 dB, 16 steps old none.",
        experiment=old_scales,
        expected={
            "saturated, age 1": 0.0, "SQNR, age 1, dB": around(31.57, 0.1), "saturated, age 16": (0.0, 1e-4),
            "SQNR, age 16, dB": around(31.57, 0.1), "saturated, age 1000": (0.05, 0.09),
            "SQNR, age 1000, dB": around(16.0, 1.0),
        },
    ),
    Claim(
        "23", "exponential-loss", "Loss scaling amplifies small losses exponentially.", "S2",
        "gradients of a least-squares problem with 256 samples: of L, of 65536 L, and of exp(L) of each sample", WRONG,
        "Loss scaling is linear and keeps the direction; exp(L) weighs samples by exp(L), which changes it.",
        experiment=exponential_loss,
        expected={"cosine of S L": around(1.0, 1e-12), "cosine of exp(L) a sample": (0.4, 0.8)},
    ),
    Claim(
        "24", "error-quadrature", "Quantise step by step: linear layers first, then activations.", "S2",
        "64 x 2048 times 2048 x 64 values of N(0, 1), operands in E4M3 with 1x128 tiles", RIGHT,
        "The order is sound: errors of operands add in quadrature, so each step adds the error that it has alone.",
        experiment=quadrature,
        expected={
            "error, only A in E4M3": near(0.0259, 0.05), "error, only B in E4M3": near(0.0259, 0.05),
            "error, both": near(0.0365, 0.05), "both over the root of the sum of squares": around(1.0, 0.05),
        },
    ),
    Claim(
        "25", "limited-range", "FP8 needs fine-grained scales because of its limited range.", "S4",
        UNEVEN.format(6), RIGHT, "One scale zeroes two thirds of such gradients, 1x128 tiles none.",
        experiment=lambda: {
            f"become 0, {name}": error(_uneven_rows(6.0), E4M3, scaling=scaling).underflow_rate
            for name, scaling in (("one scale", TENSOR), ("128x128", BLOCK_128X128), ("1x128", TILE_1X128))
        },
        expected={
            "become 0, one scale": (0.6, 0.75), "become 0, 128x128": (0.3, 0.6), "become 0, 1x128": (0.0, 1e-4),
        },
    ),
    Claim(
        "26", "shared-exponent", "Fine-grained quantisation shares exponent bits among a group.", "S4",
        "64 x 1024 values of N(0, 1) in MXFP8", RIGHT,
        "A power-of-two scale is an exponent that its block shares: every decoded value is the code's times 2^k, "
        "exactly.",
        experiment=shared_exponent,
        expected={
            "scales that are powers of two": 1.0, "values equal to code x 2^k": 1.0,
            "bits per value, blocks of 32": 8.25,
        },
    ),
)  # fmt: skip
