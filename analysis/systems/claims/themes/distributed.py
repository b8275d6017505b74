"""Claims about distributed training: reductions, balance, kernels, fusion."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from fpsim.analysis.systems.claims.claim import (
    ARITHMETIC,
    CONDITIONAL,
    DOCUMENT,
    UNSETTLED,
    V3,
    WRONG,
    Claim,
    Figures,
    near,
)
from fpsim.analysis.systems.claims.samples import normal, relative_error, wide
from fpsim.analysis.systems.collectives.grid import grid_all_reduce
from fpsim.analysis.systems.collectives.reduction import all_reduce
from fpsim.casts.cast import quantize
from fpsim.formats.named import BF16
from fpsim.products.matmul import matmul


def two_level_all_reduce() -> Figures:
    """Return relative errors of the sums of rank 0 after BF16 all-reduces of 128 ranks by five algorithms.

    Three are schemes of `fp.analysis.collectives.grid_all_reduce` on a grid of 8 rows and 16 columns: "two_steps" (as
    published, which is no all-reduce), "rows_only" (sums of single rows), and "three_steps" (correct). The others are a
    ring and a tree over all ranks. The result is a dict, name -> number.
    """
    rng = np.random.default_rng(0)
    shared = rng.standard_normal(4096)
    gradients = quantize((shared + 0.5 * rng.standard_normal((128, 4096))).astype(np.float32), BF16)
    exact = wide(gradients).sum(axis=0)
    grids = {"as printed": "two_steps", "with its gather mended": "rows_only", "with three steps": "three_steps"}
    figures: Figures = {
        f"{name}, BF16": relative_error(grid_all_reduce(gradients, BF16, (8, 16), scheme=scheme)[0], exact)
        for name, scheme in grids.items()
    }
    for algorithm in ("ring", "tree"):
        sums = all_reduce(gradients, BF16, algorithm=algorithm)
        figures[f"one {algorithm}, BF16"] = relative_error(sums[0], exact)
    return figures


def uneven_batches() -> Figures:
    """Return relative errors of the mean gradient of batches of unequal sizes, unweighted and weighted by size.

    Errors are relative to the mean over all samples. The result is a dict, name -> number.
    """
    samples = normal(1024, 64) + np.linspace(0, 1, 1024, dtype=np.float32)[:, None]
    parts = np.split(samples, [100, 400])
    means = np.stack([wide(part).mean(axis=0) for part in parts])
    sizes = np.array([len(part) for part in parts])
    exact = wide(samples).mean(axis=0)
    return {
        "error of the mean of means": relative_error(means.mean(axis=0), exact),
        "error of the weighted mean": relative_error((means * sizes[:, None]).sum(axis=0) / sizes.sum(), exact),
    }


def reduction_dtype() -> Figures:
    """Return relative errors of the sum of 8 ranks' BF16 gradients, added in BF16 around a ring and added in float32.

    The result is a dict, name -> number.
    """
    rng = np.random.default_rng(0)
    gradients = quantize(rng.standard_normal((8, 4096)).astype(np.float32), BF16)
    exact = wide(gradients).sum(axis=0)
    return {
        "error reduced in BF16": relative_error(all_reduce(gradients, BF16, algorithm="ring")[0], exact),
        "error reduced in FP32": relative_error(gradients.sum(axis=0, dtype=np.float32), exact),
    }


def kernel_by_batch() -> Figures:
    """Compare a product of one row on Hopper's BF16 unit with that row in a batch of 64, and with four slices of K.

    Return the number of values that differ in the batch, the share that differs with slices, and the largest
    |difference| / bound with slices. The bound is K 2^-23 times the sum of |a||b| over K. The result is a dict,
    name -> number.
    """
    a, b = normal(1, 4096).astype(ml_dtypes.bfloat16), normal(4096, 256, seed=1).astype(ml_dtypes.bfloat16)
    unit = "hopper_bf16_f32"
    whole = matmul(a, b, accumulate=unit)
    sliced = np.zeros_like(whole)
    for start in range(0, 4096, 1024):
        sliced = sliced + matmul(a[:, start : start + 1024], b[start : start + 1024], accumulate=unit)
    again = matmul(np.repeat(a, 64, axis=0), b, accumulate=unit)[:1]
    bound = 4096 * 2.0**-23 * (np.abs(wide(a)) @ np.abs(wide(b)))
    return {
        "same order, batch of 64: values that differ": int(np.sum(again.view(np.uint32) != whole.view(np.uint32))),
        "four slices of K: share of values that differ": float(
            np.mean(sliced.view(np.uint32) != whole.view(np.uint32))
        ),
        "largest difference over the bound K u |a||b|": float((np.abs(wide(sliced) - wide(whole)) / bound).max()),
    }


def fused_bias() -> Figures:
    """Return relative errors of product + bias in BF16 if the bias is added before, and after, rounding the product.

    Errors are relative to the float64 sum. Also return the share of values that differ between the two. The result is a
    dict, name -> number.
    """
    sums, bias = normal(1 << 18), normal(1 << 18, seed=1)
    exact = wide(sums) + wide(bias)
    fused = quantize(sums + bias, BF16)
    apart = quantize(quantize(sums, BF16) + bias, BF16)
    return {
        "error fused": relative_error(fused, exact), "error apart": relative_error(apart, exact),
        "values that differ": float(np.mean(fused != apart)),
    }  # fmt: skip


CLAIMS = (
    Claim(
        "68", "parallel-layout", "Data, model and optimizer parallelism in layers, with tensor parallelism.", "S1",
        f"compared with {V3}, 3.2", CONDITIONAL,
        "The techniques exist; V3 trains with 16 pipeline stages, experts on 64 ranks over 8 nodes and ZeRO-1, "
        "without tensor parallelism.", DOCUMENT,
    ),
    Claim(
        "69", "two-level-all-reduce",
        "An all-reduce on an 8 x 16 grid is a reduce-scatter by rows, then an all-gather by columns.", "S1",
        "128 BF16 gradients of 4096 elements that share a mean; error of the sum that a rank ends with", WRONG,
        "It never adds the rows to each other, and shards land in wrong places; with its gather mended each rank "
        "still has 16 of 128. Right is reduce-scatter by rows, all-reduce by columns, all-gather by rows, which is "
        "more accurate than one ring. Its row_rank, rank % shape[0], is the index of a column.",
        experiment=two_level_all_reduce,
        expected={
            "as printed, BF16": (0.9, 1.1), "with its gather mended, BF16": near(112 / 128, 0.01),
            "with three steps, BF16": (2.5e-3, 4.5e-3), "one ring, BF16": (9e-3, 1.4e-2),
            "one tree, BF16": (2e-3, 3.5e-3),
        },
    ),
    Claim(
        "70", "all-reduce-time", "The grid takes an all-reduce from 120 to 45 ms.", "S1", "-", UNSETTLED,
        "No source and no set-up; it needs a cluster.", ARITHMETIC,
    ),
    Claim(
        "71", "uneven-batches", "Dynamic load balancing over V100 and A100 gains 27 %.", "S1",
        "mean gradient of batches of 100, 300 and 624 samples whose means differ", CONDITIONAL,
        "The gain has no source. Batches of different size change the result unless their gradients are weighted by "
        "their sizes.",
        experiment=uneven_batches,
        expected={"error of the mean of means": (0.2, 0.5), "error of the weighted mean": (0.0, 1e-14)},
    ),
    Claim(
        "72", "reduction-dtype", "NCCL converts precision by itself as gradients are synchronised.", "S2",
        "sum of 8 gradients of N(0, 1) in BF16, around a ring and in FP32; NCCL's API, whose calls take a data type",
        WRONG,
        "NCCL adds in the data type that it is called with; casts are the framework's, and the choice shows. V3 "
        "sends FP8 to experts with power-of-two scales, and combines in BF16.",
        experiment=reduction_dtype,
        expected={"error reduced in BF16": (2e-3, 6e-3), "error reduced in FP32": (0.0, 1e-7)},
    ),
    Claim(
        "73", "kernel-by-batch",
        "Kernels are chosen by the batch: below 32 for latency, above 1024 for throughput.", "S1",
        "a row of 4096 BF16 values times 4096 x 256 on hopper_bf16_f32: in a batch of 64, and with K in four slices",
        CONDITIONAL,
        "It changes results: another kernel may add in another order, and a row's values then depend on its batch, "
        "within the bound of rounding errors. In one order the batch changes nothing.",
        experiment=kernel_by_batch,
        expected={
            "same order, batch of 64: values that differ": 0,
            "four slices of K: share of values that differ": (0.9, 1.0),
            "largest difference over the bound K u |a||b|": (1e-6, 1.0),
        },
    ),
    Claim(
        "74", "fused-bias", "Fusing nodes saves 65 %, a fused MLP is 1.8 times as fast.", "S1",
        "2^18 sums of N(0, 1) plus biases, in BF16", CONDITIONAL,
        "The speed has no source and was not timed. The results change: fusion leaves a rounding out, and is more "
        "accurate.",
        experiment=fused_bias,
        expected={
            "error fused": near(1.66e-3, 0.05), "error apart": near(2.04e-3, 0.05), "values that differ": (0.2, 0.35),
        },
    ),
    Claim(
        "75", "node-communication", "NVLink nodes of 8 take communication from 35 to 18 %; recovery 2.3 h to 18 min.",
        "S1", "-", UNSETTLED, "No source and no set-up; it needs a cluster.", ARITHMETIC,
    ),
    Claim(
        "76", "structured-sparsity", "Structured sparsity speeds products up.", "S1", "-", UNSETTLED,
        "It is no claim about precision, and needs a GPU.",
    ),
    Claim(
        "77", "heterogeneous-chips", "FP32 on a CPU with FP16 on an FPGA gains 40 %.", "S0", "-", UNSETTLED,
        "No source and no set-up; it needs that hardware.", ARITHMETIC,
    ),
)  # fmt: skip
