"""Matrix products on the GPU by units of `Rule.FUSED` and `Rule.SCALED`: in float32 where that is exact, else integers.

These units align all terms of an instruction to its largest exponent, truncate them, and add them exactly. Every result
is bit for bit that of `fpsim.matmul`; gpu/products/fused_step.py explains why.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.formats.named import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, FP16, FP32, TF32
from fpsim.gpu.device.device import is_simulated
from fpsim.gpu.device.launch import fetched, launch, launch_blocks, scratch, uploaded, zeroed
from fpsim.gpu.products.fused_kernels import LONG, MIDDLE, NEVER, SHORT, Tile, specified_kernel, tile_kernel
from fpsim.gpu.products.fused_step import LEAST_PLACE, NOTHING, OperandFacts, StepNumbers
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.instructions.plan import unit_plan
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.fast_units import FUSED_TERMS
from fpsim.products.kernels.promotion import ADD

i32 = np.int32

MOST_FRACTION_BITS = 25  # two sums of 16 cuts in int32
OPERANDS = {(fmt, fmt) for fmt in (FP16, BF16, E4M3, E5M2, E3M2, E2M3, E2M1)} | {(TF32, FP32)}
TILE = Tile(high=16, wide=16, rows=8, columns=4, registers=128)
LONG_TILE = Tile(high=16, wide=16, rows=4, columns=4, registers=128)
SIMULATED_TILE = Tile(high=2, wide=2, rows=2, columns=2, registers=0)  # every simulated thread is a Python thread


class _Plan(NamedTuple):
    """Constants of a matrix unit that its kernels need.

    Attributes:
      bits: size of the sum of an instruction, SHORT (at most 24 bits), MIDDLE (31) or LONG (63).
      of_a, of_b: constants of the operands' formats.
      step: properties of the unit's instruction.
    """

    bits: int
    of_a: OperandFacts
    of_b: OperandFacts
    step: StepNumbers


def has_kernel(unit: MatrixUnit) -> bool:
    """Return whether `add_fused` has a kernel for a matrix unit.

    It has one if the unit's rule is FUSED, or SCALED with operands of up to 8 bits; the numbers of terms and of
    fraction bits are within the kernels' bounds; both operands' formats are in OPERANDS; sums are FP32, or FP16 with
    all its bits; and the floor exponent, the smallest to which terms are aligned, is at most 0.
    """
    return (
        unit.rule in (Rule.FUSED, Rule.SCALED)
        and unit.terms in FUSED_TERMS
        and 1 <= unit.fraction_bits <= MOST_FRACTION_BITS
        and all((element.fmt, element.carrier) in OPERANDS for element in (unit.a, unit.b))
        and (unit.d.fmt == FP32 or (unit.d.fmt == FP16 and unit.result_bits == FP16.mantissa_bits))
        and unit.floor_exponent <= 0  # powers of two stay normal float32 numbers
        and (unit.rule is Rule.FUSED or max(unit.a.fmt.bits, unit.b.fmt.bits) <= 8)  # as scaled_operand asks
    )


def add_fused(total: Any, p: GpuProduct, like: Any) -> None:
    """Add the product p, a[:, terms] @ b[terms], to `total` in place, with the additions and roundings of its unit.

    Args:
      total: (M, N) float32 bits as uint32; FP16 codes as uint16 if the unit has FP16 results and p.promote is 0.
      p: the product with its fields a, b and terms. For Rule.SCALED, the terms of each instruction must be in one block
        of scales.
      like: the array on whose stream the kernels run.

    Raises:
      GpuError: the GPU has too little memory, or the launch failed.
    """
    if 0 in (*total.shape, p.terms.size):
        return
    marks, any_mark = add_tiles(total, p, like)
    if fetched(any_mark)[0]:  # which is rare, so that most processes need not compile the specification
        add_marked(total, marks, p, like)


def add_tiles(total: Any, p: GpuProduct, like: Any, tile: Tile | None = None) -> tuple[Any, Any]:
    """Add the product p to `total`, in place, where float32 arithmetic gives the unit's bits; mark the other results.

    Return (marks, any_mark) on the GPU: marks, (M, N) uint8, is 1 for results that are unchanged; any_mark, one int32,
    is 1 if a mark is set. total: as for `add_fused`. tile: the results that a block of threads computes; None for the
    unit's default. like: the array on whose stream kernels run.
    """
    unit, plan = p.unit, _plan(p.unit)
    if tile is None:  # as many results as the registers of a thread allow
        tile = SIMULATED_TILE if is_simulated() else LONG_TILE if plan.bits == LONG else TILE
    (m, n), (height, width) = total.shape, tile.shape
    codes, scaled = total.dtype.itemsize == 2, unit.rule is Rule.SCALED
    marks, any_mark = scratch((m, n), np.uint8), zeroed(1, np.int32)
    rows, columns, mode = _factors(p)
    kernel = tile_kernel(unit.terms, plan.bits, unit.d.fmt == FP16, codes, scaled, mode, tile)
    launch_blocks(
        kernel, like, -(-m // height) * -(-n // width), tile.threads,
        total, marks, any_mark, p.a, p.b, *_scales(p), p.terms, rows, columns,
        plan.of_a, plan.of_b, plan.step, i32(unit.block or 1), i32(p.promote // unit.terms),
    )  # fmt: skip
    return marks, any_mark


def add_marked(total: Any, marks: Any, p: GpuProduct, like: Any) -> None:
    """Add the product p to those results of `total`, in place, that `add_tiles` has marked, by integer arithmetic.

    total: as for `add_fused`. marks: (M, N) uint8 from `add_tiles`, 1 for results to compute. like: the array on whose
    stream kernels run.
    """
    unit, plan = p.unit, unit_plan(p.unit)
    rows, columns, mode = _factors(p)
    launch(
        specified_kernel(unit.rule), like, marks.size,
        total, marks, p.a, p.b, *_scales(p), p.terms, rows, columns,
        uploaded(plan.layouts), uploaded(plan.facts),
        i32(unit.d.fmt == FP16), i32(unit.block or 1), i32(p.promote // unit.terms), i32(mode),
    )  # fmt: skip


def _factors(p: GpuProduct) -> tuple[Any, Any, int]:
    """Return (scales of rows, scales of columns, mode) by which kernels scale the partial sums of the product p.

    The scales are float32 matrices on the GPU, or placeholders that kernels do not read. mode: a mode of `Factors`, or
    NEVER if the product is one sum without partial sums.
    """
    if p.factors.mode == ADD or not p.promote:
        nothing = uploaded(np.zeros(1, np.float32)).reshape(1, 1)
        return nothing, nothing, ADD if p.promote else NEVER
    return p.factors


def _scales(p: GpuProduct) -> tuple[Any, Any]:
    """Return the E8M0 codes of the block scales of p's operands; for units without them, unread placeholders."""
    if p.unit.rule is Rule.SCALED:
        return p.scale_a, p.scale_b
    nothing = uploaded(np.zeros(1, np.uint8)).reshape(1, 1)
    return nothing, nothing


