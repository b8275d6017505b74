"""Measures of fp.analysis: sums against their length, underflow against the scale, loss scaling, budgets of models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

import fpsim as fp
from benchmarks.race import Work
from benchmarks.row import RaceRow, load

LENGTHS = [1 << i for i in range(7, 15)]
TRIALS = 32
ACCUMULATORS = [
    "hopper_e4m3_f32", ("hopper_e4m3_f32", 128), "hopper_f16_f32", "cdna3_f16_f32", fp.Sequential("bf16"),
    fp.Sequential("bf16", rounding="stochastic", seed=0), fp.FusedMultiplyAdd("fp32"), fp.Pairwise("fp16"),
    fp.Chunked("bf16"), fp.Exact("fp32"),
]  # fmt: skip
FORMATS = ["e4m3", "e5m2", "fp16", "bf16", "e2m1"]
ROUNDINGS = ["nearest_even", "toward_zero"]
SECONDS = 20  # the target for all of them
BUDGET_SECONDS = 30
VALUES = 1 << 22
SCALES = range(-24, 25)


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file."""
    x = np.random.default_rng(0).standard_normal(1 << 24, np.float32)
    codes = np.empty(x.shape, np.uint8)
    encode: Work = partial(fp.encode, x, fp.E4M3, out=codes)
    one: dict[str, Work] = {"fpsim": partial(_error_and_range, x), "encode": encode}
    yield RaceRow("error and range in E4M3", one, {"encode": 1 / 8})
    ten: dict[str, Work] = {"fpsim": partial(fp.analysis.compare, x, FORMATS, ROUNDINGS, None), "encode": encode}
    yield RaceRow("error of ten combinations", ten, {"encode": 1 / 25})
    terms = len(ACCUMULATORS) * TRIALS * sum(LENGTHS)
    work = partial(fp.analysis.drift, "uniform", "uniform", accumulators=ACCUMULATORS, lengths=LENGTHS, trials=TRIALS)
    yield RaceRow("drift, 10 accumulators, 8 lengths", {"fpsim": work}, {}, terms / SECONDS, terms, "term")
    x = np.random.default_rng(0).standard_normal(VALUES, np.float32) * np.float32(2.0**-14)
    contestants: dict[str, Work] = {
        "fpsim": partial(fp.analysis.underflow, x, fp.FP16, SCALES),
        "quantize per scale": partial(_brute_force, x),
    }
    yield RaceRow("underflow in FP16, 49 scales", contestants, {"quantize per scale": 2.0}, None, VALUES * len(SCALES))
    stream = [x[: 1 << 18] * np.float32(2.0**-6)] * 8
    policies = ["none", "static", "dynamic", "ema", "eager", "inverted", "norm_driven"]
    size = sum(step.size for step in stream) * len(policies)
    yield RaceRow(
        "loss scaling, 7 policies", {"fpsim": partial(fp.analysis.loss_scaling, stream, policies)}, {}, None, size
    )
    if load("torch") is not None:
        r = _recorded_transformer()
        terms = sum(math.prod(row.shape) for row in fp.analysis.budget(r, recipe="DEEPSEEK_V3").rows)
        split: Work = partial(fp.analysis.budget, r, recipe="DEEPSEEK_V3")
        yield RaceRow("budget of 27 products, 7 causes", {"fpsim": split}, {}, terms / BUDGET_SECONDS, terms, "term")


def _recorded_transformer() -> fp.analysis.Recording:
    """Record one step of 1,024 tokens of the transformer of fp.train."""
    import torch

    from fpsim.train.model import Config, Transformer

    model = Transformer(Config(vocabulary=96), seed=0)
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    with fp.analysis.record(model, keep=1, formats=(), layers=linear) as r:
        model(torch.randint(0, 96, (16, 64))).square().mean().backward()
        r.step()
    return r


def _error_and_range(x: npt.NDArray[np.float32]) -> None:
    fp.analysis.error(x, fp.E4M3)
    fp.analysis.range(x)


def _brute_force(x: npt.NDArray[np.float32]) -> list[tuple[int, ...]]:
    """Count what `underflow` counts by rounding every scaled array."""
    counts: list[tuple[int, ...]] = []
    for k in SCALES:
        scaled = x * np.float32(2.0**k)
        size = np.abs(fp.quantize(scaled, fp.FP16, overflow="saturate"))
        lost, small = int(np.count_nonzero(size == 0)), int(np.count_nonzero(size < fp.FP16.smallest_normal))
        counts.append((lost, small, int(np.count_nonzero(np.abs(scaled) >= 65520.0))))
    return counts
