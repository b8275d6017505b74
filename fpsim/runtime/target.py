"""The processor that numba compiles for: this one, or another one by NUMBA_CPU_NAME and NUMBA_CPU_FEATURES."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba
from llvmlite import binding, ir

from fpsim.runtime.forks import llvm_lock


class CompileTarget(NamedTuple):
    """A processor as LLVM knows it."""

    triple: str  # such as x86_64-unknown-linux-gnu
    name: str
    features: str  # such as +avx2,-avx512f


def target() -> CompileTarget:
    """Return the processor whose machine code numba writes."""
    config = numba.config
    name = config.CPU_NAME or binding.get_host_cpu_name()
    features = config.CPU_FEATURES
    return CompileTarget(
        binding.get_process_triple(), name, _features(bool(config.ENABLE_AVX)) if features is None else features
    )


@cache
def _features(with_avx: bool) -> str:
    """Return this processor's features as LLVM names them, without those of AVX unless `with_avx`."""
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell
        return ""
    if not with_avx:
        features.update({name: False for name in features if name.startswith("avx")})
    return str(features.flatten())


def assembly_of(module: ir.Module) -> str:
    """Return the assembly of a module of LLVM's instructions, unoptimised."""
    with llvm_lock:
        return str(target_machine().emit_assembly(binding.parse_assembly(str(module))))


def target_machine() -> Any:
    """Return LLVM's compiler for the processor whose machine code numba writes."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, name, features = target()
    return binding.Target.from_triple(triple).create_target_machine(cpu=name, features=features, opt=3, jit=True)
