"""Facts on the processor of this machine: name, family, features, and the version of LLVM that compiles for it."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

X86 = ("x86_64", "amd64")
LEAST_LLVM = 16  # first version whose intrinsics of AVX512-BF16 have operands of bfloat vectors
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # Linux, Documentation/arch/x86/xstate.rst


class Processor(NamedTuple):
    """A processor as LLVM and the operating system describe it.

    Attributes:
      machine: kind of machine, such as "x86_64".
      name: LLVM's name of the processor, such as "emeraldrapids".
      features: features that programs may use, as LLVM spells them.
      llvm: version of LLVM, such as (20, 1, 8).
    """

    machine: str
    name: str
    features: frozenset[str]
    llvm: tuple[int, ...]


@cache
def processor() -> Processor:
    """Return the facts on the processor of this machine; cached."""
    from llvmlite import binding

    from fpsim.runtime.host import host_features, host_name

    version = tuple(int(number) for number in binding.llvm_version_info)
    return Processor(platform.machine().lower(), host_name(), host_features(), version)


def missing_features(needed: tuple[str, ...]) -> str:
    """Return the reason why an instruction cannot be run here; "" if it can.

    needed: the processor features that it requires, as LLVM spells them. If "amx-tile" is one of them, the operating
    system is asked for permission to use tile registers.
    """
    here = processor()
    if here.machine not in X86:
        return f"this processor is {here.machine}, not x86-64"
    lacking = [feature for feature in needed if feature not in here.features]
    if lacking:
        return f"this processor ({here.name}) has no {' and no '.join(lacking)}"
    if here.llvm[0] < LEAST_LLVM:
        return f"llvmlite has LLVM {here.llvm[0]}, and the first version that compiles it is LLVM {LEAST_LLVM}"
    return tile_refusal() if "amx-tile" in needed else ""


@cache
def tile_refusal() -> str:
    """Ask the operating system for permission to use AMX's tile registers; return why it refused, "" if it did not.

    It is asked once in a process.
    """
    if sys.platform != "linux":
        return f"fpsim cannot ask {sys.platform} for the use of tiles"
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.syscall(*map(ctypes.c_long, (ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)))
    return f"Linux refuses the use of tiles (arch_prctl: error {ctypes.get_errno()})" if answer else ""


CPUINFO = {"vendor": "vendor_id", "family": "cpu family", "model": "model", "stepping": "stepping",
           "microcode": "microcode", "brand": "model name"}  # fmt: skip


def described() -> dict[str, str]:
    """Return facts on the processor, name -> text: processor, machine, system, llvm.

    On Linux also vendor, family, model, stepping, microcode and brand, as far as /proc/cpuinfo has them.
    """
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
