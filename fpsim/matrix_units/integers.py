"""Integer matrix units, one table row per instruction; docs/integer-products.md explains the columns.

Every pair of operand types of an instruction is a unit; its saturating form is another unit, whose name ends in `_sat`.
L is the number of terms of K that one instruction adds, for the instruction with the largest K; only sums that saturate
depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fpsim.matrix_units.integer_unit import INTEGER_ELEMENTS, IntegerUnit
from fpsim.matrix_units.matrix_unit import Evidence

PTX = "PTX ISA, mma.sync: .s32 accumulators wrap, with .satfinite they are clamped; not measured"
WGMMA = "PTX ISA, wgmma and mma.sync: .s32 accumulators wrap, with .satfinite they are clamped; not measured"
TCGEN05 = "PTX ISA, tcgen05.mma kind::i8 (sm_100a), whose instruction descriptor has a bit that saturates; not measured"
MFMA = "AMD instruction set manuals and matrix instruction calculator: MFMA has no CLAMP bit; not measured"
MADD = "Intel SDM volume 2; 0 of 32,768 results differ on Emerald Rapids (2026-11-27), 9,375 pairs saturated"
AMX = "Intel SDM volume 2; 0 of 12,800 results differ on Emerald Rapids (2026-11-26)"
VNNI = "Intel SDM volume 2; 0 of 16,384 results differ on Emerald Rapids (2026-11-26)"
VNNI_INT8 = "Intel SDM volume 2, AVX-VNNI-INT8 and AVX10.2; not measured"
A64 = "Arm A64 instruction set architecture (2024-03); not measured"

# fmt: off
ROWS: tuple[tuple[str, str, int, Evidence, str, str], ...] = (
    # prefix        operands                       L  evidence     from      instruction; "+": saturating, too
    ("turing",     "s8 s8xu8 u8xs8 u8 +",         16, "inferred", PTX,       "mma.m8n8k16"),
    ("turing",     "s4 s4xu4 u4xs4 u4 +",         32, "inferred", PTX,       "mma.m8n8k32"),
    ("ampere",     "s8 s8xu8 u8xs8 u8 +",         32, "inferred", PTX,       "mma.m16n8k32"),
    ("ampere",     "s4 s4xu4 u4xs4 u4 +",         64, "inferred", PTX,       "mma.m16n8k64"),
    ("ada",        "s8 s8xu8 u8xs8 u8 +",         32, "inferred", PTX,       "mma.m16n8k32"),
    ("ada",        "s4 s4xu4 u4xs4 u4 +",         64, "inferred", PTX,       "mma.m16n8k64"),
    ("hopper",     "s8 s8xu8 u8xs8 u8 +",         32, "inferred", WGMMA,     "wgmma k32, mma.m16n8k32"),
    ("blackwell",  "s8 s8xu8 u8xs8 u8 +",         32, "inferred", TCGEN05,   "tcgen05.mma kind::i8, mma.m16n8k32"),
    ("cdna1",      "s8",                          16, "inferred", MFMA,      "mfma i32 i8"),
    ("cdna2",      "s8",                          16, "inferred", MFMA,      "mfma i32 i8"),
    ("cdna3",      "s8",                          32, "inferred", MFMA,      "mfma i32 i8"),
    ("x86_amx",    "s8",                          64, "hardware", AMX,       "TDPBSSD"),
    ("x86_amx",    "s8xu8",                       64, "hardware", AMX,       "TDPBSUD"),
    ("x86_amx",    "u8xs8",                       64, "hardware", AMX,       "TDPBUSD"),
    ("x86_amx",    "u8",                          64, "hardware", AMX,       "TDPBUUD"),
    ("x86_vnni",   "u8xs8 +",                      4, "hardware", VNNI,      "VPDPBUSD"),
    ("x86_vnni",   "s8 +",                         4, "inferred", VNNI_INT8, "VPDPBSSD"),
    ("x86_vnni",   "s8xu8 +",                      4, "inferred", VNNI_INT8, "VPDPBSUD"),
    ("x86_vnni",   "u8:u32 +",                     4, "inferred", VNNI_INT8, "VPDPBUUD"),
    ("x86_avx2",   "u8xs8",                        4, "hardware", MADD,      "VPMADDUBSW, VPMADDWD"),
    ("arm",        "s8",                           4, "inferred", A64,       "SDOT, SMMLA"),
    ("arm",        "s8xu8",                        4, "inferred", A64,       "SUDOT"),
    ("arm",        "u8xs8",                        4, "inferred", A64,       "USDOT, USMMLA"),
    ("arm",        "u8:u32",                       4, "inferred", A64,       "UDOT, UMMLA"),
)
# fmt: on


def _units() -> Iterator[IntegerUnit]:
    """Yield the units of all table rows in order; of each row, wrapping units before saturating ones."""
    suffixes = {"x86_vnni": "S", "blackwell": " with its saturate bit, .satfinite"}  # of saturating instructions
    for prefix, operands, terms, evidence, source, instruction in ROWS:
        *pairs, last = operands.split()
        pairs, forms = (pairs, (False, True)) if last == "+" else ([*pairs, last], (False,))
        for saturates in forms:
            suffix = suffixes.get(prefix, " .satfinite") if saturates else ""
            for pair in pairs:
                operand_names, _, result = pair.partition(":")
                first, _, second = operand_names.partition("x")
                a, b, d = (INTEGER_ELEMENTS[name] for name in (first, second or first, result or "s32"))
                yield IntegerUnit(
                    f"{prefix}_{operand_names}_{d.name}{'_sat' if saturates else ''}", prefix.partition("_")[0], a, b,
                    d, terms, saturates, INTEGER_ELEMENTS["s16"] if prefix == "x86_avx2" else None,
                    f"{instruction}{suffix}", source, evidence,
                )  # fmt: skip


UNITS = tuple(_units())
