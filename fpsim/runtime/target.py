"""The processor that numba compiles for: this one, or the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba
from llvmlite import binding, ir

from fpsim.runtime.forks import llvm_lock


class CompileTarget(NamedTuple):
    """LLVM's description of a processor: system and architecture (`triple`), name, and text with its features."""

    triple: str  # such as x86_64-unknown-linux-gnu
    name: str
    features: str  # such as +avx2,-avx512f


def target() -> CompileTarget:
    """Return LLVM's description of the processor for which numba compiles."""
    config = numba.config
    features = config.CPU_FEATURES
    with llvm_lock:
        return CompileTarget(
            binding.get_process_triple(),
            config.CPU_NAME or binding.get_host_cpu_name(),
            _features(bool(config.ENABLE_AVX)) if features is None else features,
        )


@cache
def _features(with_avx: bool) -> str:
    """Return this processor's features as LLVM's text, such as "+avx2,-avx512f", or "" if unknown.

    with_avx: False turns AVX features off.
    """
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell
        return ""
    if not with_avx:
        features.update({name: False for name in features if name.startswith("avx")})
    return str(features.flatten())


def assembly_of(module: ir.Module) -> str:
    """Return the assembly of an LLVM module for numba's target, without LLVM's optimisation passes."""
    with llvm_lock:
        return str(target_machine().emit_assembly(binding.parse_assembly(str(module))))


def target_machine() -> Any:
    """Return llvmlite's code generator (TargetMachine) for the processor for which numba compiles."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, name, features = target()
    return binding.Target.from_triple(triple).create_target_machine(cpu=name, features=features, opt=3, jit=True)
