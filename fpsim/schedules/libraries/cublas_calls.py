"""cuBLAS as a Library: a schedule of every kernel family, and the checks of calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32
from fpsim.matrix_units.chips import resolve
from fpsim.matrix_units.matrix_unit import Rule as UnitRule
from fpsim.schedules.call import Call, Library, other_chip
from fpsim.schedules.libraries.cublas import (
    GEMV,
    GEMV_BUTTERFLY,
    GEMV_OUTPUTS,
    GEMV_SLICES,
    HEURISTIC,
    NAMED,
    ON,
    cublas,
)
from fpsim.schedules.schedule import Schedule

DOC = "cuBLAS manual, cublasLtMatmul"
TORCH = "torch._scaled_mm"
TE_TEST = "TransformerEngine, test_float8_blockwise_gemm_exact.py"
OUTPUTS = (FP32, FP16, BF16, E4M3, E5M2)
UNKNOWN_MULTIPROCESSORS = 132  # those of an H100, for chips whose number is not known here


def _operands(call: Call) -> Iterator[str]:
    """Yield a sentence for each format in a call, of operands, sums or result, that cuBLAS's kernels don't support.

    nvjet takes FP8 and 16-bit operands; xmma and block_scaled take FP8 alone, cutlass_tf32 TF32 alone, and cutlass_fp32
    float32, without a matrix unit; all others take operands of 16 bits. Sums are float32.
    """
    family, unit = call.schedule.family, call.unit
    if family == "cutlass_fp32" and unit.a.fmt != FP32:
        yield (
            f"cuBLAS's cutlass_fp32 kernels take float32, without a matrix unit; got {unit.name}. Pass "
            "accumulate=fp.FusedMultiplyAdd('fp32')."
        )
    if family == "cutlass_tf32" and unit.a.name != "tf32":
        yield f"cuBLAS's cutlass_tf32 kernels take TF32; got {unit.name}."
    takes_half, takes_fp8 = (
        family not in ("xmma", "block_scaled", "cutlass_tf32", "cutlass_fp32"),
        family in ("nvjet", "xmma", "block_scaled"),
    )
    if (takes_half or takes_fp8) and not (takes_half and call.is_half) and not (takes_fp8 and call.is_fp8):
        kinds = " or ".join(["FP16 or BF16"] * takes_half + ["FP8"] * takes_fp8)
        source = "mmaemu" if family == "xmma" else HEURISTIC
        yield f"cuBLAS's {family} kernels take {kinds} ({source}); got {unit.name}."
    if takes_fp8 and unit.rule is not UnitRule.FUSED:
        yield f"cuBLAS's {family} kernels run on wgmma, tcgen05 or, on Ada, mma, without block scales; got {unit.name}."
    if call.out_fmt not in OUTPUTS:
        yield f"cuBLAS gives {', '.join(map(str, OUTPUTS))} ({DOC}); got out_fmt {call.out_fmt}."
    if unit.d.fmt != FP32:
        yield f"cuBLAS is known with float32 sums alone, CUBLAS_COMPUTE_32F ({HEURISTIC}); got {unit.name}."
    if unit.a.fmt == E5M2 and unit.b.fmt == E5M2:
        yield f"cuBLAS does not multiply E5M2 by E5M2 ({DOC}, table of FP8 types). Encode one operand in E4M3."


def _alignment(call: Call) -> Iterator[str]:
    """Yield a sentence if a size of a call's product is not a multiple of what cuBLAS requires.

    FP8 needs N and K to be multiples of 16, and on Ada M too. With scales of blocks, M must be a multiple of 4, N of 8
    and K of 16.
    """
    m, n, k = call.m, call.n, call.k
    if call.schedule.family == "block_scaled":
        if m % 4 or n % 8 or k % 16:
            yield f"cuBLAS's block scaling wants M % 4, N % 8 and K % 16 to be 0 ({TE_TEST}); got {m} x {n} x {k}. Pad."
    elif call.is_fp8 and (n % 16 or k % 16 or (call.schedule.family == "xmma" and m % 16)):
        sizes = "M, N and K" if call.schedule.family == "xmma" else "N and K"
        yield (
            f"cuBLAS takes FP8 only where {sizes} are multiples of 16 ({DOC}: FP8 kernels; {HEURISTIC}); "
            f"got {m} x {n} x {k}. Pad with zeros."
        )


def _scales(call: Call) -> Iterator[str]:
    """Yield a sentence for each reason why the kernel family of a call's schedule refuses the call's scales.

    cuBLAS has no scales for 16-bit operands. Its block scaling refuses 128x128 scales on both sides, fast accumulation
    and FP8 results.
    """
    kinds = {call.scale_a, call.scale_b} - {"none"}
    if kinds and call.is_half:
        yield f"cuBLAS has scales for FP8 operands only ({DOC}, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER); got scales."
    if call.schedule.family != "block_scaled":
        return
    if call.scale_a == "128x128" and call.scale_b == "128x128":
        yield f"cuBLAS has no product of 128x128 by 128x128 blocks of scales ({DOC}; {TORCH}). Scale one side by 1x128."
    if call.schedule.fast_accum:
        yield f"cuBLAS has no fast accumulation with block scaling ({TORCH}: get_scale_mode). Leave fast_accum out."
    if call.out_fmt not in (FP16, BF16, FP32):
        yield f"cuBLAS gives block-scaled products in FP16, BF16 or FP32 ({DOC}); got out_fmt {call.out_fmt}."


def _outputs(call: Call) -> Iterator[str]:
    """Yield a sentence for each reason why a kernel family of cuBLAS cannot compute a product's M * N outputs.

    The families gemv and dot compute products with M = 1 or N = 1 only. Option 5 of gemv needs M = 1. Its option 10 has
    at most 64 outputs per multiprocessor of the chip. call: the product's sizes, and the schedule with its family and
    option.
    """
    family, outputs = call.schedule.family, call.m * call.n
    if family in ("gemv", "dot") and min(call.m, call.n) > 1:
        yield f"cuBLAS's {family} kernels need M = 1 or N = 1 ({HEURISTIC}); got {call.m} x {call.n}."
    option = call.schedule.option("option", -1)
    if family == "gemv" and option == GEMV_SLICES and call.m > 1:
        yield f"option {GEMV_SLICES} of gemv was seen with M = 1 only ({HEURISTIC}); got {call.m} x {call.n}."
    limit = (resolve(call.schedule.arch).chip.multiprocessors or UNKNOWN_MULTIPROCESSORS) * GEMV_OUTPUTS
    if family == "gemv" and option == GEMV_BUTTERFLY and outputs > limit:
        yield (
            f"option {GEMV_BUTTERFLY} of gemv has these lanes for up to {limit} outputs, 2048 / 32 per multiprocessor "
            f"({HEURISTIC}); got {outputs}."
        )


def _shapes(call: Call) -> Iterator[str]:
    """Yield a sentence if the call's schedule is nvjet's, but cuBLAS's heuristic takes a CUTLASS kernel for its shape.

    The heuristic does so for row-major 16-bit operands if K or N is no multiple of 8. No sentence is yielded if the
    caller asked for nvjet by name.
    """
    schedule = call.schedule
    if call.is_half and schedule.family == "nvjet" and not schedule.option(NAMED, 0) and (call.k % 8 or call.n % 8):
        yield (
            "cuBLAS takes nvjet for row-major operands where K and N are multiples of 8; for "
            f"K = {call.k}, N = {call.n} it takes a CUTLASS kernel."
        )


def _rows() -> list[Schedule]:
    """List the schedules of every family of cuBLAS kernels, with its usual options, on every GPU architecture."""
    rows = []
    for chip in (resolve(name).chip for name in ON):
        options: dict[str, list[dict[str, Any]]] = {
            "gemv": [{"option": option} for option in sorted([*GEMV.get(chip.sm, ()), GEMV_SLICES])],
            "gemm_sn": [{"option": 0}, {"option": 1}], "cutlass": [{"stages": stages} for stages in (0, 7, 13, 19)],
            "nvjet": [{}, {"fast_accum": True}], "xmma": [{}, {"fast_accum": True}],
        }  # fmt: skip
        rows += [cublas(chip.sm, family=of, **fields) for of in ON[chip.arch] for fields in options.get(of, [{}])]
    return rows


LIBRARY = Library(
    "cuBLAS", tuple(_rows()), refusals=(other_chip, _operands, _alignment, _scales, _outputs), remarks=(_shapes,)
)
