"""The name and features of this machine's processor, as LLVM calls them."""

from __future__ import annotations

import platform
from functools import cache

from llvmlite import binding

from fpsim.runtime.forks import llvm_lock


@cache
def host_name() -> str:
    """Return LLVM's name of this machine's processor, such as "znver5"; "generic" where LLVM does not know it.

    Example:
      >>> from fpsim.runtime.host import host_name
      >>> host_name() == ""
      False
    """
    with llvm_lock:
        return str(binding.get_host_cpu_name())


@cache
def host_features() -> frozenset[str]:
    """Return LLVM's names of the features of this x86-64 processor that programs can use; empty for other processors.

    Example:
      >>> from fpsim.runtime.host import host_features
      >>> "hopper" in host_features()
      False
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    try:
        with llvm_lock:
            features = binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    return frozenset(str(name) for name, present in features.items() if present)
