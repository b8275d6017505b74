"""The keyword arguments of a product by a matrix unit, and errors for combinations without a meaning."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from fpsim.arrays import format_of
from fpsim.errors import shown
from fpsim.matrix_units.catalogue import INTEGER_ROWS, ROWS, USUAL
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.shaped import is_regions
from fpsim.schedules.written import no_schedule
from fpsim.sums.accumulators import Accumulator


class Request(NamedTuple):
    """The keyword arguments of `fpsim.matmul` that concern matrix units; its docstring describes each."""

    schedule: Any = None  # a Schedule, a Tree, or an order in nested tuples
    promote: int | None = None
    scale_a: Any = None
    scale_b: Any = None
    scale_order: str | None = None
    bias: Any = None
    alpha: float | None = None
    beta: float | None = None
    out_fmt: Any = None  # a float format by name, dtype or object; for integer units also an integer format
    strict: bool = True


def is_order(x: Any) -> bool:
    """Return whether x is an order of additions: a Tree, a SumOrder, or nested tuples of terms."""
    if isinstance(x, tuple):
        return True
    trees = sys.modules.get("fpsim.schedules.trees.tree")  # loaded with the first tree; `rows` with the first SumOrder
    rows = sys.modules.get("fpsim.schedules.trees.array_sums")
    return (trees is not None and isinstance(x, trees.Tree)) or (rows is not None and isinstance(x, rows.SumOrder))


def refuse_conflicts(request: Request) -> None:
    """Raise an error if `schedule` is not a Schedule, or if `promote` or `scale_order` is passed with it.

    request: the call's keyword arguments.

    Raises:
      ValueError: `promote` or `scale_order` is passed with a schedule; or `schedule` is an order of additions, such as
        nested tuples, which products on a GPU cannot follow.
      TypeError: `schedule` is an object of another class.
    """
    if request.schedule is None:
        return
    if is_order(request.schedule) or is_regions(request.schedule):
        raise ValueError("an order of additions runs on the CPU; got one for a product on a GPU. Take fpsim.matmul.")
    if not isinstance(request.schedule, Schedule):
        raise no_schedule(request.schedule)
    for name, value in (("promote", request.promote), ("scale_order", request.scale_order)):
        if value is not None:
            raise ValueError(f"{name} is part of the schedule, {request.schedule}; got both. Leave {name} out.")


def refuse_unit_options(request: Request) -> None:
    """Raise a ValueError if `request`, of a product by an accumulator, has a keyword for units other than `strict`."""
    for name, value in zip(request._fields, request, strict=True):
        if name != "strict" and value is not None:
            raise ValueError(f"{name} is for matrix units; an accumulator rounds every sum. Leave it out.")


def no_accumulate(got: object, operands: Mapping[str, Any]) -> TypeError:
    """Return the TypeError for a value `got`, passed as `accumulate`, that is neither a unit nor an accumulator.

    operands: the other arguments by name, in case a unit was passed by position as one of them.

    Example:
      >>> from fpsim.products.request import no_accumulate
      >>> print(no_accumulate(None, {"a": np.ones((2, 2), np.float16)}))
      accumulate must be a matrix unit, its name, or an accumulator; got None. Pass
      accumulate='hopper_f16_f32', 'ampere_f16_f32' or fp.Sequential(fp.FP32), for instance.
    """
    for name, value in operands.items():
        is_name = isinstance(value, str) and value.lower() in {*ROWS, *INTEGER_ROWS}
        if is_name or isinstance(value, (MatrixUnit, IntegerUnit, Accumulator)):
            return TypeError(
                f"accumulate must be passed by its name; got {shown(value)} as {name}. Pass accumulate={shown(value)}."
            )
    units = [repr(name) for name in _suggested_units(operands.get("a"))[:2]]
    return TypeError(
        f"accumulate must be a matrix unit, its name, or an accumulator; got {shown(got)}. Pass accumulate="
        f"{', '.join(units)} or fp.Sequential(fp.FP32), for instance."
    )


def _suggested_units(a: Any) -> list[str]:
    """Return the names of common units with float32 sums that multiply the format of operand a.

    a: an array, a Scaled array, or anything else. If no unit multiplies its format, return the names of all common
    units.
    """
    dtype = getattr(a, "dtype", None)
    fmt = getattr(a, "fmt", None) or (None if dtype is None else format_of(dtype))
    names = [f"{arch}_{element}_f32" for arch in ("hopper", "ampere", "blackwell") for element in USUAL]
    usual = [ROWS[name] for name in names if name in ROWS]
    fitting = [unit.name for unit in usual if fmt is not None and unit.a.fmt == fmt]
    return fitting or [unit.name for unit in usual]
