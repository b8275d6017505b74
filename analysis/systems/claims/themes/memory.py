"""Claims about memory: bytes of states, checkpointing, accumulation, sharding."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from fpsim.analysis.systems.claims.claim import (
    ARITHMETIC,
    CONDITIONAL,
    DOCUMENT,
    RIGHT,
    UNSETTLED,
    V3,
    WRONG,
    Claim,
    Figures,
    near,
)
from fpsim.analysis.systems.claims.samples import normal, relative_error, wide
from fpsim.casts.cast import quantize
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.products.matmul import matmul
from fpsim.products.reduce import sum as total
from fpsim.recipes.training import FP16_DYNAMIC
from fpsim.sums.accumulators import Sequential

ZERO = "Rajbhandari et al., arXiv:1910.02054"
PARAMETERS = 1 << 24  # parameters of the model in `_bytes`: a multiple of every tile size
# FP16 weights and gradients with float32 masters and moments of Adam (ZeRO, section 3.1).
MIXED, PLAIN = "FP16_MASTERS", "FP32"
KINDS_OF_STATES = ("parameters", "gradients", "masters", "moments")


def _bytes(recipe: str, *kinds: str) -> float:
    """Return the bytes per parameter of the tensors of some kinds together, as `fp.analysis.ledger` counts them.

    recipe: name of the training recipe. kinds: kinds of tensors, such as "moments".
    """
    from fpsim.analysis.systems.memory.ledger import ledger

    counted = ledger(PARAMETERS, recipe)
    return sum(map(counted.of, kinds)) / PARAMETERS


def fp8_states() -> Figures:
    """Return the bytes per parameter that training by the recipe DEEPSEEK_V3 keeps, without and with FP8 weight copies.

    Also return the bytes per parameter of Adam in float32, the share of these that DEEPSEEK_V3 with copies saves, and
    the ratio of two published sizes, 480 GB / 120 GB. The result is a dict, name -> number.
    """
    v3, plain = _bytes("DEEPSEEK_V3", *KINDS_OF_STATES), _bytes(PLAIN, *KINDS_OF_STATES)
    copied = v3 + _bytes("DEEPSEEK_V3", "copies")
    return {
        "V3 without copy": v3, "V3 with an FP8 copy": copied, "Adam in FP32": plain, "saving": 1 - copied / plain,
        "480 / 120": 480 / 120,
    }  # fmt: skip


def checkpointing_cost() -> Figures:
    """Return the cost of recomputing the activations of 3/4 of the blocks, and of all, in the backward pass.

    A cost is additional multiplications / multiplications of a training step. Also return the share of blocks whose
    recomputation costs 20 %. The result is a dict, name -> number.
    """
    from fpsim.analysis.systems.memory.ledger import ledger
    from fpsim.train.model import Config

    deep = Config(vocabulary=1, layers=400, context=1)  # so deep that the head, which is not recomputed, is negligible
    most, all_of_it = (ledger(deep, "BF16", tokens=1, checkpointing=kept).recompute_cost for kept in (0.25, 0.0))
    return {
        "compute, 3/4 recomputed": most,
        "compute, all recomputed": all_of_it,
        "share recomputed at +20 %": 0.2 / all_of_it,
    }


def sliced_products() -> Figures:
    """Compare a BF16 product on Hopper's unit with the same product in two slices of M, of N and of K.

    Return the number of elements whose bits differ from the whole product, for slices of M and for slices of N. For
    slices of K, return whether any bits differ, and norm(difference) / norm(whole product). The result is a dict, name
    -> number or bool.
    """
    a = normal(32, 512).astype(ml_dtypes.bfloat16)
    b = normal(512, 32, seed=1).astype(ml_dtypes.bfloat16)
    unit = "hopper_bf16_f32"
    whole = matmul(a, b, accumulate=unit)
    rows = np.concatenate([matmul(a[:16], b, accumulate=unit), matmul(a[16:], b, accumulate=unit)])
    columns = np.concatenate([matmul(a, b[:, :16], accumulate=unit), matmul(a, b[:, 16:], accumulate=unit)], axis=1)
    terms = matmul(a[:, :256], b[:256], accumulate=unit) + matmul(a[:, 256:], b[256:], accumulate=unit)
    return {
        "slices of M: bits that differ": int(np.sum(rows.view(np.uint32) != whole.view(np.uint32))),
        "slices of N: bits that differ": int(np.sum(columns.view(np.uint32) != whole.view(np.uint32))),
        "slices of K: some bits differ": bool(np.any(terms.view(np.uint32) != whole.view(np.uint32))),
        "slices of K: relative difference": relative_error(terms, whole),
    }


def accumulated_batches() -> Figures:
    """Return errors of mean gradients of 4 and of 64 micro-batches, relative to the gradient of the whole batch.

    The 4 gradients are added in FP32 and in BF16, the 64 in BF16. Also return norm(sum of the 4, not divided by 4) /
    norm(gradient of the whole batch). The result is a dict, name -> number.
    """
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((1024, 64)).astype(np.float32), rng.standard_normal(1024).astype(np.float32)
    weights = rng.standard_normal(64).astype(np.float32)

    def gradient(part: slice) -> np.ndarray:
        return inputs[part].T @ (inputs[part] @ weights - targets[part]) / np.float32(len(inputs[part]))

    large = wide(gradient(slice(0, 1024)))
    parts = np.stack([gradient(slice(start, start + 256)) for start in range(0, 1024, 256)])
    many = np.stack([gradient(slice(start, start + 16)) for start in range(0, 1024, 16)])
    figures: Figures = {
        "norm without dividing by 4": float(np.linalg.norm(wide(parts).sum(axis=0)) / np.linalg.norm(large)),
        "error of 4 in FP32": relative_error(wide(total(parts, accumulate=Sequential(FP32), axis=0)) / 4, large),
    }
    for name, batches in (("4", parts), ("64", many)):
        sums = wide(total(batches, accumulate=Sequential(BF16), axis=0))
        figures[f"error of {name} in BF16"] = relative_error(sums / len(batches), large)
    return figures


def zero_stages() -> Figures:
    """Return the gigabytes per rank of the states of 7.5 billion parameters on 64 ranks, for each stage of ZeRO.

    They train by Adam in mixed precision. Also return the bytes of all states per parameter, and those of weights and
    gradients, which stage 1 keeps whole on every rank. The result is a dict, name -> number.
    """
    from fpsim.analysis.systems.memory.ledger import ledger

    parameters = 7_500_000_000
    stages = [ledger(parameters, MIXED, ranks=64, zero=stage) for stage in range(4)]
    figures: Figures = {f"GB a rank, stage {stage.zero}": round(stage.rank_bytes / 1e9, 1) for stage in stages}
    limit = _bytes(MIXED, "parameters", "gradients")  # stage 1 divides only the optimizer's states among ranks
    return {"bytes of all states": stages[0].bytes / parameters, "limit of stage 1, bytes": limit, **figures}


def resumed_training() -> Figures:
    """Return whether training resumed from a saved state has the losses of uninterrupted training, bit for bit.

    The state is saved in float32 in one case, and rounded to FP16 in the other. The result is a dict, name -> bool.
    """
    from fpsim.train.loop import Trainer
    from fpsim.train.settings import Settings

    def trainer() -> Trainer:
        return Trainer(FP16_DYNAMIC, Settings(steps=6, model="perceptron"))

    first = trainer()
    for _ in range(3):
        first.step()
    arrays, facts = first.state()
    in_fp16 = {name: quantize(x, FP16) if x.dtype == np.float32 else x for name, x in arrays.items()}
    arrays = {name: np.array(x) for name, x in arrays.items()}
    expected = [first.step()["loss"] for _ in range(3)]
    losses = {}
    for name, state in (("whole", arrays), ("in FP16", in_fp16)):
        resumed = trainer()
        resumed.load(state, facts)
        losses[name] = [resumed.step()["loss"] for _ in range(3)]
    return {
        "resumed from all float32 state, equal losses": losses["whole"] == expected,
        "resumed from FP16 copies, equal losses": losses["in FP16"] == expected,
    }


CLAIMS = (
    Claim(
        "54", "parameter-memory", "FP16 halves the memory of parameters.", "S0, S3",
        f"bytes of a parameter with Adam ({ZERO}, 3.1: 2 + 2 + 12)", CONDITIONAL,
        "It halves the memory of weights and activations. With gradient, master and Adam's moments a parameter takes "
        "16 bytes either way.",
        ARITHMETIC,
        lambda: {
            "FP16 weight over FP32 weight": _bytes(MIXED, "parameters") / _bytes(PLAIN, "parameters"),
            "bytes of all states, FP32": _bytes(PLAIN, *KINDS_OF_STATES),
            "bytes of all states, mixed": _bytes(MIXED, *KINDS_OF_STATES),
        },
        {
            "FP16 weight over FP32 weight": 0.5, "bytes of all states, FP32": 16.0, "bytes of all states, mixed": 16.0,
        },
    ),
    Claim(
        "55", "reported-savings", "ResNet-50 needs 19 GB instead of 32, 40 % less; BERT-large 58 % less.", "S0, S1",
        "arithmetic", CONDITIONAL,
        "40.6 % fits the figures, which have no source. 58 % is more than halving every value can save: something else "
        "was changed too.", ARITHMETIC,
        lambda: {
            "saving, 32 to 19 GB": 1 - 19 / 32,
            "largest saving of FP16 alone": 1 - _bytes(MIXED, "parameters") / _bytes(PLAIN, "parameters"),
        },
        {"saving, 32 to 19 GB": 0.40625, "largest saving of FP16 alone": 0.5},
    ),
    Claim(
        "56", "fp8-states", "FP8 training needs a quarter of the memory, 120 GB instead of 480.", "S2",
        f"bytes of a parameter: {V3}, 3.3.3, keeps masters and gradients in FP32, moments in BF16", WRONG,
        "A quarter holds for FP32 weights alone. V3's states take 13 bytes instead of FP32's 16, 19 % less; FP8-LM "
        "reports 39 % less.",
        ARITHMETIC, fp8_states,
        {
            "V3 without copy": 12.0, "V3 with an FP8 copy": 13.0, "Adam in FP32": 16.0, "saving": 0.1875,
            "480 / 120": 4.0,
        },
    ),
    Claim(
        "57", "checkpointing-cost", "Keeping 1/4 of the activations saves 60 % of memory for 20 % more compute.", "S0",
        "multiplications in the ledger of a transformer of 400 blocks", WRONG,
        "Recomputing 3/4 costs 25 %, recomputing all 33 %; 20 % is the cost of recomputing 60 %.", ARITHMETIC,
        checkpointing_cost,
        {
            "compute, 3/4 recomputed": near(0.25, 1e-5), "compute, all recomputed": near(1 / 3, 1e-5),
            "share recomputed at +20 %": near(0.6, 1e-5),
        },
    ),
    Claim(
        "58", "recomputation-in-v3",
        "V3 recomputes RMSNorm and the up-projection of its attention, and keeps SwiGLU's input in FP8.",
        f"{V3}, 3.2.3 and 3.3.3", "compared with the report", RIGHT,
        "The report says so; fp.train's recipe DEEPSEEK_V3_STASH keeps SwiGLU's input in FP8.", DOCUMENT,
    ),
    Claim(
        "59", "sliced-recomputation", "Tensors are recomputed in slices, by layer and by dimension (TSR).", "S4",
        "32 x 512 x 32 in BF16 on hopper_bf16_f32, whole and in halves", CONDITIONAL,
        "V3's report has no such name. Slices of M and N give the same bits; slices of K add in another order, so that "
        "bits differ.",
        experiment=sliced_products,
        expected={
            "slices of M: bits that differ": 0, "slices of N: bits that differ": 0,
            "slices of K: some bits differ": True, "slices of K: relative difference": (1e-8, 1e-6),
        },
    ),
    Claim(
        "60", "lazy-loading", "Tensors are loaded when needed, and sharded anew by the memory that is free.", "S4", "-",
        UNSETTLED, "Not in V3's report; it resembles ZeRO-3 with offloading. Nothing is claimed that can be computed.",
    ),
    Claim(
        "61", "selective-recomputation", "Activations are kept selectively, and the others recomputed.", "S4",
        f"compared with {V3}, 3.2.3", RIGHT, "In general, and in V3's report.", DOCUMENT,
    ),
    Claim(
        "62", "one-card", "67 % less memory lets 42 B parameters train on one card.", "S4",
        "bytes of 42 B parameters", WRONG,
        "Their weights alone take 84 GB in BF16, all states 672 GB. Right is that billions of parameters take tens to "
        "hundreds of GB.", ARITHMETIC,
        lambda: {
            "BF16 weights of 42 B, GB": 42 * _bytes("BF16_WEIGHTS_NEAREST", "parameters"),
            "all states of 42 B, GB": 42 * _bytes(MIXED, *KINDS_OF_STATES),
        },
        {"BF16 weights of 42 B, GB": 84.0, "all states of 42 B, GB": 672.0},
    ),
    Claim(
        "63", "accumulated-batches",
        "Gradient accumulation over 4 batches divides memory by 4, by a loop that adds gradients.", "S0, S2",
        "gradient of least squares, 1024 samples in 4 and in 64 parts, against the whole", CONDITIONAL,
        "Only activations shrink. The loop as printed lacks the division by 4. In FP32 the sum is the large batch's "
        "gradient to 1e-6, in BF16 its error grows with the parts.",
        experiment=accumulated_batches,
        expected={
            "norm without dividing by 4": near(4.0, 1e-5), "error of 4 in FP32": (0.0, 1e-6),
            "error of 4 in BF16": (1e-3, 4e-3), "error of 64 in BF16": (4e-3, 2e-2),
        },
    ),
    Claim(
        "64", "zero-stages", "ZeRO takes the memory of a parameter from 16 bytes to 4.", f"S0; {ZERO}",
        "states of 7.5 B parameters on 64 ranks: 2 bytes of weight, 2 of gradient, 12 of the optimizer", CONDITIONAL,
        "16 bytes are all states, not the parameter; 4 is the limit of stage 1 for many ranks. The paper's example is "
        "exact.", ARITHMETIC, zero_stages,
        {
            "bytes of all states": 16.0, "limit of stage 1, bytes": 4.0, "GB a rank, stage 0": 120.0,
            "GB a rank, stage 1": 31.4, "GB a rank, stage 2": 16.6, "GB a rank, stage 3": 1.9,
        },
    ),
    Claim(
        "65", "checkpoint-contents", "A mixed-precision checkpoint keeps FP32 copies as residuals.", "S2",
        "the perceptron of fp.train with FP16 and a dynamic loss scale: 3 steps, saved, 3 more", CONDITIONAL,
        "The word residual is unclear. Sound is to save float32 masters, moments, the scaler and draws: then "
        "training goes on with the same bits; from FP16 copies it does not.",
        experiment=resumed_training,
        expected={
            "resumed from all float32 state, equal losses": True, "resumed from FP16 copies, equal losses": False,
        },
    ),
    Claim(
        "66", "memory-pools", "Tiered memory pools raise utilisation from 68 to 89 %.", "S1", "-", UNSETTLED,
        "It is no claim about numbers' formats, and needs a GPU.",
    ),
    Claim(
        "67", "parameters-on-80-gb",
        "An A100 with 80 GB holds about 2 B parameters in FP32; larger batches are stabler.",
        "S3", "bytes of a parameter", CONDITIONAL,
        "Weights alone: 20 B; with Adam's states 5 B; 2 B only with large activations. That larger batches are stabler "
        "doesn't hold in general.", ARITHMETIC,
        lambda: {
            "weights alone, B": 80 / _bytes(PLAIN, "parameters"),
            "with Adam's states, B": 80 / _bytes(PLAIN, *KINDS_OF_STATES),
        },
        {"weights alone, B": 20.0, "with Adam's states, B": 5.0},
    ),
)  # fmt: skip
