"""Calls that libraries refuse, and shapes for which they take other kernels, in sentences with their source."""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.call import Call, Library
from fpsim.schedules.catalogue import LIBRARIES
from fpsim.schedules.schedule import Schedule


def refusals(call: Call) -> list[str]:
    """List the reasons why the library refuses a call, as sentences; empty if it takes the call."""
    return [sentence for check in _library(call).refusals for sentence in check(call)]


def remarks(schedule: Schedule, unit: MatrixUnit, m: int, n: int, k: int) -> list[str]:
    """List the kernels that the library takes instead for a shape, as sentences; empty if it may take this one."""
    call = Call(schedule, unit, m, n, k)
    return [sentence for check in _library(call).remarks for sentence in check(call)]


def _library(call: Call) -> Library:
    """Return the library of a call's schedule; an unknown one refuses nothing."""
    return LIBRARIES.get(call.schedule.library, Library(call.schedule.library, ()))
