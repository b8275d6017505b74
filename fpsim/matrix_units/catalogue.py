"""Every matrix unit, found by name: the rows of NVIDIA's and AMD's tables."""

from __future__ import annotations

import re

from fpsim.errors import unknown
from fpsim.formats.named import AMBIGUOUS, find_by_name
from fpsim.matrix_units import amd, nvidia
from fpsim.matrix_units.chips import find, named
from fpsim.matrix_units.matrix_unit import MatrixUnit

USUAL = ("e4m3", "f16", "bf16")  # operands of the units that are named for a chip alone
ROWS: dict[str, MatrixUnit] = {row.name: row for row in (*nvidia.UNITS, *amd.UNITS)}


def unit(name: str | MatrixUnit) -> MatrixUnit:
    """The matrix unit of a name.

    Args:
      name: `<arch>_<a>[x<b>]_<d>`, such as "hopper_e4m3_f32"; `fp.units()` lists them all. A unit is returned as it is.

    Raises:
      ValueError: no unit has that name; the message gives the nearest ones.

    Example:
      >>> import fpsim as fp
      >>> fp.unit("ampere_bf16_f32")
      MatrixUnit('ampere_bf16_f32': 8 products per step, cut at 24 fraction bits, rounded toward zero; hardware)
    """
    return named_unit("unit", name)


def named_unit(argument: str, name: str | MatrixUnit) -> MatrixUnit:
    """`unit` for an argument of that name, which refusals give.

    Example:
      >>> from fpsim.matrix_units.catalogue import named_unit
      >>> named_unit("accumulate", "hopper_bf16_f31")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      ValueError: accumulate must be one of the 150 that fp.units() or `fpsim units` lists, such as hopper_bf16_f32, ...
    """
    if isinstance(name, MatrixUnit):
        return name
    key = name.lower().strip() if isinstance(name, str) else None
    if key in ROWS:
        return ROWS[key]
    word = key or ""
    refusal = unknown(argument, name, list(ROWS), listing="fp.units() or `fpsim units`", meant=_meant(word))
    fmt = find_by_name(word)
    if fmt is None:
        raise refusal
    raise ValueError(f"{refusal} Sums in a format are an accumulator's: pass fp.Sequential(fp.{fmt.name}).")


def _meant(word: str) -> list[str]:
    """The units that a chip, an architecture, or either with an operand stands for, such as "h100" or "hopper_fp8"."""
    parts = [part for part in re.split(r"[\s_-]+", word) if part]
    for count in range(len(parts), 0, -1):  # as many as name a chip, and the operand's name after them
        chip, operand = find(" ".join(parts[:count])), "_".join(parts[count:])
        if chip is not None:
            break
    else:
        return []
    elements = [name.lower() for name in AMBIGUOUS.get(operand, [])] or ([operand] if operand else list(USUAL))
    names = [f"{chip.arch}_{element}_f32" for element in elements]
    return [name for name in names if name in ROWS]


def units(arch: str | None = None) -> tuple[MatrixUnit, ...]:
    """Every matrix unit, or those of one architecture, each with its source and evidence.

    Args:
      arch: a chip as it is sold, such as "H100", its architecture (volta, turing, ampere, ada, hopper, blackwell,
        cdna1, cdna2 or cdna3), or a compiler's target such as "sm_90"; None for all.

    Raises:
      ValueError: there is no such chip or architecture.
      TypeError: it is no text.

    Example:
      >>> import fpsim as fp
      >>> [unit.name for unit in fp.units("volta")]
      ['volta_f16_f32', 'volta_f16_f16']
      >>> sum(unit.evidence == "hardware" for unit in fp.units()) > 20
      True
    """
    wanted = None if arch is None else named(arch, "arch").arch
    return tuple(row for row in ROWS.values() if wanted in (None, row.arch))
