"""Features of this machine's processor, by LLVM's names, as far as the operating system lets programs use them."""

from __future__ import annotations

import platform
from functools import cache

from llvmlite import binding

from fpsim.runtime.forks import llvm_lock


@cache
def host_features() -> frozenset[str]:
    """Return LLVM's names of the features of this x86-64 processor, such as "avx2".

    Empty for other processors, or if LLVM cannot tell.

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