@cache
def _plan(unit: MatrixUnit) -> _Plan:
    """Return the constants of a matrix unit that its kernels need; cached."""
    bound = (unit.terms << (unit.fraction_bits + 2)) + (2 << unit.fraction_bits)  # no sum reaches it
    bits = SHORT if bound <= 1 << SHORT else MIDDLE if bound <= 1 << MIDDLE else LONG
    least_top = unit.fraction_bits + LEAST_PLACE
    floors = unit.floor_exponent >= least_top  # then tiny terms are aligned to the floor
    cleared = (1 << (FP32.mantissa_bits - unit.result_bits)) - 1 if unit.d.fmt == FP32 else 0
    step = (
        unit.fraction_bits, max(unit.floor_exponent, least_top), int(NOTHING) if floors else least_top,
        unit.d.fmt.min_exponent, ~cleared,
    )  # fmt: skip
    return _Plan(bits, _operand_facts(unit.a), _operand_facts(unit.b), StepNumbers(*map(i32, step)))


def _operand_facts(element: Element) -> OperandFacts:
    """Return the constants of an operand's format that the kernels need, as 32-bit integers."""
    fmt = element.carrier
    kept = -1 << (fmt.bits - element.fmt.bits)
    sign = fmt.sign_bit - (1 << 32) if fmt.bits == 32 else fmt.sign_bit
    facts = (
        kept, fmt.top_magnitude, sign, 32 - fmt.bits, fmt.mantissa_bits, fmt.bias, fmt.min_exponent, fmt.max_code,
        254 - fmt.bias << FP32.mantissa_bits,
    )  # fmt: skip
    return OperandFacts(*map(i32, facts))
