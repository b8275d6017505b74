"""Claims about quantised inference and the files of checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import ARITHMETIC, CONDITIONAL, DOCUMENT, RIGHT, WRONG, Claim, Figures, around
from fpsim.analysis.systems.claims.samples import normal, wide
from fpsim.casts.cast import decode
from fpsim.formats.named import E4M3
from fpsim.scaling.recipes import BLOCK_128X128, TENSOR, TILE_1X128
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling

GRANULARITIES = {"1x32": Scaling(block=(1, 32)), "1x128": TILE_1X128, "tensor": TENSOR}


def int8_inference() -> Figures:
    """Return the SQNR of N(0, 1) data (1024, 1024) in INT8 and E4M3 with a scale for each 1x128 tile, in dB.

    Also return, for both formats, the median over channels (columns) of each channel's SQNR if every 32nd channel is
    100 times larger, so that each tile holds four outliers. The result is a dict, name -> number.
    """
    x = normal(1024, 1024)
    outliers = x.copy()
    outliers[:, ::32] *= 100
    figures: Figures = {}
    for name, fmt in (("INT8", "int8"), ("E4M3", "e4m3")):
        figures[f"{name} 1x128, dB"] = error(x, fmt, scaling=TILE_1X128).sqnr_db
        parts = error(outliers, fmt, scaling=TILE_1X128, axis=1).parts
        assert parts is not None
        figures[f"{name} 1x128, median channel beside outliers, dB"] = float(np.median(parts["sqnr_db"]))
    return figures


def four_bits() -> Figures:
    """Return the SQNR of N(0, 1) data in INT4 and E2M1, with float32 scales of three granularities.

    There is a scale for each 1x32 tile, for each 1x128 tile, or one for all elements. The result is a dict, name ->
    number.
    """
    x = normal(1024, 1024)
    return {
        f"{name} {grain}, dB": error(x, fmt, scaling=scaling).sqnr_db
        for grain, scaling in GRANULARITIES.items()
        for name, fmt in (("INT4", "int4"), ("E2M1", "e2m1"))
    }


def block_scales() -> Figures:
    """Encode a 256x384 array with a scale for each 128x128 tile; return its number of scales, and two error counts.

    One is the number of decoded values that differ from code times scale, the other the number of decoded values that
    change when the encoded array is saved to a file and loaded. The result is a dict, name -> number.
    """
    weights = normal(256, 384)
    scaled = encode_scaled(weights, E4M3, BLOCK_128X128)
    spread = np.repeat(np.repeat(scaled.scales, 128, axis=0), 128, axis=1)
    product = decode(scaled.codes, E4M3) * spread
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        scaled.save(path)
        read = Scaled.load(path)
    return {
        "scales of 256x384": scaled.scales.size,
        "values that differ from code x scale": int(np.sum(product != scaled.decode())),
        "values that differ after a file": int(np.sum(wide(read.decode()) != wide(scaled.decode()))),
    }


CLAIMS = (
    Claim(
        "99", "int8-inference", "INT8 inference through TensorRT.", "S2",
        "2^20 values of N(0, 1) in 1x128 tiles; the same with one channel in 32 times 100", RIGHT,
        "TensorRT is NVIDIA's tool for it. INT8 has 12 dB more than E4M3 on normal data; with outlier channels E4M3 "
        "keeps the other channels and INT8 does not.",
        experiment=int8_inference,
        expected={
            "INT8 1x128, dB": around(43.8, 0.2), "E4M3 1x128, dB": around(31.8, 0.2),
            "INT8 1x128, median channel beside outliers, dB": (-2.0, 12.0),
            "E4M3 1x128, median channel beside outliers, dB": (29.0, 33.0),
        },
    ),
    Claim(
        "100", "ascend-tensorrt",
        "TensorRT makes INT8 3.7 times as fast on an Ascend 910, for less than 1 % of accuracy.",
        "S2", "compared with TensorRT's documentation, which names NVIDIA GPUs alone", WRONG,
        "TensorRT runs on NVIDIA's GPUs only, so that the figure can't be of it.", DOCUMENT,
    ),
    Claim(
        "101", "four-bits", "Dynamic 4-bit quantisation makes models mobile.", "S2",
        "2^20 values of N(0, 1), float32 scales of amax / max", CONDITIONAL,
        "No source. On normal data INT4 has a higher SQNR than E2M1 for blocks of 32 and a lower one for blocks of "
        "128; one scale for a tensor costs INT4 7 dB.",
        experiment=four_bits,
        expected={
            "INT4 1x32, dB": around(20.3, 0.2), "E2M1 1x32, dB": around(19.9, 0.2),
            "INT4 1x128, dB": around(18.6, 0.2), "E2M1 1x128, dB": around(19.3, 0.2),
            "INT4 tensor, dB": around(13.4, 0.6), "E2M1 tensor, dB": around(17.2, 0.6),
        },
    ),
    Claim(
        "102", "fp8-tools", "torch.fx and TFLite are the tools of FP8 training.", "S2",
        "compared with the documentation of both, which quantise to integers for inference", WRONG,
        "Transformer Engine, torchao and DeepGEMM are.", DOCUMENT,
    ),
    Claim(
        "103", "block-scales", "The model is released in three precisions.", "S2",
        "256 x 384 weights in E4M3 with 128x128 blocks, saved and read", CONDITIONAL,
        "V3's release has E4M3 weights, blocks of 128x128 and a weight_scale_inv to multiply by; V3.1's scales are "
        "UE8M0. Values are codes times scales, exactly.",
        experiment=block_scales,
        expected={
            "scales of 256x384": 6, "values that differ from code x scale": 0, "values that differ after a file": 0,
        },
    ),
    Claim(
        "104", "model-size", "R1 needs hundreds of GB for a forward pass; costs fall by 50 % at 99 % of the accuracy.",
        "S0, S2, S3", "arithmetic", CONDITIONAL,
        "671 GB of FP8 weights: the right order. Cost and accuracy have neither source nor condition, and NVIDIA has "
        "no unit called Matrix Engine (S3).", ARITHMETIC,
        lambda: {"GB of 671 B weights in FP8": 671 * E4M3.bits / 8}, {"GB of 671 B weights in FP8": 671.0},
    ),
)  # fmt: skip
