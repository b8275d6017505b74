"""Custom matrix units with the bits of a probed function that truncates its products; `fp.matmul` runs them fast."""

from __future__ import annotations

from collections.abc import Sequence

from fpsim.formats.named import FP32
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.probe.candidates import AdderCandidate, order_of
from fpsim.probe.operands import ProbedOperand
from fpsim.probe.programs.program import Program
from fpsim.products.fast_units import LOWEST_FLOOR, is_fast
from fpsim.schedules.schedule import FLAT


def own_unit(program: Program, operands: Sequence[ProbedOperand]) -> AdderCandidate | None:
    """Return a custom matrix unit, as a candidate, that has a program's bits and fast kernels; None if there is none.

    operands: the two operands of the program (with one operand, the result is None).

    Example:
      >>> from dataclasses import replace
      >>> import fpsim as fp
      >>> from fpsim.probe.own_unit import own_unit
      >>> mine = replace(fp.unit("ampere_f16_f32"), fraction_bits=26)
      >>> model = fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate=mine), 32, a="f16")
      >>> own_unit(model.program, model.operands).how
      MatrixUnit('own': 8 products per step, cut at 26 fraction bits, rounded toward zero; inferred)
    """
    rule = program.rule
    elements = [_element(operand) for operand in operands]
    if len(elements) != 2 or None in elements or rule.fraction_bits is None:
        return None
    a, b = (element for element in elements if element is not None)
    cuts = (rule.fmt, rule.rounding, rule.alignment) == (FP32, "toward_zero", "truncate")
    cuts = cuts and not (rule.flushes or rule.least_inputs or program.scale)
    by_operands = rule.operand_exponents == (a.fmt.min_exponent, b.fmt.min_exponent)
    # matrix units treat sums beyond float32's range differently
    in_range = float(a.fmt.max) * float(b.fmt.max) * program.n < float(FP32.max)
    if not (cuts and by_operands and in_range and rule.zeros == "added"):
        return None
    bits = FP32.mantissa_bits if rule.result_bits is None else rule.result_bits
    # LOWEST_FLOOR: a zero never has the largest exponent
    unit = MatrixUnit(
        "own", "own", a, b, ELEMENTS["f32"], Rule.FUSED, program.order.terms_at_once, rule.fraction_bits, LOWEST_FLOOR,
        bits, evidence="inferred",
    )  # fmt: skip
    candidate = AdderCandidate(unit, FLAT, program.out)
    return candidate if is_fast(unit) and order_of(candidate.tree(program.n, 1)) == program.order else None


def _element(operand: ProbedOperand) -> Element | None:
    """Return the element type of matrix units that has an operand's format; None if there is none."""
    if operand.element:
        return ELEMENTS[operand.element]
    return next((element for element in ELEMENTS.values() if element.fmt == operand.fmt == element.carrier), None)
