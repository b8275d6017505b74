"""The processor of this machine: its name, family and features, and the LLVM that compiles for it."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

X86 = ("x86_64", "amd64")
LEAST_LLVM = 16  # the first whose intrinsics of AVX512-BF16 take vectors of bfloat
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux, Documentation/arch/x86/xstate.rst


class Processor(NamedTuple):
    """A processor as LLVM and the operating system describe it."""

    machine: str  # "x86_64"
    name: str  # LLVM's name, "emeraldrapids"
    features: frozenset[str]  # as LLVM spells them: those that the operating system lets programs use
    llvm: tuple[int, ...]  # version of LLVM


@cache
def processor() -> Processor:
    """Return the processor of this machine."""
    from llvmlite import binding

    features = frozenset(name for name, present in binding.get_host_cpu_features().items() if present)
    version = tuple(int(number) for number in binding.llvm_version_info)
    return Processor(platform.machine().lower(), str(binding.get_host_cpu_name()), features, version)


def missing_features(needed: tuple[str, ...]) -> str:
    """Return why an instruction that needs features cannot be run here, "" if it can be."""
    here = processor()
    if here.machine not in X86:
        return f"this processor is {here.machine}, not x86-64"
    lacking = [feature for feature in needed if feature not in here.features]
    if lacking:
        return f"this processor ({here.name}) has no {' and no '.join(lacking)}"
    if here.llvm[0] < LEAST_LLVM:
        return f"llvmlite has LLVM {here.llvm[0]}, and LLVM {LEAST_LLVM} is the first that compiles it as it is here"
    return tile_refusal() if "amx-tile" in needed else ""


@cache
def tile_refusal() -> str:
    """Ask the operating system, once in a process, for the use of tiles; return why it refuses, "" if it does not."""
    if sys.platform != "linux":
        return f"how {sys.platform} permits the use of tiles is not known here"
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.syscall(*map(ctypes.c_long, (ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)))
    return f"Linux refuses the use of tiles (arch_prctl: error {ctypes.get_errno()})" if answer else ""


CPUINFO = {"vendor": "vendor_id", "family": "cpu family", "model": "model", "stepping": "stepping",
           "microcode": "microcode", "brand": "model name"}  # fmt: skip


def described() -> dict[str, str]:
    """Return the processor's name, and where Linux tells them its vendor, family, model, stepping and microcode."""
    here = processor()
    about = {"processor": here.name, "machine": here.machine}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:  # another system
        text = ""
    for name, key in CPUINFO.items():
        line = re.search(rf"^{key}\s*: (.+)$", text, re.MULTILINE)
        about |= {name: line[1].strip()} if line else {}
    return about | {"system": platform.system(), "llvm": ".".join(map(str, here.llvm))}
