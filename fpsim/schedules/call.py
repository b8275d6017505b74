"""A product as a library would see it, and a library as what it refuses and the schedules it is known for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fpsim.formats.named import BF16, FP16, FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Schedule


class Call(NamedTuple):
    """A product as a library would see it."""

    schedule: Schedule
    unit: MatrixUnit
    m: int
    n: int
    k: int
    scale_a: str = "none"  # "none", "tensor", "row", "1x128", "128x128"
    scale_b: str = "none"
    out_fmt: Format = FP32

    @property
    def is_fp8(self) -> bool:
        """Whether the operands have eight bits."""
        return self.unit.a.fmt.bits == 8

    @property
    def is_half(self) -> bool:
        """Whether the operands are FP16 or BF16."""
        return self.unit.a.fmt in (FP16, BF16) and self.unit.a == self.unit.b


Check = Callable[[Call], Iterator[str]]


class Library(NamedTuple):
    """A library: each check yields a sentence for every reason why it refuses a call, with its source."""

    name: str  # `library` of its schedules
    rows: tuple[Schedule, ...]  # every kind of schedule, with usual parameters
    refusals: tuple[Check, ...] = ()
    remarks: tuple[Check, ...] = ()  # which other kernels its heuristic takes for a shape


def other_chip(call: Call) -> Iterator[str]:
    """A schedule of one architecture, and a unit of another."""
    wanted = call.schedule.arch
    if wanted and call.unit.arch not in (wanted, ""):
        yield f"{call.schedule} runs on {wanted}; got {call.unit.name}. Take a unit named {wanted}_..."
