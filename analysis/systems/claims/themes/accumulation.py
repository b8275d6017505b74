"""Claims about accumulation: of gradients, of products, of norms."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, V3, Claim, Figures, near
from fpsim.analysis.systems.claims.samples import relative_error, wide
from fpsim.casts.cast import decode, encode, quantize
from fpsim.formats.named import BF16, E4M3, FP16, FP32
from fpsim.matrix_units.catalogue import unit
from fpsim.products.matmul import matmul
from fpsim.products.reduce import sum as total
from fpsim.recipes.linear import DEEPSEEK_V3
from fpsim.sums.accumulators import Pairwise, Sequential

HOPPER = "hopper_e4m3_f32"


def _product_error(kind: str, terms: int, promote: int | None) -> float:
    """Return norm(error) / norm(exact product) of a product (32, terms) @ (terms, 32) on Hopper's E4M3 unit.

    kind: "normal" for operands N(0, 1), "uniform" for U[0, 1). promote: number of terms after which a partial sum is
    added to a float32 total, or None.
    """
    rng = np.random.default_rng(0)
    shapes = ((32, terms), (terms, 32))
    drawn = [rng.standard_normal(shape) if kind == "normal" else rng.random(shape) for shape in shapes]
    a, b = (encode(x.astype(np.float32), E4M3) for x in drawn)
    product = matmul(a, b, accumulate=HOPPER, promote=promote)
    return relative_error(product, wide(decode(a, E4M3)) @ wide(decode(b, E4M3)))


def gradient_accumulation() -> Figures:
    """Return relative errors of sums of 128 gradients with a common mean, added in BF16 and in FP32.

    BF16 sums are added one after another in one case, in pairs in the other; FP32 sums one after another. The result is
    a dict, name -> number.
    """
    rng = np.random.default_rng(0)
    gradients = (rng.standard_normal(4096) + 0.5 * rng.standard_normal((128, 4096))).astype(np.float32)
    exact = wide(gradients).sum(axis=0)
    return {
        "BF16, one after another": relative_error(total(gradients, accumulate=Sequential(BF16), axis=0), exact),
        "BF16, in pairs": relative_error(total(gradients, accumulate=Pairwise(BF16), axis=0), exact),
        "FP32, one after another": relative_error(total(gradients, accumulate=Sequential(FP32), axis=0), exact),
    }


def norm_overflow() -> Figures:
    """Return whether sums of 4096 squares are finite in FP16 and in FP32, if every element is 3.9, and if it is 4.1.

    The result is a dict, name -> bool.
    """
    figures: Figures = {}
    for rms in (3.9, 4.1):
        x = np.full(4096, rms, np.float32)
        for fmt in (FP16, FP32):
            squares = quantize(quantize(x, fmt) ** 2, fmt)
            figures[f"{fmt}, rms {rms}"] = bool(np.isfinite(wide(total(squares, accumulate=Sequential(fmt)))))
    return figures


CLAIMS = (
    Claim(
        "27", "promotion", "FP8 sums are promoted to FP32 registers periodically.", "S4",
        f"32 x 4096 x 32 on hopper_e4m3_f32, promoted every 128 terms ({V3}, 3.3.2), Frobenius error", RIGHT,
        "128 terms are four instructions; without it the error at K = 4096 is 10 times as large for signed operands "
        "and 100 times for positive ones.",
        experiment=lambda: {
            "instructions of K = 32 in 128 terms": 128 // unit(HOPPER).terms,
            "error, N(0, 1)": _product_error("normal", 4096, None),
            "error promoted, N(0, 1)": _product_error("normal", 4096, 128),
            "error, U[0, 1)": _product_error("uniform", 4096, None),
            "error promoted, U[0, 1)": _product_error("uniform", 4096, 128),
        },
        expected={
            "instructions of K = 32 in 128 terms": 4,
            "error, N(0, 1)": near(1.33e-3, 0.2), "error promoted, N(0, 1)": near(1.3e-4, 0.2),
            "error, U[0, 1)": near(7.45e-2, 0.2), "error promoted, U[0, 1)": near(5.6e-4, 0.2),
        },
    ),
    Claim(
        "28", "gradient-accumulation", "Gradients are accumulated in FP32.", "S0, S3",
        "128 gradients of 4096 elements that share a mean, 127 additions", RIGHT,
        "Added in BF16 one after another, the sum has an error of 1 %; in pairs the error is smaller, in FP32 "
        "negligible.",
        experiment=gradient_accumulation,
        expected={
            "BF16, one after another": (5e-3, 2e-2), "BF16, in pairs": (2e-3, 5e-3),
            "FP32, one after another": (1e-8, 1e-6),
        },
    ),
    Claim(
        "29", "error-by-length", "FP8's accumulated error diverges for long sequences.", "S2",
        "32 x K x 32 on hopper_e4m3_f32 without promotion", CONDITIONAL,
        "It grows with the terms of a product, K, most where they have one sign. A sequence's length is K only in "
        "weight gradients and attention, and promotion removes the growth.",
        experiment=lambda: {
            f"{name}, K = {terms}": _product_error(kind, terms, None)
            for kind, name in (("normal", "N(0, 1)"), ("uniform", "U[0, 1)"))
            for terms in (128, 1024, 4096)
        },
        expected={
            "N(0, 1), K = 128": near(1.2e-4, 0.25), "N(0, 1), K = 1024": near(5.4e-4, 0.2),
            "N(0, 1), K = 4096": near(1.4e-3, 0.2), "U[0, 1), K = 128": near(5.7e-4, 0.2),
            "U[0, 1), K = 1024": near(1.5e-2, 0.2), "U[0, 1), K = 4096": near(7.4e-2, 0.2),
        },
    ),
    Claim(
        "30", "norm-overflow", "Normalisation and loss are computed in FP32.", "S3",
        "sum of squares of 4096 equal values, one after another; finite or not", RIGHT,
        "In FP16 the sum of squares overflows as soon as 4096 times the mean square exceeds 65504.",
        experiment=norm_overflow,
        expected={"FP16, rms 3.9": True, "FP32, rms 3.9": True, "FP16, rms 4.1": False, "FP32, rms 4.1": True},
    ),
    Claim(
        "31", "linear-products",
        "V3's three products of a linear layer read FP8, give BF16 or FP32, and are twice as fast as BF16 in theory.",
        "S3", f"the recipe DEEPSEEK_V3 ({V3}, 3.3.1); peaks in TFLOPS of the H100 SXM's datasheet", RIGHT,
        "The factor is the ratio of peaks; nothing was timed.",
        experiment=lambda: {
            "formats of input, weight and gradient": (
                f"{DEEPSEEK_V3.input_fmt} {DEEPSEEK_V3.weight_fmt} {DEEPSEEK_V3.grad_fmt}"
            ),
            "peak of FP8 over BF16 (1979 / 989.5)": 1979 / 989.5,
        },
        expected={
            "formats of input, weight and gradient": "E4M3 E4M3 E4M3", "peak of FP8 over BF16 (1979 / 989.5)": 2.0,
        },
    ),
)  # fmt: skip
