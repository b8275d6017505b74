"""Matrix units as data: a row per instruction class, with its source and how well it is proven.

Sources: MMASIM is mmasim 2.1.1 (Xie, arXiv:2511.10909v2); KM is Khattak and Mikaitis, arXiv:2512.07004, whose data of
real GPUs (north-numerical-computing/MATLAB-tensor-core) decide what is marked "hardware".
"""

from __future__ import annotations

from itertools import product

from fpsim.errors import unknown
from fpsim.matrix_units.matrix_unit import ELEMENTS, Evidence, MatrixUnit, Rule

MMASIM = "mmasim 2.1.1 (arXiv:2511.10909)"
KM = "Khattak and Mikaitis (arXiv:2512.07004), mmasim 2.1.1"
AMD = "mmasim 2.1.1 (arXiv:2511.10909), AMD instruction set manuals"
MMAEMU = "mmaemu 0.1.0 (recordings of an RTX 4060, all pairs, and an H100)"
EMULATED = "Khattak and Mikaitis (arXiv:2512.07004), CUTLASS issue 1986"

FP8 = ("e4m3", "e5m2")
F8F6F4 = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
E8M13 = 13  # mantissa bits that Ada and Hopper leave in the float32 results of FP8

ROWS: dict[str, MatrixUnit] = {}


def _row(
    arch: str, operands: str, d: str, terms: int, *, kind: str = "", rule: Rule = Rule.FUSED,
    fraction_bits: int = 0, floor_exponent: int = 0, result_bits: int | None = None,
    scale: str | None = None, block: int = 0, instruction: str, source: str = MMASIM,
    evidence: Evidence = "simulated",
) -> None:  # fmt: skip
    """Add a row; `operands` is `<a>` or `<a>x<b>`, `kind` what stands before them in the name."""
    a, _, b = operands.rpartition("x") if operands != "xf32" else ("", "", operands)
    a = a or b
    named = operands if a != b else a
    name = "_".join(part for part in (arch, kind, named, d) if part)
    bits = ELEMENTS[d].fmt.mantissa_bits if result_bits is None else result_bits
    ROWS[name] = MatrixUnit(
        name, arch, ELEMENTS[a], ELEMENTS[b], ELEMENTS[d], rule, terms, fraction_bits, floor_exponent, bits,
        scale, block, instruction, source, evidence,
    )  # fmt: skip


def _pairs(names: tuple[str, ...]) -> list[str]:
    """Every `<a>x<b>`."""
    return [f"{a}x{b}" for a, b in product(names, names)]


# NVIDIA: FUSED. What aligns and keeps `fraction_bits`; a zero term has exponent -131 - (fraction_bits - 23) where the
# result is float32 and -19 - (fraction_bits - 23) where it is float16.
def _floor(fraction_bits: int, d: str) -> int:
    return (-131 if d == "f32" else -19) - (fraction_bits - 23)


for _d in ("f32", "f16"):
    _row("volta", "f16", _d, 4, fraction_bits=23, floor_exponent=_floor(23, _d),
         instruction="mma.m8n8k4", source=KM, evidence="hardware")  # fmt: skip
    _row("turing", "f16", _d, 8, fraction_bits=24, floor_exponent=_floor(24, _d), instruction="mma.m16n8k8")
    for _arch in ("ampere", "ada"):
        _row(_arch, "f16", _d, 8, fraction_bits=24, floor_exponent=_floor(24, _d),
             instruction="mma.m16n8k8, mma.m16n8k16", source=KM, evidence="hardware")  # fmt: skip
    _row("hopper", "f16", _d, 16, fraction_bits=25, floor_exponent=_floor(25, _d),
         instruction="wgmma k16, mma.m16n8k16", source=KM, evidence="hardware")  # fmt: skip
    _row("blackwell", "f16", _d, 16, fraction_bits=25, floor_exponent=_floor(25, _d),
         instruction="tcgen05.mma kind::f16, mma.m16n8k16", source=KM, evidence="hardware")  # fmt: skip

