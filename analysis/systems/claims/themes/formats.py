"""Claims about number formats and the hardware that multiplies them."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.measures.rounding_error import error
from fpsim.analysis.systems.claims.claim import (
    ARITHMETIC,
    CONDITIONAL,
    RIGHT,
    UNSETTLED,
    WRONG,
    Claim,
    Figures,
    around,
    near,
)
from fpsim.analysis.systems.claims.probes import gradient_error
from fpsim.analysis.systems.claims.samples import normal, sqnr_of_normal, units_of
from fpsim.casts.cast import decode, encode, quantize
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, TF32, Format
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.chips import CHIPS

A100 = "NVIDIA's A100 datasheet"
PROBE = (
    "fp.train.gradient_probe: weight gradients of a 0.33 M transformer for one batch of 1024 tokens after 120 "
    "steps in float32, against float32"
)


def fp16_range() -> Figures:
    """Return facts on FP16: its largest value, precision, codes and underflow.

    Facts on codes are the number of NaN codes, and the number of other codes that stay the same when they are decoded
    and encoded again. Facts on underflow are 2^-25 (half of the smallest positive value) rounded to FP16, and whether a
    number slightly above 2^-25 is rounded to 2^-24. Also return BF16's precision in bits. The result is a dict, name ->
    number or bool.
    """
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = decode(codes, FP16)
    back = encode(values, FP16)
    nan = np.isnan(values)
    tie = 2.0**-25
    return {
        "largest finite value": FP16.max,
        "codes that come back, NaN aside": int(np.sum(back[~nan] == codes[~nan])),
        "codes that are NaN": int(nan.sum()),
        "2^-25 becomes": float(quantize(np.float64(tie), FP16)),
        "just above 2^-25 becomes 2^-24": bool(quantize(np.float64(tie * (1 + 2.0**-20)), FP16) == 2.0**-24),
        "precision, bits": FP16.precision,
        "precision of BF16, bits": BF16.precision,
    }


def tf32_format() -> Figures:
    """Return TF32's field widths, and the SQNR of N(0, 1) values rounded and truncated to TF32.

    Also return the factor (gain) by which truncation multiplies values on average, and the A100's peak rate in TF32 /
    that in FP32. The result is a dict, name -> number.
    """
    x = normal(1024, 1024)
    return {
        "exponent bits": TF32.exponent_bits,
        "mantissa bits": TF32.mantissa_bits,
        "SQNR rounded, dB": error(x, TF32).sqnr_db,
        "SQNR cut, dB": error(x, TF32, rounding="toward_zero").sqnr_db,
        "gain of what is cut": error(x, TF32, rounding="toward_zero").gain,
        "peak of TF32 over FP32 (156 / 19.5)": 156 / 19.5,
    }


def _fp8_limits(fmt: Format) -> Figures:
    """Return facts on an FP8 format, computed from all 256 codes.

    They are the largest, the smallest positive and the smallest normal value, and the numbers of NaN codes, Inf codes
    and binades. The result is a dict, name -> number.
    """
    values = np.asarray(decode(np.arange(256, dtype=np.uint8), fmt), np.float64)
    positive = values[(values > 0) & np.isfinite(values)]
    return {
        f"{fmt} largest": float(positive.max()),
        f"{fmt} smallest": float(positive.min()),
        f"{fmt} smallest normal": fmt.smallest_normal,
        f"{fmt} NaN codes": int(np.isnan(values).sum()),
        f"{fmt} Inf codes": int(np.isinf(values).sum()),
        f"{fmt} binades": int(np.ceil(np.log2(positive.max())) - np.log2(positive.min())),
    }


def fp8_hardware() -> Figures:
    """Return the names of the FP8 formats that Hopper's units multiply, and the number of Ampere's FP8 units.

    The result is a dict, name -> number or string.
    """
    hopper = {str(unit.a.fmt) for unit in units_of("hopper", E4M3, E5M2)}
    ampere = len(units_of("ampere", E4M3, E5M2))
    return {"FP8 formats of Hopper": " ".join(sorted(hopper)), "FP8 units of Ampere": ampere}


def capability_dispatch() -> Figures:
    """Return the compute capabilities of chips with FP8 units, and those that the test `major >= 9` wrongly excludes.

    Also return the fraction bits that six matrix units keep in their sums: FP8 units of Ada, Hopper and Blackwell, and
    FP16 units of Hopper, Ampere and Volta. The result is a dict, name -> number or string.
    """
    capabilities = {chip.capability: chip.arch for chip in CHIPS.values() if chip.capability is not None}
    able = sorted(capability for capability, arch in capabilities.items() if units_of(arch, E4M3, E5M2))
    missed = [capability for capability in able if capability[0] < 9]
    bits = {unit.name: unit.fraction_bits for unit in units()}
    return {
        "capabilities with FP8 units": " ".join(f"{major}.{minor}" for major, minor in able),
        "missed by major >= 9": " ".join(f"{major}.{minor}" for major, minor in missed),
        "fraction bits, Ada FP8": bits["ada_e4m3_f32"],
        "fraction bits, Hopper FP8": bits["hopper_e4m3_f32"],
        "fraction bits, Hopper FP16": bits["hopper_f16_f32"],
        "fraction bits, Ampere FP16": bits["ampere_f16_f32"],
        "fraction bits, Volta FP16": bits["volta_f16_f32"],
        "fraction bits, Blackwell FP8": bits["blackwell_e4m3_f32"],
    }


CLAIMS = (
    Claim(
        "1", "fp16-range", "FP16 reaches only +-65504, and has a higher precision (than BF16).", "S3, S4",
        "all 65,536 codes decoded and encoded again; values around half of the smallest subnormal", RIGHT,
        "11 bits of precision; the smallest normal value is 2^-14, the smallest subnormal 2^-24, and 2^-25 ties to 0.",
        experiment=fp16_range,
        expected={
            "largest finite value": 65504.0, "codes that come back, NaN aside": 65536 - 2046,
            "codes that are NaN": 2046, "2^-25 becomes": 0.0, "just above 2^-25 becomes 2^-24": True,
            "precision, bits": 11, "precision of BF16, bits": 8,
        },
    ),
    Claim(
        "2", "bf16-range", "BF16 has a 16-bit dynamic range: 3.4e38 against FP16's 65504.", "S0",
        "limits of the formats", CONDITIONAL,
        "The range is right: it is FP32's, with 8 exponent bits. There is no such thing as a 16-bit range.",
        experiment=lambda: {
            "largest BF16": BF16.max, "largest FP16": FP16.max, "exponent bits of BF16": BF16.exponent_bits,
            "exponent bits of FP32": FP32.exponent_bits,
            "binades of normal BF16 values": int(np.log2(BF16.max) // 1 - np.log2(BF16.smallest_normal)) + 1,
        },
        expected={
            "largest BF16": near(3.39e38, 1e-3), "largest FP16": 65504.0, "exponent bits of BF16": 8,
            "exponent bits of FP32": 8, "binades of normal BF16 values": 254,
        },
    ),
    Claim(
        "3", "bf16-precision", "BF16 is like FP16 with a higher precision.", "S4", "SQNR of 2^20 values of N(0, 1)",
        WRONG, "BF16 has 8 bits of precision and FP16 11: 18 dB less.", experiment=lambda: sqnr_of_normal(BF16, FP16),
        expected={"SQNR in BF16, dB": around(55.6, 0.1), "SQNR in FP16, dB": around(73.65, 0.1)},
    ),
    Claim(
        "4", "bf16-against-fp16",
        "BF16 comes with MI200 and Hopper, and loses 60 % less accuracy than FP16.", "S0", PROBE, WRONG,
        "The A100 multiplies BF16. FP16 with loss scaling has gradients several times as accurate; BF16 wins only "
        "where FP16 is used without a scale and gradients are small.",
        experiment=lambda: {
            "BF16 units of Ampere": len(units_of("ampere", BF16)),
            "gradient error, BF16": gradient_error("BF16"),
            "gradient error, FP16 with dynamic loss scaling": gradient_error("FP16_DYNAMIC"),
            "gradient error, FP16 unscaled": gradient_error("FP16_UNSCALED"),
            "gradient error, BF16, loss x 2^-12": gradient_error("BF16", "loss_2^-12"),
            "gradient error, FP16 unscaled, loss x 2^-12": gradient_error("FP16_UNSCALED", "loss_2^-12"),
        },
        expected={
            "BF16 units of Ampere": 1, "gradient error, BF16": (2e-3, 6e-3),
            "gradient error, FP16 with dynamic loss scaling": (3e-4, 9e-4),
            "gradient error, FP16 unscaled": (1e-3, 6e-3), "gradient error, BF16, loss x 2^-12": (2e-3, 6e-3),
            "gradient error, FP16 unscaled, loss x 2^-12": (0.9, 1.1),
        },
    ),
    Claim(
        "5", "tf32-format", "TF32 is like FP16, and 3 times as fast as FP32 on the A100.", "S3",
        f"TF32's fields; 2^20 values of N(0, 1) rounded, and cut as tensor cores do with operands; peaks of {A100}",
        CONDITIONAL,
        "It has the precision of FP16 and the range of FP32. The ratio of peaks is 8; 3 can be the gain of a whole "
        "workload, which is not measured here.",
        experiment=tf32_format,
        expected={
            "exponent bits": 8, "mantissa bits": 10, "SQNR rounded, dB": around(73.65, 0.1),
            "SQNR cut, dB": around(67.64, 0.1), "gain of what is cut": (0.9990, 0.9999),
            "peak of TF32 over FP32 (156 / 19.5)": 8.0,
        },
    ),
    Claim(
        "6", "fp8-table", "FP8 has 8 bits, is cheaper, and risky.", "S2, S3, S4",
        "all 256 codes of both formats against the tables of OCP's OFP8 specification 1.0", RIGHT,
        "The risk is the range: 18 binades in E4M3, which has no Inf, and 32 in E5M2.",
        experiment=lambda: {"bits": E4M3.bits, **_fp8_limits(E4M3), **_fp8_limits(E5M2)},
        expected={
            "bits": 8,
            "E4M3 largest": 448.0, "E4M3 smallest": 2.0**-9, "E4M3 smallest normal": 2.0**-6, "E4M3 NaN codes": 2,
            "E4M3 Inf codes": 0, "E4M3 binades": 18,
            "E5M2 largest": 57344.0, "E5M2 smallest": 2.0**-16, "E5M2 smallest normal": 2.0**-14,
            "E5M2 NaN codes": 6, "E5M2 Inf codes": 2, "E5M2 binades": 32,
        },
    ),
    Claim(
        "7", "one-fp8-format", "E4M3 everywhere replaces E4M3 forward with E5M2 backward.",
        "S4; DeepSeek-V3, arXiv:2412.19437, 3.3.2", f"{PROBE}; scales of 1x128 and 128x128", RIGHT,
        "With fine scales the mantissa is worth more than the exponent.",
        experiment=lambda: {
            "E4M3 everywhere": gradient_error("DEEPSEEK_V3"),
            "E5M2 gradients": gradient_error("DEEPSEEK_V3_E5M2_GRADS"),
            "E5M2 everywhere": gradient_error("DEEPSEEK_V3_E5M2"),
        },
        expected={
            "E4M3 everywhere": (0.03, 0.05), "E5M2 gradients": (0.045, 0.06), "E5M2 everywhere": (0.06, 0.1),
        },
    ),
    Claim(
        "8", "fp8-hardware", "Hopper has full FP8 in E4M3, Ampere has partial FP8.", "S2",
        "fp.units(): instructions of each family", CONDITIONAL,
        "Hopper multiplies E4M3, E5M2 and both mixed. Ampere has no FP8 instruction: FP8 there is storage.",
        experiment=fp8_hardware, expected={"FP8 formats of Hopper": "E4M3 E5M2", "FP8 units of Ampere": 0},
    ),
    Claim(
        "9", "capability-dispatch",
        "A compute capability with major >= 9 means FP8, and the check is conditional compilation.", "S2",
        "fp.units() and the table of chips: which capabilities have FP8 instructions", CONDITIONAL,
        "It is dispatch at run time, and it misses Ada (8.9). Accumulators differ too: 13 fraction bits for FP8 on Ada "
        "and Hopper, 25 on Blackwell.",
        experiment=capability_dispatch,
        expected={
            "capabilities with FP8 units": "8.9 9.0 10.0 10.3", "missed by major >= 9": "8.9",
            "fraction bits, Ada FP8": 13, "fraction bits, Hopper FP8": 13, "fraction bits, Hopper FP16": 25,
            "fraction bits, Ampere FP16": 24, "fraction bits, Volta FP16": 23, "fraction bits, Blackwell FP8": 25,
        },
    ),
    Claim(
        "10", "hopper-fp8",
        "Hopper multiplies FP8 in hardware; FP8 is the default of the DGX H100, and of 80 % of clusters by 2025.",
        "S2", "fp.units(): FP8 units that were compared with the chip's output", CONDITIONAL,
        "The hardware does. FP8 is chosen by the user in every framework, and the share of clusters is a forecast "
        "without a source.",
        experiment=lambda: {
            "E4M3 units of Hopper that were compared with the chip": sum(
                unit.evidence == "hardware" for unit in units_of("hopper", E4M3)
            ),
        },
        expected={"E4M3 units of Hopper that were compared with the chip": (1, 16)},
    ),
    Claim(
        "11", "fp32-latency", "An FP32 multiplication takes 2 to 3 times as long as one in FP16.", "S0",
        "latency of instructions", UNSETTLED,
        "It needs a GPU. The gain that is documented is in throughput and bandwidth, not in latency.", ARITHMETIC,
    ),
    Claim(
        "12", "tensor-core-peaks", "Tensor cores make FP16 8 times as fast (S0), or 2 to 8 times (S3).", "S0, S3",
        f"arithmetic with peaks in TFLOPS of the V100's datasheet and of {A100}", RIGHT,
        "It is the ratio of the V100's peaks; the ratio of the A100's is 16. Nothing was timed.",
        ARITHMETIC, lambda: {"V100 (125 / 15.7)": 125 / 15.7, "A100 (312 / 19.5)": 312 / 19.5},
        {"V100 (125 / 15.7)": around(8, 0.1), "A100 (312 / 19.5)": 16.0},
    ),
    Claim(
        "13", "bytes-by-format", "FP32 is large and slow, FP16 fast, FP8 fastest.", "S4", "bytes of a value", RIGHT,
        "This holds for sizes; speed was not measured.", ARITHMETIC,
        lambda: {f"bytes in {fmt}": fmt.bits / 8 for fmt in (FP32, FP16, E4M3)},
        {"bytes in FP32": 4.0, "bytes in FP16": 2.0, "bytes in E4M3": 1.0},
    ),
)  # fmt: skip
