"""Instructions are asked for before they run, compile to what they are called, and give the emulator's bits."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.cpu import execution, machine_code, processor
from fpsim.cpu.emulations import emulation_of
from fpsim.cpu.execution import SIDE
from fpsim.cpu.inputs import inputs_of
from fpsim.cpu.instructions import INSTRUCTIONS, ROWS, TILES, AnyInstruction, TileInstruction
from fpsim.cpu.machine_code import assembly_of, compiled
from fpsim.testing import assert_bits_equal
from tests.kit.processor import IS_SUPPORTED, STATES, processor_state
from tests.oracles import integers
from tests.oracles.units.rows import Rows, dot_add_rows

Array = npt.NDArray[Any]
HERE = fp.cpu.available()
LINUX = "x86_64-unknown-linux-gnu"
MISSING = dict(HERE.missing)
loose: Any = fp


def needs(name: str) -> pytest.MarkDecorator:
    """Skip a test with the reason why this processor cannot run an instruction."""
    return pytest.mark.skipif(name not in HERE, reason=f"{name}: {MISSING.get(name)}")


def has_x86() -> bool:
    """Return whether this LLVM compiles for x86."""
    from llvmlite import binding

    binding.initialize_all_targets()
    try:
        binding.Target.from_triple(LINUX)
    except RuntimeError:
        return False
    return True


x86_compiler = pytest.mark.skipif(not has_x86(), reason="llvmlite has no code generator for x86 here")


# ---- what is compiled


@x86_compiler
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_instruction_compiles_to_its_mnemonic(row: AnyInstruction) -> None:
    text = assembly_of(row, LINUX)
    assert sum(line.startswith(f"\t{row.mnemonic}") for line in text.splitlines()) == 1
    if isinstance(row, TileInstruction):
        assert [text.count(f"\t{word}") for word in ("ldtilecfg", "tileloadd", "tilestored", "tilerelease")] == [
            1,
            3,
            1,
            1,
        ]


@x86_compiler
def test_code_that_does_not_compile_or_lacks_the_instruction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    row: Any = INSTRUCTIONS["VADDPH"]
    with pytest.raises(fp.cpu.CpuError, match=r"^LLVM \S+ compiles VADDPH to other instructions than vaddph\.$"):
        assembly_of(row._replace(call="%r = fsub <32 x half> %x0, %x1"), LINUX)
    with pytest.raises(fp.cpu.CpuError, match=r"^LLVM \S+ does not compile VADDPH: "):
        assembly_of(row._replace(call="%r = fadd <32 x word> %x0, %x1"), LINUX)


# ---- what is missing


def sentence(call: Callable[[], Any], kind: type[Exception] = fp.cpu.CpuError) -> str:
    with pytest.raises(kind) as refused:
        call()
    assert "\n" not in str(refused.value)
    return str(refused.value)


X = np.zeros(3, np.uint32)
PAIR = np.zeros((3, 2), np.uint16)


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_a_missing_instruction_is_one_sentence_and_never_compiled(name: str, processor_with: Any) -> None:
    processor_with(frozenset())
    assert name not in fp.cpu.available()
    operands = next(iter(inputs_of(name, 30).values()))
    text = sentence(lambda: fp.cpu.run(name, *operands))
    assert text.startswith(f"{name} cannot be run here: this processor (imagined) has no ")
    assert text.endswith(
        "fp.cpu.available() lists instructions that can be run, and fpsim emulates this one everywhere."
    )
    compiled.cache_clear()
    assert sentence(lambda: compiled(name)) == text
    if unit := INSTRUCTIONS[name].unit:
        assert sentence(lambda: fp.cpu.dot_add(operands[0], operands[1], None, unit)) == text
    assert sentence(lambda: fp.cpu.validate([name])) == text
    assert sentence(lambda: fp.cpu.record("x.npz", [name])) == text


def test_other_reasons_are_named(processor_with: Any) -> None:
    processor_with(machine="aarch64")
    assert "this processor is aarch64, not x86-64" in sentence(lambda: fp.cpu.run("VADDPH", X, X))
    assert not fp.cpu.available()
    processor_with(llvm=15)
    assert "llvmlite has LLVM 15, and the first version that compiles it is LLVM 16" in sentence(
        lambda: fp.cpu.run("VADDPH", X, X)
    )
    processor_with(tiles="Linux refuses the use of tiles (arch_prctl: error 95)")
    assert {name for name, _ in fp.cpu.available().missing} == {row.name for row in TILES}
    text = sentence(lambda: fp.cpu.dot_add(PAIR, PAIR, None, "x86_amx_bf16_f32"))
    assert "TDPBF16PS cannot be run here: Linux refuses the use of tiles" in text


def test_availability_is_said_in_sentences_and_as_a_table(processor_with: Any) -> None:
    pytest.importorskip("pandas")
    processor_with(frozenset({"f16c"}))
    here = fp.cpu.available()
    assert str(here).splitlines()[0].startswith(f"imagined can run 5 of {len(ROWS)} instructions: VCVTPS2PH ")
    assert "Not VDPBF16PS and VCVTNEPS2BF16: this processor (imagined) has no avx512bf16." in str(here)
    frame = here.to_frame()
    assert list(frame.columns) == ["instruction", "unit", "available", "reason"]
    assert frame.available.sum() == 5
    assert set(frame.unit) >= {"", "x86_amx_s8_s32", "x86_avx512_bf16_f32"}


@pytest.mark.skipif(sys.platform != "linux", reason="where and how tiles are permitted is Linux's")
def test_permission_for_tiles_is_asked_once_and_a_refusal_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Libc:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def syscall(self, *words: Any) -> int:
            calls.append([word.value for word in words])
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    processor.tile_refusal.cache_clear()
    try:
        assert processor.tile_refusal().startswith("Linux refuses the use of tiles (arch_prctl: error ")
        assert processor.tile_refusal()
        assert calls == [[158, 0x1023, 18]]
    finally:
        processor.tile_refusal.cache_clear()


def test_wrong_names_and_operands_are_refused(processor_with: Any) -> None:
    processor_with()
    for call, words in (
        (lambda: loose.cpu.run("VCVTPS2PH", X), "must be one of .* Did you mean 'VCVTPS2PH nearest_even'"),
        (lambda: loose.cpu.run(3, X), "instruction must be one of the .*; got 3"),
        (lambda: fp.cpu.run("VADDPH", X), "VADDPH takes 2 operands; got 1."),
        (lambda: fp.cpu.run("VCVTPS2PH up", X.view(np.float32)), "operand 0 of VCVTPS2PH up must be .* uint32"),
        (lambda: fp.cpu.run("VDPBF16PS", PAIR, PAIR[:2], X), "operand 1 of VDPBF16PS must be .* uint16 of shape"),
        (lambda: fp.cpu.run("TDPBF16PS", PAIR, PAIR[:, :1], X), r"operand 1 of TDPBF16PS .* with 1 to 32 terms"),
        (lambda: fp.cpu.run("TDPBF16PS", PAIR, PAIR, PAIR), r"operand 2 of TDPBF16PS must be an array of uint32"),
        (lambda: fp.cpu.dot_add(PAIR, PAIR, None, "hopper_bf16_f32"), "unit must be one of x86_avx512_bf16_f32,"),
        (lambda: fp.cpu.dot_add(PAIR, PAIR[:2], None, "x86_amx_bf16_f32"), "a and b must have one shape"),
        (lambda: fp.cpu.dot_add(PAIR, PAIR, X[:1], "x86_amx_bf16_f32"), "c must have the shape"),
        (lambda: fp.cpu.validate(values=0), "values must be an integer >= 1"),
        (lambda: fp.cpu.validate(["VADDP"]), "instruction must be one of"),
        (lambda: loose.cpu.validate(3), "instructions must be names of fp.cpu.available.*; got 3"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=words) as refused:
            call()
        assert "\n" not in str(refused.value)


# ---- what is run


@pytest.mark.parametrize("name", [pytest.param(row.name, marks=needs(row.name)) for row in ROWS])
def test_an_instruction_of_this_processor_gives_the_bits_of_the_emulator(name: str) -> None:
    report = fp.cpu.validate([name], values=2000)
    assert report.ok, str(report)
    assert report.undecided(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(row.name, marks=needs(row.name)) for row in ROWS])
def test_ten_million_results_are_those_of_the_emulator(name: str) -> None:
    report = fp.cpu.validate([name], values=10**7, seed=1, minutes=60)
    assert report.ok, str(report)


@needs("VDPBF16PS")
@pytest.mark.parametrize("k", [0, 1, 2, 5, 8])
def test_steps_of_this_processor_chain_as_those_of_the_emulator(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = (fp.encode(rng.standard_normal((37, k)), fp.BF16) for _ in range(2))
    c = rng.standard_normal(37).astype(np.float32)
    got = fp.cpu.dot_add(a, b, c, "x86_avx512_bf16_f32")
    assert got.dtype == np.uint32
    assert_bits_equal(got, fp.dot_add(a, b, c, "x86_avx512_bf16_f32"))
    assert_bits_equal(
        fp.cpu.dot_add(a, b, None, fp.unit("x86_avx512_bf16_f32")), fp.dot_add(a, b, None, "x86_avx512_bf16_f32")
    )


@needs("VPDPBUSDS")
@pytest.mark.parametrize("unit", ["x86_vnni_u8xs8_s32", "x86_vnni_u8xs8_s32_sat"])
def test_steps_of_integers_chain_too(unit: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(200, 256, (37, 11)).astype(np.uint8), rng.integers(-128, 128, (37, 11)).astype(np.int8)
    c = rng.choice(np.array([-(2**31), 2**31 - 1, 0], np.int32), 37)
    got = fp.cpu.dot_add(a, b, c, unit)
    assert got.dtype == np.int32
    assert_bits_equal(got, fp.dot_add(a, b, c, unit))
    with pytest.raises(ValueError, match="takes a of u8"):
        fp.cpu.dot_add(b, b, c, unit)


@needs("VFMADDPS")
@pytest.mark.skipif(not IS_SUPPORTED, reason="setting the processor's state is known for x86 with glibc")
def test_a_processor_that_rounds_or_flushes_otherwise_is_set_right_while_an_instruction_runs() -> None:
    operands = inputs_of("VFMADDPS", 600)["near the smallest normal value"]
    want = emulation_of("VFMADDPS").compute(*operands)
    with processor_state(STATES["round down and flush both"]):
        got = fp.cpu.run("VFMADDPS", *operands)
    assert_bits_equal(got, want)


# ---- tiles, on an emulated unit: what is packed where


def tiles_of_the_oracle(row: TileInstruction, a: Array, b: Array, c: Array, groups: int) -> Array:
    """Return c + a b of tiles by the oracle; a, b: as the instruction takes them."""
    unit: Any = fp.unit(row.unit)
    result = np.empty_like(c)
    for t in range(len(c)):
        left = a[t, :, :groups].reshape(SIDE, -1)
        right = b[t, :groups].transpose(1, 0, 2).reshape(SIDE, -1)
        rows, columns, sums = np.repeat(left, SIDE, axis=0), np.tile(right, (SIDE, 1)), c[t].reshape(-1)
        if unit.d.name == "s32":
            of = rows.view(unit.a.dtype), columns.view(unit.b.dtype), sums.view(np.int32)
            total = integers.dot_add_rows(*of, unit.terms, unit.d.dtype, unit.saturates).view(np.uint32)
        else:
            total = dot_add_rows(Rows(rows, columns, sums), unit)
        result[t] = total.reshape(SIDE, SIDE)
    return result


@pytest.mark.parametrize(
    ("name", "n", "k"), [("TDPBF16PS", 3, 6), ("TDPBF16PS", 19, 40), ("TDPFP16PS", 16, 3), ("TDPBSUD", 5, 70)]
)
def test_rows_are_packed_into_tiles_and_taken_from_their_diagonals(
    name: str, n: int, k: int, processor_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor_with()
    monkeypatch.setattr(execution, "multiply_tiles", tiles_of_the_oracle)
    unit: Any = fp.unit(INSTRUCTIONS[name].unit)
    rng = np.random.default_rng(n)
    if unit.d.name == "s32":
        a, b = (rng.integers(x.lowest, x.highest + 1, (n, k)).astype(x.dtype) for x in (unit.a, unit.b))
        c = rng.integers(-(2**31), 2**31, n).astype(np.int32)
    else:
        a, b = (fp.encode(rng.standard_normal((n, k)), unit.a.fmt) for _ in range(2))
        c = rng.standard_normal(n).astype(np.float32)
    assert_bits_equal(fp.cpu.dot_add(a, b, c, unit), fp.dot_add(a, b, c, unit))


def test_the_code_of_tiles_gets_its_operands_and_settings_in_order(
    processor_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor_with()
    calls = []
    monkeypatch.setattr(execution, "compiled", lambda name: lambda *arguments: calls.append((name, arguments)))
    a, c = np.zeros((3, 16, 16, 2), np.uint16), np.zeros((3, 16, 16), np.uint32)
    b = a.copy()
    row: Any = INSTRUCTIONS["TDPBF16PS"]
    result = execution.multiply_tiles(row, a, b, c, 16)
    ((name, arguments),) = calls
    assert name == "TDPBF16PS"
    assert arguments[:4] == tuple(x.ctypes.data for x in (result, a, b, c))
    assert arguments[5] == 3
    text = machine_code.text_of(row)
    assert "@run(ptr %d, ptr %o0, ptr %o1, ptr %o2, ptr %settings, i64 %blocks)" in text
    assert [text.index(f"(i8 {tile}, ptr %p{i}, i64 64)") > 0 for i, tile in enumerate((1, 2, 0))] == [True] * 3
