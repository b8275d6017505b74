"""AMD's matrix units, one table row each; docs/matrix-units.md explains the columns.

L: terms of K that one instruction adds; F: fraction bits kept below the largest exponent; floor: the smallest exponent
to which terms are aligned; bits: mantissa bits of the result.
"""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import Rule, row

A = "mmasim 2.1.1 (arXiv:2511.10909), AMD instruction set manuals"

EXACT, FLUSHED_TREE, SEPARATE, EVEN_ODD = Rule.EXACT, Rule.FLUSHED_TREE, Rule.SEPARATE, Rule.EVEN_ODD

# fmt: off
UNITS = (
    #   name                 a b d                  rule            L  F floor bits  evidence     from instruction
    row("cdna1_f32_f32",     "f32 f32 f32",         EXACT,        " 1  0    0 23", "simulated", A, "v_mfma f32"),
    row("cdna2_f32_f32",     "f32 f32 f32",         EXACT,        " 1  0    0 23", "simulated", A, "v_mfma f32"),
    row("cdna3_f32_f32",     "f32 f32 f32",         EXACT,        " 1  0    0 23", "simulated", A, "v_mfma f32"),
    row("cdna2_f64_f64",     "f64 f64 f64",         EXACT,        " 1  0    0 52", "simulated", A, "v_mfma f64"),
    row("cdna3_f64_f64",     "f64 f64 f64",         EXACT,        " 1  0    0 52", "simulated", A, "v_mfma f64"),
    row("cdna1_f16_f32",     "f16 f16 f32",         EXACT,        " 4  0    0 23", "simulated", A, "v_mfma f16"),
    row("cdna1_bf16_f32",    "bf16 bf16 f32",       EXACT,        " 2  0    0 23", "simulated", A, "v_mfma bf16"),
    row("cdna2_f16_f32",     "f16 f16 f32",         FLUSHED_TREE, " 4  0    0 23", "simulated", A, "v_mfma f16"),
    row("cdna2_bf16_f32",    "bf16 bf16 f32",       FLUSHED_TREE, " 2  0    0 23", "simulated", A, "v_mfma bf16"),
    row("cdna2_bf16_1k_f32", "bf16_1k bf16_1k f32", FLUSHED_TREE, " 4  0    0 23", "simulated", A, "v_mfma bf16_1k"),
    row("cdna3_f16_f32",     "f16 f16 f32",         SEPARATE,     " 8 24 -126 23", "simulated", A, "v_mfma f16"),
    row("cdna3_bf16_f32",    "bf16 bf16 f32",       SEPARATE,     " 8 24 -126 23", "simulated", A, "v_mfma bf16"),
    row("cdna3_xf32_f32",    "xf32 xf32 f32",       SEPARATE,     " 4 24 -126 23", "simulated", A, "v_mfma xf32"),
    row("cdna3_fp8_f32",     "fp8 fp8 f32",         EVEN_ODD,     "16 24 -126 23", "simulated", A, "v_mfma fp8, bf8"),
    row("cdna3_fp8xbf8_f32", "fp8 bf8 f32",         EVEN_ODD,     "16 24 -126 23", "simulated", A, "v_mfma fp8, bf8"),
    row("cdna3_bf8xfp8_f32", "bf8 fp8 f32",         EVEN_ODD,     "16 24 -126 23", "simulated", A, "v_mfma fp8, bf8"),
    row("cdna3_bf8_f32",     "bf8 bf8 f32",         EVEN_ODD,     "16 24 -126 23", "simulated", A, "v_mfma fp8, bf8"),
)
# fmt: on
