"""Matrix instructions of Arm processors, one table row each; docs/matrix-units.md explains the columns.

L: terms of K that one instruction adds; bits: mantissa bits of the result.
"""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import Rule, row

A64 = "Arm A64 instruction set architecture (2024-03), BFDOT and BFMMLA"
EBF = f"{A64} with FPCR.EBF = 1, RMode = 0, FZ = 0 and FIZ = 0"

# fmt: off
UNITS = (
    #   name                  a b d            rule              L  F floor bits  evidence   from  instruction
    row("arm_bf16_f32",     "bf16 bf16 f32", Rule.ODD_PAIR,   " 2  0    0 23", "inferred", A64, "BFDOT, BFMMLA"),
    row("arm_ebf_bf16_f32", "bf16 bf16 f32", Rule.FUSED_PAIR, " 2  0    0 23", "inferred", EBF, "BFDOT, BFMMLA"),
)
# fmt: on
