"""NVIDIA's matrix units, one table row each; docs/matrix-units.md explains the columns.

L: terms of K that one instruction adds. F: fraction bits kept below the largest exponent. floor: the smallest exponent
to which terms are aligned, -131 - (F - 23) for float32 results and -19 - (F - 23) for float16 ones, with the F of the
chip's FP16 unit; -139 for GROUPED. bits: mantissa bits of the result; Ada's and Hopper's FP8 units keep 13 of a
float32's 23.

Names of sources in the table: K is Khattak and Mikaitis, arXiv:2512.07004, whose data of real GPUs
(north-numerical-computing/MATLAB-tensor-core) decide what is marked "hardware"; M is mmasim 2.1.1 (Xie,
arXiv:2511.10909v2); KR is K with recordings of real GPUs that mmaemu, another emulator, has; E is K and an issue of
CUTLASS, for FP8 instructions that compilers build from FP16 ones.
"""

from __future__ import annotations

from itertools import product

from fpsim.matrix_units.matrix_unit import Rule, row

M = "mmasim 2.1.1 (arXiv:2511.10909)"
K = "Khattak and Mikaitis (arXiv:2512.07004), mmasim 2.1.1"
KR = f"{K}; mmaemu 0.1.0 (recordings of an RTX 4060, all pairs, and an H100)"
E = "Khattak and Mikaitis (arXiv:2512.07004), CUTLASS issue 1986"

FUSED, SCALED, GROUPED, TWO_PASSES, EXACT = Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES, Rule.EXACT

MMA_F16 = "mma.m16n8k8, mma.m16n8k16"
WGMMA_F16 = "wgmma k16, mma.m16n8k16"
TCGEN05_F16 = "tcgen05.mma kind::f16, mma.m16n8k16"
MMA_FP8 = "mma.m16n8k16, mma.m16n8k32"
WGMMA_FP8 = "wgmma k32"
BUILT = "mma.m16n8k32, which the compiler builds from FP16 steps"
F8F6F4 = "tcgen05.mma kind::f8f6f4, mma kind::f8f6f4 of sm_120"
MX = "tcgen05.mma, mma of sm_120: kind::mxf8f6f4"
MXF4 = "tcgen05.mma, mma of sm_120: kind::mxf4"
MXF4X4 = "tcgen05.mma, mma of sm_120: kind::mxf4nvf4, scale_vec::4X, ue8m0"
NVF4 = "tcgen05.mma, mma of sm_120: kind::mxf4nvf4, scale_vec::4X, ue4m3"

FP8, SMALL = {"e4m3", "e5m2"}, ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
PAIRS = tuple(product(SMALL, SMALL))  # of operands


def _pair(a: str, b: str) -> str:
    """Return the part of a unit's name that states the formats of its operands: "e4m3", or "e4m3xe5m2"."""
    return a if a == b else f"{a}x{b}"


