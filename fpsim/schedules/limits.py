"""Sentences, with sources, on calls that a library refuses and on shapes for which it uses other kernels."""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.call import Call
from fpsim.schedules.catalogue import LIBRARIES
from fpsim.schedules.schedule import Schedule


def refusals(call: Call) -> list[str]:
    """Return the reasons, as sentences, why the library of a call's schedule refuses the call; [] if it supports it."""
    library = LIBRARIES.get(call.schedule.library)
    return [sentence for check in library.refusals for sentence in check(call)] if library else []


def remarks(schedule: Schedule, unit: MatrixUnit, m: int, n: int, k: int) -> list[str]:
    """Return sentences on other kernels that a schedule's library would use for a product; [] if there are none.

    schedule: the schedule. unit: the matrix unit. m, n, k: rows and columns of the result, and terms.
    """
    library = LIBRARIES.get(schedule.library)
    return [text for check in library.remarks for text in check(Call(schedule, unit, m, n, k))] if library else []
