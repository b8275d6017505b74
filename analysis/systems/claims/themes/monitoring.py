"""Claims about the quantities to watch in training, and their thresholds."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import ARITHMETIC, CONDITIONAL, RIGHT, WRONG, Claim, Figures, around, near
from fpsim.analysis.systems.claims.probes import gradient_error
from fpsim.casts.cast import quantize
from fpsim.formats.named import BF16, E4M3, FP16


@lru_cache(maxsize=1)
def _trained() -> tuple[dict[str, object], ...]:
    """Train the reference perceptron in BF16 for 200 steps, and return the log's row (metric -> value) of each step."""
    from fpsim.recipes.training import BF16 as RECIPE
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    trainer = Trainer(RECIPE, Settings(steps=200, model="perceptron"))
    return tuple(trainer.step() for _ in range(200))


def gradient_norms() -> Figures:
    """Return skewness and excess kurtosis of the gradient norms in 200 training steps, and of the norms' logarithms.

    Also return whether all norms are positive. The result is a dict, name -> number or bool.
    """
    norms = np.array([row["gradient_norm"] for row in _trained()], np.float64)
    figures: Figures = {"smallest norm is positive": bool(norms.min() > 0)}
    for name, x in (("norms", norms), ("logarithms", np.log(norms))):
        standard = (x - x.mean()) / x.std()
        figures[f"skewness of {name}"] = float(np.mean(standard**3))
        figures[f"excess kurtosis of {name}"] = float(np.mean(standard**4) - 3)
    return figures


def update_ratios() -> Figures:
    """Return the median update ratio of the last 150 of 200 training steps of the perceptron.

    A step's update ratio is the median over weights of |update| / |weight|, rounded down to a power of two. Also return
    the largest k for which 1 + 2^k is rounded to 1 in BF16, in FP16 and in E4M3. The result is a dict, name -> number.
    """
    ratios = [float(row["update_ratio"]) for row in _trained()[50:]]  # type: ignore[arg-type]
    figures: Figures = {"median update over weight, 150 steps": float(np.median(ratios))}
    for fmt in (BF16, FP16, E4M3):
        lost = next(k for k in range(0, -30, -1) if quantize(np.float64(1 + 2.0**k), fmt) == 1)
        figures[f"log2 of the largest update lost in {fmt}"] = lost
    return figures


def activation_range() -> Figures:
    """Return the shares of values that become 0, subnormal or saturated in FP16 and in E4M3 without scales.

    The values are log-uniform in 1e-3 .. 1e3. Also return FP16's smallest normal and largest value. The result is a
    dict, name -> number.
    """
    x = np.exp(np.random.default_rng(0).uniform(np.log(1e-3), np.log(1e3), 1 << 18)).astype(np.float32)
    figures: Figures = {"FP16 normal from": FP16.smallest_normal, "FP16 to": FP16.max}
    for fmt in (FP16, E4M3):
        report = error(x, fmt, overflow="saturate")
        figures[f"{fmt}: become 0"] = report.underflow_rate
        figures[f"{fmt}: subnormal"] = report.subnormal_rate
        figures[f"{fmt}: saturated"] = report.saturation_rate
    return figures


def debug_names() -> Figures:
    """Return the number of names in torch.amp that contain "fallback" or "debug", as a dict of one item."""
    import torch

    names = [name for name in dir(torch.amp) if "fallback" in name.lower() or "debug" in name.lower()]
    return {"names of torch.amp with 'fallback' or 'debug'": len(names)}


CLAIMS = (
    Claim(
        "78", "gradient-norms", "Gradient norms should be normally distributed.", "S0",
        "200 steps of the perceptron of fp.train in BF16", WRONG,
        "A norm is positive and its distribution skewed with a heavy tail; logarithms are nearer to normal.",
        experiment=gradient_norms,
        expected={
            "smallest norm is positive": True, "skewness of norms": (1.5, 10.0),
            "excess kurtosis of norms": (1.5, 100.0),
            "skewness of logarithms": (-1.4, 1.4), "excess kurtosis of logarithms": (-1.5, 4.0),
        },
    ),
    Claim(
        "79", "update-ratios", "Updates should be 1 to 5 % of a weight in each step.", "S0",
        "steps 50 to 200 of the perceptron of fp.train; 1 + 2^k rounded to nearest even", WRONG,
        "Training works with far less, 0.1 to 1 %. The limit is the format's: from 2^-8 down a weight of 1 loses "
        "updates in BF16, from 2^-11 in FP16, from 2^-4 in E4M3.",
        experiment=update_ratios,
        expected={
            "median update over weight, 150 steps": (5e-4, 1e-2), "log2 of the largest update lost in BF16": -8,
            "log2 of the largest update lost in FP16": -11, "log2 of the largest update lost in E4M3": -4,
        },
    ),
    Claim(
        "80", "activation-range", "Activations should lie in 1e-3 .. 1e3 for FP16.", "S0",
        "2^18 magnitudes, log-uniform in that range", CONDITIONAL,
        "Safe and more than needed for FP16, whose normal values reach from 6.1e-5 to 65504. For E4M3 without a "
        "scale it is wrong: a fifth is subnormal, and what exceeds 448 saturates.",
        experiment=activation_range,
        expected={
            "FP16 normal from": 2.0**-14, "FP16 to": 65504.0, "FP16: become 0": 0.0, "FP16: subnormal": 0.0,
            "FP16: saturated": 0.0, "E4M3: become 0": 0.0, "E4M3: subnormal": near(0.2, 0.1),
            "E4M3: saturated": near(0.055, 0.1),
        },
    ),
    Claim(
        "81", "fallback-statistics",
        "Precision fallback statistics and a debug mode of AMP show where precision fails.",
        "S0", "public names of torch.amp", WRONG,
        "torch.amp has no such names. fp.analysis.record counts Inf, NaN, saturation, underflow and scales for each "
        "tensor of a model.",
        experiment=debug_names, expected={"names of torch.amp with 'fallback' or 'debug'": 0},
    ),
    Claim(
        "82", "error-monitors", "Quantisation errors and gradient norms must be watched.", "S2",
        "fp.train.gradient_probe: a recipe that works and one that fails", RIGHT,
        "The error of gradients tells them apart before the loss does.",
        experiment=lambda: {
            "gradient error, BF16": gradient_error("BF16"),
            "gradient error, FP16 unscaled, loss x 2^-12": gradient_error("FP16_UNSCALED", "loss_2^-12"),
        },
        expected={
            "gradient error, BF16": (2e-3, 6e-3), "gradient error, FP16 unscaled, loss x 2^-12": (0.9, 1.1),
        },
    ),
    Claim(
        "83", "accuracy-loss", "mAP falls from 92.1 to 91.8, less than 0.3 %.", "S0", "arithmetic", WRONG,
        "It is 0.3 points and 0.33 % of 92.1, neither of which is less than 0.3.", ARITHMETIC,
        lambda: {"points": round(92.1 - 91.8, 6), "relative": (92.1 - 91.8) / 92.1},
        {"points": 0.3, "relative": around(0.003257, 1e-5)},
    ),
)  # fmt: skip
