"""Which schedule a library takes on a chip, by the operands' format and scales: rows of data.

What no row has is not known here with a source: which slices cuBLAS cuts K into is its heuristic's choice, so its rows
have one.
"""

from __future__ import annotations

from typing import NamedTuple

from fpsim.errors import unknown
from fpsim.matrix_units.chips import Chip
from fpsim.matrix_units.chips import named as named_chip
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.libraries.cublas import cublas
from fpsim.schedules.libraries.cutlass import cutlass_2xacc, cutlass_blockwise
from fpsim.schedules.libraries.deepgemm import deepgemm
from fpsim.schedules.libraries.torch_rowwise import torch_rowwise
from fpsim.schedules.schedule import Schedule

TENSOR, ROW, BLOCKS, MX = "one scale or none", "a scale per row", "scales per 128 terms", "scales per 32 terms"
BLOCK_OF = {128: BLOCKS, 32: MX}  # terms of K that share a scale
HALF, FP8 = "16 bits", "FP8"


class HardwareRow(NamedTuple):
    """What a library does with operands of one kind on an architecture; sources are those of the schedules."""

    arch: str
    library: str
    operands: str
    scales: str
    schedule: Schedule


# fmt: off
ROWS = (
    HardwareRow("hopper", "cuBLAS", HALF, TENSOR, cublas("sm_90")),
    HardwareRow("hopper", "cuBLAS", FP8, TENSOR, cublas("sm_90")),
    HardwareRow("hopper", "cuBLAS", FP8, BLOCKS, cublas("sm_90", family="block_scaled")),
    HardwareRow("hopper", "cuBLAS fast", FP8, TENSOR, cublas("sm_90", fast_accum=True)),
    HardwareRow("hopper", "CUTLASS", FP8, TENSOR, cutlass_2xacc()),
    HardwareRow("hopper", "CUTLASS", FP8, BLOCKS, cutlass_blockwise()),
    HardwareRow("hopper", "DeepGEMM", FP8, BLOCKS, deepgemm("1d2d")),
    HardwareRow("hopper", "PyTorch", FP8, ROW, torch_rowwise()),
    HardwareRow("ada", "cuBLAS", FP8, TENSOR, cublas("sm_89")),
    HardwareRow("ada", "cuBLAS fast", FP8, TENSOR, cublas("sm_89", fast_accum=True)),
    HardwareRow("blackwell", "cuBLAS", HALF, TENSOR, cublas("sm_100")),
    HardwareRow("blackwell", "cuBLAS", FP8, TENSOR, cublas("sm_100")),
    HardwareRow("blackwell", "DeepGEMM", FP8, MX, deepgemm("1d1d", "sm_100")),
)
# fmt: on
LIBRARIES = tuple(dict.fromkeys(row.library for row in ROWS))


class Hardware(NamedTuple):
    """A chip, and the library that multiplies on it; "" for none, where sums are one chain of the unit."""

    chip: Chip
    library: str
    called: str  # the chip, as it was asked for


def named(word: str, argument: str = "on") -> Hardware:
    """The hardware that a word names: a chip as `fpsim.matrix_units.chips.named` takes it, with a library behind it.

    Raises:
      ValueError: there is no such chip.
      TypeError: the word is no text.

    Example:
      >>> from fpsim.schedules.hardware import named
      >>> [(each.chip.arch, each.library) for each in map(named, ("h100", "H100 cuBLAS", "sm_90 cublas fast"))]
      [('hopper', ''), ('hopper', 'cuBLAS'), ('hopper', 'cuBLAS fast')]
    """
    if isinstance(word, str):
        for library in sorted(LIBRARIES, key=len, reverse=True):
            chip, found, rest = word.strip().lower().rpartition(f" {library.lower()}")
            if found and not rest:
                return Hardware(named_chip(chip, argument), library, word.strip()[: len(chip)])
    return Hardware(named_chip(word, argument, ("H100 cuBLAS",)), "", word)


def kind_of(unit: MatrixUnit) -> str:
    """What rows call the operands of a unit.

    Example:
      >>> from fpsim.schedules.hardware import kind_of
      >>> kind_of(fp.unit("hopper_e5m2xe4m3_f32")), kind_of(fp.unit("hopper_bf16_f32"))
      ('FP8', '16 bits')
    """
    bits = unit.a.fmt.bits
    if bits == 8:
        return FP8
    return HALF if bits == 16 and unit.a == unit.b else f"{unit.a.name} x {unit.b.name}"


def schedule_of(hardware: Hardware, unit: MatrixUnit, scales: str) -> Schedule:
    """What a library does with the operands of a unit.

    Raises:
      ValueError: it is not known; the message says what is.

    Example:
      >>> from fpsim.schedules.hardware import BLOCKS, named, schedule_of
      >>> schedule_of(named("H100 cuBLAS"), fp.unit("hopper_e4m3_f32"), BLOCKS)
      cublas('sm_90', family='block_scaled')
    """
    arch, library, chip = hardware.chip.arch, hardware.library, hardware.called
    rows = [row for row in ROWS if (row.arch, row.library) == (arch, library)]
    for row in rows:
        if (row.operands, row.scales) == (kind_of(unit), scales):
            return row.schedule
    there = tuple(dict.fromkeys(row.library for row in ROWS if row.arch == arch))
    if not rows and there:
        raise unknown(f"the library on {chip}", library, there)
    if not rows:
        raise ValueError(
            f"the order of no library is known here on {chip}; got {library!r}. Name the chip alone for one chain "
            "of its unit, or pass a schedule of fp.schedules."
        )
    known = "; ".join(f"{row.operands} with {row.scales}" for row in rows)
    raise ValueError(
        f"how {library} on {chip} adds {kind_of(unit)} with {scales} is not known here, only {known}. Name the "
        "chip alone for one chain of its unit, or pass a schedule of fp.schedules."
    )
