"""Records of one call of a library's matrix product, and of a library: its schedules and its checks of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fpsim.formats.named import BF16, FP16, FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Schedule


class Call(NamedTuple):
    """The properties of a call of a library's matrix product that decide whether the library supports it.

    Attributes:
      schedule: the order of the library's kernel.
      unit: the matrix unit that multiplies.
      m, n, k: the product's sizes.
      scale_a, scale_b: granularity of scales: "none", "tensor", "row", "1x128" or "128x128".
      out_fmt: format of the result.
    """

    schedule: Schedule
    unit: MatrixUnit
    m: int
    n: int
    k: int
    scale_a: str = "none"
    scale_b: str = "none"
    out_fmt: Format = FP32

    @property
    def is_fp8(self) -> bool:
        """True if operand a has 8 bits."""
        return self.unit.a.fmt.bits == 8

    @property
    def is_half(self) -> bool:
        """True if both operands are FP16, or both BF16."""
        return self.unit.a.fmt in (FP16, BF16) and self.unit.a == self.unit.b


Check = Callable[[Call], Iterator[str]]


class Library(NamedTuple):
    """A library of GPU kernels: its name, examples of its schedules, and checks of calls.

    Attributes:
      name: as in `Schedule.library`.
      rows: a schedule with usual parameters of each of its kernel families.
      refusals: functions of a Call that yield a sentence for every reason to refuse it.
      remarks: functions of a Call that yield a sentence if the library's heuristic chooses another kernel for the
        shape.
    """

    name: str
    rows: tuple[Schedule, ...]
    refusals: tuple[Check, ...] = ()
    remarks: tuple[Check, ...] = ()


def other_chip(call: Call) -> Iterator[str]:
    """Yield a sentence if the call's schedule is for another architecture than that of its unit."""
    wanted = call.schedule.arch
    if wanted and call.unit.arch not in (wanted, ""):
        yield f"{call.schedule} runs on {wanted}; got {call.unit.name}. Take a unit named {wanted}_..."
