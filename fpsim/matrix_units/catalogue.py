"""Look-up of matrix units by name, in the tables of NVIDIA's, AMD's, x86's and Arm's units for floats and integers."""

from __future__ import annotations

import re
from typing import Any, overload

from fpsim.deprecation import renamed_arguments
from fpsim.errors import shown, unknown
from fpsim.formats.named import AMBIGUOUS, find_by_name
from fpsim.matrix_units import amd, cpus, integers, nvidia
from fpsim.matrix_units.chips import BETWEEN, CHIPS, find, names_of, resolve, target_without_units
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import ELEMENTS, MatrixUnit

Unit = MatrixUnit | IntegerUnit

USUAL = ("e4m3", "f16", "bf16")  # operands of the units that are suggested where only a chip is named
# How others spell integers: "i8", "int8" and "uint8" are s8 and u8.
SPELLED = re.compile(r"(?<![a-wyz0-9])(u?)i(?:nt)?(4|8|32)(?![0-9])")
ROWS: dict[str, MatrixUnit] = {row.name: row for row in (*nvidia.UNITS, *amd.UNITS, *cpus.UNITS)}
INTEGER_ROWS: dict[str, IntegerUnit] = {row.name: row for row in integers.UNITS}


@overload
def unit(name: MatrixUnit) -> MatrixUnit: ...
@overload
def unit(name: IntegerUnit) -> IntegerUnit: ...
@overload
def unit(name: str) -> MatrixUnit | Any: ...  # type checkers cannot know which of the two a text names
def unit(name: str | Unit) -> Unit:
    """Return the matrix unit of a name: a MatrixUnit, or an IntegerUnit if it multiplies integers.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`, such as "hopper_e4m3_f32" or "hopper_s8_s32"; `fp.units()` lists them all. Any name
        of a chip may replace the architecture: "H100_e4m3_f32", "sm_90_e4m3_f32". A unit is returned unchanged.

    Raises:
      ValueError: no unit has that name; the message suggests similar names.

    Example:
      >>> import fpsim as fp
      >>> fp.unit("ampere_bf16_f32")
      MatrixUnit('ampere_bf16_f32': 8 products per step, cut at 24 fraction bits, rounded toward zero; hardware)
      >>> fp.unit("cdna3_i8_i32")
      IntegerUnit('cdna3_s8_s32': 32 products per step, exact, then wrapped modulo 2^32; inferred)
    """
    return any_unit("unit", name)


def float_unit(name: str | MatrixUnit) -> MatrixUnit:
    """Return the MatrixUnit (a unit that multiplies floats) of a name, such as "hopper_e4m3_f32".

    name: as for `unit`; a MatrixUnit is returned unchanged.

    Raises:
      ValueError: no unit has that name, or it multiplies integers.
    """
    return named_unit("unit", name)


def named_unit(argument: str, name: str | Unit) -> MatrixUnit:
    """Return the matrix unit of a name, if it multiplies floats; a MatrixUnit is returned unchanged.

    argument: the caller's name for the argument, with which error messages begin.

    Raises:
      ValueError: no unit has that name, or it multiplies integers.

    Example:
      >>> from fpsim.matrix_units.catalogue import named_unit
      >>> named_unit("accumulate", "hopper_bf16_f31")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: accumulate must be one of the 240 that fp.units() or `fpsim units` lists, such as hopper_bf16_f32, ...
    """
    named = any_unit(argument, name)
    if isinstance(named, IntegerUnit):
        raise ValueError(
            f"{argument} must be a matrix unit of floats here; got {named.name}, which multiplies integers. Integer "
            "products are those of fp.matmul and fp.dot_add."
        )
    return named


def any_unit(argument: str, name: str | Unit) -> Unit:
    """Return the matrix unit of a name, for floats or for integers; a unit is returned unchanged.

    argument: the caller's name for the argument, with which error messages begin.

    Raises:
      ValueError: no unit has that name.
    """
    if isinstance(name, (MatrixUnit, IntegerUnit)):
        return name
    key = name.lower().strip() if isinstance(name, str) else None
    row = _row(key or "")
    arch, operands = ("", "") if row else _arch_and_operands(key or "")
    operands = SPELLED.sub(lambda match: f"{match[1] or 's'}{match[2]}", operands)
    row = row or _row(f"{arch}_{operands}")
    if row is not None:
        return row
    target = None if arch else _unknown_target(key or "")
    if target is not None:
        raise ValueError(
            f"{argument} must be a unit of a chip whose matrix units are known here; got {shown(name)} ({target}), "
            "whose are not. docs/matrix-units.md lists the known ones."
        )
    meant = _meant(arch, operands) if arch else []
    chips = {} if not key or re.search(BETWEEN, key) else {
        spelling: units[0] for chip in CHIPS.values() for spelling in names_of(chip) if (units := _meant(chip.arch, ""))
    }  # fmt: skip
    refusal = unknown(argument, name, [*ROWS, *INTEGER_ROWS], chips, listing="fp.units() or `fpsim units`", meant=meant)
    fmt = find_by_name(key or "")
    if fmt is None:
        raise refusal
    raise ValueError(f"{refusal} Sums in a format are an accumulator's: pass fp.Sequential(fp.{fmt.name}).")


