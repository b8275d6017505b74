"""Numbers of public bug reports and papers, reproduced from their set-ups."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from fpsim.analysis.systems.attention.underflow import attention_underflow
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, UNSETTLED, Claim, Figures, around, near
from fpsim.analysis.systems.claims.samples import Floats, normal, relative_error, softmax, wide
from fpsim.casts.cast import decode, quantize
from fpsim.formats.integer_format import INT8
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, FP16
from fpsim.scaling.recipes import MX_RCEIL, NVFP4
from fpsim.scaling.scaled import encode_scaled, quantize_scaled
from fpsim.scaling.scaling import Scaling

Q8_0 = Scaling(block=(1, 32), scale_format=FP16)  # 34 bytes for 32 values


def cache_formats() -> Figures:
    """Return relative errors, in percent, of dot products with keys in INT8, E4M3, E5M2, without and with outliers.

    Queries and keys are N(0, 1) vectors of 128 elements; keys have an FP16 scale for each 32 elements, as llama.cpp's
    Q8_0. In the cases with outliers, the first element of each 32 of a key is 30, or 100. The result is a dict, name ->
    number.
    """
    queries = wide(normal(4096, 128))
    figures: Figures = {}
    for outlier in (0, 30, 100):
        keys = normal(4096, 128, seed=1)
        if outlier:
            keys[:, ::32] = outlier
        exact = (queries * keys).sum(axis=1)
        for name, fmt in (("Q8_0", INT8), ("E4M3", E4M3), ("E5M2", E5M2)):
            rounded = wide(quantize_scaled(keys, fmt, Q8_0))
            word = f"outliers of {outlier}" if outlier else "normal"
            figures[f"{name}, {word}, %"] = 100 * relative_error((queries * rounded).sum(axis=1), exact)
    return figures


def reciprocal_boundaries() -> Figures:
    """Count how often rounding x * (1 / scale) to E2M1 instead of x / scale changes the result at a tie.

    The scales are all positive finite values of E4M3, and x is a scale times one of the seven ties of E2M1. Return the
    number of scales, and the share of (scale, tie) pairs with different results, as a dict, name -> number.
    """
    scales = decode(np.arange(1, 127, dtype=np.uint8), E4M3).astype(np.float32)  # all positive finite ones
    boundaries = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    x = scales[:, None] * boundaries  # exact
    by_division = quantize(x / scales[:, None], E2M1, overflow="saturate")
    by_reciprocal = quantize(x * (np.float32(1) / scales)[:, None], E2M1, overflow="saturate")
    return {"scales": scales.size, "boundaries that differ": float(np.mean(by_division != by_reciprocal))}


def mxfp4_as_nvfp4() -> Figures:
    """Return the share of MXFP4 blocks whose values change when their scales are rounded to E4M3, as NVFP4 has them.

    Before the rounding, all scales are divided by one power of two, so that the largest becomes 2^8. There are three
    shares, for blocks that were multiplied by random powers of two in 1 .. 2^2, 1 .. 2^14 and 1 .. 2^24. The result is
    a dict, name -> number.
    """
    figures: Figures = {}
    for spread in (2, 14, 24):
        exponents = np.random.default_rng(0).integers(0, spread + 1, 4096)
        x = normal(4096, 32) * np.exp2(exponents)[:, None].astype(np.float32)
        scaled = encode_scaled(x, E2M1, MX_RCEIL)
        powers = np.log2(wide(scaled.scales).reshape(-1))
        middle = powers.max() - 8  # E4M3's powers of two are 2^-9 to 2^8
        clamped = np.clip(powers - middle, -9, 8)
        scales = wide(quantize(np.exp2(clamped), E4M3)) * 2.0**middle
        before = wide(scaled.decode())
        after = before * (scales / wide(scaled.scales).reshape(-1))[:, None]
        figures[f"blocks changed, {spread} powers of two apart"] = float(np.mean((before != after).any(axis=1)))
    return figures


def bf16_logits() -> Figures:
    """Return the largest and mean relative error, in percent, of exp(logit) if logits are rounded to BF16.

    Logits are in 5 .. 5.25 in one case, in 640 .. 672 in the other. The result is a dict, name -> number.
    """
    figures: Figures = {}
    for peak in (5, 640):
        logits = np.linspace(peak, peak * 1.05, 4097)
        rounded = wide(quantize(logits, BF16))
        errors = np.abs(1 - np.exp(-np.abs(rounded - logits)))
        figures[f"largest error at logits of {peak}, %"] = 100 * float(errors.max())
        figures[f"mean error at logits of {peak}, %"] = 100 * float(errors.mean())
    return figures


def attention_underflow_law() -> Figures:
    """Return the shares of attention weights w for which E4M3 rounds w * scale to 0, for five settings.

    Three settings have a sink (one more key, whose score is 6 or 8 nats above the mean of the others) and a scale of 1
    or 16; for these, return the share as measured and as a formula predicts it. Two settings have no sink, the scale 1,
    and scores of standard deviation 1 and 4; for these, return the measured share only. The result is a dict, name ->
    number.
    """
    figures: Figures = {}
    for sink, scale in ((6.0, 1), (8.0, 1), (8.0, 16)):
        (row,) = attention_underflow(E4M3, spreads=(1,), sink=sink, scale=scale).rows
        figures[f"share, D = {sink:.0f}, S = {scale}"] = row.below
        figures[f"law, D = {sink:.0f}, S = {scale}"] = NormalDist().cdf(sink - 10 * math.log(2) - math.log(scale))
    for row in attention_underflow(E4M3, spreads=(1, 4)).rows:
        figures[f"share, no sink, spread {row.spread:.0f}"] = row.below
    return figures


def _overlapping(logits: Floats, noise: Floats, alpha: float) -> Floats:
    """Return logits + c * noise, with c such that softmax(logits) and softmax(the result) overlap by `alpha`.

    The overlap of two distributions p and q is the sum of min(p, q); `alpha` is its mean over rows.
    """
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        overlap = np.minimum(softmax(logits), softmax(logits + middle * noise)).sum(axis=1).mean()
        low, high = (middle, high) if overlap > alpha else (low, middle)
    return np.asarray(logits + low * noise)


def kl_gradients() -> Figures:
    """Return relative errors, in percent, of the gradient of a KL divergence with respect to logits, in BF16.

    The gradient is the difference of two softmax distributions. There is an error for each of three overlaps of the
    distributions, and logits of standard deviation 1 and 2. The result is a dict, name -> number.
    """
    figures: Figures = {}
    noise = wide(normal(64, 4096, seed=1))
    for alpha in (0.88, 0.95, 0.98):
        for deviation in (1, 2):
            target = deviation * wide(normal(64, 4096))
            draft = _overlapping(target, noise, alpha)
            first, second = (quantize(softmax(quantize(logits, BF16)), BF16) for logits in (draft, target))
            rounded = quantize(wide(first) - wide(second), BF16)
            name = f"alpha {alpha}, deviation {deviation}, %"
            figures[name] = 100 * relative_error(rounded, softmax(draft) - softmax(target))
    return figures


def noise_threshold() -> Figures:
    """Measure whether noisy gradient steps bring the weights of a linear least-squares problem nearer to the optimum.

    The noise comes from stochastic rounding of residuals to NVFP4. Weights begin at a distance of 0.5, 1, sqrt(3) or
    2.5 standard deviations of the gradient's noise. Results whose
    names begin with "change" are (new squared distance / old squared distance) - 1, averaged over 1024 draws, for the
    step size s in the name; they are negative if the step helps. Results that begin with "effect" are the largest
    decrease for any s, as a share of the old squared distance. Return a dict, name -> number.
    """
    tokens, weights, draws = 512, 32, 1024
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((tokens, weights + 1)))[0] * math.sqrt(tokens)
    inputs, noise = basis[:, :weights], basis[:, weights]  # the optimum has the error `noise`, and curvature 1
    direction = np.full(weights, 1 / math.sqrt(weights))

    def gradients(distance: float, seed: int) -> Floats:
        errors = np.tile(inputs @ (distance * direction) - noise, (draws, 1)).astype(np.float32)
        return wide(quantize_scaled(errors, E2M1, NVFP4, rounding="stochastic", seed=seed)) @ inputs / tokens

    def squares(vectors: Floats) -> float:
        return float(np.mean(np.sum(vectors**2, axis=1)))

    spread = math.sqrt(squares(gradients(0.0, 1)))
    figures: Figures = {}
    steps = {"0.5": (), "1": (1.0,), "sqrt(3)": (1.0, 1.5), "2.5": (1.5,)}
    for seed, (word, ratio) in enumerate((("0.5", 0.5), ("1", 1.0), ("sqrt(3)", math.sqrt(3)), ("2.5", 2.5))):
        distance = ratio * spread
        drawn = gradients(distance, seed + 2)
        for step in steps[word]:
            after = squares(distance * direction - step * drawn)
            figures[f"change at {word} x noise, s = {step:g}"] = after / distance**2 - 1
        figures[f"effect at {word} x noise, best s"] = float(np.mean(drawn @ direction)) ** 2 / squares(drawn)
    return figures


CLAIMS = (
    Claim(
        "R1", "cache-formats",
        "Dot products with keys in Q8_0, E4M3, E5M2 are off by .54, 2.40, 4.75 %; 1.25, .48, .95 with outliers of 30; "
        "1.27, .15, .29 of 100.", "Camelid, issue 709",
        "4096 dot products of 128 values of N(0, 1), blocks of 32 with an FP16 scale; one value in 32 is the outlier",
        RIGHT, "INT8 is the best without outliers and the worst with them.", experiment=cache_formats,
        expected={
            "Q8_0, normal, %": near(0.54, 0.04), "E4M3, normal, %": near(2.40, 0.04),
            "E5M2, normal, %": near(4.75, 0.04),
            "Q8_0, outliers of 30, %": near(1.25, 0.04), "E4M3, outliers of 30, %": near(0.48, 0.04),
            "E5M2, outliers of 30, %": near(0.95, 0.04), "Q8_0, outliers of 100, %": near(1.27, 0.04),
            "E4M3, outliers of 100, %": near(0.15, 0.04), "E5M2, outliers of 100, %": near(0.29, 0.04),
        },
    ),
    Claim(
        "R2", "reciprocal-boundaries", "A reciprocal instead of a division changes 4.4 % of E2M1's boundary points.",
        "arch-com, issue 905", "all 126 positive E4M3 scales times E2M1's 7 boundaries, in float32", CONDITIONAL,
        "42 of 882 are 4.8 %; the report does not say which points it counts.", experiment=reciprocal_boundaries,
        expected={"scales": 126, "boundaries that differ": 42 / 882},
    ),
    Claim(
        "R3", "mxfp4-as-nvfp4", "MXFP4 becomes NVFP4 without loss: same nibbles, scale 2^(k - m) within 2^-9 .. 2^8.",
        "Model-Optimizer, issue 1364 (22 of 27 cases)", "4096 blocks of 32 whose scales differ by powers of two",
        CONDITIONAL, "Exact where the scales of a tensor are within 2^17 of each other; others are clamped.",
        experiment=mxfp4_as_nvfp4,
        expected={
            "blocks changed, 2 powers of two apart": 0.0, "blocks changed, 14 powers of two apart": 0.0,
            "blocks changed, 24 powers of two apart": (0.1, 0.5),
        },
    ),
    Claim(
        "R4", "attention-underflow", "The share of FP8 attention weights that underflow is Phi(D + dk - 6.93 - ln S).",
        "arXiv:2606.06521",
        "fp.analysis.attention_underflow: 1024 scores of N(0, 1) and a sink that is D nats above their mean, weights "
        "in E4M3 times a scale S; dk is 0",
        CONDITIONAL,
        "For normal scores with a spread of 1 and a sink above all of them. Without a sink the largest score takes its "
        "place, and at a spread of 4 nearly all weights underflow.",
        experiment=attention_underflow_law,
        expected={
            "share, D = 6, S = 1": near(0.176, 0.05), "law, D = 6, S = 1": near(0.176, 0.01),
            "share, D = 8, S = 1": near(0.857, 0.02), "law, D = 8, S = 1": near(0.857, 0.01),
            "share, D = 8, S = 16": near(0.0443, 0.1), "law, D = 8, S = 16": near(0.0443, 0.02),
            "share, no sink, spread 1": (0.0, 1e-3), "share, no sink, spread 4": near(0.93, 0.02),
        },
    ),
    Claim(
        "R5", "bf16-logits", "BF16 logits with a peak of 5 to 640 make probabilities wrong by 1.2 to 86 %.",
        "marin, issue 8217", "4097 logits from the peak to 5 % above, rounded to BF16; relative error of exp",
        CONDITIONAL,
        "86 % is the largest error at 640, half an ulp of 4; at 5 the largest is 1.6 % and the mean 0.8 %.",
        experiment=bf16_logits,
        expected={
            "largest error at logits of 5, %": near(1.55, 0.02), "mean error at logits of 5, %": near(0.78, 0.05),
            "largest error at logits of 640, %": near(86.47, 0.01), "mean error at logits of 640, %": near(56.8, 0.05),
        },
    ),
    Claim(
        "R6", "kl-gradient", "The gradient of a KL divergence in BF16 is wrong by 3, 9 and 19 % (alpha .88, .95, .98).",
        "speculators, issue 788",
        "64 pairs of softmax over 4096 logits that overlap by alpha; difference of both probabilities, with logits, "
        "probabilities and difference in BF16",
        CONDITIONAL,
        "Of logits with a deviation between 1 and 2: the difference of probabilities that nearly agree keeps their "
        "rounding errors, which grow relative to it as alpha approaches 1.",
        experiment=kl_gradients,
        expected={
            "alpha 0.88, deviation 1, %": (1.5, 3.0), "alpha 0.88, deviation 2, %": (3.0, 9.0),
            "alpha 0.95, deviation 1, %": (4.0, 9.0), "alpha 0.95, deviation 2, %": (9.0, 25.0),
            "alpha 0.98, deviation 1, %": (9.0, 19.0), "alpha 0.98, deviation 2, %": (19.0, 50.0),
        },
    ),
    Claim(
        "R7", "noise-threshold", "FP4 training stops helping where the gradient falls below sqrt(3) times its noise.",
        "arXiv:2505.19115",
        "least squares of 32 weights with equal curvature c, at a distance whose gradient is a multiple of the noise "
        "that NVFP4 with stochastic rounding of 512 errors adds to it; squared distance after a step, 1,024 draws",
        CONDITIONAL,
        "A step of s / c stops helping at sqrt(s / (2 - s)) times the noise: at 1 with the step that is best without "
        "noise, at sqrt(3) with s = 1.5. With the best step for the noise every step helps: at r times the noise it "
        "has r^2 / (1 + r^2) of the effect, 3/4 at sqrt(3), where that share falls fastest as noise grows.",
        experiment=noise_threshold,
        expected={
            "change at 1 x noise, s = 1": around(0.0, 0.06), "change at sqrt(3) x noise, s = 1": around(-2 / 3, 0.03),
            "change at sqrt(3) x noise, s = 1.5": around(0.0, 0.06),
            "change at 2.5 x noise, s = 1.5": around(-0.39, 0.05),
            "effect at 0.5 x noise, best s": around(0.2, 0.03), "effect at 1 x noise, best s": around(0.5, 0.02),
            "effect at 2.5 x noise, best s": around(0.86, 0.02),
            "effect at sqrt(3) x noise, best s": around(0.75, 0.02),
        },
    ),
    Claim(
        "R8", "nvfp4-recipe", "The NVFP4 recipe trains within 1.5 % of the loss.", "NVIDIA, arXiv:2509.25149", "-",
        UNSETTLED, "It takes a model of billions of parameters and trillions of tokens.",
    ),
)  # fmt: skip
