"""Instructions of x86 processors as data: operands, LLVM code that runs them, required processor features.

Sources: Intel SDM volume 2 for the instructions; LLVM's llvm/include/llvm/IR/IntrinsicsX86.td for the intrinsics.
"""

from __future__ import annotations

from typing import NamedTuple

from fpsim.errors import shown, unknown

ROUNDINGS = {"nearest_even": 0, "down": 1, "up": 2, "toward_zero": 3}  # VCVTPS2PH's immediate operand


class Register(NamedTuple):
    """An operand or the result of a vector instruction.

    Attributes:
      llvm: LLVM's type, such as "<32 x bfloat>".
      dtype: NumPy dtype of an element's bit pattern, such as "uint16".
      words: number of elements for one result of the instruction.
    """

    llvm: str
    dtype: str
    words: int = 1


class Instruction(NamedTuple):
    """A vector instruction, which computes each lane (independent result) from the same lane of its operands.

    Attributes:
      name: the mnemonic in capitals, followed by the rounding if the instruction has several.
      mnemonic: beginning of the instruction's name in assembly text.
      features: required processor features, as LLVM spells them.
      lanes: number of results of one instruction.
      operands, result: registers of the operands and of the result.
      call: LLVM code that sets %r from %x0, %x1, ...
      declaration: LLVM's declaration of the intrinsic; "" without one.
      unit: name of the fpsim matrix unit that describes the instruction; "" for none.
    """

    name: str
    mnemonic: str
    features: tuple[str, ...]
    lanes: int
    operands: tuple[Register, ...]
    result: Register
    call: str
    declaration: str = ""
    unit: str = ""


class TileInstruction(NamedTuple):
    """An AMX instruction on tile registers: d = c + a @ b, with c and d of 16 x 16 32-bit elements.

    name: the mnemonic in capitals. intrinsic: name of LLVM's intrinsic. features: required processor features, as LLVM
    spells them. dtype: dtype of the bit patterns of a's and b's elements; a and b have 16 rows of 64 bytes each. group:
    number of elements that share 32 bits, neighbours along K. unit: name of the fpsim matrix unit that describes the
    instruction.
    """

    name: str
    intrinsic: str
    features: tuple[str, ...]
    dtype: str
    group: int
    unit: str

    @property
    def mnemonic(self) -> str:
        """Name of the instruction in assembly text, in small letters."""
        return self.name.lower()

    @property
    def terms(self) -> int:
        """Number of products that one instruction adds to an element of c."""
        return 16 * self.group


AnyInstruction = Instruction | TileInstruction

HALVES, PAIRS = Register("<32 x half>", "uint16"), Register("<16 x float>", "uint16", 2)
BF16_PAIRS, FLOATS, EIGHT = Register("<32 x bfloat>", "uint16", 2), Register("<16 x float>", "uint32"), "<8 x float>"
BF16_DOT, TO_BF16 = "llvm.x86.avx512bf16.dpbf16ps.512", "llvm.x86.avx512bf16.cvtneps2bf16.512"
TO_HALF, COMPLEX = "llvm.x86.vcvtps2ph.256", "llvm.x86.avx512fp16.mask.vfmadd.cph.512"
FROM_DOUBLE = "llvm.x86.avx512fp16.mask.vcvtpd2ph.512"


def _called(result: str, name: str, operands: list[tuple[str, str]]) -> tuple[str, str]:
    """Return (LLVM code that sets %r by calling the intrinsic `name`, its declaration).

    result: LLVM's type of the result. operands: (LLVM's type, value) of each operand.
    """
    values = ", ".join(f"{kind} {value}" for kind, value in operands)
    return f"%r = call {result} @{name}({values})", f"declare {result} @{name}({', '.join(k for k, _ in operands)})"


def _half_arithmetic() -> list[Instruction]:
    """Return the arithmetic instructions of AVX512-FP16, to which LLVM compiles operations on vectors of halves."""
    features, kind = ("avx512fp16",), HALVES.llvm
    rows = [
        Instruction(f"V{word.upper()}PH", f"v{word}ph", features, 32, (HALVES, HALVES), HALVES,
                    f"%r = f{word} {kind} %x0, %x1")
        for word in ("add", "sub", "mul", "div")
    ]  # fmt: skip
    root = _called(kind, "llvm.sqrt.v32f16", [(kind, "%x0")])
    fused = _called(kind, "llvm.fma.v32f16", [(kind, f"%x{i}") for i in range(3)])
    operands = [(PAIRS.llvm, f"%x{i}") for i in range(3)] + [("i16", "-1"), ("i32", "4")]  # all lanes, MXCSR's rounding
    product = _called(PAIRS.llvm, COMPLEX, operands)
    doubles, eight = Register("<8 x double>", "uint64"), Register("<8 x half>", "uint16")
    operands = [(doubles.llvm, "%x0"), (eight.llvm, "zeroinitializer"), ("i8", "-1"), ("i32", "4")]
    narrowed = _called(eight.llvm, FROM_DOUBLE, operands)
    return [
        *rows,
        Instruction("VSQRTPH", "vsqrtph", features, 32, (HALVES,), HALVES, *root),
        Instruction("VFMADDPH", "vfmadd213ph", features, 32, (HALVES,) * 3, HALVES, *fused),
        Instruction("VFMADDCPH", "vfmaddcph", features, 16, (PAIRS,) * 3, PAIRS, *product),
        Instruction("VCVTPD2PH", "vcvtpd2ph", features, 8, (doubles,), eight, *narrowed),
    ]  # fmt: skip


