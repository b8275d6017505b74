"""Claims about cost, speed and energy: only the arithmetic is checked, nothing is timed."""

from __future__ import annotations

from fpsim.analysis.systems.claims.claim import (
    ARITHMETIC,
    CONDITIONAL,
    RIGHT,
    UNSETTLED,
    V3,
    WRONG,
    Claim,
    Figures,
    around,
    near,
)
from fpsim.analysis.systems.claims.samples import units_of
from fpsim.formats.named import BF16, E4M3, E5M2


def bert_cost() -> Figures:
    """Return GPU-hours of 16 V100 for 72 h and of 8 A100 for 30 h, and the savings of hours and of electricity costs.

    Savings are shares of the V100's hours and costs. Electricity costs $0.1875 per GPU-hour of a V100 and $0.375 per
    GPU-hour of an A100. The result is a dict, name -> number.
    """
    before, after = 16 * 72, 8 * 30
    return {
        "GPU-hours before": before, "GPU-hours after": after, "fall of GPU-hours": 1 - after / before,
        "fall of the electricity, $0.1875 and $0.375 a GPU-hour": 1 - after * 0.375 / (before * 0.1875),
    }  # fmt: skip


def autocast() -> Figures:
    """Return the result dtypes of a matrix product and a layer norm under torch.autocast in BF16 on the CPU.

    The result is a dict, name -> string.
    """
    import torch

    x = torch.ones(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product, norm = x @ x, torch.nn.functional.layer_norm(x, (4,))
    return {"a product's dtype": str(product.dtype), "a norm's dtype": str(norm.dtype)}


CLAIMS = (
    Claim(
        "84", "gpt3-cost", "Training GPT-3 takes 355 GPU-years and 12 M$.", "S0", "arithmetic", CONDITIONAL,
        "Two estimates circulate, 4.6 and 12 M$; 355 V100-years go with the first, at $1.48 an hour, and are $3.86 an "
        "hour with the second.", ARITHMETIC,
        lambda: {
            "million GPU-hours": 355 * 365 * 24 / 1e6, "$ an hour at 12 M": 12e6 / (355 * 365 * 24),
            "$ an hour at 4.6 M": 4.6e6 / (355 * 365 * 24),
        },
        {
            "million GPU-hours": around(3.11, 0.01), "$ an hour at 12 M": around(3.86, 0.01),
            "$ an hour at 4.6 M": around(1.48, 0.01),
        },
    ),
    Claim(
        "85", "trillion-parameters", "1 T parameters in FP32 are 4 TB and need 800 A100.", "S0", "arithmetic", WRONG,
        "4 TB is right: 50 cards of 80 GB for weights, 200 for all states of training; 800 follows from neither.",
        ARITHMETIC,
        lambda: {
            "TB in FP32": 4.0 * 1e12 / 1e12, "cards for weights": 4e12 / 80e9,
            "cards for 16 bytes a parameter": 16e12 / 80e9,
        },
        {"TB in FP32": 4.0, "cards for weights": 50.0, "cards for 16 bytes a parameter": 200.0},
    ),
    Claim(
        "86", "sample-rate", "120 to 280 samples a second are 2.33 times as many.", "S0", "arithmetic", UNSETTLED,
        "The arithmetic is right; the rates have no source, and were not timed.", ARITHMETIC,
        lambda: {"280 / 120": 280 / 120}, {"280 / 120": around(2.33, 0.005)},
    ),
    Claim(
        "87", "bert-cost", "BERT on 16 V100 takes 72 h, in mixed precision on 8 A100 30 h.", "S0", "arithmetic",
        CONDITIONAL,
        "It compares GPU generations, not precisions. GPU-hours fall by 79 %, the electricity stated by 58 %, since "
        "its price a GPU-hour doubles.", ARITHMETIC, bert_cost,
        {
            "GPU-hours before": 1152, "GPU-hours after": 240, "fall of GPU-hours": around(0.79, 0.005),
            "fall of the electricity, $0.1875 and $0.375 a GPU-hour": around(0.58, 0.005),
        },
    ),
    Claim(
        "88", "detection-cost", "3D detection falls from 120 to 30 thousand dollars.", "S0", "arithmetic", UNSETTLED,
        "At $5.58 a GPU-hour both fit; the factor 4 is half the GPUs for half the time. No source, nothing was timed.",
        ARITHMETIC,
        lambda: {
            "120 / 30": 120 / 30, "half the GPUs, half the time": 2 * 2, "GPU-hours at $5.58, thousands": 120 / 5.58,
        },
        {
            "120 / 30": 4.0, "half the GPUs, half the time": 4,
            "GPU-hours at $5.58, thousands": around(21.5, 0.05),
        },
    ),
    Claim(
        "89", "card-table", "A100 and H100 gain 2.8 times, the A100 with 80 GB 3.2, the T4 1.8.", "S0",
        "arithmetic: fp.units()", UNSETTLED, "No source, and it needs those cards. The T4 has no BF16.", ARITHMETIC,
        lambda: {"BF16 units of Turing": len(units_of("turing", BF16))}, {"BF16 units of Turing": 0},
    ),
    Claim(
        "90", "a100-speedup", "R1 with 175 B parameters on 256 A100: FP8 takes 12.4 to 28.9 TFLOPS, in 120 GB.", "S2",
        "arithmetic; fp.units()", WRONG,
        "R1 has 671 B parameters and was trained on H800; the A100 has no FP8. 12.4 is 4 % of its BF16 peak, and 175 "
        "B in FP8 take 175 GB.", ARITHMETIC,
        lambda: {
            "28.9 / 12.4": 28.9 / 12.4, "12.4 over the A100's BF16 peak, 312": 12.4 / 312,
            "FP8 units of Ampere": len(units_of("ampere", E4M3, E5M2)), "GB of 175 B in FP8": 175 * E4M3.bits / 8,
        },
        {
            "28.9 / 12.4": around(2.33, 0.005), "12.4 over the A100's BF16 peak, 312": around(0.04, 0.001),
            "FP8 units of Ampere": 0, "GB of 175 B in FP8": 175.0,
        },
    ),
    Claim(
        "91", "throughput-and-time", "2.3 times the throughput, 58 % less time, 60 % less cost.", "S2", "arithmetic",
        UNSETTLED,
        "No source. 2.3 times are 57 % less time, 58 % are 2.4 times; V3 states 2 times as the theory's limit.",
        ARITHMETIC,
        lambda: {
            "time saved at 2.3 times the throughput": 1 - 1 / 2.3, "throughput of 58 % less time": 1 / (1 - 0.58),
        },
        {
            "time saved at 2.3 times the throughput": around(0.565, 0.001),
            "throughput of 58 % less time": around(2.38, 0.005),
        },
    ),
    Claim(
        "92", "bleu-loss", "BLEU falls by 0.3 from 28.7.", "S2", "arithmetic", UNSETTLED,
        "No source; it is 1 % of the score. fp.train.compare gives such differences with intervals over seeds.",
        ARITHMETIC, lambda: {"0.3 / 28.7": 0.3 / 28.7}, {"0.3 / 28.7": around(0.01045, 1e-5)},
    ),
    Claim(
        "93", "v3-cost", "V3 went from 4096 to 2048 GPUs, 45 to 18 days, 12 to 7.2 MW.", "S3",
        f"arithmetic with {V3}, table 1: 2048 H800, 2664 K hours of pre-training, 2788 K in all at $2", WRONG,
        "It trained on 2048 H800 for 54 days, at 5.576 M$ in all. 3.5 kW a GPU is implausible for cards of 0.7 kW.",
        ARITHMETIC,
        lambda: {
            "days of 2664 K hours on 2048 GPUs": 2664e3 / 2048 / 24, "M$ of 2788 K hours at $2": 2.788 * 2,
            "kW a GPU, 12 MW / 4096": 12e3 / 4096, "kW a GPU, 7.2 MW / 2048": 7.2e3 / 2048,
        },
        {
            "days of 2664 K hours on 2048 GPUs": around(54.2, 0.05), "M$ of 2788 K hours at $2": near(5.576, 1e-9),
            "kW a GPU, 12 MW / 4096": around(2.93, 0.01), "kW a GPU, 7.2 MW / 2048": around(3.52, 0.01),
        },
    ),
    Claim(
        "94", "gpt4-cost", "GPT-4 cost 63 M$ at a utilisation below 35 %.", "S3", "-", UNSETTLED,
        "A leak without a publication behind it.", ARITHMETIC,
    ),
    Claim(
        "95", "energy-halved", "Energy falls by 50 %, days become one day, start-up cost halves.", "S3", "-", UNSETTLED,
        "No source and no set-up; nothing was timed.", ARITHMETIC,
    ),
    Claim(
        "96", "speed-by-43-percent", "FP8 makes training 43 % faster.", "S4", "-", UNSETTLED,
        "No source. Published gains over BF16 are 34 % (Fishman et al., arXiv:2409.12517), 75 % (FP8-LM) and up to "
        "50 % (torchao, 512 GPUs); they need GPUs.", ARITHMETIC,
    ),
    Claim(
        "97", "chip-choice", "A100 or H100 is a choice of precisions; Hopper comes first for FP8.", "S2, S3",
        "fp.units()", RIGHT, "Hopper multiplies FP8, Ampere does not.", ARITHMETIC,
        lambda: {f"{name} has FP8 units": bool(units_of(name.lower(), E4M3, E5M2)) for name in ("Ampere", "Hopper")},
        {"Ampere has FP8 units": False, "Hopper has FP8 units": True},
    ),
    Claim(
        "98", "autocast", "PyTorch has autocast; TensorFlow picks the best format automatically.", "S3",
        "dtypes under torch.autocast on the CPU; Keras's documentation of mixed_precision", CONDITIONAL,
        "autocast chooses by operation among float32 and the dtype that the user names, and Keras's policy is named "
        "by the user too: nothing looks for the best.",
        experiment=autocast, expected={"a product's dtype": "torch.bfloat16", "a norm's dtype": "torch.float32"},
    ),
)  # fmt: skip
