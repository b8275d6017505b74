"""Matrix instructions of x86 and Arm processors, one table row each; docs/matrix-units.md explains the columns.

L: terms of K that one instruction adds; bits: mantissa bits of the result.
"""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import Rule, row

SDM = "Intel SDM volume 2; 0 of 4,096 results differ on Emerald Rapids (2026-11-26), 0 of 32,000 on AMD Zen 4"
AMX = "Intel SDM volume 2; 0 of 108,544 results differ on Emerald Rapids (2026-11-26), 0 of 10^7 on a later Xeon"
AVX10 = "Intel AVX10.2 Architecture Specification, VDPPHPS; not measured"
FP16 = "Intel SDM volume 2; 0 of 10^7 results differ on an Intel Xeon with AMX-FP16 (2026-11-27)"
A64 = "Arm A64 instruction set architecture (2024-03), BFDOT and BFMMLA"
EBF = f"{A64} with FPCR.EBF = 1, RMode = 0, FZ = 0 and FIZ = 0"

REVERSED_CHAIN, TWO_CHAINS = Rule.REVERSED_CHAIN, Rule.TWO_CHAINS
ODD_PAIR, FUSED_PAIR = Rule.ODD_PAIR, Rule.FUSED_PAIR

# fmt: off
UNITS = (
    #   name                     a b d            rule            L  F floor bits  evidence   from   instruction
    row("x86_avx512_bf16_f32", "bf16 bf16 f32", REVERSED_CHAIN, " 2  0    0 23", "hardware", SDM,   "VDPBF16PS"),
    row("x86_avx10_2_f16_f32", "f16 f16 f32",   REVERSED_CHAIN, " 2  0    0 23", "inferred", AVX10, "VDPPHPS"),
    row("x86_amx_bf16_f32",    "bf16 bf16 f32", TWO_CHAINS,     "32  0    0 23", "hardware", AMX,   "TDPBF16PS"),
    row("x86_amx_f16_f32",     "f16 f16 f32",   TWO_CHAINS,     "32  0    0 23", "hardware", FP16,  "TDPFP16PS"),
    row("arm_bf16_f32",        "bf16 bf16 f32", ODD_PAIR,       " 2  0    0 23", "inferred", A64,   "BFDOT, BFMMLA"),
    row("arm_ebf_bf16_f32",    "bf16 bf16 f32", FUSED_PAIR,     " 2  0    0 23", "inferred", EBF,   "BFDOT, BFMMLA"),
)
# fmt: on
