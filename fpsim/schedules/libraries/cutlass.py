"""Schedules of CUTLASS's FP8 kernels: 2xAcc and blockwise scales."""

from __future__ import annotations

from fpsim.errors import require_kind, require_word
from fpsim.schedules.arguments import ORDERS, call_text, positive
from fpsim.schedules.call import Library
from fpsim.schedules.schedule import Chain, Epilogue, ScaleOrder, Schedule

CUTLASS = "NVIDIA/cutlass: gemm/collective/fp8_accumulation.hpp, epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"


def cutlass_2xacc(interval: int = 128, tile: int | None = None) -> Schedule:
    """Return the schedule of CUTLASS's 2xAcc kernels, whose partial sums are added to a float32 total.

    These are KernelTmaWarpSpecialized*FP8 without FastAccum; the FastAccum kernels have the schedule
    `fpsim.schedules.FLAT`, one chain over K. `promote=interval` of `fp.matmul` is short for this schedule.

    Args:
      interval: terms of K from one promotion to the next: mma_promotion_interval times the instruction's terms, which
        is 4 * 32 by default.
      tile: terms of K of a tile of the kernel; CUTLASS counts whole tiles, so it must divide the interval.

    Raises:
      ValueError: the tile does not divide the interval.

    Source: CUTLASS, include/cutlass/gemm/collective/fp8_accumulation.hpp; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cutlass_2xacc(64)
      cutlass_2xacc(64)
    """
    interval = positive(interval, "interval")
    if tile is not None and interval % positive(tile, "tile"):
        raise ValueError(
            f"tile must divide the interval, for CUTLASS promotes where its count of instructions equals the interval "
            f"at the end of a tile (fp8_accumulation.hpp); got a tile of {tile} for an interval of {interval}."
        )
    return Schedule(
        f"cutlass_2xacc({interval})", "CUTLASS", "2xacc", sums=Chain(interval), source=CUTLASS, evidence="source",
        epilogue=Epilogue(fused_bias=True),
    )  # fmt: skip


def cutlass_blockwise(scale_order: ScaleOrder = "a_first", interval: int = 128, *, fused: bool = True) -> Schedule:
    """Return the schedule of CUTLASS's blockwise FP8 kernels, which scale partial sums as they add them to a total.

    Args:
      scale_order: how a partial sum is scaled and added. "a_first": fma(partial * scale_a, scale_b, total), as the
        class GmmaFP8Accumulation does if it gets both scales. "b_first": fma(partial * scale_b, scale_a, total).
        "product": fma(scale_a * scale_b, partial, total), as that class does if it gets the product of the scales.
      interval: terms of K that share a scale.
      fused: False for a compiler that does not contract partial * scale + total: the scaled partial sum is rounded
        before it is added.

    Source: CUTLASS, include/cutlass/gemm/collective/fp8_accumulation.hpp (scale_core); docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cutlass_blockwise("product")
      cutlass_blockwise('product')
    """
    require_word("scale_order", scale_order, ORDERS)
    interval = positive(interval, "interval")
    require_kind("fused", fused, bool, "True or False")
    name = call_text("cutlass_blockwise", scale_order, *([interval] if interval != 128 else []), fused=(fused, True))
    return Schedule(
        name, "CUTLASS", "blockwise", sums=Chain(interval),
        epilogue=Epilogue(scale_order, fused_bias=True), block_scaled=True, source=CUTLASS,
        evidence="source" if fused else "inferred", fuses_scales=fused,
    )  # fmt: skip


LIBRARY = Library("CUTLASS", (cutlass_2xacc(), cutlass_blockwise()))
