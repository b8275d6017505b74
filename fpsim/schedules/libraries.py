"""Schedules as data: one flat chain, and those of CUTLASS, DeepGEMM, Triton and PyTorch's CUTLASS kernels."""

from __future__ import annotations

import re

import numpy as np

from fpsim.errors import unknown
from fpsim.schedules.schedule import Chain, Epilogue, ScaleOrder, Schedule

ORDERS = ("product", "a_first", "b_first")
LEAST_IMPRECISE = 32  # terms of an FP8 wgmma

CUTLASS = "NVIDIA/cutlass: gemm/collective/fp8_accumulation.hpp, epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp"
DEEPGEMM = "deepseek-ai/DeepGEMM: sm90_fp8_gemm_1d2d.cuh, sm90_fp8_gemm_1d1d.cuh"
TRITON = "triton-lang/triton: DotOpToLLVM/WGMMA.cpp, WarpGroupDotOp::needsPartialAccumulator, language/semantic.py"
TORCH = "pytorch/pytorch: aten/src/ATen/native/cuda/RowwiseScaledMM.cu"

FLAT = Schedule(
    "FLAT", sums=Chain(), source="fp.dot_add: instructions chained over ascending k", evidence="hardware"
)  # fmt: skip


def cutlass_2xacc(interval: int = 128, tile: int | None = None) -> Schedule:
    """CUTLASS's 2xAcc (KernelTmaWarpSpecialized*FP8 without FastAccum): partial sums join a float32 total.

    `promote=interval` of `fp.matmul` is short for it. The FastAccum kernels are FLAT.

    Args:
      interval: terms of K from one promotion to the next: mma_promotion_interval times the instruction's terms, which
        is 4 * 32 by default.
      tile: terms of K of a tile of the kernel; CUTLASS counts whole tiles, so it must divide the interval.

    Raises:
      ValueError: a tile that does not divide the interval.

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


def cutlass_blockwise(scale_order: ScaleOrder = "a_first", interval: int = 128) -> Schedule:
    """CUTLASS's blockwise-scaled FP8 kernels: every partial sum is scaled by both blocks' scales as it joins.

    Args:
      scale_order: "a_first": fma(partial * scale_a, scale_b, total), as GmmaFP8Accumulation does with two scales;
        "b_first"; "product": fma(scale_a * scale_b, partial, total), as it does with one.
      interval: terms of K that share a scale.

    Source: CUTLASS, include/cutlass/gemm/collective/fp8_accumulation.hpp (scale_core); docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.cutlass_blockwise("product")
      cutlass_blockwise('product')
    """
    order = _order(scale_order)
    return Schedule(
        f"cutlass_blockwise({order!r}" + (")" if interval == 128 else f", {interval})"), "CUTLASS", "blockwise",
        sums=Chain(positive(interval, "interval")), epilogue=Epilogue(order, fused_bias=True), block_scaled=True,
        source=CUTLASS, evidence="source",
    )  # fmt: skip


def deepgemm(kernel: str = "1d2d", arch: str = "sm_90") -> Schedule:
    """DeepGEMM's FP8 kernels.

    On Hopper four instructions of 32 terms are chained from +0 and join the total as fma(scale_a * scale_b, partial,
    total). On Blackwell the tensor cores apply the scales themselves (UE8M0), in one chain: a unit such as
    blackwell_mxfp8_e4m3_f32.

    Args:
      kernel: "1d2d" (scales per 1x128 of a and 128x128 of b) or "1d1d" (1x128 and 128x1); both add alike.
      arch: "sm_90" or "sm_100".

    Source: DeepGEMM, sm90_fp8_gemm_1d2d.cuh and sm90_fp8_gemm_1d1d.cuh; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.deepgemm()
      deepgemm('1d2d')
    """
    if kernel not in ("1d2d", "1d1d"):
        raise unknown("kernel", kernel, ["1d2d", "1d1d"])
    chip = arch_of(arch, ("hopper", "blackwell"))
    if chip == "blackwell":
        return Schedule(
            f"deepgemm({kernel!r}, {arch!r})", "DeepGEMM", kernel, chip, Chain(), epilogue=Epilogue(adds_c=True),
            source=DEEPGEMM, evidence="source",
        )  # fmt: skip
    return Schedule(
        f"deepgemm({kernel!r})", "DeepGEMM", kernel, chip, Chain(128), epilogue=Epilogue(adds_c=True),
        block_scaled=True, source=DEEPGEMM, evidence="source",
    )  # fmt: skip


def triton(block_k: int = 128, max_num_imprecise_acc: int | None = None) -> Schedule:
    """A Triton loop `acc = tl.dot(a, b, acc, max_num_imprecise_acc=...)` over blocks of K, on Hopper's wgmma.

    FP8 operands only: from max_num_imprecise_acc terms on, partial sums of that many (whole instructions) start at +0
    and join acc in float32; at the end of every block what is left joins too. Otherwise acc runs through one chain.

    Args:
      block_k: BLOCK_K.
      max_num_imprecise_acc: as in tl.dot; None is Triton's own choice on Hopper, 2**30: no promotion.

    Raises:
      ValueError: max_num_imprecise_acc above block_k (Triton refuses it) or below 32 (its compiler does).

    Source: triton-lang/triton, third_party/nvidia/lib/TritonNVIDIAGPUToLLVM/DotOpToLLVM/WGMMA.cpp; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.triton(64, max_num_imprecise_acc=32)
      triton(64, max_num_imprecise_acc=32)
    """
    block_k = positive(block_k, "block_k")
    name, options = f"triton({block_k}", (("block_k", block_k),)
    if max_num_imprecise_acc is None:
        return Schedule(
            f"{name})", "Triton", "tl.dot", sums=Chain(), options=options, source=TRITON, evidence="source"
        )  # fmt: skip
    limit = positive(max_num_imprecise_acc, "max_num_imprecise_acc")
    if not LEAST_IMPRECISE <= limit <= block_k:
        raise ValueError(
            f"max_num_imprecise_acc must lie between {LEAST_IMPRECISE} and block_k, {block_k} (Triton's own rules); "
            f"got {limit}."
        )
    interval = -(-limit // LEAST_IMPRECISE) * LEAST_IMPRECISE
    return Schedule(
        f"{name}, max_num_imprecise_acc={limit})", "Triton", "tl.dot",
        sums=Chain(interval, short_sums_only=True, restart=block_k), options=options, source=TRITON, evidence="source",
    )  # fmt: skip


def torch_rowwise(fast_accum: bool = False) -> Schedule:
    """PyTorch's own CUTLASS kernel for FP8 with a scale per row and column (torch._scaled_mm before cuBLAS 12.9).

    The sum is that of 2xAcc, or one chain; then (sum * scale_a) * scale_b + bias, each operation rounded.

    Args:
      fast_accum: use_fast_accum.

    Source: pytorch, aten/src/ATen/native/cuda/RowwiseScaledMM.cu; docs/schedules.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.torch_rowwise(fast_accum=True)
      torch_rowwise(fast_accum=True)
    """
    return Schedule(
        f"torch_rowwise({'fast_accum=True' if fast_accum else ''})", "PyTorch", "rowwise", "hopper",
        Chain(0 if fast_accum else 128), epilogue=Epilogue("a_first"), fast_accum=fast_accum, source=TORCH,
        evidence="source",
    )  # fmt: skip


def positive(value: int, name: str) -> int:
    """A number of terms at the door."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a positive integer; got {value!r}.")
    return int(value)


ARCHS = {
    "sm_89": "ada", "ada": "ada", "sm_90": "hopper", "sm_90a": "hopper", "hopper": "hopper",
    "sm_100": "blackwell", "sm_100a": "blackwell", "sm_103": "blackwell", "blackwell": "blackwell",
}  # fmt: skip


def arch_of(arch: str, known: tuple[str, ...]) -> str:
    """The family of chips, as units name it, that an architecture belongs to."""
    found = ARCHS.get(re.sub(r"^sm(?=\d)", "sm_", arch.lower())) if isinstance(arch, str) else None
    if found is None or found not in known:
        raise unknown("arch", arch, [name for name, chip in ARCHS.items() if chip in known])
    return found


def _order(scale_order: ScaleOrder) -> ScaleOrder:
    if scale_order not in ORDERS:
        raise unknown("scale_order", scale_order, list(ORDERS))
    return scale_order
