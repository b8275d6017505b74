"""Schedules of DeepGEMM's FP8 kernels."""

from __future__ import annotations

from collections.abc import Iterator

from fpsim.deprecation import renamed_arguments
from fpsim.errors import require_kind, require_word
from fpsim.schedules.arguments import call_text, chip_of
from fpsim.schedules.call import Call, Library, other_chip
from fpsim.schedules.schedule import Chain, Epilogue, Schedule

DEEPGEMM = "deepseek-ai/DeepGEMM: sm90_fp8_gemm_1d2d.cuh, sm90_fp8_gemm_1d1d.cuh"


@renamed_arguments(arch="chip")
def deepgemm(kernel: str = "1d2d", chip: str = "sm_90", *, fused: bool = True) -> Schedule:
    """Return the schedule of DeepGEMM's FP8 kernels.

    On Hopper four instructions of 32 terms are chained from +0, and their sum is added to the total as
    fma(scale_a * scale_b, partial, total). On Blackwell all instructions are one chain, and the tensor cores apply the
    scales (UE8M0) themselves, as the unit blackwell_mxfp8_e4m3_f32 does.

    Args:
      kernel: "1d2d" (scales per 1x128 of a and 128x128 of b) or "1d1d" (1x128 and 128x1); both add in the same order.
      chip: Hopper or Blackwell, by any name: "sm_90" or "sm_100", "H100" or "B200".
      fused: False for kernels built with a compiler that does not contract scale * partial + total to an fma: on
        Hopper the product is then rounded before it is added.

    Raises:
      ValueError: the kernel is unknown, fpsim does not know DeepGEMM's order on the chip, or fused is False on
        Blackwell, whose tensor cores apply the scales.

    Source: DeepGEMM, sm90_fp8_gemm_1d2d.cuh and sm90_fp8_gemm_1d1d.cuh; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.deepgemm()
      deepgemm('1d2d')
    """
    require_word("kernel", kernel, ("1d2d", "1d1d"))
    known = chip_of(chip, "DeepGEMM", ("hopper", "blackwell")).chip
    require_kind("fused", fused, bool, "True or False")
    if known.arch == "blackwell":
        if not fused:
            raise ValueError("fused=False is for Hopper; on Blackwell tensor cores apply the scales. Leave fused out.")
        return Schedule(
            f"deepgemm({kernel!r}, {known.sm!r})", "DeepGEMM", kernel, known.arch, Chain(),
            epilogue=Epilogue(adds_c=True), source=DEEPGEMM, evidence="source", operands="mxfp8_e4m3",
        )  # fmt: skip
    return Schedule(
        call_text("deepgemm", kernel, fused=(fused, True)), "DeepGEMM", kernel, known.arch,
        Chain(128), epilogue=Epilogue(adds_c=True), block_scaled=True, source=DEEPGEMM,
        evidence="source" if fused else "inferred", fuses_scales=fused,
    )  # fmt: skip


def _operands(call: Call) -> Iterator[str]:
    """Yield the reason why DeepGEMM refuses a call if its operands are not FP8."""
    if not call.is_fp8:
        yield f"{call.schedule} takes FP8 (DeepGEMM, csrc/apis/gemm.hpp); got {call.unit.name}."


LIBRARY = Library(
    "DeepGEMM", (deepgemm("1d2d"), deepgemm("1d1d"), deepgemm("1d1d", "sm_100")), refusals=(other_chip, _operands)
)