for _arch, _bf16, _tf32, _bits, _how in (
    ("ampere", 8, 4, 24, "mma"), ("ada", 8, 4, 24, "mma"),
    ("hopper", 16, 8, 25, "wgmma, mma"), ("blackwell", 16, 8, 25, "tcgen05.mma, mma"),
):  # fmt: skip
    _row(_arch, "bf16", "f32", _bf16, fraction_bits=_bits, floor_exponent=_floor(_bits, "f32"),
         instruction=f"{_how} bf16", source=KM, evidence="hardware")  # fmt: skip
    # the data of real Hopper and Blackwell chips hold four products a row, so the 8 terms of a step are simulated
    _row(_arch, "tf32", "f32", _tf32, fraction_bits=_bits, floor_exponent=_floor(_bits, "f32"),
         instruction=f"{_how} tf32", source=KM, evidence="hardware")  # fmt: skip

for _pair, _d in product(_pairs(FP8), ("f32", "f16")):
    _a, _, _b = _pair.partition("x")
    _low = E8M13 if _d == "f32" else None
    _same: Evidence = "hardware" if _a == _b else "simulated"  # only of Ada to f32 are there data of mixed operands
    _row("ada", _pair, _d, 16, fraction_bits=13, floor_exponent=_floor(24, _d), result_bits=_low,
         instruction="mma.m16n8k16, mma.m16n8k32", source=f"{KM}; {MMAEMU}" if _d == "f32" else KM,
         evidence="hardware" if _d == "f32" else _same)  # fmt: skip
    _row("hopper", _pair, _d, 32, fraction_bits=13, floor_exponent=_floor(25, _d), result_bits=_low,
         instruction="wgmma k32", source=f"{KM}; {MMAEMU}" if _d == "f32" else KM,
         evidence=_same if _d == "f32" else "simulated")  # fmt: skip
    for _arch in ("hopper", "blackwell"):
        _measured = _a == _b and (_arch, _d) != ("hopper", "f32")
        _row(_arch, _pair, _d, 32, kind="mma", rule=Rule.TWO_PASSES, fraction_bits=25,
             floor_exponent=_floor(25, _d), instruction="mma.m16n8k32, which the compiler builds from FP16 steps",
             source=EMULATED, evidence="hardware" if _measured else "inferred")  # fmt: skip

for _pair, _d in product(_pairs(F8F6F4), ("f32", "f16")):
    _row("blackwell", _pair, _d, 32, fraction_bits=25, floor_exponent=_floor(25, _d),
         instruction="tcgen05.mma kind::f8f6f4, mma kind::f8f6f4 of sm_120")  # fmt: skip

# NVIDIA, block-scaled.
for _pair in _pairs(F8F6F4):
    _kind = "mxfp8" if all(name in FP8 for name in _pair.split("x")) else "mxf8f6f4"
    _row("blackwell", _pair, "f32", 32, kind=_kind, rule=Rule.SCALED, fraction_bits=25, floor_exponent=-133,
         scale="ue8m0", block=32, instruction="tcgen05.mma, mma of sm_120: kind::mxf8f6f4")  # fmt: skip
for _name, _scale, _block, _how in (
    ("mxfp4_block32", "ue8m0", 32, "kind::mxf4"),
    ("mxfp4_block16", "ue8m0", 16, "kind::mxf4nvf4, scale_vec::4X, ue8m0"),
    ("nvfp4", "ue4m3", 16, "kind::mxf4nvf4, scale_vec::4X, ue4m3"),
):
    ROWS[f"blackwell_{_name}_f32"] = MatrixUnit(
        f"blackwell_{_name}_f32", "blackwell", ELEMENTS["e2m1"], ELEMENTS["e2m1"], ELEMENTS["f32"], Rule.GROUPED,
        64, 35, -139, 23, _scale, _block, f"tcgen05.mma, mma of sm_120: {_how}", MMASIM, "simulated",
    )  # fmt: skip

