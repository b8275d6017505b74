"""Features of the processor of this machine, by LLVM's names: those that the operating system lets programs use."""

from __future__ import annotations

import platform
from functools import cache

from llvmlite import binding


@cache
def host_features() -> frozenset[str]:
    """Return the names of the features of an x86-64 processor; none on others, and where LLVM cannot tell.

    Example:
      >>> from fpsim.runtime.host import host_features
      >>> "hopper" in host_features()
      False
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    try:
        features = binding.get_host_cpu_features()
    except RuntimeError:
        return frozenset()
    return frozenset(str(name) for name, present in features.items() if present)
