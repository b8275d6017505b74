"""What libraries refuse, and what their heuristics choose for other shapes: a sentence each, with its source."""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.call import Call, Library
from fpsim.schedules.catalogue import LIBRARIES
from fpsim.schedules.schedule import Schedule


def refusals(call: Call) -> list[str]:
    """Why the library refuses a call, a sentence each; empty where it does not."""
    return [sentence for check in _library(call).refusals for sentence in check(call)]


def remarks(schedule: Schedule, unit: MatrixUnit, m: int, n: int, k: int) -> list[str]:
    """Which other kernels the library takes for a shape, a sentence each; empty where it may take this one."""
    call = Call(schedule, unit, m, n, k)
    return [sentence for check in _library(call).remarks for sentence in check(call)]


def _library(call: Call) -> Library:
    """The library of a call's schedule; one of one's own refuses nothing."""
    return LIBRARIES.get(call.schedule.library, Library(call.schedule.library, ()))
