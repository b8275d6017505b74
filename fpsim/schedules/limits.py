"""Sentences, with sources, on calls that a library refuses and on shapes for which it uses other kernels."""

from __future__ import annotations

from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.call import Call, Library
from fpsim.schedules.catalogue import LIBRARIES
from fpsim.schedules.schedule import Schedule


def refusals(call: Call) -> list[str]:
    """Return the reasons, as sentences, why the library of a call's schedule refuses the call; [] if it supports it."""
    return [sentence for check in _library(call).refusals for sentence in check(call)]


def remarks(schedule: Schedule, unit: MatrixUnit, m: int, n: int, k: int) -> list[str]:
    """Return sentences on other kernels that a schedule's library would use for a product; [] if there are none.

    schedule: the schedule. unit: the matrix unit. m, n, k: rows and columns of the result, and terms.
    """
    call = Call(schedule, unit, m, n, k)
    return [sentence for check in _library(call).remarks for sentence in check(call)]


def _library(call: Call) -> Library:
    """Return the library of a call's schedule; for an unknown one, a library that refuses nothing."""
    return LIBRARIES.get(call.schedule.library, Library(call.schedule.library, ()))
