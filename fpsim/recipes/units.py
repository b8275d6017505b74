"""`unit_for`, which finds the matrix unit of an architecture that multiplies two given formats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fpsim.formats.element import Element
from fpsim.matrix_units.catalogue import ROWS as UNITS
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import matrix_block


def unit_for(
    arch: str, fmts: Sequence[Element | None], scaling: Scaling | None, axis: int = 1, subject: str = "a product", *,
    result: str = "f32",
) -> MatrixUnit:  # fmt: skip
    """Return the matrix unit of an architecture for operands of two given formats and a given result format.

    A unit that reads block scales itself is preferred if `scaling` has the format of its scales, and as many terms of K
    share one.

    Args:
      arch: the architecture, such as "hopper".
      fmts: the formats of both operands; None, for an uncast operand, matches no unit.
      scaling: the Scaling (recipe of tiles and scales) of the first operand, or None.
      axis: the axis of the first operand that is K, 0 or 1.
      subject: the beginning of the error message, such as "fprop on H100".
      result: name of the results' format in the unit, such as "f32".

    Raises:
      ValueError: the architecture has no such unit.

    Example:
      >>> from fpsim.recipes.units import unit_for
      >>> unit_for("hopper", (fp.E5M2, fp.E4M3), None).name, unit_for("cdna3", (fp.BF16, fp.BF16), None).name
      ('hopper_e5m2xe4m3_f32', 'cdna3_bf16_f32')
    """
    block_scales = None if scaling is None else (scaling.scale_format, matrix_block(scaling.block)[axis])
    unit = _found_unit(arch, result, tuple(fmts), block_scales)
    if unit is not None:
        return unit
    words = " x ".join(str(fmt) for fmt in fmts)
    raise ValueError(
        f"{subject} needs a matrix unit for {words} with scales by {scaling!r}; {arch} has "
        f"none{_as_wide(arch, fmts, result)}. Take other formats, other chips, or a unit of fp.units() by name."
    )


@cache  # called for every product in every training step
def _found_unit(
    arch: str, result: str, fmts: tuple[Element | None, ...], block_scales: tuple[Any, int] | None
) -> MatrixUnit | None:
    """Return the matrix unit of an architecture for operands of two given formats; None if there is none.

    arch: the architecture, such as "hopper". result: name of the result format, such as "f32". fmts: formats of the
    operands; None matches no unit. block_scales: (scale format, terms of K that share a scale); a unit that reads such
    block scales is preferred to one without. None for a unit without block scales.
    """
    units = [
        unit for unit in UNITS.values()
        if (unit.arch, unit.d.name, unit.a.fmt, unit.b.fmt) == (arch, result, *fmts)
        and (unit.scale is None or (unit.scale_format, unit.block) == block_scales)
    ]  # fmt: skip
    # emulated and other variants have longer names
    return min(units, key=lambda unit: (unit.scale is None, len(unit.name)), default=None)


def _as_wide(arch: str, fmts: Sequence[Element | None], result: str) -> str:
    """Return the end of an error text, such as ", but for E4M3 x E4M3": pairs of formats that units do multiply.

    fmts: the formats of two operands that no unit multiplies. The text lists every other pair with the same widths in
    bits that a unit without block scales multiplies. arch: the architecture of these units, such as "hopper". result:
    name of the format of their results, such as "f32". The text is "" if there is no such pair.
    """
    bits = tuple(None if fmt is None else fmt.bits for fmt in fmts)
    others = [
        f"{unit.a.fmt} x {unit.b.fmt}" for unit in UNITS.values()
        if (unit.arch, unit.d.name) == (arch, result) and unit.scale is None
        and None not in (unit.a.fmt, unit.b.fmt) and (unit.a.fmt.bits, unit.b.fmt.bits) == bits
        and (unit.a.fmt, unit.b.fmt) != tuple(fmts)
    ]  # fmt: skip
    return f", but for {listed}" if (listed := ", ".join(dict.fromkeys(others))) else ""
