"""Compiles LLVM code into a function in memory, and checks that it contains the intended instruction."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from fpsim.cpu.availability import CpuError, require
from fpsim.cpu.instructions import AnyInstruction, TileInstruction, named
from fpsim.runtime.forks import llvm_lock

Function = Callable[..., None]  # (address of results, addresses of operands ..., number of blocks) -> None

LOOP = """
define void @run(ptr %d, {parameters}, i64 %blocks) {{
entry:
  {before}
  %empty = icmp eq i64 %blocks, 0
  br i1 %empty, label %exit, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {body}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %blocks
  br i1 %more, label %loop, label %exit
exit:
  {after}
  ret void
}}
"""
TILE = "[1024 x i8]"


def text_of(row: AnyInstruction) -> str:
    """Return LLVM code of a function `run` that applies an instruction to consecutive blocks of its operands.

    A block fills one register of each operand. The arguments of `run` are pointers to the result, to each operand and,
    for AMX, to the tile configuration, and then the number of blocks. row: the instruction.
    """
    if isinstance(row, TileInstruction):
        return _tile_text(row)
    body = []
    for i, register in enumerate(row.operands):
        body += [f"%p{i} = getelementptr {register.llvm}, ptr %o{i}, i64 %i",
                 f"%x{i} = load {register.llvm}, ptr %p{i}, align 1"]  # fmt: skip
    body += [row.call, f"%pd = getelementptr {row.result.llvm}, ptr %d, i64 %i",
             f"store {row.result.llvm} %r, ptr %pd, align 1"]  # fmt: skip
    parameters = ", ".join(f"ptr %o{i}" for i in range(len(row.operands)))
    return row.declaration + LOOP.format(parameters=parameters, before="", body="\n  ".join(body), after="")


def _tile_text(row: TileInstruction) -> str:
    """Return LLVM code of the function `run`, which `text_of` describes, for `row`, an AMX instruction.

    Tile 0 holds c, then d; tile 1 holds a, and tile 2 holds b. Rows of a tile are 64 bytes apart in memory.
    """
    declared = ["void @llvm.x86.ldtilecfg(ptr)", "void @llvm.x86.tileloadd64(i8, ptr, i64)",
                f"void @{row.intrinsic}(i8, i8, i8)", "void @llvm.x86.tilestored64(i8, ptr, i64)",
                "void @llvm.x86.tilerelease()"]  # fmt: skip
    body = []
    for i, number in enumerate((1, 2, 0)):  # a, b, c
        body += [f"%p{i} = getelementptr {TILE}, ptr %o{i}, i64 %i",
                 f"call void @llvm.x86.tileloadd64(i8 {number}, ptr %p{i}, i64 64)"]  # fmt: skip
    body += [f"call void @{row.intrinsic}(i8 0, i8 1, i8 2)", f"%pd = getelementptr {TILE}, ptr %d, i64 %i",
             "call void @llvm.x86.tilestored64(i8 0, ptr %pd, i64 64)"]  # fmt: skip
    loop = LOOP.format(
        parameters="ptr %o0, ptr %o1, ptr %o2, ptr %settings",
        before="call void @llvm.x86.ldtilecfg(ptr %settings)",
        body="\n  ".join(body),
        after="call void @llvm.x86.tilerelease()",
    )
    return "".join(f"declare {function}\n" for function in declared) + loop


def assembly_of(instruction: AnyInstruction, triple: str | None = None) -> str:
    """Return the assembly text to which LLVM compiles an instruction's function; nothing is run.

    triple: LLVM's name of the system to compile for; None for this system. Raises a CpuError if LLVM does not compile
    the code, or compiles it to other instructions.
    """
    from llvmlite import binding

    try:
        with llvm_lock:
            binding.initialize_all_targets()
            binding.initialize_all_asmprinters()
            module = binding.parse_assembly(text_of(instruction))
            module.verify()
            text = str(_target(instruction, triple).emit_assembly(module))
    except RuntimeError as reason:  # another LLVM may have changed an intrinsic
        said = " ".join(str(reason).split())
        raise CpuError(f"LLVM {_version()} does not compile {instruction.name}: {said}") from None
    if f"\t{instruction.mnemonic}" not in text:
        raise CpuError(
            f"LLVM {_version()} compiles {instruction.name} to other instructions than {instruction.mnemonic.strip()}."
        )
    return text


@cache
def compiled(name: str) -> Function:
    """Return the compiled function that applies the instruction `name` to consecutive blocks of its operands; cached.

    A block fills one register of each operand. The function's arguments are the addresses of the result, of each
    operand and, for AMX, of the tile configuration, and then the number of blocks. Raises a CpuError if the processor
    does not have the instruction, or LLVM does not compile it.
    """
    instruction = named(name)
    require(instruction)  # before anything is compiled or run
    assembly_of(instruction)
    from llvmlite import binding

    with llvm_lock:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        engine = binding.create_mcjit_compiler(binding.parse_assembly(text_of(instruction)), _target(instruction))
        engine.finalize_object()
        address = engine.get_function_address("run")
    count = 4 if isinstance(instruction, TileInstruction) else len(instruction.operands)
    kinds = [ctypes.c_void_p] * (1 + count) + [ctypes.c_int64]
    function: Any = ctypes.CFUNCTYPE(None, *kinds)(address)
    function.keeps = engine  # LLVM frees the code with its engine
    return function  # type: ignore[no-any-return]


def _target(instruction: AnyInstruction, triple: str | None = None) -> Any:
    """Return LLVM's target machine: a baseline x86-64 processor with the features that the instruction requires.

    triple: the system to compile for, such as "x86_64-unknown-linux-gnu"; None for this system, whose code can be run.
    """
    from llvmlite import binding

    features = ",".join(f"+{feature}" for feature in instruction.features)
    target = binding.Target.from_triple(triple or binding.get_process_triple())
    return target.create_target_machine(cpu="x86-64", features=features, opt=2, jit=triple is None)


def _version() -> str:
    """Return the version of LLVM, such as "20.1.8"."""
    from llvmlite import binding

    return ".".join(map(str, binding.llvm_version_info))