def _conversions_and_fma() -> list[Instruction]:
    """Return the conversion instructions of F16C and AVX512-BF16, and the fused multiply-add of float32."""
    single, half, words = Register(EIGHT, "uint32"), Register("<8 x half>", "uint16"), Register("<8 x i16>", "uint16")
    rows = []
    for rounding, number in ROUNDINGS.items():
        called = _called(words.llvm, TO_HALF, [(EIGHT, "%x0"), ("i32", str(number))])
        rows.append(Instruction(f"VCVTPS2PH {rounding}", "vcvtps2ph", ("f16c",), 8, (single,), words, *called))
    to_bf16 = _called("<16 x bfloat>", TO_BF16, [(FLOATS.llvm, "%x0")])
    fused = _called(EIGHT, "llvm.fma.v8f32", [(EIGHT, f"%x{i}") for i in range(3)])
    return [
        *rows,
        Instruction("VCVTPH2PS", "vcvtph2ps", ("f16c",), 8, (half,), single, f"%r = fpext {half.llvm} %x0 to {EIGHT}"),
        Instruction("VCVTNEPS2BF16", "vcvtneps2bf16", ("avx512bf16",), 16, (FLOATS,),
                    Register("<16 x bfloat>", "uint16"), *to_bf16),
        Instruction("VFMADDPS", "vfmadd213ps", ("fma",), 8, (single,) * 3, single, *fused),
    ]  # fmt: skip


def _integer_dots() -> list[Instruction]:
    """Return the integer dot-product instructions of AVX512-VNNI and AVX-VNNI-INT8."""
    rows = []
    for name, prefix, count, features, pair, result in (
        ("VPDPBUSD", "llvm.x86.avx512.", 16, "avx512vnni", "u8xs8", "s32"),
        ("VPDPBSSD", "llvm.x86.avx2.", 8, "avxvnniint8", "s8", "s32"),
        ("VPDPBSUD", "llvm.x86.avx2.", 8, "avxvnniint8", "s8xu8", "s32"),
        ("VPDPBUUD", "llvm.x86.avx2.", 8, "avxvnniint8", "u8", "u32"),
    ):
        sums, terms = Register(f"<{count} x i32>", "uint32"), Register(f"<{count} x i32>", "uint8", 4)
        for end, form in (("", ""), ("S", "_sat")):
            order = [(sums.llvm, f"%x{i}") for i in (2, 0, 1)]
            mnemonic, unit = f"{name}{end}".lower(), f"x86_vnni_{pair}_{result}{form}"
            called = _called(sums.llvm, f"{prefix}{mnemonic}.{32 * count}", order)
            operands = (terms, terms, sums)
            rows.append(Instruction(name + end, mnemonic + "\t", (features,), count, operands, sums, *called, unit))
    return rows


def _dots() -> list[Instruction]:
    """Return the vector instructions that compute dot products, each of which fpsim has as a matrix unit."""
    order = [(FLOATS.llvm, "%x2"), (BF16_PAIRS.llvm, "%x0"), (BF16_PAIRS.llvm, "%x1")]
    return [
        Instruction("VDPBF16PS", "vdpbf16ps", ("avx512bf16",), 16, (BF16_PAIRS, BF16_PAIRS, FLOATS), FLOATS,
                    *_called(FLOATS.llvm, BF16_DOT, order), "x86_avx512_bf16_f32"),
        *_integer_dots(),
    ]  # fmt: skip


TILES = (
    TileInstruction("TDPBF16PS", "llvm.x86.tdpbf16ps", ("amx-tile", "amx-bf16"), "uint16", 2, "x86_amx_bf16_f32"),
    TileInstruction("TDPFP16PS", "llvm.x86.tdpfp16ps", ("amx-tile", "amx-fp16"), "uint16", 2, "x86_amx_f16_f32"),
    *(
        TileInstruction(name, f"llvm.x86.{name.lower()}", ("amx-tile", "amx-int8"), "uint8", 4, f"x86_amx_{pair}_s32")
        for name, pair in (("TDPBSSD", "s8"), ("TDPBSUD", "s8xu8"), ("TDPBUSD", "u8xs8"), ("TDPBUUD", "u8"))
    ),
)
ROWS: tuple[AnyInstruction, ...] = (*_dots(), *TILES, *_conversions_and_fma(), *_half_arithmetic())
INSTRUCTIONS = {row.name: row for row in ROWS}
OF_UNIT = {row.unit: row for row in INSTRUCTIONS.values() if row.unit}


def named(name: str) -> AnyInstruction:
    """Return the instruction with this name, in any case; raise a ValueError if there is none.

    Example:
      >>> from fpsim.cpu.instructions import named
      >>> named("vcvtps2ph UP").features
      ('f16c',)
    """
    key = name.lower() if isinstance(name, str) else ""
    for row in INSTRUCTIONS.values():
        if row.name.lower() == key:
            return row
    meant = [row for row in INSTRUCTIONS if key and row.lower().startswith(key)]
    raise unknown("instruction", name, list(INSTRUCTIONS), listing="fp.cpu.available()", meant=meant[:1])


def of_unit(unit: str) -> AnyInstruction:
    """Return the instruction that a matrix unit, given by name, describes; raise a ValueError if there is none."""
    if unit not in OF_UNIT:
        raise ValueError(
            f"unit must be one of {', '.join(OF_UNIT)}, whose instructions fp.cpu can run; got {shown(unit)}. "
            "fp.dot_add emulates every unit."
        )
    return OF_UNIT[unit]