# fmt: off
UNITS = (
    # FP16, BF16 and TF32. The data of real Hopper and Blackwell chips hold four products of TF32 a row, so that the 8
    # terms of a step are simulated.
    #   name                  a b d            rule     L  F floor bits  evidence     from instruction
    row("volta_f16_f32",      "f16 f16 f32",   FUSED, " 4 23 -131 23", "hardware",  K, "mma.m8n8k4"),
    row("turing_f16_f32",     "f16 f16 f32",   FUSED, " 8 24 -132 23", "simulated", M, "mma.m16n8k8"),
    row("ampere_f16_f32",     "f16 f16 f32",   FUSED, " 8 24 -132 23", "hardware",  K, MMA_F16),
    row("ada_f16_f32",        "f16 f16 f32",   FUSED, " 8 24 -132 23", "hardware",  K, MMA_F16),
    row("hopper_f16_f32",     "f16 f16 f32",   FUSED, "16 25 -133 23", "hardware",  K, WGMMA_F16),
    row("blackwell_f16_f32",  "f16 f16 f32",   FUSED, "16 25 -133 23", "hardware",  K, TCGEN05_F16),
    row("volta_f16_f16",      "f16 f16 f16",   FUSED, " 4 23  -19 10", "hardware",  K, "mma.m8n8k4"),
    row("turing_f16_f16",     "f16 f16 f16",   FUSED, " 8 24  -20 10", "simulated", M, "mma.m16n8k8"),
    row("ampere_f16_f16",     "f16 f16 f16",   FUSED, " 8 24  -20 10", "hardware",  K, MMA_F16),
    row("ada_f16_f16",        "f16 f16 f16",   FUSED, " 8 24  -20 10", "hardware",  K, MMA_F16),
    row("hopper_f16_f16",     "f16 f16 f16",   FUSED, "16 25  -21 10", "hardware",  K, WGMMA_F16),
    row("blackwell_f16_f16",  "f16 f16 f16",   FUSED, "16 25  -21 10", "hardware",  K, TCGEN05_F16),
    row("ampere_bf16_f32",    "bf16 bf16 f32", FUSED, " 8 24 -132 23", "hardware",  K, "mma bf16"),
    row("ampere_tf32_f32",    "tf32 tf32 f32", FUSED, " 4 24 -132 23", "hardware",  K, "mma tf32"),
    row("ada_bf16_f32",       "bf16 bf16 f32", FUSED, " 8 24 -132 23", "hardware",  K, "mma bf16"),
    row("ada_tf32_f32",       "tf32 tf32 f32", FUSED, " 4 24 -132 23", "hardware",  K, "mma tf32"),
    row("hopper_bf16_f32",    "bf16 bf16 f32", FUSED, "16 25 -133 23", "hardware",  K, "wgmma, mma bf16"),
    row("hopper_tf32_f32",    "tf32 tf32 f32", FUSED, " 8 25 -133 23", "hardware",  K, "wgmma, mma tf32"),
    row("blackwell_bf16_f32", "bf16 bf16 f32", FUSED, "16 25 -133 23", "hardware",  K, "tcgen05.mma, mma bf16"),
    row("blackwell_tf32_f32", "tf32 tf32 f32", FUSED, " 8 25 -133 23", "hardware",  K, "tcgen05.mma, mma tf32"),

    # FP8. Only of Ada to f32 are there data of mixed operands. What is named mma is no instruction of the hardware.
    #   name                           a b d            rule          L  F floor bits  evidence     from instruction
    row("ada_e4m3_f32",                "e4m3 e4m3 f32", FUSED,      "16 13 -132 13", "hardware",  KR, MMA_FP8),
    row("hopper_e4m3_f32",             "e4m3 e4m3 f32", FUSED,      "32 13 -133 13", "hardware",  KR, WGMMA_FP8),
    row("hopper_mma_e4m3_f32",         "e4m3 e4m3 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("blackwell_mma_e4m3_f32",      "e4m3 e4m3 f32", TWO_PASSES, "32 25 -133 23", "hardware",  E,  BUILT),
    row("ada_e4m3_f16",                "e4m3 e4m3 f16", FUSED,      "16 13  -20 10", "hardware",  K,  MMA_FP8),
    row("hopper_e4m3_f16",             "e4m3 e4m3 f16", FUSED,      "32 13  -21 10", "simulated", K,  WGMMA_FP8),
    row("hopper_mma_e4m3_f16",         "e4m3 e4m3 f16", TWO_PASSES, "32 25  -21 10", "hardware",  E,  BUILT),
    row("blackwell_mma_e4m3_f16",      "e4m3 e4m3 f16", TWO_PASSES, "32 25  -21 10", "hardware",  E,  BUILT),
    row("ada_e4m3xe5m2_f32",           "e4m3 e5m2 f32", FUSED,      "16 13 -132 13", "hardware",  KR, MMA_FP8),
    row("hopper_e4m3xe5m2_f32",        "e4m3 e5m2 f32", FUSED,      "32 13 -133 13", "simulated", KR, WGMMA_FP8),
    row("hopper_mma_e4m3xe5m2_f32",    "e4m3 e5m2 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("blackwell_mma_e4m3xe5m2_f32", "e4m3 e5m2 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("ada_e4m3xe5m2_f16",           "e4m3 e5m2 f16", FUSED,      "16 13  -20 10", "simulated", K,  MMA_FP8),
    row("hopper_e4m3xe5m2_f16",        "e4m3 e5m2 f16", FUSED,      "32 13  -21 10", "simulated", K,  WGMMA_FP8),
    row("hopper_mma_e4m3xe5m2_f16",    "e4m3 e5m2 f16", TWO_PASSES, "32 25  -21 10", "inferred",  E,  BUILT),
    row("blackwell_mma_e4m3xe5m2_f16", "e4m3 e5m2 f16", TWO_PASSES, "32 25  -21 10", "inferred",  E,  BUILT),
    row("ada_e5m2xe4m3_f32",           "e5m2 e4m3 f32", FUSED,      "16 13 -132 13", "hardware",  KR, MMA_FP8),
    row("hopper_e5m2xe4m3_f32",        "e5m2 e4m3 f32", FUSED,      "32 13 -133 13", "simulated", KR, WGMMA_FP8),
    row("hopper_mma_e5m2xe4m3_f32",    "e5m2 e4m3 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("blackwell_mma_e5m2xe4m3_f32", "e5m2 e4m3 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("ada_e5m2xe4m3_f16",           "e5m2 e4m3 f16", FUSED,      "16 13  -20 10", "simulated", K,  MMA_FP8),
    row("hopper_e5m2xe4m3_f16",        "e5m2 e4m3 f16", FUSED,      "32 13  -21 10", "simulated", K,  WGMMA_FP8),
    row("hopper_mma_e5m2xe4m3_f16",    "e5m2 e4m3 f16", TWO_PASSES, "32 25  -21 10", "inferred",  E,  BUILT),
    row("blackwell_mma_e5m2xe4m3_f16", "e5m2 e4m3 f16", TWO_PASSES, "32 25  -21 10", "inferred",  E,  BUILT),
    row("ada_e5m2_f32",                "e5m2 e5m2 f32", FUSED,      "16 13 -132 13", "hardware",  KR, MMA_FP8),
    row("hopper_e5m2_f32",             "e5m2 e5m2 f32", FUSED,      "32 13 -133 13", "hardware",  KR, WGMMA_FP8),
    row("hopper_mma_e5m2_f32",         "e5m2 e5m2 f32", TWO_PASSES, "32 25 -133 23", "inferred",  E,  BUILT),
    row("blackwell_mma_e5m2_f32",      "e5m2 e5m2 f32", TWO_PASSES, "32 25 -133 23", "hardware",  E,  BUILT),
    row("ada_e5m2_f16",                "e5m2 e5m2 f16", FUSED,      "16 13  -20 10", "hardware",  K,  MMA_FP8),
    row("hopper_e5m2_f16",             "e5m2 e5m2 f16", FUSED,      "32 13  -21 10", "simulated", K,  WGMMA_FP8),
    row("hopper_mma_e5m2_f16",         "e5m2 e5m2 f16", TWO_PASSES, "32 25  -21 10", "hardware",  E,  BUILT),
    row("blackwell_mma_e5m2_f16",      "e5m2 e5m2 f16", TWO_PASSES, "32 25  -21 10", "hardware",  E,  BUILT),

    # FP8, FP6 and FP4 on Blackwell: every pair of formats, without block scales and with those of MX.
    *(row(f"blackwell_{_pair(a, b)}_{d}", f"{a} {b} {d}", FUSED, f"32 25 {floor} {bits}", "simulated", M, F8F6F4)
      for a, b in PAIRS for d, floor, bits in (("f32", -133, 23), ("f16", -21, 10))),
    *(row(f"blackwell_{'mxfp8' if {a, b} <= FP8 else 'mxf8f6f4'}_{_pair(a, b)}_f32", f"{a} {b} f32", SCALED,
          "32 25 -133 23", "simulated", M, MX, "ue8m0/32") for a, b in PAIRS),

    # With block scales, FP4.
    #   name                           a b d            rule       L  F floor bits  evidence     from PTX     scale
    row("blackwell_mxfp4_block32_f32", "e2m1 e2m1 f32", GROUPED, "64 35 -139 23", "simulated", M, MXF4,   "ue8m0/32"),
    row("blackwell_mxfp4_block16_f32", "e2m1 e2m1 f32", GROUPED, "64 35 -139 23", "simulated", M, MXF4X4, "ue8m0/16"),
    row("blackwell_nvfp4_f32",         "e2m1 e2m1 f32", GROUPED, "64 35 -139 23", "simulated", M, NVF4,   "ue4m3/16"),

    # Chains of IEEE fused multiply-adds.
    #   name                 a b d          rule    L  F floor bits  evidence     from instruction
    row("ampere_f64_f64",    "f64 f64 f64", EXACT, " 1  0    0 52", "simulated", M, "mma f64"),
    row("hopper_f64_f64",    "f64 f64 f64", EXACT, " 1  0    0 52", "simulated", M, "mma f64"),
    row("blackwell_f64_f64", "f64 f64 f64", EXACT, " 1  0    0 52", "simulated", M, "mma f64"),
)
# fmt: on
