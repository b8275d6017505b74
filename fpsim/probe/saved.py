"""Reads models of black boxes from files that `Model.save` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fpsim.errors import shown
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.candidates import AdderCandidate
from fpsim.probe.integers.model import KIND as INTEGER_KIND
from fpsim.probe.integers.model import loaded
from fpsim.probe.model import KIND, Model
from fpsim.probe.operands import ProbedCall, ProbedOperand, operand_of
from fpsim.probe.order import Order
from fpsim.probe.programs.program import Program
from fpsim.probe.programs.rules import AdditionRule, SumScale
from fpsim.schedules.catalogue import ROWS
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import Accumulator


def load(path: str | Path) -> Model:
    """Return the model in a file that `Model.save` wrote.

    Args:
      path: the file to read.

    Raises:
      ValueError: the file is not a saved model.

    Example:
      >>> import tempfile, fpsim as fp
      >>> file = tempfile.mktemp(".json")
      >>> fp.probe.sum(np.sum, 9).save(file)
      >>> fp.probe.load(file).tree == fp.probe.sum(np.sum, 9).tree
      True
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        if fields["what"] == INTEGER_KIND:
            return loaded(fields)
        if fields["what"] != KIND:
            raise KeyError("what")
        order = None if fields["order"] is None else Order.parsed(fields["order"])
        operands = tuple(operand_of(name, "operand") for name in fields["operands"])
        tensors = fields.get("tensors", [False] * len(operands))
        operands = tuple(operand._replace(tensors=bool(of)) for operand, of in zip(operands, tensors, strict=True))
        out, n = find_format(fields["out"]), int(fields["n"])
        alike = tuple(AdderCandidate(*_how(*texts), out) for texts in fields["alike"])
        program = None
        if "rule" in fields and order is not None:
            rule = dict(fields["rule"])
            rule["fmt"] = find_format(rule["fmt"])
            rule["product"] = rule["product"] and find_format(rule["product"])
            rule |= {name: tuple(rule[name]) for name in ("flushes", "least_inputs") if name in rule}
            if "subnormals" in rule:  # of a model that an older version saved
                rule |= _flushes_saved_as(rule.pop("subnormals"), operands)
            rule["operand_exponents"] = rule["operand_exponents"] and tuple(rule["operand_exponents"])
            exact = frozenset(k for start, stop in fields["unrounded_products"] for k in range(start, stop))
            formats = tuple(find_format(name) for name in fields["formats"])
            scale = fields.get("sum_scale")
            scale = scale and SumScale(scale[0], float(scale[1]), find_format(scale[2]))
            program = Program(order, AdditionRule(**rule), out, n, exact, formats, scale)
        call = ProbedCall(
            fields["kind"], n, operands, (fields["shape"][0], fields["shape"][1]), fields["scale"], fields["block"],
            fields.get("layout", "nn"),
        )  # fmt: skip
        return Model(
            call, out, order=order, alike=alike, program=program, unknown=tuple(fields["unknown"]),
            calls=fields["calls"], returned=find_format(fields.get("returned", fields["out"])),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as reason:
        raise ValueError(f"path must be a model that Model.save wrote; got {shown(str(path))}: {reason}") from None


def _flushes_saved_as(word: str, operands: tuple[ProbedOperand, ...]) -> dict[str, Any]:
    """Return the fields `flushes` and `least_inputs` of an `AdditionRule` for the entry "subnormals" of an old file.

    word: the entry. "keep" flushes nothing; "flush" flushes subnormal inputs, products and sums; any other word flushes
    products and sums alone. operands: the operands; inputs below an operand's smallest normal number are flushed.
    """
    if word == "keep":
        return {}
    least = tuple(float(operand.fmt.smallest_normal) for operand in operands) if word == "flush" else ()
    return {"flushes": ("products", "sums", "starts"), "least_inputs": least}


def _how(name: str, schedule: str) -> tuple[MatrixUnit | Accumulator, Schedule | None]:
    """Return (matrix unit, schedule), or (accumulator, None), for a pair of texts in a saved model.

    name: the unit's name, or the accumulator as a Python expression. schedule: the schedule as a Python expression; ""
    for an accumulator.

    Raises:
      ValueError: a text does not describe a unit, schedule or accumulator.
    """
    if not schedule:
        accumulator = parsed(name)
        if not isinstance(accumulator, Accumulator):
            raise ValueError(f"{name!r} is not an accumulator")
        return accumulator, None
    how = parsed(schedule)
    if not isinstance(how, Schedule):
        raise ValueError(f"{schedule!r} is not a schedule")
    return find_unit(name), next((row for row in ROWS if row == how), how)
