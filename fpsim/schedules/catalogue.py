"""The GPU libraries whose schedules are known, and an example of each of their schedules."""

from __future__ import annotations

from fpsim.schedules.call import Library
from fpsim.schedules.libraries import cublas_calls, cutlass, deepgemm, torch_rowwise, triton
from fpsim.schedules.schedule import FLAT, Schedule

LIBRARIES: dict[str, Library] = {
    module.LIBRARY.name: module.LIBRARY for module in (cutlass, deepgemm, triton, torch_rowwise, cublas_calls)
}
ROWS: tuple[Schedule, ...] = (FLAT, *(row for library in LIBRARIES.values() for row in library.rows))
