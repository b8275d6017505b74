"""Every matrix unit, found by name: the rows of NVIDIA's and AMD's tables."""

from __future__ import annotations

from fpsim.errors import unknown
from fpsim.formats.named import AMBIGUOUS, find_by_name
from fpsim.matrix_units import amd, nvidia
from fpsim.matrix_units.chips import CHIPS, names_of
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
    chip, _, operand = word.replace("-", "_").replace(" ", "_").partition("_")
    if chip == "sm":
        number, _, operand = operand.partition("_")
        chip = f"sm_{number}"
    if not chip:
        return []
    arches = {each.arch for each in CHIPS.values() if chip in (*names_of(each), *each.name.lower().split())}
    elements = [name.lower() for name in AMBIGUOUS.get(operand, [])] or ([operand] if operand else list(USUAL))
    names = [f"{arch}_{element}_f32" for arch in sorted(arches) for element in elements]
    return [name for name in names if name in ROWS]


def units(arch: str | None = None) -> tuple[MatrixUnit, ...]:
    """Every matrix unit, or those of one architecture, each with its source and evidence.

    Args:
      arch: volta, turing, ampere, ada, hopper, blackwell, cdna1, cdna2 or cdna3; None for all.

    Raises:
      ValueError: there is no such architecture.

    Example:
      >>> import fpsim as fp
      >>> [unit.name for unit in fp.units("volta")]
      ['volta_f16_f32', 'volta_f16_f16']
      >>> sum(unit.evidence == "hardware" for unit in fp.units()) > 20
      True
    """
    arches = list(dict.fromkeys(chip.arch for chip in CHIPS.values()))
    wanted = arch.lower().strip() if isinstance(arch, str) else arch
    if wanted is not None and (not isinstance(wanted, str) or wanted not in arches):
        raise unknown("arch", arch, arches)
    return tuple(row for row in ROWS.values() if wanted in (None, row.arch))
