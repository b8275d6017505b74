"""The schedule (order of additions) of each library on each chip, by the operands' format and scales, as a table.

Only cases for which fpsim knows a source are listed. cuBLAS may cut K into slices, whose number depends on the shape.
The entries of cuBLAS in this table have one slice; `fpsim.schedules.cublas_choice` knows the number for many shapes.
"""

from __future__ import annotations

from typing import NamedTuple

from fpsim.errors import unknown
from fpsim.matrix_units.chips import NamedChip
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
    """An entry of the table of hardware: a library's schedule for one class of operands and scales.

    Attributes:
      arch: the architecture, such as "hopper".
      library: name of the library, as in `Schedule.library`.
      operands: "FP8" or "16 bits" (FP16 or BF16).
      scales: text of TENSOR, ROW, BLOCKS or MX, such as "a scale per row".
      schedule: the order of additions.
    """

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


def kind_of(unit: MatrixUnit) -> str:
    """Return the name under which ROWS lists the format of a unit's operands: "FP8" or "16 bits".

    For other operands, which ROWS does not list, return their names, such as "tf32 x tf32".

    Example:
      >>> from fpsim.schedules.hardware import kind_of
      >>> kind_of(fp.unit("hopper_e5m2xe4m3_f32")), kind_of(fp.unit("hopper_bf16_f32"))
      ('FP8', '16 bits')
    """
    bits = unit.a.fmt.bits
    if bits == 8:
        return FP8
    return HALF if bits == 16 and unit.a == unit.b else f"{unit.a.name} x {unit.b.name}"


def schedule_of(named: NamedChip, unit: MatrixUnit, scales: str) -> Schedule:
    """Return the schedule of a library on a chip for the operands of a unit.

    named: the chip and the library. unit: the matrix unit. scales: the scales of the operands: TENSOR ("one scale or
    none"), ROW ("a scale per row"), BLOCKS ("scales per 128 terms") or MX ("scales per 32 terms").

    Raises:
      ValueError: no schedule is known; the message lists what is known.

    Example:
      >>> from fpsim.matrix_units.chips import resolve
      >>> from fpsim.schedules.hardware import BLOCKS, schedule_of
      >>> schedule_of(resolve("H100 cuBLAS"), fp.unit("hopper_e4m3_f32"), BLOCKS)
      cublas('sm_90', family='block_scaled')
    """
    arch, library, chip = named.chip.arch, named.library, named.name
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
