"""Matrix instructions and conversions of this processor, compiled by LLVM, run, and compared with the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.cpu.availability import CpuAvailability as CpuAvailability
    from fpsim.cpu.availability import CpuError as CpuError
    from fpsim.cpu.availability import available as available
    from fpsim.cpu.execution import run as run
    from fpsim.cpu.products import dot_add as dot_add
    from fpsim.cpu.recordings import record as record
    from fpsim.cpu.recordings import replay as replay
    from fpsim.cpu.report import CpuReport as CpuReport
    from fpsim.cpu.validation import validate as validate

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "availability": ["CpuAvailability", "CpuError", "available"],
        "execution": ["run"],
        "products": ["dot_add"],
        "recordings": ["record", "replay"],
        "report": ["CpuReport"],
        "validation": ["validate"],
    },
)
