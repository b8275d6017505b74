"""Every matrix unit, found by name: the rows of the tables of NVIDIA, AMD, x86 and Arm."""

from __future__ import annotations

import re

from fpsim.deprecation import renamed_arguments
from fpsim.errors import unknown
from fpsim.formats.named import AMBIGUOUS, find_by_name
from fpsim.matrix_units import amd, arm, nvidia, x86
from fpsim.matrix_units.chips import BETWEEN, CHIPS, find, names_of, resolve
from fpsim.matrix_units.matrix_unit import MatrixUnit

USUAL = ("e4m3", "f16", "bf16")  # operands of the units that are named for a chip alone
ROWS: dict[str, MatrixUnit] = {row.name: row for row in (*nvidia.UNITS, *amd.UNITS, *x86.UNITS, *arm.UNITS)}


def unit(name: str | MatrixUnit) -> MatrixUnit:
    """Return the matrix unit of a name.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`, such as "hopper_e4m3_f32"; `fp.units()` lists them all. Any name of a chip may stand
        for the architecture: "H100_e4m3_f32", "sm_90_e4m3_f32". A unit is returned as it is.

    Raises:
      ValueError: no unit has that name; the message gives the nearest ones.

    Example:
      >>> import fpsim as fp
      >>> fp.unit("ampere_bf16_f32")
      MatrixUnit('ampere_bf16_f32': 8 products per step, cut at 24 fraction bits, rounded toward zero; hardware)
    """
    return named_unit("unit", name)


def named_unit(argument: str, name: str | MatrixUnit) -> MatrixUnit:
    """Return the matrix unit of a name, as `unit` does, for an argument that error messages name.

    Example:
      >>> from fpsim.matrix_units.catalogue import named_unit
      >>> named_unit("accumulate", "hopper_bf16_f31")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: accumulate must be one of the 155 that fp.units() or `fpsim units` lists, such as hopper_bf16_f32, ...
    """
    if isinstance(name, MatrixUnit):
        return name
    key = name.lower().strip() if isinstance(name, str) else None
    if key in ROWS:
        return ROWS[key]
    arch, operands = _arch_and_operands(key or "")
    if f"{arch}_{operands}" in ROWS:
        return ROWS[f"{arch}_{operands}"]
    meant = _meant(arch, operands) if arch else []
    chips = {} if not key or re.search(BETWEEN, key) else {
        spelling: units[0] for chip in CHIPS.values() for spelling in names_of(chip) if (units := _meant(chip.arch, ""))
    }  # fmt: skip
    refusal = unknown(argument, name, list(ROWS), chips, listing="fp.units() or `fpsim units`", meant=meant)
    fmt = find_by_name(key or "")
    if fmt is None:
        raise refusal
    raise ValueError(f"{refusal} Sums in a format are an accumulator's: pass fp.Sequential(fp.{fmt.name}).")


def _arch_and_operands(name: str) -> tuple[str, str]:
    """Split a unit's name into the architecture of the longest chip's name that it begins with, and the rest."""
    parts = [part for part in re.split(BETWEEN, name) if part]
    for count in range(len(parts), 0, -1):
        named = find(" ".join(parts[:count]))
        if named is not None:
            return named.chip.arch, "_".join(parts[count:])
    return "", ""


def _meant(arch: str, operand: str) -> list[str]:
    """List the units to suggest for an architecture and the name of an operand, which may be empty or ambiguous."""
    elements = [name.lower() for name in AMBIGUOUS.get(operand, [])] or ([operand] if operand else list(USUAL))
    names = [f"{arch}_{element}_f32" for element in elements]
    return [name for name in names if name in ROWS]


@renamed_arguments(arch="chip")
def units(chip: str | None = None) -> tuple[MatrixUnit, ...]:
    """List every matrix unit, or those of one chip, each with its source and evidence.

    Args:
      chip: a chip as it is sold, such as "H100", its architecture (volta, turing, ampere, ada, hopper, blackwell,
        cdna1, cdna2 or cdna3), a compiler's target such as "sm_90", or a compute capability such as "9.0"; None for
        all chips.

    Raises:
      ValueError: there is no such chip.
      TypeError: the chip is not a string.

    Example:
      >>> import fpsim as fp
      >>> [unit.name for unit in fp.units("volta")]
      ['volta_f16_f32', 'volta_f16_f16']
      >>> sum(unit.evidence == "hardware" for unit in fp.units()) > 20
      True
    """
    arch = None if chip is None else resolve(chip).chip.arch
    return tuple(row for row in ROWS.values() if arch in (None, row.arch))
