"""Claims about the precision of each operation, and about tuning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fpsim.analysis.measures.log_probabilities import divergence, log_softmax
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, UNSETTLED, V3, WRONG, Claim, Figures, around, near
from fpsim.analysis.systems.claims.probes import gradient_error
from fpsim.analysis.systems.claims.samples import normal, sqnr_of_normal, wide
from fpsim.casts.cast import quantize
from fpsim.formats.named import BF16, E4M3, FP16, FP32, Format
from fpsim.products.reduce import sum as total
from fpsim.recipes import training
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.recipes.parts import Controller
from fpsim.sums.accumulators import Sequential

E5M6 = Format("E5M6", exponent_bits=5, mantissa_bits=6)  # V3, 3.3.3; its bias is not published


def scheduler_code() -> Figures:
    """Run three faulty lines of a widely copied scheduler that chooses a precision for each layer.

    Return the number of layers that its list of FP32 layers matches, whether its call of `torch.cat` raises TypeError,
    and the number of rows that its parallel layers return for one row. The result is a dict, name -> number or bool.
    """
    import torch

    names: list[Any] = ["attention.score", "layer_norm"]
    concatenate: Any = torch.cat
    layers = [torch.nn.Linear(4, 4) for _ in names]
    x = torch.ones(1, 4)
    try:
        concatenate([layers[0](x)], [layers[1](x)])
        raised = False
    except TypeError:
        raised = True
    parallel = torch.cat([layer(x) for layer in layers])
    return {
        "layers that its FP32 list matches": sum(layer in names for layer in layers),
        "torch.cat of two lists is a TypeError": raised,
        "rows of the result, of 1 input row": parallel.shape[0],
    }


def attention_scores() -> Figures:
    """Measure overflow of attention scores in FP16, and errors of softmax if the scores are rounded to BF16 or FP16.

    Return the standard deviation of queries and keys at which a score overflows FP16; KL divergences between softmax of
    exact and of rounded scores, for N(0, 1) scores times 1, 16 and 256; and the ulp of BF16 at 64 and of FP16 at 1024.
    The result is a dict, name -> number.
    """
    queries, keys = normal(512, 128).astype(np.float64), normal(512, 128, seed=1).astype(np.float64)
    figures: Figures = {
        "deviation at which a score overflows": float(np.sqrt(FP16.max / np.abs(queries @ keys.T).max()))
    }
    for fmt in (BF16, FP16):
        for scale in (1, 16, 256):
            logits = scale * wide(normal(256, 256))
            kl = float(divergence(log_softmax(logits), log_softmax(quantize(logits, fmt))).mean())
            figures[f"KL, {fmt}, logits x {scale}"] = kl
    figures["ulp of BF16 at 64"] = float(BF16.ulp(64.0))
    figures["ulp of FP16 at 1024"] = float(FP16.ulp(1024.0))
    return figures


def norm_statistics() -> Figures:
    """Return the magnitude of 4096 equal values at which their sum of squares reaches FP16's maximum.

    Also return the largest relative error of 16 sums of squares of 4096 N(0, 1) values, for additions in FP16 and for
    additions in FP32. The result is a dict, name -> number.
    """
    x = normal(16, 4096)
    exact = (x.astype(np.float64) ** 2).sum(axis=1)
    figures: Figures = {"rms at which 4096 squares overflow": float(np.sqrt(FP16.max / 4096))}
    for fmt in (FP16, FP32):
        sums = wide(total(quantize(x * x, fmt), accumulate=Sequential(fmt), axis=1))
        figures[f"largest error of a mean square in {fmt}"] = float(np.abs(sums / exact - 1).max())
    return figures


def kept_layers() -> Figures:
    """Return errors of weight gradients by the recipe FP8_TENSOR with the output head in float32, and with it in FP8.

    An error is norm(difference from float32's gradients) / norm(float32's gradients). The result is a dict, name ->
    number.
    """
    everywhere = training.FP8_TENSOR.replace(name="FP8_TENSOR and head", keep=())
    return {"head kept high": gradient_error("FP8_TENSOR"), "head in FP8 too": gradient_error(everywhere)}


def _trained(recipe: Any) -> tuple[float, float, int]:
    """Train the reference transformer for 60 steps with a recipe.

    Return (mean loss of the last 10 steps, mean share of layers that a controller switched to a higher precision,
    number of switches).
    """
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    trainer = Trainer(recipe, Settings(steps=60))
    losses, high = [], []
    for _ in range(60):
        losses.append(trainer.step()["loss"])
        if trainer.levels is not None:
            high.append(np.mean([level > 0 for level in trainer.levels.levels.values()]))
    switches = 0 if trainer.levels is None else len(trainer.levels.log)
    return float(np.mean(losses[-10:])), float(np.mean(high)) if high else 0.0, switches


def switched_precision() -> Figures:
    """Return the loss of training in BF16, and the additional losses of training by three FP8 recipes.

    The recipes are E4M3 without scales, E4M3 in tiles with scales, and E4M3 without scales but with a controller that
    switches layers to BF16 where values underflow. For this controller, also return the number of switches and the mean
    share of layers in BF16. Also return that share for tiles with a controller that switches layers by the norm of
    their gradients. The result is a dict, name -> number.
    """
    high, _, _ = _trained(training.BF16)
    raw, _, _ = _trained(training.FP8_RAW)
    tiles, _, _ = _trained(training.DEEPSEEK_V3)
    by_underflow = training.FP8_RAW.replace(name="by underflow", controller=Controller("underflow"))
    switched, share, switches = _trained(by_underflow)
    by_norm = training.DEEPSEEK_V3.replace(name="by norm", controller=Controller("gradient_norm", levels=("BF16",)))
    return {
        "loss, BF16": high,
        "loss, E4M3 without scales, over BF16": raw - high,
        "loss, FP8 tiles, over BF16": tiles - high,
        "loss, switched by underflow, over BF16": switched - high,
        "layer-steps in BF16, switched by underflow": share,
        "switches by underflow": switches,
        "layer-steps in BF16, switched by gradient norm": _trained(by_norm)[1],
    }


def update_in_fp8() -> Figures:
    """Add 1000 updates of 1e-3 to the weight 1, one after another; return the sum in float32 and in E4M3 arithmetic.

    The float32 sum is rounded to E4M3 at the end. The result is a dict, name -> number.
    """
    updates = np.full(1001, 1e-3, np.float32)
    updates[0] = 1
    master = float(total(updates, accumulate=Sequential(FP32)))
    return {
        "cast from a float32 master": float(quantize(np.float32(master), E4M3)),
        "updated in E4M3": float(total(updates, accumulate=Sequential(E4M3))),
    }


def backward_precision() -> Figures:
    """Return errors of weight gradients with FP8 in all products of linear layers, in fprop only, and in none.

    An error is norm(difference from float32's gradients) / norm(float32's gradients). The result is a dict, name ->
    number.
    """
    from fpsim.train.comparisons.gradient_probe import with_one_product

    high = training.BF16.replace(name="BF16 but for the head", keep=training.DEEPSEEK_V3.keep)
    forward = next(recipe for recipe in with_one_product(high, "DEEPSEEK_V3") if "fprop" in recipe.name)
    return {
        "all three products in FP8": gradient_error("DEEPSEEK_V3"),
        "forward alone in FP8": gradient_error(forward),
        "all in BF16": gradient_error("BF16"),
    }


def _delayed_descent(delay: int) -> float:
    """Return |x| after 60 steps of rate 0.5 on x^2 / 2 from x = 1, with gradients that are `delay` steps old."""
    points = [1.0] * (delay + 1)
    for _ in range(60):
        points.append(points[-1] - 0.5 * points[-1 - delay])
    return abs(points[-1])


def masters() -> Figures:
    """Add 1000 updates of 1e-3 to the weight 1, one after another, in BF16 and in float32; return the sums.

    There are two results for BF16: the sum with rounding to nearest, and the mean of 64 sums with stochastic rounding.
    Also return |x| after 60 steps of gradient descent on x^2 / 2 from x = 1, with gradients that are 0, 1 and 4 steps
    old. The result is a dict, name -> number.
    """
    updates = np.full(1001, 1e-3, np.float32)
    updates[0] = 1
    stochastic = [
        float(total(updates, accumulate=Sequential(BF16, rounding="stochastic", seed=seed))) for seed in range(64)
    ]
    return {
        "BF16, nearest": float(total(updates, accumulate=Sequential(BF16))),
        "BF16, stochastic, mean of 64": float(np.mean(stochastic)),
        "float32 master": float(total(updates, accumulate=Sequential(FP32))),
        "distance after 60 steps, no delay": _delayed_descent(0),
        "distance after 60 steps, delay 1": _delayed_descent(1),
        "distance after 60 steps, delay 4": _delayed_descent(4),
    }


def learning_rates() -> Figures:
    """Find the best learning rate 2^k, k in -10 .. -6, of a perceptron trained in float32, BF16 and tiled FP8.

    Return k for float32, and by how much k differs from it for BF16 and for FP8, as a dict, name -> number.
    """
    from fpsim.train.runs import run

    rates = [2.0**k for k in range(-10, -5)]
    best = {}
    for name in ("FP32", "BF16", "DEEPSEEK_V3"):
        losses = []
        for rate in rates:
            recipe = training.TRAINING[name]
            tuned = recipe.replace(optimizer=replace(recipe.optimizer, lr=rate))
            losses.append(float(run(tuned, steps=60, model="perceptron").validation_loss))
        best[name] = int(np.argmin(losses))
    return {
        "best log2 of the rate, FP32": best["FP32"] - 10,
        "BF16's optimum moves by, factors of 2": abs(best["BF16"] - best["FP32"]),
        "FP8 tiles' optimum moves by, factors of 2": abs(best["DEEPSEEK_V3"] - best["FP32"]),
    }


def learning_rate_rules() -> Figures:
    """Return the factors by which two rules raise the learning rate for a 4 times larger batch.

    The rules are the square-root and the linear one. Also return, for DeepSeek-V3's schedule, the number of tokens, and
    its lowest learning rate / its peak rate; and for a cosine schedule in `fp.train`, the rate at the end of the warmup
    / the peak rate, and the rate at the end of the training / the peak rate. The result is a dict, name -> number.
    """
    recipe = OptimizerRecipe(lr=2.2e-4, warmup=10, schedule="cosine", final_lr_share=0.1)
    return {
        "square-root factor of a 4 times larger batch": (1024 / 256) ** 0.5,
        "linear factor of a 4 times larger batch": 1024 / 256,
        "V3's tokens, 10 + 4.3 + 0.333 + 0.167 T": round(10 + 4.3 + 0.333 + 0.167, 3),
        "V3's lowest cosine rate over its peak": round(2.2e-5 / 2.2e-4, 6),
        "rate at the end of warmup, over the peak": recipe.lr_at(9, 100) / recipe.lr,
        "rate at the end, over the peak": round(recipe.lr_at(100, 100) / recipe.lr, 9),
    }


CLAIMS = (
    Claim(
        "42", "scheduler-code", "A class chooses FP32 or FP16 for each layer by a list of names, and runs the layers.",
        "S0", "its lines as printed, with two torch.nn.Linear layers", WRONG,
        "Choosing by operation is what torch.autocast does. This code compares layers with strings, so that no layer "
        "is FP32; it passes the same input to all layers, and its torch.cat raises.",
        experiment=scheduler_code,
        expected={
            "layers that its FP32 list matches": 0, "torch.cat of two lists is a TypeError": True,
            "rows of the result, of 1 input row": 2,
        },
    ),
    Claim(
        "43", "attention-scores", "Attention scores need FP32 against overflow.", "S0",
        "scores of 512 queries and keys of N(0, 1), 128 channels; KL divergence of softmax over 256 logits that are "
        "rounded, from that in float64", CONDITIONAL,
        "Only where queries and keys have deviations above 30 do scores overflow FP16. What fails first is resolution: "
        "the error of softmax grows with the logits, 60 times as large in BF16.",
        experiment=attention_scores,
        expected={
            "deviation at which a score overflows": near(34, 0.1),
            "KL, BF16, logits x 1": near(2.7e-6, 0.3), "KL, BF16, logits x 16": near(4.5e-4, 0.4),
            "KL, BF16, logits x 256": near(8e-3, 0.6), "KL, FP16, logits x 1": near(4.1e-8, 0.3),
            "KL, FP16, logits x 16": near(7.6e-6, 0.4), "KL, FP16, logits x 256": near(1.4e-4, 0.6),
            "ulp of BF16 at 64": 0.5, "ulp of FP16 at 1024": 1.0,
        },
    ),
    Claim(
        "44", "norm-precision", "LayerNorm needs FP32 against vanishing gradients (S0); LayerNorm stays in FP16 (S2).",
        "S0, S2", "mean square of 4096 values of N(0, 1), one after another", CONDITIONAL,
        "FP32 is right for another reason: FP16 sums of squares are off by percents and overflow at a root mean square "
        f"of 4. {V3}, keeps norms in BF16 or FP32.",
        experiment=norm_statistics,
        expected={
            "rms at which 4096 squares overflow": near(4.0, 1e-3),
            "largest error of a mean square in FP16": (0.01, 0.2),
            "largest error of a mean square in FP32": (0.0, 1e-5),
        },
    ),
    Claim(
        "45", "kept-layers",
        "Linear layers and convolutions go to low precision first; norms and softmax stay in FP32.",
        "S0", "fp.train.gradient_probe with one E4M3 scale a tensor: the output head in FP32 or FP8", RIGHT,
        f"Of FP16 too. {V3}, keeps embedding, output head, gating, norms and attention high as well: the head alone in "
        "FP8 raises the error of all gradients.",
        experiment=kept_layers, expected={"head kept high": (0.03, 0.045), "head in FP8 too": (0.045, 0.09)},
    ),
    Claim(
        "46", "switching-precision", "Precision is switched in training, by predicted gradient norms or automatically.",
        "S1, S4",
        "the transformer of fp.train, 60 steps: E4M3 casts without scales whose layers switch to BF16 and back by "
        "their underflow, FP8 tiles that switch by their gradient norm, and recipes that don't switch; mean of the "
        "last 10 losses",
        CONDITIONAL,
        "V3 (arXiv:2412.19437) assigns precisions once. Switching repairs casts without scales by spending nearly all "
        "steps in BF16; FP8 tiles come as near without a switch, and a gradient norm found nothing to switch there.",
        experiment=switched_precision,
        expected={
            "loss, BF16": (2.6, 3.1), "loss, E4M3 without scales, over BF16": (0.2, 3.0),
            "loss, FP8 tiles, over BF16": (-0.05, 0.05), "loss, switched by underflow, over BF16": (-0.05, 0.1),
            "layer-steps in BF16, switched by underflow": (0.85, 1.0), "switches by underflow": (8, 40),
            "layer-steps in BF16, switched by gradient norm": (0.0, 0.2),
        },
    ),
    Claim(
        "47", "three-levels", "Products in FP8, LayerNorm in FP16, updates in FP32 and then cast to FP8.", "S2",
        "1 + 1000 x 1e-3 in float32, cast to E4M3, and in E4M3 itself", CONDITIONAL,
        "Products and updates: yes, a float32 master is cast for each product, as updates in FP8 itself are lost. "
        "LayerNorm: BF16 or FP32 in V3.",
        experiment=update_in_fp8, expected={"cast from a float32 master": 2.0, "updated in E4M3": 1.0},
    ),
    Claim(
        "48", "backward-precision", "Forward in FP8, backward in FP16 or FP32.", "S2, S4",
        "fp.train.gradient_probe: FP8 tiles in all products, or in the forward product alone with BF16 in the "
        "backward products", WRONG,
        "In V3 all three products read FP8. It is an option of other libraries (torchao's ROWWISE_WITH_GW_HP, "
        "Transformer Engine's backward_override), and its gradients are more accurate.",
        experiment=backward_precision,
        expected={
            "all three products in FP8": (0.03, 0.06), "forward alone in FP8": (0.005, 0.04),
            "all in BF16": (2e-3, 6e-3),
        },
    ),
    Claim(
        "49", "stored-attention", "The attention output projection is temporarily FP8 and BF16.", "S4",
        "2^20 values of N(0, 1)", WRONG,
        "V3 (3.3.3) stores the input of that layer in E5M6, since attention's backward pass reads it again: 12 bits "
        "with 18 dB more than E4M3 and 6 less than BF16. The product itself reads FP8.",
        experiment=lambda: sqnr_of_normal(E4M3, E5M6, BF16),
        expected={
            "SQNR in E4M3, dB": around(31.5, 0.1), "SQNR in E5M6, dB": around(49.57, 0.1),
            "SQNR in BF16, dB": around(55.58, 0.1),
        },
    ),
    Claim(
        "50", "float32-masters", "FP32 masters are updated asynchronously by FP16 workers.", "S1",
        "1 + 1000 x 1e-3; 60 steps of rate 0.5 on x^2 / 2 with gradients that are some steps old", CONDITIONAL,
        "Masters: yes, BF16 loses such updates without (Micikevicius et al., arXiv:1710.03740). Asynchrony has no "
        "source, and old gradients make a descent diverge.",
        experiment=masters,
        expected={
            "BF16, nearest": 1.0, "BF16, stochastic, mean of 64": around(2.0, 0.05),
            "float32 master": near(2.0, 1e-3), "distance after 60 steps, no delay": (0.0, 1e-15),
            "distance after 60 steps, delay 1": (0.0, 1e-6), "distance after 60 steps, delay 4": (2.0, 20.0),
        },
    ),
    Claim(
        "51", "learning-rate", "Mixed precision needs a smaller learning rate, or one that follows the error.",
        "S2, S3",
        "the perceptron of fp.train, 60 steps, rates of a grid of factor 2, validation loss of one seed", UNSETTLED,
        "No source; the papers on FP16 (arXiv:1710.03740) and FP8 (arXiv:2209.05433) change no hyper-parameter. On "
        "this small model the best rate moves by at most one step of the grid.",
        experiment=learning_rates,
        expected={
            "best log2 of the rate, FP32": (-10, -6), "BF16's optimum moves by, factors of 2": (0, 1),
            "FP8 tiles' optimum moves by, factors of 2": (0, 1),
        },
    ),
    Claim(
        "52", "learned-tuning", "Reinforcement learning finds the precision of each layer.", "S0, S1", "-", UNSETTLED,
        "The code is a sketch that returns an undefined name; agent and reward are not given. fp.analysis.plan is the "
        "search over measured errors that it would have to beat.",
    ),
    Claim(
        "53", "learning-rate-rules", "The rate is base * (batch / 256) ** 0.5, with a warmup and a cosine.", "S1",
        f"formulas; the trainer's schedule; tokens and rates of {V3}, 4.2", CONDITIONAL,
        "The root is the rule of thumb for Adam, the factor itself that for SGD. V3 warms up over 2000 steps, stays at "
        "2.2e-4 to 10 T tokens, and falls by a cosine to a tenth.",
        experiment=learning_rate_rules,
        expected={
            "square-root factor of a 4 times larger batch": 2.0, "linear factor of a 4 times larger batch": 4.0,
            "V3's tokens, 10 + 4.3 + 0.333 + 0.167 T": 14.8, "V3's lowest cosine rate over its peak": 0.1,
            "rate at the end of warmup, over the peak": 1.0, "rate at the end, over the peak": 0.1,
        },
    ),
)  # fmt: skip