def _row(name: str) -> Unit | None:
    """Return the unit whose name is exactly `name`, or None."""
    return ROWS.get(name) or INTEGER_ROWS.get(name)


def _arch_and_operands(name: str) -> tuple[str, str]:
    """Split a unit's name into (architecture, remainder of the name).

    The architecture is that of the longest chip name with which the unit's name begins: "h100_e4m3_f32" gives
    ("hopper", "e4m3_f32"). Both are "" if the unit's name begins with no chip's name.
    """
    parts = [part for part in re.split(BETWEEN, name) if part]
    for count in range(len(parts), 0, -1):
        named = find(" ".join(parts[:count]))
        if named is not None:
            return named.chip.arch, "_".join(parts[count:])
    return "", ""


def _unknown_target(name: str) -> str | None:
    """Return the target of the chip with which a unit's name begins, if that is one without known units; else None."""
    parts = [part for part in re.split(BETWEEN, name) if part]
    targets = (target_without_units(" ".join(parts[:count])) for count in range(len(parts), 0, -1))
    return next((target for target in targets if target), None)


def _meant(arch: str, formats: str) -> list[str]:
    """List the names of an architecture's units, for operands of a given format, that an error message suggests.

    arch: the architecture. formats: name of the format of both operands in any spelling, such as "bf16" or "half", and
    of the result, if there is one ("half_float"). An ambiguous name, such as "fp8", stands for every format that it may
    mean, and "" for those in USUAL. Units with results in float32 or INT32 are listed if the result is not named.
    """
    operand, _, result = formats.partition("_")
    ambiguous = [name.lower() for name in AMBIGUOUS.get(operand, [])]
    elements = ambiguous or ([_element(operand) or operand] if operand else list(USUAL))
    results = (_element(result),) if _element(result) else ("f32", "s32")
    return [name for element in elements for result in results if _row(name := f"{arch}_{element}_{result}")]


def _element(name: str) -> str | None:
    """Return the spelling of a format in names of units, such as "f16"; None if units have no such format.

    name: the format in any spelling, such as "half".
    """
    fmt = find_by_name(name)
    return next((element for element, row in ELEMENTS.items() if row.fmt == fmt), None)


@renamed_arguments(arch="chip")
def units(chip: str | None = None) -> tuple[MatrixUnit | Any, ...]:
    """List every matrix unit, or those of one chip, each with its source and evidence.

    Args:
      chip: a chip as it is sold, such as "H100", its architecture (volta, turing, ampere, ada, hopper, blackwell,
        cdna1, cdna2, cdna3, x86 or arm), a compiler's target such as "sm_90", or a compute capability such as "9.0";
        None for all chips.

    Returns:
      MatrixUnit rows, which multiply floats, and after them IntegerUnit rows, which multiply integers.

    Raises:
      ValueError: there is no such chip.
      TypeError: the chip is not a string.

    Example:
      >>> import fpsim as fp
      >>> [unit.name for unit in fp.units("volta")]
      ['volta_f16_f32', 'volta_f16_f16']
      >>> [unit.name for unit in fp.units("H100") if isinstance(unit, fp.IntegerUnit)][:4]
      ['hopper_s8_s32', 'hopper_s8xu8_s32', 'hopper_u8xs8_s32', 'hopper_u8_s32']
      >>> sum(unit.evidence == "hardware" for unit in fp.units()) > 20
      True
    """
    return (*float_units(chip), *integer_units(chip))


def float_units(chip: str | None = None) -> tuple[MatrixUnit, ...]:
    """List every MatrixUnit, which multiplies floats, or those of one chip.

    chip: a name as for `units`; None for all chips.
    """
    arch = None if chip is None else resolve(chip).chip.arch
    return tuple(row for row in ROWS.values() if arch in (None, row.arch))


def integer_units(chip: str | None = None) -> tuple[IntegerUnit, ...]:
    """List every IntegerUnit, which multiplies integers, or those of one chip.

    chip: a name as for `units`; None for all chips.
    """
    arch = None if chip is None else resolve(chip).chip.arch
    return tuple(row for row in INTEGER_ROWS.values() if arch in (None, row.arch))
