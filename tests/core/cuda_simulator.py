"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: the scalar core inside CUDA kernels.

Simulated kernels run as Python, and so does the core then: nothing is compiled here. Results go to the file that is
named; `tests.core.test_cuda` compares them with those of the compiled CPU kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

import fpsim as fp
from fpsim.core import exact_arithmetic
from fpsim.core.decode import DecodeLayout, decode_bits_32
from fpsim.core.encode import EncodeLayout, encode_bits_32, encode_bits_64
from fpsim.core.layouts import decode_plan, encode_plan, pack_plan, unpack_layout
from fpsim.core.neighbour import classify, neighbour
from fpsim.core.number import UnpackLayout, unpack
from fpsim.core.pack import pack
from fpsim.core.units.nvidia import UnitLayout, layouts_in
from fpsim.core.units.step_by_rule import steps_by_rule
from fpsim.formats.rounding import Rounding
from fpsim.instructions.operands import widened
from fpsim.instructions.plan import unit_plan

Array = npt.NDArray[Any]
Results = dict[str, Array]
u64 = np.uint64

RANDOM = 0x12345678
NO_WORD = u64(0)
MODES = sorted(set(Rounding) - {Rounding.STOCHASTIC})

# ---- what is computed

SPECIALS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 464, 465, -3 * 2.0**-11, 1e-40, -1.0625, 0.3])
SOURCES = {"float32": SPECIALS.astype(np.float32), "float64": SPECIALS[5:]}
CAST_FORMATS = [fp.E4M3, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k6p3ue")]
DECODED = {fmt.name: np.arange(0, 1 << fmt.bits, (1 << fmt.bits) // 16) for fmt in (fp.E4M3, fp.FP16, fp.E4M3FNUZ)}

UNITS = [
    fp.unit(name)
    for name in (
        "hopper_e4m3_f32", "ampere_f16_f16", "blackwell_mxfp8_e4m3_f32", "blackwell_nvfp4_f32", "hopper_mma_e5m2_f32",
        "cdna1_bf16_f32", "cdna2_f16_f32", "cdna3_bf16_f32", "cdna3_fp8_f32",
        "x86_avx512_bf16_f32", "x86_amx_bf16_f32", "arm_bf16_f32", "arm_ebf_bf16_f32",
    )
]  # fmt: skip
COUNTS = {
    "add": 2, "multiply": 2, "divide": 2, "remainder": 2, "minimum": 2, "maximum_number": 2, "fma": 3, "sqrt": 1,
    "round_to_integral": 1, "next_up": 1, "next_down": 1, "classify": 1,
}  # fmt: skip
ROUNDS = ("add", "multiply", "divide", "fma", "sqrt", "round_to_integral")
ARITHMETIC_FORMATS = [fp.E4M3FNUZ, fp.E5M2, fp.FP16, fp.FP32]


def roundings(name: str) -> tuple[str, ...]:
    """Modes to try, for operations that depend on them."""
    return ("nearest_even", "down") if name in ROUNDS else ("nearest_even",)


def operands(fmt: fp.Format, count: int) -> list[Array]:
    """Return a few codes of each kind, every operand in another order."""
    one, top = fmt.bias << fmt.mantissa_bits, fmt.top_magnitude
    magnitudes = [0, 1, 1 << fmt.mantissa_bits, one, one + 1, fmt.max_code, fmt.max_code - 1, top]
    codes = np.array([magnitude | sign for sign in (0, fmt.sign_bit) for magnitude in magnitudes])
    drawn = np.random.default_rng(0).integers(0, 1 << fmt.bits, 8)
    column = np.concatenate([codes, drawn])
    orders = np.random.default_rng(1)
    return [orders.permutation(column).astype(fmt.storage) for _ in range(count)]


# ---- the kernels


def run_kernel(function: Any, size: int, *arguments: Any) -> None:
    """Run a function as a CUDA kernel, in blocks of a few threads; the simulator finds `cuda` among its globals."""
    cuda.jit(function)[-(-size // 4), 4](*arguments)


def encoded(x: Array, fmt: fp.Format, mode: Rounding) -> Array:
    """Codes of floats, by the smallest CUDA kernel around the scalar encoder."""
    width = 8 * x.dtype.itemsize
    encode_bits, word = (encode_bits_32, np.uint32) if width == 32 else (encode_bits_64, np.uint64)
    plan = encode_plan(fmt, width, mode, "nonfinite", "keep", 32)
    kind, rounding = plan.kind, int(mode)

    def encode(bits: Any, codes: Any, fields: Any) -> None:
        i = cuda.grid(1)
        if i < bits.size:
            codes[i] = encode_bits(bits[i], word(RANDOM), EncodeLayout(*fields), rounding, kind)

    codes = np.zeros(x.size, fmt.storage)
    run_kernel(encode, x.size, x.view(f"u{width // 8}"), codes, plan.layout)
    return codes


def decoded(codes: Array, fmt: fp.Format) -> Array:
    """Values of codes."""
    plan = decode_plan(fmt, 32)
    assert plan is not None

    def decode(codes: Any, bits: Any, fields: Any) -> None:
        i = cuda.grid(1)
        if i < codes.size:
            bits[i] = decode_bits_32(np.uint32(codes[i]), DecodeLayout(*fields))

    values = np.zeros(codes.size, np.float32)
    run_kernel(decode, codes.size, codes, values.view(np.uint32), plan.layout)
    return values


def on_numbers(name: str, x: Any, y: Any, z: Any, mode: int) -> Any:
    """Return (number, flags) of an operation; a CUDA kernel would be made for each, from these same functions."""
    if name == "sqrt":
        return exact_arithmetic.sqrt(x)
    if name == "round_to_integral":
        return exact_arithmetic.round_to_integral(x, NO_WORD, NO_WORD, mode)
    if name == "fma":
        return exact_arithmetic.fma(x, y, z, mode)
    if name == "add":
        return exact_arithmetic.add(x, y, mode)
    if name in ("minimum", "maximum_number"):
        return exact_arithmetic.extremum(x, y, name == "maximum_number", name == "maximum_number")
    return {
        "multiply": exact_arithmetic.multiply,
        "divide": exact_arithmetic.divide,
        "remainder": exact_arithmetic.remainder,
    }[name](x, y)


def computed(name: str, fmt: fp.Format, rounding: Rounding) -> tuple[Array, Array]:
    """(codes, flags) of an operation: unpack, compute, pack."""
    columns = [column.astype(np.uint64) for column in operands(fmt, COUNTS[name])]
    a, b, c = columns[0], columns[-1], columns[len(columns) // 2]
    plan = pack_plan(fmt, rounding, "nonfinite", "keep", 32, "after")
    layouts, rules, mode = (unpack_layout(fmt, "keep"), plan.layout), u64(plan.rules), int(rounding)
    codes, flags = np.zeros(a.size, np.uint64), np.zeros(a.size, np.uint8)

    def arithmetic_kernel(a: Any, b: Any, c: Any, codes: Any, flags: Any, layout: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < codes.size:
            g, f = UnpackLayout(*layout), EncodeLayout(*out)
            number, raised = on_numbers(name, unpack(a[i], g), unpack(b[i], g), unpack(c[i], g), mode)
            codes[i], flags[i] = pack(number, raised, NO_WORD, f, mode, rules)

    def neighbour_kernel(a: Any, b: Any, c: Any, codes: Any, flags: Any, layout: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < codes.size:
            g, f = UnpackLayout(*layout), EncodeLayout(*out)
            codes[i], flags[i] = neighbour(a[i], unpack(a[i], g), u64(name == "next_down"), g, f)

    def classify_kernel(a: Any, b: Any, c: Any, codes: Any, flags: Any, layout: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < codes.size:
            g = UnpackLayout(*layout)
            codes[i] = classify(a[i], unpack(a[i], g), g)

    kernels = {"next_up": neighbour_kernel, "next_down": neighbour_kernel, "classify": classify_kernel}
    # c is the last operand of a fused product and sum
    last = b if name == "fma" else c
    second = c if name == "fma" else b
    run_kernel(kernels.get(name, arithmetic_kernel), a.size, a, second, last, codes, flags, *layouts)
    return codes.astype(np.uint8 if name == "classify" else fmt.storage), flags


def unit_rows(unit: fp.MatrixUnit) -> dict[str, Array]:
    """Return a few random rows of a unit, with the columns that `fp.dot_add` takes."""
    rng, rows, k = np.random.default_rng(5), 6, 2 * unit.terms
    columns = {
        "a": rng.integers(0, 1 << unit.a.fmt.bits, (rows, k)).astype(unit.a.dtype),
        "b": rng.integers(0, 1 << unit.b.fmt.bits, (rows, k)).astype(unit.b.dtype),
        "c": fp.encode(rng.standard_normal(rows), unit.d.fmt),
    }
    if unit.scale:
        columns["scale_a"] = rng.integers(110, 140, (rows, k // unit.block)).astype(np.uint8)
        columns["scale_b"] = rng.integers(110, 140, (rows, k // unit.block)).astype(np.uint8)
    return columns


def added_up(unit: fp.MatrixUnit) -> Array:
    """Return the results of a unit's rows, each added by one thread."""
    plan, step = unit_plan(unit), steps_by_rule()[unit.rule]
    columns = unit_rows(unit)
    a, b = (widened(columns[name], getattr(unit, name), unit).astype(np.uint64) for name in ("a", "b"))
    c, empty = columns["c"].astype(np.uint64), np.zeros((a.shape[0], 1), np.uint64)
    scales = [columns.get(name, empty).astype(np.uint64) for name in ("scale_a", "scale_b")]
    room = np.zeros((a.shape[0], plan.digits), np.int64)
    out = np.zeros(a.shape[0], np.uint64)
    facts, f = UnitLayout(*plan.facts), layouts_in(plan.layouts)

    def dot_add(a: Any, b: Any, c: Any, p: Any, q: Any, room: Any, out: Any) -> None:
        row = cuda.grid(1)
        if row < a.shape[0]:
            total = c[row]
            for start in range(0, a.shape[1], unit.terms):
                total = step(a[row], b[row], p[row], q[row], np.int64(start), total, room[row], f, facts)
            out[row] = total

    run_kernel(dot_add, a.shape[0], a, b, c, *scales, room, out)
    return out.astype(unit.d.dtype)


def results() -> Results:
    """Every result of the simulated kernels, by name."""
    found: Results = {}
    for dtype, x in SOURCES.items():
        for fmt in CAST_FORMATS:
            for mode in MODES:
                found[f"encode {dtype} {fmt.name} {mode.name}"] = encoded(x, fmt, mode)
    for name, codes in DECODED.items():
        found[f"decode {name}"] = decoded(codes.astype(fp.format(name).storage), fp.format(name))
    for name in COUNTS:
        for fmt in ARITHMETIC_FORMATS:
            for rounding in roundings(name):
                key = f"{name} {fmt.name} {rounding}"
                found[key], found[f"{key} flags"] = computed(name, fmt, Rounding[rounding.upper()])
    for unit in UNITS:
        found[f"dot_add {unit.name}"] = added_up(unit)
    return found


def main(file: str) -> None:
    """Write every result to a file."""
    np.savez(file, **results())  # type: ignore[arg-type]