# Chains of IEEE fused multiply-adds.
for _arch in ("ampere", "hopper", "blackwell"):
    _row(_arch, "f64", "f64", 1, rule=Rule.EXACT, instruction="mma f64")
for _arch in ("cdna1", "cdna2", "cdna3"):
    _row(_arch, "f32", "f32", 1, rule=Rule.EXACT, instruction="v_mfma f32", source=AMD)
for _arch in ("cdna2", "cdna3"):
    _row(_arch, "f64", "f64", 1, rule=Rule.EXACT, instruction="v_mfma f64", source=AMD)

# AMD.
_row("cdna1", "f16", "f32", 4, rule=Rule.EXACT, instruction="v_mfma f16", source=AMD)
_row("cdna1", "bf16", "f32", 2, rule=Rule.EXACT, instruction="v_mfma bf16", source=AMD)
_row("cdna2", "f16", "f32", 4, rule=Rule.FLUSHED_TREE, instruction="v_mfma f16", source=AMD)
_row("cdna2", "bf16", "f32", 2, rule=Rule.FLUSHED_TREE, instruction="v_mfma bf16", source=AMD)
_row("cdna2", "bf16_1k", "f32", 4, rule=Rule.FLUSHED_TREE, instruction="v_mfma bf16_1k", source=AMD)
for _name, _terms in (("f16", 8), ("bf16", 8), ("xf32", 4)):
    _row("cdna3", _name, "f32", _terms, rule=Rule.SEPARATE, fraction_bits=24, floor_exponent=-126,
         instruction=f"v_mfma {_name}", source=AMD)  # fmt: skip
for _pair in _pairs(("fp8", "bf8")):
    _row("cdna3", _pair, "f32", 16, rule=Rule.EVEN_ODD, fraction_bits=24, floor_exponent=-126,
         instruction="v_mfma fp8, bf8", source=AMD)  # fmt: skip


def unit(name: str | MatrixUnit) -> MatrixUnit:
    """The matrix unit of a name.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`, such as "hopper_e4m3_f32"; `fp.units()` lists them all. A unit is returned as it is.

    Raises:
      ValueError: no unit has that name; the message gives the nearest ones.

    Example:
      >>> import fpsim as fp
      >>> fp.unit("ampere_bf16_f32")
      MatrixUnit('ampere_bf16_f32': 8 products per step, cut at 24 fraction bits, rounded toward zero; hardware)
    """
    if isinstance(name, MatrixUnit):
        return name
    key = name.lower().strip() if isinstance(name, str) else None
    if key in ROWS:
        return ROWS[key]
    arches = sorted({row.arch for row in ROWS.values()})
    arch = key.partition("_")[0] if key else ""
    valid = [row.name for row in ROWS.values() if row.arch == arch] or [f"{arch}_<a>[x<b>]_<d>" for arch in arches]
    raise unknown("unit", name, valid, {row: row for row in ROWS})


def units(arch: str | None = None) -> tuple[MatrixUnit, ...]:
    """Every matrix unit, or those of one architecture, each with its source and evidence.

    Args:
      arch: volta, turing, ampere, ada, hopper, blackwell, cdna1, cdna2 or cdna3; None for all.

    Raises:
      ValueError: there is no such architecture.

    Example:
      >>> import fpsim as fp
      >>> [unit.name for unit in fp.units("volta")]
      ['volta_f16_f32', 'volta_f16_f16']
      >>> sum(unit.evidence == "hardware" for unit in fp.units()) > 20
      True
    """
    arches = list(dict.fromkeys(row.arch for row in ROWS.values()))
    wanted = arch.lower().strip() if isinstance(arch, str) else arch
    if wanted is not None and wanted not in arches:
        raise unknown("arch", arch, arches)
    return tuple(row for row in ROWS.values() if wanted in (None, row.arch))
