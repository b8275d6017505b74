"""Claims about loss scaling and underflow."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.measures.scales.loss_scaling import loss_scaling
from fpsim.analysis.measures.scales.underflow import underflow
from fpsim.analysis.systems.claims.claim import CONDITIONAL, RIGHT, UNSETTLED, WRONG, Claim, Figures, near
from fpsim.analysis.systems.claims.probes import gradient_error
from fpsim.analysis.systems.claims.samples import normal, softmax
from fpsim.casts.cast import quantize
from fpsim.formats.named import BF16, FP16


def _gradients(steps: int, mean: float = -20.0) -> list[np.ndarray]:
    """Return an array of 4096 random gradients for each of `steps` training steps.

    log2 of the magnitudes is normal with the given mean and a standard deviation of 4.
    """
    rng = np.random.default_rng(0)
    signs = [rng.choice([-1.0, 1.0], 4096) for _ in range(steps)]
    return [(sign * np.exp2(mean + 4 * rng.standard_normal(4096))).astype(np.float32) for sign in signs]


def eager_policy() -> Figures:
    """Compare two policies for the loss scale: torch's scaler, and the policy "eager" of tutorials.

    "eager" starts at 2^16, doubles the scale after every step without overflow, up to 2^16, and applies the steps that
    overflow. Return torch's scales after an overflow and after 1999 and 2000 steps without one, the largest scale of
    "eager", and for both whether they apply steps that overflowed. The result is a dict, name -> number or bool.
    """
    overflow = [np.full(1, 2.0**10, np.float32)] * 2
    clean = [np.full(1, 2.0**-20, np.float32)] * 2001
    dynamic = loss_scaling(clean, ["dynamic"]).scales("dynamic")
    report = loss_scaling(_gradients(300, -6.0), ["eager", "dynamic"])
    applied = {row["policy"]: row["applied_overflows"] for row in report.totals}
    return {
        "torch's scale after an overflow at step 0": loss_scaling(overflow, ["dynamic"]).scales("dynamic")[1],
        "torch's scale after 1999 clean steps": dynamic[1999],
        "torch's scale after 2000": dynamic[2000],
        "overflows that are applied, circulating": applied["eager"] > 0,
        "overflows that are applied, torch": applied["dynamic"] > 0,
        "circulating scale, largest": max(report.scales("eager")),
    }


def underflow_share() -> Figures:
    """Return the smallest k such that with a loss scale of 2^k at most 3 % of gradients become 0 in FP16.

    log2 of the gradients' magnitudes is normal with a standard deviation of 4, and a mean for which 23 % become 0
    without a scale. Also return the shares that become 0 without a scale and at 2^16. The result is a dict, name ->
    number.
    """
    rng = np.random.default_rng(0)
    mean = -25 + 4 * 0.739  # 23 % of a normal variable lie 0.739 deviations below its mean
    gradients = np.exp2(mean + 4 * rng.standard_normal(1 << 20)).astype(np.float32)
    report = underflow(gradients, FP16, scales=range(17))
    return {
        "lost unscaled": report.lost[0],
        "k for 3 %": next(k for k, lost in enumerate(report.lost) if lost <= 0.03),
        "lost at 2^16": report.lost[16],
    }


def norm_driven_policy() -> Figures:
    """Run the loss-scaling policy "norm_driven", which lowers the scale when gradient norms are small, for 300 steps.

    Gradients are around 2^-44 in one case, around 2^-20 as usual in the other. Return for each case the last scale, the
    share of steps that overflow, and the share of gradients that underflow, as a dict, name -> number.
    """
    figures: Figures = {}
    for name, mean in (("small gradients", -44.0), ("usual gradients", -20.0)):
        report = loss_scaling(_gradients(300, mean), ["norm_driven"])
        (row,) = report.totals
        figures[f"last scale, {name}"] = float(row["last_scale"])
        figures[f"steps that overflow, {name}"] = float(row["overflowed"])
        figures[f"gradients lost, {name}"] = float(row["underflow"])
    return figures


def scale_before_backward() -> Figures:
    """Return the shares of gradients that underflow in FP16 with the loss scales 1 and 2^16.

    Also return whether dividing the scaled FP16 gradients by 2^16 in float32 is exact. The result is a dict, name ->
    number or bool.
    """
    gradients = np.concatenate(_gradients(16))
    report = underflow(gradients, FP16, scales=[0, 16])
    scaled = quantize(gradients * np.float32(2.0**16), FP16)
    kept = scaled[(scaled != 0) & np.isfinite(scaled)]
    return {
        "lost unscaled": report.lost[0], "lost at 2^16": report.lost[1],
        "unscaling in float32 is exact": bool(np.all(kept / np.float32(2.0**16) * np.float32(2.0**16) == kept)),
    }  # fmt: skip


def inverted_policy() -> Figures:
    """Return the shares of gradients that underflow in FP16 with an inverted loss-scaling policy, and with torch's.

    The inverted policy raises the scale after an overflow, and lowers it while there is none. The result is a dict,
    name -> number.
    """
    report = loss_scaling(_gradients(300), ["inverted", "dynamic"])
    rows = {row["policy"]: row for row in report.totals}
    return {
        "gradients lost, inverted": float(rows["inverted"]["underflow"]),
        "gradients lost, torch": float(rows["dynamic"]["underflow"]),
    }


def too_large_a_scale() -> Figures:
    """Return the shares of gradients that become 0 and that become Inf in FP16, for the loss scales 1 and 2^40.

    Also return whether a value beyond FP16's range becomes Inf, and not FP16's largest value. The result is a dict,
    name -> number or bool.
    """
    gradients = np.concatenate(_gradients(16))
    report = underflow(gradients, FP16, scales=[0, 16, 40])
    return {
        "lost at 2^0": report.lost[0], "Inf at 2^0": report.saturated[0],
        "lost at 2^40": report.lost[2], "Inf at 2^40": report.saturated[2],
        "Inf, not a large value": bool(np.isinf(quantize(np.float32(2.0**20), FP16))),
    }  # fmt: skip


def _logit_zeros(classes: int, divisor: float, scale: float = 1.0) -> float:
    """Return the share of zeros among FP16 gradients of a cross-entropy loss with respect to the logits of 64 samples.

    classes: number of logits of a sample. divisor: number by which the loss is divided for its mean. scale: loss scale.
    """
    probability = softmax(normal(64, classes))
    probability[:, 0] -= 1
    return float(np.mean(quantize(probability * scale / divisor, FP16) == 0))


def mean_over_classes() -> Figures:
    """Return the shares of logit gradients that are 0 in FP16 if the loss is divided by N, or by N x classes.

    N is 2048 samples, and there are 1,000 or 32,000 classes. One more share is with N x 32,000 and a loss scale of
    65536. The result is a dict, name -> number.
    """
    figures: Figures = {}
    for classes in (1000, 32000):
        figures[f"zeros, {classes} classes, mean over N"] = _logit_zeros(classes, 2048)
        figures[f"zeros, {classes} classes, mean over N C"] = _logit_zeros(classes, 2048 * classes)
    figures["zeros, 32000 classes, mean over N C, scale 65536"] = _logit_zeros(32000, 2048 * 32000, 65536.0)
    return figures


CLAIMS = (
    Claim(
        "32", "eager-loss-scaling",
        "A function that doubles the scale every step up to 65536, halves it at Inf and clamps gradients is dynamic "
        "loss scaling.", "S0",
        "traces of torch.amp.GradScaler's rule; 300 steps of gradients around 2^-6, replayed in FP16", WRONG,
        "It applies the steps that overflowed, clamped, it never unscales, and it grows at once. torch halves, skips "
        "the step, and doubles after 2000 clean ones.",
        experiment=eager_policy,
        expected={
            "torch's scale after an overflow at step 0": 32768.0, "torch's scale after 1999 clean steps": 65536.0,
            "torch's scale after 2000": 131072.0, "overflows that are applied, circulating": True,
            "overflows that are applied, torch": False, "circulating scale, largest": 65536.0,
        },
    ),
    Claim(
        "33", "underflow-share", "Loss scaling takes the underflow from 23 % to 3 %.", "S0",
        "2^20 log-normal gradients, deviation of log2 4, of which 23 % underflow in FP16", CONDITIONAL,
        "No source or set-up; such data need only 2^5 for 3 %, and 2^16 leaves less than 0.01 %.",
        experiment=underflow_share,
        expected={"lost unscaled": near(0.23, 0.01), "k for 3 %": 5, "lost at 2^16": (0.0, 1e-4)},
    ),
    Claim(
        "34", "stability-percentages",
        "Mixed precision is 98 % as stable as FP32 (S0), stability rises by 40 % (S1), accuracy is 99 % or 99.7 %.",
        "S0, S1", "-", UNSETTLED,
        "No metric is defined. One that can be measured is the share of seeds whose final loss is within two standard "
        "deviations of FP32's, with the rate of skipped steps; fp.train.compare reports losses over seeds and "
        "skipped steps.",
    ),
    Claim(
        "35", "norm-driven-scaling",
        "scale *= 0.98 ** (1 - norm / threshold) is an exponential moving average that adapts the loss scale.", "S1",
        "300 steps of 4096 log-normal gradients around 2^-44 and 2^-20, replayed in FP16; the scale is kept within "
        "2^+-24",
        WRONG,
        "It averages nothing, and its sign is inverted: small gradients shrink the scale, so that they vanish, "
        "others drive it to its upper bound, where nearly every step overflows. Gradients stay scaled.",
        experiment=norm_driven_policy,
        expected={
            "last scale, small gradients": near(32768 * 0.98**300, 0.1), "steps that overflow, small gradients": 0.0,
            "gradients lost, small gradients": (0.93, 0.99),
            "last scale, usual gradients": 2.0**24, "steps that overflow, usual gradients": (0.9, 1.0),
            "gradients lost, usual gradients": (0.0, 1e-3),
        },
    ),
    Claim(
        "36", "scale-before-backward",
        "The loss is multiplied by 2^16 before the backward pass, gradients divided after.",
        "S3; Micikevicius et al., arXiv:1710.03740 used 8 to 32K",
        "16 steps of 4096 gradients around 2^-20, deviation of log2 4, in FP16", RIGHT,
        "The scale moves them into range, and dividing by a power of two in float32 is exact.",
        experiment=scale_before_backward,
        expected={
            "lost unscaled": near(0.107, 0.05), "lost at 2^16": (0.0, 1e-4), "unscaling in float32 is exact": True,
        },
    ),
    Claim(
        "37", "inverted-scaling", "Dynamic loss scaling raises the scale at Inf or NaN and lowers it in stable phases.",
        "S3", "300 steps of 4096 gradients, log2 |g| normal around -20, deviation 4, replayed in FP16", WRONG,
        "The rule has the wrong sign. By it nearly all gradients become zero.",
        experiment=inverted_policy,
        expected={"gradients lost, inverted": (0.85, 1.0), "gradients lost, torch": (0.0, 1e-3)},
    ),
    Claim(
        "38", "scale-too-large", "Too large a scale makes gradients explode, too small a one makes them vanish.", "S3",
        "16 steps of 4096 gradients around 2^-20, deviation of log2 4, in FP16", CONDITIONAL,
        "Too small: underflow. Too large: they become Inf, which a scaler sees; they don't grow from step to step.",
        experiment=too_large_a_scale,
        expected={
            "lost at 2^0": near(0.107, 0.05), "Inf at 2^0": 0.0, "lost at 2^40": 0.0, "Inf at 2^40": near(0.84, 0.02),
            "Inf, not a large value": True,
        },
    ),
    Claim(
        "39", "no-loss-scaling-in-v3", "DeepSeek uses dynamic loss scaling.", "S4",
        "fp.train.gradient_probe of the recipe DEEPSEEK_V3, which has no loss scale, with the loss times 2^-12 and "
        "2^12", WRONG,
        "V3 (arXiv:2412.19437) describes none. BF16's range and scales of tiles replace it: its gradients have the "
        "same error whatever the loss is multiplied by, where unscaled FP16 loses all.",
        experiment=lambda: {
            "DEEPSEEK_V3": gradient_error("DEEPSEEK_V3"),
            **{
                f"DEEPSEEK_V3, loss x {factor}, equal": (
                    gradient_error("DEEPSEEK_V3", f"loss_{factor}") == gradient_error("DEEPSEEK_V3")
                )
                for factor in ("2^-12", "2^12")
            },
            "FP16 unscaled, loss x 2^-12": gradient_error("FP16_UNSCALED", "loss_2^-12"),
        },
        expected={
            "DEEPSEEK_V3": (0.03, 0.06), "DEEPSEEK_V3, loss x 2^-12, equal": True,
            "DEEPSEEK_V3, loss x 2^12, equal": True, "FP16 unscaled, loss x 2^-12": (0.9, 1.1),
        },
    ),
    Claim(
        "40", "mean-over-classes", "A stable loss is -mean(targets * log_softmax(logits)).", "S0",
        "logit gradients of 64 rows of N(0, 1) logits in a batch of 2048, in FP16: share that is 0", CONDITIONAL,
        "The logarithm is right. The mean divides by the number of classes too, which makes gradients so small that "
        "FP16 loses nearly all, with a loss scale as well where classes are many.",
        experiment=mean_over_classes,
        expected={
            "zeros, 1000 classes, mean over N": near(0.011, 0.2), "zeros, 1000 classes, mean over N C": (0.99, 1.0),
            "zeros, 32000 classes, mean over N": near(0.88, 0.02), "zeros, 32000 classes, mean over N C": (0.999, 1.0),
            "zeros, 32000 classes, mean over N C, scale 65536": near(0.67, 0.03),
        },
    ),
    Claim(
        "41", "underflow-by-format", "Underflow of gradients is the main risk of FP16.", "S0",
        "16 steps of 4096 gradients around 2^-20, deviation of log2 4", RIGHT,
        "It is a risk of FP16; in BF16, which has FP32's range, no gradient becomes zero.",
        experiment=lambda: {
            f"lost in {fmt}": underflow(np.concatenate(_gradients(16)), fmt, scales=[0]).lost[0] for fmt in (FP16, BF16)
        },
        expected={"lost in FP16": near(0.107, 0.05), "lost in BF16": 0.0},
    ),
)  # fmt: skip
